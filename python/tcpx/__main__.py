"""python -m tcpx COMMAND: the program tcpx of this wheel; `nixl` is a command of the package."""

import os
import sys

from tcpx import _nixl, _program


def main():
    if sys.argv[1:] == ["nixl"]:
        return _nixl.install()
    program = _program.path()
    try:
        os.execv(program, ["tcpx", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"tcpx: {program} cannot be executed: {error.strerror}")


if __name__ == "__main__":
    main()
