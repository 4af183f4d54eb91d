# tcpx perf over a path of 1 Gbit/s with a round trip of 10 ms, where 1.2 MB are in flight: it is about as fast as
# one plain TCP stream (tests/net/pump.c) over the same path, also when the transfer is many small ones.
. tests/tap.sh
. tests/net/netns.sh

[ -z "${SANITIZE-}" ] || tap_skip_all "a measurement: it says nothing about a build with a sanitizer"
netns_start a b
tcpx=$(cd "$BUILD" && pwd)/tcpx
pump=$TAP_WORK/pump
port=6300
SECONDS_EACH=20
mebibytes=64
export UCCL_TCPX_GPU=host

# raw_rate: Gbit/s of a plain stream, in $raw.
raw_rate()
{
    netns_spawn b "$pump" recv 10.84.0.2 "$port" $((mebibytes << 20)) >"$TAP_WORK/received" 2>&1 </dev/null
    receiver=$NETNS_PID
    netns_run a "$pump" send 10.84.0.2 "$port" $((mebibytes << 20)) >"$TAP_WORK/sent" 2>&1 || return 1
    wait "$receiver" || return 1
    port=$((port + 1))
    raw=$(sed -n 's/.*: \([0-9.]*\) Mbit.*/\1/p' "$TAP_WORK/sent")
}

# nearly_raw OPTION...: at least 0.7 of the stream, measured one after the other.
nearly_raw()
{
    raw_rate || return 1
    hosts_run perf path path 10.84.0.2 --host --size ${mebibytes}M --iters 1 --warm-up 0 --csv "$@" || return 1
    rate=$(sed -n 's/^[0-9]*,1,\([0-9.]*\),.*/\1/p' "$TAP_WORK/client")
    awk -v rate="$rate" -v raw="$raw" 'BEGIN {
        printf "%.0f Mbit/s beside %.0f: %.2f\n", rate * 8000, raw, rate * 8000 / raw
        exit !(rate * 8000 >= 0.7 * raw) }'
}

check "the program compiles" compile_program pump
check "a path of 10 ms and 1 Gbit/s" netns_relay path a b 10.84.0.1 10.84.0.2 --delay 5 --rate 1g --queue 2m --offload
check "one transfer over one connection" sometimes nearly_raw --sockets 1
check "one transfer over four" sometimes nearly_raw --sockets 4
check "transfers of 12 KiB over four" sometimes nearly_raw --sockets 4 --chunk-bytes 12K
check "the relay ends" relay_stop path

netns_end
