# Real interfaces in a network namespace of its own become devices as they come and go, chosen by
# NCCL's rules and variables: with and without a carrier, aliases, IPv6-only and link-local ones.
. tests/tap.sh
. tests/net/compile.sh
. tests/net/link_up.sh

[ "$(id -u)" -eq 0 ] || tap_skip_all "only root can make a network namespace"
command -v ip >/dev/null || tap_skip_all "ip is not installed (Debian: iproute2)"

unset NCCL_SOCKET_IFNAME NCCL_GPUDIRECTTCPX_SOCKET_IFNAME NCCL_SOCKET_FAMILY UCCL_TCPX_SPEED
# The process id is where tests/net/netns.sh looks for the owner of what a killed script left behind.
namespace=tcpx-$$-devices
ip netns add "$namespace" 2>/dev/null || tap_skip_all "this machine allows no network namespace"
trap 'ip netns del "$namespace"; rm -rf "$TAP_WORK"' EXIT
ip -n "$namespace" link add veth0 type veth peer name veth1 2>/dev/null ||
    tap_skip_all "this kernel has no veth interfaces"
ip -n "$namespace" link del veth0

print=$TAP_WORK/print_devices
check "the program that prints the devices compiles" compile_with_library print_devices
[ -x "$print" ] || tap_end

# devices [VARIABLE=VALUE...]: the program's lines, or why there are none.
devices() {
    ip netns exec "$namespace" env "$@" "$print"
}

# names [VARIABLE=VALUE...]: only the names, on one line.
names() {
    devices "$@" >"$TAP_WORK/lines" || return
    cut -d' ' -f2 "$TAP_WORK/lines" | paste -sd' '
}

link() {
    ip -n "$namespace" link "$@" || exit 1
}

link_up() {
    link set "$1" up
    await_link "$namespace" "$1" || exit 1
}

# No duplicate address detection: an address is usable at once.
address() {
    ip -n "$namespace" address add "$@" || exit 1
}

# cable NAME OPTION...: an interface that works once it is up. Its far end has no address at all.
cable() {
    cable_name=$1
    shift
    link add "$cable_name" "$@" type veth peer name "far-$cable_name"
    link set "far-$cable_name" addrgenmode none
    link set "far-$cable_name" up
}

# nic NAME ADDRESS: one that works.
nic() {
    cable "$1"
    address "$2" dev "$1"
    link_up "$1"
}

check_fails_output "nothing is up" \
    '^no network interface is up and has an address; there are: lo \(down\)$' devices
link set lo up
check_output "loopback where there is nothing else" \
    '^0 lo 127\.0\.0\.1 port=0 speed=10000 mtu=65536 index=1 numa=-1 pci= loopback=1 virtual=1 ' \
    devices
check_output "loopback has a configured speed" ' speed=2500 ' devices UCCL_TCPX_SPEED=2500
if [ -e /proc/net/if_inet6 ]; then
    check_output "loopback over IPv6" '^0 lo ::1 ' devices NCCL_SOCKET_FAMILY=AF_INET6
else
    tap_skip "loopback over IPv6" "this kernel has no IPv6"
fi

cable nic0 mtu 8896
check_fails_output "an interface that is down is said to be" 'there are: lo, .*nic0 \(down\)' \
    devices NCCL_SOCKET_IFNAME=nic0
address 192.0.2.1/24 dev nic0
check_output "an address alone is not enough" '^lo$' names
link_up nic0
check_output "an interface that comes up goes before loopback" '^nic0$' names
check_output "its address and MTU" '^0 nic0 192\.0\.2\.1 port=0 .* mtu=8896 .* virtual=1 ' devices

link add veth0 type veth peer name veth1
address 198.51.100.1/24 dev veth0
link set veth0 up
check_output "a cable without its other end does not count" '^nic0$' names
link_up veth1
link_up veth0
check_output "with it, it does" '^nic0 veth0$' names
check_output "veth has a speed" '^. veth0 .* speed=10000 ' devices
check_output "and another where one is configured" '^. veth0 .* speed=100000 ' devices UCCL_TCPX_SPEED=100000

nic docker0 203.0.113.1/24
nic virbr0 203.0.113.129/28
nic cni0 203.0.113.145/28
check_output "docker, virbr and a container network are left out" '^nic0 veth0$' names
check_output "unless they are named" '^docker0 virbr0$' names NCCL_SOCKET_IFNAME=virbr,docker
check_output "excluding one" '^nic0 docker0 virbr0$' names NCCL_SOCKET_IFNAME=^veth,cni
check_output "exactly this one" '^veth0$' names NCCL_SOCKET_IFNAME==veth0
check_fails_output "exactly means exactly" \
    '^NCCL_SOCKET_IFNAME==veth matches no interface .* there are: lo, .*nic0, .*veth0' \
    devices NCCL_SOCKET_IFNAME==veth
check_output "loopback when it is named" '^lo nic0$' names NCCL_SOCKET_IFNAME=nic0,lo
check_output "the data NICs have a variable of their own" '^veth0$' \
    names NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=veth0 NCCL_SOCKET_IFNAME=nic0
check_fails_output "and its name is in the text" \
    '^NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth9 matches no interface' \
    devices NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth9 NCCL_SOCKET_IFNAME=nic0
check_fails_output "a filter that is not understood" \
    "^NCCL_SOCKET_IFNAME=\\^nic0,\\^lo is not valid: '\\^' in '\\^lo'" \
    devices NCCL_SOCKET_IFNAME=^nic0,^lo

address 192.0.2.77/24 dev nic0 label nic0:1
check_output "an alias is no device" '^nic0 veth0$' names
check_output "and not the first address" '^0 nic0 192\.0\.2\.1 ' devices NCCL_SOCKET_IFNAME=nic0:1

devices NCCL_SOCKET_IFNAME=n,v,d,lo >"$TAP_WORK/all"
check_output "the guid is made of MAC and index" \
    "guid=$(ip -n "$namespace" -br link show nic0 | grep -o '..:..:..:..:..:..' | tr -d :)" \
    grep nic0 "$TAP_WORK/all"
check_output "no two devices have the same" '^$' \
    sh -c "sed 's/.* guid=//' '$TAP_WORK/all' | sort | uniq -d; echo"

if [ -e /proc/net/if_inet6 ]; then
    link_local=$(ip -n "$namespace" -6 -br address show dev veth1 scope link | grep -o 'fe80[^/]*')
    check_output "a link-local address has its scope" "^0 veth1 $link_local%veth1 " \
        devices NCCL_SOCKET_IFNAME=veth1
    check_output "it is the last choice" '^nic0 veth0$' names
    address 2001:db8::1/64 dev nic0 nodad
    check_output "IPv4 is the first choice" '^0 nic0 192\.0\.2\.1 ' devices
    check_output "IPv6 where it is asked for" '^0 nic0 2001:db8::1 ' \
        devices NCCL_SOCKET_FAMILY=AF_INET6
    address 2001:db8:1::1/64 dev veth1 nodad
    check_output "an interface with IPv6 only" '^veth1$' names NCCL_SOCKET_IFNAME=veth1
    check_output "has its global address" '^0 veth1 2001:db8:1::1 ' devices \
        NCCL_SOCKET_IFNAME=veth1
    check_fails_output "and none where IPv4 is asked for" 'veth1 \(no IPv4 address\)' \
        devices NCCL_SOCKET_IFNAME=veth1 NCCL_SOCKET_FAMILY=AF_INET
else
    tap_skip "IPv6" "this kernel has no IPv6"
fi

nic ib0 192.0.2.201/28
check_output "InfiniBand's name goes before all" '^ib0$' names
link del ib0
link del veth0
link del nic0
check_output "docker and a container network where there is nothing else" '^docker0 cni0$' names
link del docker0
check_output "a container network where there is only that" '^cni0$' names
link del cni0
check_output "loopback before virbr" '^lo$' names

tap_end
