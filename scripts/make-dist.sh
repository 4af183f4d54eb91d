#!/bin/sh
# Makes the source archive and the wheel of the Python package.
#
# usage: make-dist.sh FOLDER SOURCES     of these sources, into the folder
set -eu

folder=$(cd "$1" && pwd)
cd "$2"
# The first before anything is built here.
PYTHONPATH=python/backend "${PYTHON:-python3}" -B -c '
import sys, tcpx_build
folder = sys.argv[1]
print(f"{folder}/{tcpx_build.build_sdist(folder)}", flush=True)
wheel = tcpx_build.build_wheel(folder, {"build": "build"})
print(f"{folder}/{wheel}")' "$folder"
