#!/bin/sh
# Prints the folders where the NIXL of a Python looks for its backends; for make install-nixl.
# usage: nixl-plugins.sh [PYTHON]
exec "${1:-python3}" "$(dirname "$0")/../python/tcpx/_nixl.py"
