# Hosts with several interfaces (tests/net/netns.sh): those that reach the peer are used, all of them;
# those that do not are left out, in words and in bounded time, whatever the reason: filtered, without a
# route, down, only there on one host. Bridges and the interfaces of containers are not chosen.
. tests/tap.sh
. tests/net/netns.sh

tcpx=$(cd "$BUILD" && pwd)/tcpx
plugin=$(cd "$BUILD" && pwd)/libnccl-net-tcpx.so
port=6500
SECONDS_EACH=15
export UCCL_TCPX_GPU=host UCCL_TCPX_TIMEOUT_MS=20000 UCCL_TCPX_DEBUG=1
SERVER_DEBUG=1
unset NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_GPUDIRECTTCPX_SOCKET_IFNAME

netns_start a b
mebibyte=1048576

# two_hosts: new ones, with nothing but loopback.
two_hosts()
{
    netns_cleanup
    trap - HUP INT TERM
    netns_new a && netns_new b
}

# link NAME ADDR_A ADDR_B [NUMBER_A NUMBER_B]: with this name on both.
link()
{
    ip link add "$1" ${4:+index "$4"} netns "${NETNS_PREFIX}a" type veth \
        peer name "$1" ${5:+index "$5"} netns "${NETNS_PREFIX}b" &&
        netns_run a ip link set "$1" up && netns_run b ip link set "$1" up && netns_join a b "$1" "$2" "$3"
}

# nic HOST NAME ADDRESS: an interface with nothing behind it.
nic()
{
    netns_run "$1" ip link add "$2" type veth peer name "f-$2" &&
        netns_run "$1" ip link set "f-$2" up && netns_run "$1" ip link set "$2" up &&
        netns_run "$1" ip addr add "$3" dev "$2" && await_link "$NETNS_PREFIX$1" "$2"
}

# filter HOST RULE: of what comes in, instead of the rule before.
filter()
{
    netns_run "$1" nft -f - <<END
flush ruleset
table inet cut {
    chain input {
        type filter hook input priority 0;
        $2
    }
}
END
}

# drop_tcp INTERFACE: on both, without an answer.
drop_tcp()
{
    filter a "iifname $1 meta l4proto tcp drop" && filter b "iifname $1 meta l4proto tcp drop"
}

# received HOST DEVICE: bytes.
received()
{
    netns_bytes "$1" "$2" rx
}

# run COMMAND ADDRESS ARGUMENT...: both ends, without a filter of interfaces. $spent: milliseconds.
run()
{
    command=$1 address=$2
    shift 2
    began=$(now_ms)
    hosts_run "$command" "" "" "$address" "$@"
    run_status=$?
    spent=$(($(now_ms) - began))
    return $run_status
}

# left_out SIDE INTERFACE REASON: its log says so, once for each path.
left_out()
{
    grep "network interface left out: $2 (" "$TAP_WORK/$1" | sort | uniq -c >"$TAP_WORK/left_out"
    cat "$TAP_WORK/left_out"
    grep -Eq "$3" "$TAP_WORK/left_out" && ! grep -qv '^ *1 ' "$TAP_WORK/left_out"
}

# said SIDE REGEX
said()
{
    cat "$TAP_WORK/$1"
    grep -Eq "$2" "$TAP_WORK/$1"
}

in_time()
{
    echo "$spent ms"
    [ "$spent" -lt "$(limit "$1")" ]
}

# --- two subnets, both work ----------------------------------------------------------------------

check "two hosts" two_hosts
check "a link" link eth0 10.85.0.1/24 10.85.0.2/24
check "another one" link eth1 10.85.1.1/24 10.85.1.2/24
before0=$(received b eth0) before1=$(received b eth1)
check "a session over both" run perf 10.85.0.2 --size 8M --iters 4
check "has two channels over both" said client 'built-in transport over eth0,eth1, 2 channels'
check "the first one has carried its part" test $(($(received b eth0) - before0)) -gt $((15 * mebibyte))
check "and so has the other" test $(($(received b eth1) - before1)) -gt $((15 * mebibyte))
check_fails "nothing was left out" grep 'left out' "$TAP_WORK/client" "$TAP_WORK/server"

check "one channel of a user's is enough for both sides" run perf 10.85.0.2 --size 8M --iters 4 --channels 1

# --- the other order of interfaces on the other host ---------------------------------------------

# Interfaces are devices in the order of their numbers.
check "two hosts" two_hosts
check "a link that is the first of a and the second of b" link eth0 10.85.0.1/24 10.85.0.2/24 21 22
check "the other way round" link eth1 10.85.1.1/24 10.85.1.2/24 22 21
for side in a b; do
    netns_run $side sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter'
done
before0=$(received b eth0) before1=$(received b eth1)
check "a session over both" run perf 10.85.0.2 --size 8M --iters 4
check "each has carried its part" test $(($(received b eth0) - before0)) -gt $((15 * mebibyte))
check "and the other" test $(($(received b eth1) - before1)) -gt $((15 * mebibyte))

# --- one of two does not work --------------------------------------------------------------------

# one_is_cut WHAT REASON MILLISECONDS: the interface eth1, seen from a.
one_is_cut()
{
    before1=$(received b eth1)
    check "$1: a session" run perf 10.85.0.2 --size 8M --iters 4
    check "$1: in time" in_time "$3"
    check "$1: over the other" said client 'built-in transport over eth0, '
    check "$1: a says so" left_out client eth1 "$2"
    check "$1: next to nothing went there" test $(($(received b eth1) - before1)) -lt $mebibyte
    check "$1: a transfer" run transfer 10.85.0.2
    check "$1: over NCCL's table" plugin_run perf 10.85.0.2 --size 8M --iters 4
    check "$1: in time, too" in_time "$3"
}

plugin_run()
{
    (
        export UCCL_TCPX_PLUGIN_PATH="$plugin"
        run "$@"
        echo "$spent" >"$TAP_WORK/spent"
        exit $run_status
    )
    plugin_status=$?
    spent=$(cat "$TAP_WORK/spent")
    return $plugin_status
}

check "two hosts" two_hosts
check "a link" link eth0 10.85.0.1/24 10.85.0.2/24
check "one whose subnets differ" link eth1 10.85.1.1/24 10.85.2.2/24
one_is_cut "no route" 'cannot connect to 10\.85\.2\.2:[0-9]+: (Network is unreachable|No route)' 6000

check "one address of the same subnet" netns_run b ip addr replace 10.85.1.2/24 dev eth1
check "and not of another" netns_run b ip addr del 10.85.2.2/24 dev eth1
if drop_tcp eth1 2>"$TAP_WORK/filter"; then
    one_is_cut "filtered" '10\.85\.1\.2:[0-9]+ does not answer, after 2[0-9]{3} ms' 12000
    check "the first one is filtered instead" drop_tcp eth0
    SECONDS_EACH=2
    check "a session that has to be open in 2 seconds" sometimes run perf 10.85.1.2 --size 8M --iters 4
    SECONDS_EACH=15
    check "a session" run perf 10.85.1.2 --size 8M --iters 4
    check "over the other" said client 'built-in transport over eth1, '
    check "a transfer, whose first device is filtered" run transfer 10.85.1.2
    check "in time" in_time 12000
    check "a says so" left_out client eth0 '10\.85\.0\.2:[0-9]+ does not answer'
    check "connections" run connection 10.85.1.2 --count 20
    check "only the first of which has to wait" in_time 12000
    check "nothing may come but the meeting" filter a ""
    check "at $port" filter b "tcp dport != $port ct state new reject with tcp reset"
    check_fails "nothing works" run transfer 10.85.0.2
    check "and each try has its reason" said client \
        'eth0 \(10\.85\.0\.1\): cannot connect to 10\.85\.0\.2:[0-9]+: Connection refused; .*eth1 \(10\.85\.1\.1\): cannot connect to 10\.85\.1\.2:[0-9]+: Connection refused'
else
    tap_skip "filtered interfaces" "this kernel cannot filter packets"
fi

# --- nothing answers -----------------------------------------------------------------------------

check "two hosts" two_hosts
check "a link" link eth0 10.85.0.1/24 10.85.0.2/24
check "another one" link eth1 10.85.1.1/24 10.85.1.2/24
check "an address to meet at, which is no device's" netns_run b ip addr add 10.85.5.2/32 dev lo
check "a route there" netns_run a ip route add 10.85.5.2 via 10.85.0.2
if filter b "ip daddr { 10.85.0.2, 10.85.1.2 } ct state new drop" 2>"$TAP_WORK/filter"; then
    check_fails "a session" run perf 10.85.5.2 --timeout 4 --size 8M --iters 4
    check "each try has its reason" said client \
        'in time: eth0 \(10\.85\.0\.1\): 10\.85\.0\.2:[0-9]+ does not answer; .*eth1 \(10\.85\.1\.1\): 10\.85\.1\.2:[0-9]+ does not answer'
else
    tap_skip "nothing answers" "this kernel cannot filter packets"
fi

# --- an interface of one host only, and ranks ----------------------------------------------------

check "two hosts" two_hosts
check "a link" link eth0 10.85.0.1/24 10.85.0.2/24
check "an interface that only a has" nic a eth9 10.85.9.1/24
check "a session, as many channels as both have" run perf 10.85.0.2 --size 8M --iters 4
check "is over the common one" said client 'built-in transport over eth0, 1 channel'
check "an interface of a's that goes before all others" nic a ib0 10.85.10.1/24
check "b has one, too, elsewhere" nic b ib0 10.85.11.2/24
check_output "it is the only device of a" 'device 0: ib0' netns_run a "$tcpx" devices
check "a session all the same" run perf 10.85.0.2 --size 8M --iters 4
check "over what both reach" said client 'built-in transport over eth0, '
check "a transfer" run transfer 10.85.0.2
check "a says why" left_out client ib0 'cannot connect to 10\.85\.11\.2:'
check_fails "an interface that a user names is the only one" \
    hosts_run transfer ib0 ib0 10.85.0.2
check_fails "nothing else was tried" grep -q eth0 "$TAP_WORK/client"

# --- bridges and containers ----------------------------------------------------------------------

check "two hosts" two_hosts
check "a link" link eth0 10.85.0.1/24 10.85.0.2/24
for side in a b; do
    check "a bridge with containers on $side" netns_run $side sh -c 'ip link add mybridge type bridge &&
        ip link add cont0 type veth peer name cont1 && ip link set cont0 master mybridge &&
        ip link set cont0 up && ip link set cont1 up && ip link set mybridge up &&
        ip addr add 172.30.0.1/16 dev mybridge'
    check "is up" await_link "$NETNS_PREFIX$side" mybridge
    for name in cni0 docker0 flannel.1 cilium_host cali123 kube-ipvs0 nodelocaldns tunl0x vxlan.calico weave; do
        nic $side $name 172.31.0.1/32 || echo "no $name"
    done >"$TAP_WORK/made" 2>&1
    check "the networks of containers on $side" test ! -s "$TAP_WORK/made"
done
bridges=$(received b mybridge)
check "a session" run perf 10.85.0.2 --size 8M --iters 4
check "over the only real interface" said client 'built-in transport over eth0, 1 channel'
check "a transfer" run transfer 10.85.0.2
check "no byte went to the bridge" test "$(received b mybridge)" -eq "$bridges"

# --- an interface that goes down between listen and connect --------------------------------------

check "two hosts" two_hosts
check "a link" link eth0 10.85.0.1/24 10.85.0.2/24
check "another one" link eth1 10.85.1.1/24 10.85.1.2/24
netns_spawn b "$tcpx" transfer server --once --port "$port" --timeout "$(limit 30)" >"$TAP_WORK/server" 2>&1 </dev/null
SERVER=$NETNS_PID
check "the server listens" within 10 netns_listens b "$port"
check "its first interface goes down" netns_run b ip link set eth0 down
began=$(now_ms)
netns_spawn a "$tcpx" transfer client 10.85.1.2 --port "$port" --timeout "$(limit 30)" >"$TAP_WORK/client" 2>&1 </dev/null
CLIENT=$NETNS_PID
check "a transfer over the other" hosts_finish
spent=$(($(now_ms) - began))
check "in time" in_time 12000

# --- IPv6 only -----------------------------------------------------------------------------------

if [ -e /proc/sys/net/ipv6 ]; then
    check "two hosts" two_hosts
    check "a link with IPv6 only" link eth0 fd85::1/64 fd85::2/64
    check "another one" link eth1 fd85:1::1/64 fd85:1::2/64
    check "a session" run perf fd85::2 --size 8M --iters 4
    check "over both" said client 'built-in transport over eth0,eth1, 2 channels'
    check "a transfer" run transfer fd85::2
    check "b has IPv4, too, and a does not" netns_run b ip addr add 10.85.0.2/24 dev eth0
    check "a transfer" run transfer fd85::2
    check "and a session" run perf fd85::2 --size 8M --iters 4

    check "two hosts" two_hosts
    check "a link with link-local addresses only" link eth0 fe80::1/64 fe80::2/64 31 32
    check "a transfer" run transfer fe80::2%eth0
    check "a session" run perf fe80::2%eth0 --size 8M --iters 4
else
    tap_skip "IPv6" "this kernel has none"
fi

netns_end
