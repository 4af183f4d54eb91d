"""python -m tcpx COMMAND: the program tcpx of this wheel; `nixl` is a command of the package."""

import os
import sys

from tcpx import _nixl


def main():
    if sys.argv[1:] == ["nixl"]:
        return _nixl.install()
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tcpx")
    try:
        os.execv(program, ["tcpx", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"tcpx: {program} cannot be executed: {error.strerror}")


if __name__ == "__main__":
    main()
