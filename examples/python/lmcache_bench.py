"""LMCache's own benchmark of transfer channels, over tcpx: how fast one LMCache server reads another one's cache.

    pip install lmcache
    python lmcache_bench.py server 192.0.2.1:7600
    python lmcache_bench.py client 192.0.2.1:7600 --verify

Further arguments are the benchmark's: --num-objects, --object-size, --iters, ...
"""

import runpy
import sys

import tcpx.integrations.lmcache


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("server", "client") or not sys.argv[2].rpartition(":")[2].isdigit():
        raise SystemExit(__doc__)
    role, url, *others = sys.argv[1:]
    host, _, port = url.rpartition(":")
    arguments = ["--transfer-channel-type", "tcpx", "--role", role, "--url", url]
    arguments += ["--control-url", f"{host}:{int(port) + 1}"]
    if role == "client":
        arguments += ["--listen-url", "0.0.0.0:0"]  # a client is not read from: any port
    tcpx.integrations.lmcache.register()
    sys.argv[1:] = [*arguments, *others]
    runpy.run_module("lmcache.tools.transfer_channel_benchmark", run_name="__main__")


if __name__ == "__main__":
    main()
