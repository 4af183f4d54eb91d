# Hosts whose firewalls let one port in, and a host behind address translation: UCCL_TCPX_PORT and
# UCCL_TCPX_ADVERTISE are enough for every command, for sessions and for NCCL's table.
. tests/tap.sh
. tests/net/netns.sh

tcpx=$(cd "$BUILD" && pwd)/tcpx
plugin=$(cd "$BUILD" && pwd)/libnccl-net-tcpx.so
SECONDS_EACH=5
open_port=6200
also_open=6201
export UCCL_TCPX_GPU=host UCCL_TCPX_TIMEOUT_MS=3000 UCCL_TCPX_SOCKETS=3

command -v nft >/dev/null || tap_skip_all "nft is not installed (Debian: nftables)"
netns_start a b

# firewall NAME: new connections may come to $open_port and $also_open only.
firewall()
{
    netns_run "$1" nft -f - <<END
table inet firewall {
    chain input {
        type filter hook input priority 0; policy drop;
        iifname "lo" accept
        ct state established,related accept
        meta l4proto ipv6-icmp accept
        tcp dport { $open_port, $also_open } accept
        reject with tcp reset
    }
}
END
}

# meet COMMAND ARGUMENT...: both ends, which meet at the open port.
meet()
{
    port=$open_port
    command=$1
    shift
    hosts_run "$command" "$NETNS_DEVICE" "$NETNS_DEVICE" "$address" "$@"
}

# env_meet NAME=VALUE NAME=VALUE COMMAND...: the same with these variables.
env_meet()
{
    (
        export "$1" "$2"
        shift 2
        meet "$@"
    )
}

check "a link" netns_veth a b 10.83.0.1 10.83.0.2
address=10.83.0.2
firewall a && firewall b || tap_skip_all "this kernel cannot filter packets"

check_fails "the firewall stops a transfer that opens ports as it likes" meet transfer
export UCCL_TCPX_PORT=$open_port
check "a transfer" meet transfer
check "connections" meet connection --count 20
check "a session, both ways, several channels" meet perf --size 4M --iters 3 --both --channels 4
# The plugin is a library of its own, with a port of its own.
check "a session over NCCL's table" env_meet "UCCL_TCPX_PLUGIN_PATH=$plugin" \
    "UCCL_TCPX_PORT=$open_port-$also_open" perf --size 4M --iters 3
if [ -e /proc/sys/net/ipv6 ]; then
    check "a link with IPv6" netns_veth a b fd83::1 fd83::2
    address=fd83::2
    check "a transfer over it" meet transfer
else
    tap_skip "IPv6" "this kernel has none"
fi

# --- a range: each process has its own port of it

netns_run b nft flush ruleset
netns_run a nft flush ruleset
check "another link" netns_veth a b 10.83.1.1 10.83.1.2
address=10.83.1.2
UCCL_TCPX_PORT=6300-6303
check "ports of a range" meet perf --size 1M --iters 3
UCCL_TCPX_PORT=6300
export UCCL_TCPX_PORT
netns_spawn b "$tcpx" transfer server --once --port 6300 --timeout "$(limit 30)" >"$TAP_WORK/first" 2>&1 </dev/null
first=$NETNS_PID
check "a process has the port" within 10 netns_listens b 6300
listens()
{
    netns_run b "$tcpx" transfer server --once --port 6300 --timeout 1 >"$TAP_WORK/second" 2>&1
    grep -q 'Address already in use' "$TAP_WORK/second"
}
check "a second process has no port, and says so" within 10 listens
kill "$first" && wait "$first" 2>/dev/null

# --- address translation: a knows b as 10.99.0.2

unset UCCL_TCPX_PORT
check "a route" netns_run a ip route add 10.99.0.2 via 10.83.1.2
if netns_run a nft -f - <<END; then
table ip translation {
    chain output {
        type nat hook output priority -100;
        ip daddr 10.99.0.2 dnat to 10.83.1.2
    }
}
END
    check "b's own address is refused" netns_run a ip route add blackhole 10.83.1.2 metric 1
    port=6400
    address=10.99.0.2
    export UCCL_TCPX_ADVERTISE=10.99.0.2
    check "a transfer to an advertised address" hosts_run transfer "$NETNS_DEVICE" "$NETNS_DEVICE" 10.99.0.2
    UCCL_TCPX_ADVERTISE=b.example
    hosts_start transfer "$NETNS_DEVICE" "$NETNS_DEVICE" 10.99.0.2
    hosts_finish >"$TAP_WORK/both"
    check "one that is no address" grep -q 'UCCL_TCPX_ADVERTISE=b.example is not valid: expected an IP address' \
        "$TAP_WORK/both"
else
    tap_skip "an advertised address" "this kernel cannot translate addresses"
fi

netns_end
