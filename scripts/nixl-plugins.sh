#!/bin/sh
# Prints the folder where the NIXL of a Python looks for its backends; for make install-nixl.
# usage: nixl-plugins.sh [PYTHON]
exec "${1:-python3}" - <<'END'
import importlib.util
import os
import sys

for name in ("nixl_cu13", "nixl_cu12"):
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        continue
    packages = os.path.dirname(list(found.submodule_search_locations)[0])
    folder = os.path.join(packages, f".{name}.mesonpy.libs", "plugins")
    if os.path.isdir(folder):
        print(folder)
        sys.exit()
sys.exit(f"{sys.executable} has no NIXL: expected nixl-cu12 or nixl-cu13 among its packages")
END
