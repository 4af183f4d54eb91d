"""tcpx inside of other programs: tcpx.integrations.ray and tcpx.integrations.lmcache.

Each imports the package that it is for, and nothing else of tcpx imports one of them.
"""


def joined(parts):
    """The parts of a list in their order, of which there is at least one: in pairs, so that long lists are cheap."""
    parts = list(parts)
    while len(parts) > 1:
        odd = parts[len(parts) & ~1 :]
        parts = [first + second for first, second in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]
