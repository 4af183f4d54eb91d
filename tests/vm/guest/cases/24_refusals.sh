# What has to be there for devmem TCP, taken away one by one: with on that is an error, with auto it
# goes without, and both name it.

. /cases/ends.inc

echo 'nobody:x:65534:65534::/tmp:/bin/sh' >/etc/passwd
chmod 666 /dev/udmabuf

# refused NAME REGEX: both ways of it.
refused()
{
    UCCL_TCPX_DEVMEM=on
    check_fails_output "$1" "$2" transfer --size 1M --iters 1
    UCCL_TCPX_DEVMEM=auto
    check_output "$1: it goes without" '^verified' transfer --size 1M --iters 1
    also "$1: and says why" "without devmem TCP: .*$2"
}

check_output "all is there" '^verified' transfer --size 1M --iters 1

mv /dev/udmabuf /dev/udmabuf.away
refused "no dma-buf" 'needs /dev/udmabuf'
mv /dev/udmabuf.away /dev/udmabuf

nictool ntuple dm0 off
refused "no steering" 'dm0 does not steer connections'
nictool ntuple dm0 on

if can_send; then
    lack='no checksums' lack_regex='does not compute checksums itself'
    nictool checksums dm0 off
    in_peer nictool checksums dm1 off
else
    lack='a kernel that only receives' lack_regex='this kernel cannot send from device memory'
fi
UCCL_TCPX_DEVMEM=on
check_fails_output "$lack" "$lack_regex" transfer --size 1M --iters 1
UCCL_TCPX_DEVMEM=auto
check_output "$lack: it is sent from host memory" '^verified' transfer --size 1M --iters 1
nictool checksums dm0 on
in_peer nictool checksums dm1 on

# The library has headers split off by itself.
nictool split dm0 off
UCCL_TCPX_DEVMEM=$WANTED
check_output "header split is switched on" '^verified' transfer --size 1M --iters 1
if can_send; then
    nictool hds dm0 128
    check_output "from the first byte on" '^verified' transfer --size 1M --iters 1
else
    skip "from the first byte on" "this kernel has no threshold"
fi

# An ordinary user on the receiving host.
unprivileged()
{
    PORT=$((PORT + 1))
    NCCL_SOCKET_IFNAME=dm0 UCCL_TCPX_DEBUG=1 su nobody -c \
        "timeout 40 tcpx perf server --port $PORT --timeout 20" >"$WORK/server" 2>&1 &
    server=$!
    client_status=0
    NCCL_SOCKET_IFNAME=dm1 UCCL_TCPX_DEVMEM=auto in_peer timeout 40 tcpx perf client $RECEIVER \
        --port $PORT --timeout 20 --no-progress --size 1M --iters 1 >"$WORK/client" 2>&1 ||
        client_status=$?
    wait $server
    server_status=$?
    cat "$WORK/server" "$WORK/client"
    [ $client_status -eq 0 ] && [ $server_status -eq 0 ]
}
UCCL_TCPX_DEVMEM=on
check_fails_output "no privilege" 'lacks CAP_NET_ADMIN' unprivileged
UCCL_TCPX_DEVMEM=auto
check_output "no privilege: it goes without" '^verified' unprivileged
also "no privilege: and says why" 'dm0 receives without devmem TCP: .*CAP_NET_ADMIN'
if can_send; then
    also "sending takes none" 'dm0 sends to .* by devmem TCP'
else
    skip "sending takes none" "this kernel only receives"
fi

UCCL_TCPX_DEVMEM=off
check_output "it is switched off" '^verified' transfer --size 1M --iters 1
cat "$WORK/server" "$WORK/client" >"$WORK/said"
check_fails "and nothing is said of it" grep 'devmem TCP' "$WORK/said"
