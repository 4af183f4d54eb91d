"""python -m tcpx nixl: puts the backend TCPX beside those of the NIXL of this Python.

By itself, `python _nixl.py` prints the folders where that NIXL looks for backends. There are two where it is
installed for CUDA 12 and 13: it takes the one that fits torch when a program runs.
"""

import importlib.util
import os
import shutil
import sys

FILE = "libplugin_TCPX.so"


def folders():
    """Ends the program in words if there is no NIXL."""
    there = []
    for name in ("nixl_cu13", "nixl_cu12"):
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            continue
        packages = os.path.dirname(list(found.submodule_search_locations)[0])
        plugins = os.path.join(packages, f".{name}.mesonpy.libs", "plugins")
        if os.path.isdir(plugins):
            there.append(plugins)
    if not there:
        sys.exit(f"{sys.executable} has no NIXL: expected nixl-cu12 or nixl-cu13 among its packages")
    return there


def install():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nixl", FILE)
    if not os.path.exists(here):
        sys.exit("tcpx: this package was built where there is no C++ compiler, so it has no backend for NIXL")
    for folder in folders():
        there = os.path.join(folder, FILE)
        try:
            # A new file: programs that have the old one keep it.
            shutil.copyfile(here, f"{there}.new")
            os.chmod(f"{there}.new", 0o755)
            os.replace(f"{there}.new", there)
        except OSError as error:
            sys.exit(f"tcpx: {there} cannot be written: {error.strerror}")
        print(f"{there} is there: NIXL has the backend TCPX")


if __name__ == "__main__":
    print(*folders(), sep="\n")
