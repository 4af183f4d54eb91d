# tcpx perf and tcpx transfer between two hosts (tests/net/netns.sh): what they measure is what the
# link can do, and a link that is cut in the middle is an error at both ends.
. tests/tap.sh
. tests/net/netns.sh

tcpx=$(cd "$BUILD" && pwd)/tcpx
port=6200
export UCCL_TCPX_GPU=host UCCL_TCPX_TIMEOUT_MS=2000

netns_start a b

# start COMMAND ARGUMENT...: a server on b, a client on a with those arguments.
start()
{
    start_command=$1
    shift
    NCCL_SOCKET_IFNAME=$NETNS_DEVICE netns_spawn b "$tcpx" "$start_command" server --port $port \
        --timeout "$(limit 10)" >"$TAP_WORK/server" 2>&1 </dev/null
    SERVER=$NETNS_PID
    NCCL_SOCKET_IFNAME=$NETNS_DEVICE netns_spawn a "$tcpx" "$start_command" client 10.83.0.2 \
        --port $port --timeout "$(limit 10)" "$@" >"$TAP_WORK/client" 2>&1 </dev/null
    CLIENT=$NETNS_PID
    port=$((port + 1))
}

# pair COMMAND ARGUMENT...: 0 if both succeeded.
pair()
{
    start "$@"
    server_status=0 client_status=0
    wait "$CLIENT" || client_status=$?
    wait "$SERVER" || server_status=$?
    cat "$TAP_WORK/server" "$TAP_WORK/client"
    [ $server_status -eq 0 ] && [ $client_status -eq 0 ]
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
start perf --size 4M --iters 100000
check "a run in its middle" within 10 in_the_middle "$before"
began=$(now_ms)
check "the link is cut" netns_run a ip link set "$NETNS_DEVICE" down
cut_is_noticed()
{
    server_status=0 client_status=0
    wait "$CLIENT" || client_status=$?
    wait "$SERVER" || server_status=$?
    spent=$(($(now_ms) - began))
    echo "$spent ms"
    cat "$TAP_WORK/server" "$TAP_WORK/client"
    [ $server_status -eq 1 ] && [ $client_status -eq 1 ] && [ $spent -le "$(limit 12000)" ] &&
        grep -q '^tcpx: ' "$TAP_WORK/server" && grep -q '^tcpx: ' "$TAP_WORK/client"
}
check "both ends notice" cut_is_noticed
check_fails_output "a host that is not there" '10\.83\.0\.2' \
    netns_run a "$tcpx" perf client 10.83.0.2 --port $port --timeout 1

tap_end
