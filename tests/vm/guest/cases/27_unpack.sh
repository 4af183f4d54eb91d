# Receives that NCCL's kernels unpack, from the pages they arrived in: the program unpackers has two
# comms, and consumes nothing of the first one.

export UCCL_TCPX_GPU=host UCCL_TCPX_DEVMEM_BYTES=32M UCCL_TCPX_TIMEOUT_MS=20000

# What the receiving end says is in $TAP_WORK/receiver.
both_ends()
{
    rm -f "$TAP_WORK/handle"
    NCCL_SOCKET_IFNAME=dm0 UCCL_TCPX_DEVMEM=on UCCL_TCPX_DEBUG=1 timeout 60 \
        unpackers receive "$TAP_WORK/handle" >"$TAP_WORK/receiver" 2>&1 &
    both_receiver=$!
    both_status=0
    NCCL_SOCKET_IFNAME=dm1 UCCL_TCPX_DEVMEM=off in_peer timeout 60 \
        unpackers send "$TAP_WORK/handle" >"$TAP_WORK/sender" 2>&1 || both_status=$?
    wait $both_receiver || both_status=$?
    cat "$TAP_WORK/receiver" "$TAP_WORK/sender"
    return $both_status
}

# Connections that did not give back what they had.
tokens_left()
{
    grep 'tokens:' "$TAP_WORK/receiver" | grep -Ev 'tokens: ([0-9]+) out, \1 back'
}

if command -v unpackers >/dev/null; then
    check "one comm never consumes, and the other goes on without a copy" both_ends
    check "payload was in device pages" grep -E \
        'devmem socket .: [1-9][0-9]* bytes in pages, 0 linear, 0 plain' "$TAP_WORK/receiver"
    check "nothing was copied to pinned memory" grep -E \
        'devmem unpack: 48 receives in place, 0 with copies; 25165824 bytes in place, 0 copied' \
        "$TAP_WORK/receiver"
    check_fails "all of which were given back" tokens_left
else
    tap_skip "receives that kernels unpack" "unpackers was not built"
fi
