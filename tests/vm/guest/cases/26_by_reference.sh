# What only sends by reference can get wrong: the NIC reads a message where it lies until the peer
# has it, and the kernel tells that later. Each check is both ends of a scenario of by_reference.

export UCCL_TCPX_GPU=host UCCL_TCPX_DEVMEM=on UCCL_TCPX_TIMEOUT_MS=20000

# pair SCENARIO SOCKETS THREADS: of the sender's; the receiver's calls move everything, so that it
# takes nothing in its pauses.
pair()
{
    rm -f "$TAP_WORK/handle"
    NCCL_SOCKET_IFNAME=dm0 UCCL_TCPX_THREADS=0 timeout 45 \
        by_reference receive "$1" "$2" "$TAP_WORK/handle" >"$TAP_WORK/receiver" 2>&1 &
    pair_receiver=$!
    pair_status=0
    NCCL_SOCKET_IFNAME=dm1 UCCL_TCPX_THREADS=$3 in_peer timeout 45 \
        by_reference send "$1" "$2" "$TAP_WORK/handle" >"$TAP_WORK/sender" 2>&1 || pair_status=$?
    wait $pair_receiver || pair_status=$?
    sed 's/^/sender: /' "$TAP_WORK/sender"
    sed 's/^/receiver: /' "$TAP_WORK/receiver"
    return $pair_status
}

# twice COMMAND: once more if it has failed. A packet that the emulated NIC has dropped may take longer to
# be sent again than a close waits for it.
twice()
{
    "$@" || "$@"
}

# notices BYTES: how much the kernel keeps for notices of one of the sender's sockets.
notices()
{
    on_host dm1 sh -c "echo $1 >/proc/sys/net/core/optmem_max"
}

scenarios()
{
    check "messages without a byte arrive at once" pair empty 1 0
    check "a comm that is closed in the middle sends no other bytes" pair close 1 0
    check "a message that the receiver takes soon arrives all the same" twice pair soon 1 0
    check "with several sockets, too" twice pair soon 3 2
    check "a send that was done arrives, though a part of another lies behind it" pair behind 1 0
    check "a comm that fails sends no other bytes, either" pair fail 1 0
    usual=$(on_host dm1 cat /proc/sys/net/core/optmem_max)
    check "room for few notices of arrival" notices 1000
    check "waiting for them uses little CPU time" pair arrivals 3 2
    check "and for as many as usual" notices "$usual"
    check "a send that waits for the GPU goes out when it gets there" pair gate 3 0
    check "the same with I/O threads" pair gate 3 2
    check "memory is deregistered while it is sent" pair deregister 3 2
}

if ! can_send; then
    tap_skip "sends by reference" "this kernel only receives"
elif ! command -v by_reference >/dev/null; then
    tap_skip "sends by reference" "by_reference was not built"
else
    scenarios
fi
