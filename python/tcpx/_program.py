"""The program tcpx, which the package has with it."""

import os


def path():
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tcpx")
