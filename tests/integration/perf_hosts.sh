# tcpx perf and tcpx transfer between two hosts (tests/net/netns.sh): what they measure is what the
# link can do, and a link that is cut in the middle is an error at both ends.
. tests/tap.sh
. tests/net/netns.sh

tcpx=$(cd "$BUILD" && pwd)/tcpx
port=6200
SECONDS_EACH=10
export UCCL_TCPX_GPU=host UCCL_TCPX_TIMEOUT_MS=2000

netns_start a b

# pair COMMAND ARGUMENT...
pair()
{
    pair_command=$1
    shift
    hosts_run "$pair_command" "$NETNS_DEVICE" "$NETNS_DEVICE" 10.83.0.2 "$@"
}

# The link is 400 Mbit/s, 0.05 GB/s: no honest figure is above it, and on an idle machine none far
# below.
plausible()
{
    rate=$(sed -n 's/^[0-9]*,[0-9]*,\([0-9.]*\),.*/\1/p' "$TAP_WORK/client")
    echo "$rate GB/s"
    awk -v rate="$rate" -v percent="$(slowness)" \
        'BEGIN { exit !(rate > 2 / percent && rate < 0.052) }'
}

check "a link" netns_veth a b 10.83.0.1 10.83.0.2 400m
check_output "a message" 'received 23 bytes of GPU memory: PASSED' pair transfer
check_output "16 MiB, three times" '^[0-9]+,3,' pair perf --size 16M --iters 3 --warm-up 1 --csv
check "as fast as the link is" plausible
check_output "both ways" '^verified' pair perf --both --size 1M --iters 3

# in_the_middle: of what began after so many bytes.
in_the_middle()
{
    [ "$(netns_bytes a "$NETNS_DEVICE" tx)" -gt $(($1 + (16 << 20))) ]
}

before=$(netns_bytes a "$NETNS_DEVICE" tx)
hosts_start perf "$NETNS_DEVICE" "$NETNS_DEVICE" 10.83.0.2 --size 4M --iters 100000
check "a run in its middle" within 10 in_the_middle "$before"
began=$(now_ms)
check "the link is cut" netns_run a ip link set "$NETNS_DEVICE" down
check "both ends notice" hosts_both_failed 12 "$began"
check_fails_output "a host that is not there" '10\.83\.0\.2' \
    netns_run a "$tcpx" perf client 10.83.0.2 --port $port --timeout 1

netns_end
