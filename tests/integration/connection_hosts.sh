# tcpx connection between two hosts (tests/net/netns.sh): over IPv4 and IPv6, with data on another
# link than the meeting, with a handle that the client cannot reach, and over a link that is cut.
. tests/tap.sh
. tests/net/netns.sh

tcpx=$(cd "$BUILD" && pwd)/tcpx
port=6100
export UCCL_TCPX_GPU=host UCCL_TCPX_TIMEOUT_MS=2000

netns_start a b

# start SERVER_INTERFACE CLIENT_INTERFACE ADDRESS ARGUMENT...: a server on b, a client on a. What
# they say goes to $TAP_WORK/server and client, their ids to $SERVER and $CLIENT.
start()
{
    start_server=$1 start_client=$2 start_address=$3
    shift 3
    UCCL_TCPX_DEBUG=1 NCCL_SOCKET_IFNAME=$start_server netns_spawn b "$tcpx" connection server \
        --port $port --timeout "$(limit 5)" >"$TAP_WORK/server" 2>&1 </dev/null
    SERVER=$NETNS_PID
    NCCL_SOCKET_IFNAME=$start_client netns_spawn a "$tcpx" connection client "$start_address" \
        --port $port --timeout "$(limit 5)" "$@" >"$TAP_WORK/client" 2>&1 </dev/null
    CLIENT=$NETNS_PID
    port=$((port + 1))
}

# finish: of both; 0 if both succeeded.
finish()
{
    server_status=0 client_status=0
    wait "$CLIENT" || client_status=$?
    wait "$SERVER" || server_status=$?
    echo "server: status $server_status"
    cat "$TAP_WORK/server"
    echo "client: status $client_status"
    cat "$TAP_WORK/client"
    [ $server_status -eq 0 ] && [ $client_status -eq 0 ]
}

pair()
{
    start "$@"
    finish
}

# both_failed SECONDS SINCE: by themselves, in time, and each in words.
both_failed()
{
    finish
    both_spent=$(($(now_ms) - $2))
    echo "$both_spent ms"
    [ $server_status -eq 1 ] && [ $client_status -eq 1 ] && [ $both_spent -le "$(limit "${1}000")" ] &&
        grep -q '^tcpx: ' "$TAP_WORK/server" && grep -q '^tcpx: ' "$TAP_WORK/client"
}

many_accepted()
{
    [ "$(grep -c accepted "$TAP_WORK/server")" -gt 5 ]
}

check "a link" netns_veth a b 10.82.0.1 10.82.0.2
first=$NETNS_DEVICE
check "another one" netns_veth a b 10.82.1.1 10.82.1.2
second=$NETNS_DEVICE
check "one connection" pair "$first" "$first" 10.82.0.2
check "names the peer" grep -q '^to 10\.82\.0\.2:[0-9]*, device 0' "$TAP_WORK/client"
check "50 connections" pair "$first" "$first" 10.82.0.2 --count 50
sent=$(netns_bytes a "$second" tx)
check "50 over another link than the meeting" pair "$second" "$second" 10.82.0.2 --count 50
check "which has carried them" test $(($(netns_bytes a "$second" tx) - sent)) -gt 5000
if [ -e /proc/sys/net/ipv6 ]; then
    check "a link with IPv6" netns_veth a b fd82::1 fd82::2
    check "one connection over it" pair "$NETNS_DEVICE" "$NETNS_DEVICE" fd82::2
else
    tap_skip "IPv6" "this kernel has none"
fi

# The listener is on b's loopback, where a cannot get; b hears that from a.
began=$(now_ms)
start lo "$first" 10.82.0.2
check "a handle that leads nowhere" both_failed 8 "$began"
check "the server is told why" grep -q '^tcpx: .*10\.82\.0\.1:[0-9]* refused: ' "$TAP_WORK/server"

start "$first" "$first" 10.82.0.2 --count 10000
check "very many have begun" within 10 many_accepted
began=$(now_ms)
check "the link is cut" netns_run a ip link set "$first" down
check "both ends notice" both_failed 12 "$began"

netns_cleanup
check_fails "no namespace is left" sh -c "ls /run/netns | grep '^$NETNS_PREFIX'"

tap_end
