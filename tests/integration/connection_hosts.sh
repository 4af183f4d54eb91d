# tcpx connection between two hosts (tests/net/netns.sh): over IPv4 and IPv6, with data on another
# link than the meeting, with a handle that the client cannot reach, and over a link that is cut.
. tests/tap.sh
. tests/net/netns.sh

tcpx=$(cd "$BUILD" && pwd)/tcpx
port=6100
SECONDS_EACH=5
SERVER_DEBUG=1
export UCCL_TCPX_GPU=host UCCL_TCPX_TIMEOUT_MS=2000

netns_start a b

many_accepted()
{
    [ "$(grep -c accepted "$TAP_WORK/server")" -gt 5 ]
}

check "a link" netns_veth a b 10.82.0.1 10.82.0.2
first=$NETNS_DEVICE
check "another one" netns_veth a b 10.82.1.1 10.82.1.2
second=$NETNS_DEVICE
check "one connection" hosts_run connection "$first" "$first" 10.82.0.2
check "names the peer" grep -q '^to 10\.82\.0\.2:[0-9]*, device 0' "$TAP_WORK/client"
check "50 connections" hosts_run connection "$first" "$first" 10.82.0.2 --count 50
sent=$(netns_bytes a "$second" tx)
check "50 over another link than the meeting" hosts_run connection "$second" "$second" 10.82.0.2 --count 50
check "which has carried them" test $(($(netns_bytes a "$second" tx) - sent)) -gt 5000
if [ -e /proc/sys/net/ipv6 ]; then
    check "a link with IPv6" netns_veth a b fd82::1 fd82::2
    check "one connection over it" hosts_run connection "$NETNS_DEVICE" "$NETNS_DEVICE" fd82::2
else
    tap_skip "IPv6" "this kernel has none"
fi

# The listener is on b's loopback, where a cannot get; b hears that from a.
began=$(now_ms)
hosts_start connection lo "$first" 10.82.0.2
check "a handle that leads nowhere" hosts_both_failed 8 "$began"
check "the server is told why" grep -q '^tcpx: .*10\.82\.0\.1:[0-9]* refused: ' "$TAP_WORK/server"

hosts_start connection "$first" "$first" 10.82.0.2 --count 10000
check "very many have begun" within 10 many_accepted
began=$(now_ms)
check "the link is cut" netns_run a ip link set "$first" down
check "both ends notice" hosts_both_failed 12 "$began"

netns_end
