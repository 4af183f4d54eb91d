"""python -m tcpx COMMAND: the program tcpx of this wheel."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tcpx")
    try:
        os.execv(program, ["tcpx", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"tcpx: {program} cannot be executed: {error.strerror}")


if __name__ == "__main__":
    main()
