# Two ends of a test as two processes, to be sourced after tests/tap.sh: . tests/pair.sh
# $PAIR_SERVER and $PAIR_CLIENT are what both commands begin with, in words; $port, which goes up by
# one each time, is where they meet, and $SECONDS_EACH how long each step may take on an idle machine.

# pair_start SERVER_ARGUMENTS -- CLIENT_ARGUMENTS: both in the background, as $server and $client; what they
# say goes to $TAP_WORK/server and client.
pair_start()
{
    pair_server_arguments=
    while [ "$1" != -- ]; do
        pair_server_arguments="$pair_server_arguments $1"
        shift
    done
    shift
    pair_seconds=$(limit "${SECONDS_EACH:-20}")
    # shellcheck disable=SC2086
    $PAIR_SERVER $pair_server_arguments --once --port $port --timeout "$pair_seconds" \
        >"$TAP_WORK/server" 2>&1 &
    server=$!
    # shellcheck disable=SC2086
    $PAIR_CLIENT "$@" --port $port --timeout "$pair_seconds" >"$TAP_WORK/client" 2>&1 &
    client=$!
    port=$((port + 1))
}

# pair_run, as pair_start: prints what they say; how they ended is in $server_status and $client_status. The
# status is 0 if both succeeded.
pair_run()
{
    pair_start "$@"
    wait $client
    client_status=$?
    wait $server
    server_status=$?
    cat "$TAP_WORK/server" "$TAP_WORK/client"
    [ $client_status -eq 0 ] && [ $server_status -eq 0 ]
}

# pair SERVER_ARGUMENTS -- CLIENT_ARGUMENTS, as pair_run: two ends of $PAIR_COMMAND on this machine, each
# with variables of its own, $SERVER_ENV and $CLIENT_ENV. $SERVER or $CLIENT is another command.
pair()
{
    PAIR_SERVER="env ${SERVER_ENV-} ${SERVER:-$PAIR_COMMAND} server"
    PAIR_CLIENT="env ${CLIENT_ENV-} ${CLIENT:-$PAIR_COMMAND} client 127.0.0.1"
    pair_run "$@"
}

# pair_masked FILE: the lines of UCCL_TCPX_DEBUG=1, without addresses, what belongs to this machine, and a
# line that is there only when the other end was the first to close.
pair_masked()
{
    sed -n -e '/^\[DEBUG\]/!b' -e '/ has closed the comm$/d' -e 's/0x[0-9a-f]*/0x.../g' \
        -e 's/src_off=[0-9]*/src_off=.../' -e p "$1"
}

# pair_golden_transfer, pair_golden_connection: what both ends of the original tests say, masked, is what
# pair_said expects from now on. The server unpacks by d2d.
pair_golden_transfer()
{
    cat >"$TAP_WORK/golden_server" <<'END'
[DEBUG] === TCPX GPU-to-GPU transfer test ===
[DEBUG] Using payload_bytes=23
[DEBUG] Running in SERVER mode
[DEBUG] tcpx_get_device_count: 1
[DEBUG] Listening on device 0
[DEBUG] Bootstrap connection established, sending handle
[DEBUG] Device handle: meta=0x... bounce_buf=0x... head=-1
[DEBUG] Connection accepted; recv_comm=0x...
[DEBUG] Registered server receive buffer ptr=0x..., bytes=4096
[DEBUG] Waiting for client data, expected bytes=23
[DEBUG] Request metadata: frag_count=1
[DEBUG] descriptor[0] src_off=... len=23 dst_off=0
[DEBUG] Bounce probe (23B) from src_off=...: 48 65 6c 6c 6f 20 66 72 6f 6d 20 54 43 50 58 20 63 6c 69 65 6e 74 21
[DEBUG] Launching device unpack (D2D copies), total_bytes=23
[DEBUG] Device unpack completed successfully
[DEBUG] Received data (23 bytes): Hello from TCPX client!
[DEBUG] Hex dump: 48 65 6c 6c 6f 20 66 72 6f 6d 20 54 43 50 58 20 63 6c 69 65 6e 74 21
[DEBUG] Received data matches expected payload
[DEBUG] ✓ Data validation PASSED
[DEBUG] ✓ Test PASSED
[DEBUG] Server test completed successfully
END
    cat >"$TAP_WORK/golden_client" <<'END'
[DEBUG] === TCPX GPU-to-GPU transfer test ===
[DEBUG] Using payload_bytes=23
[DEBUG] Running in CLIENT mode, server=127.0.0.1
[DEBUG] tcpx_get_device_count: 1
[DEBUG] Connecting to device 0
[DEBUG] Connection established; send_comm=0x...
[DEBUG] Registered client send buffer ptr=0x..., bytes=4096
[DEBUG] Wrote test message to GPU buffer: Hello from TCPX client!
[DEBUG] Sending 23 bytes with tag 42
[DEBUG] Send completed successfully
[DEBUG] ✓ Test PASSED
[DEBUG] Client test completed successfully
END
}

pair_golden_connection()
{
    cat >"$TAP_WORK/golden_server" <<'END'
[DEBUG] === TCPX connection test ===
[DEBUG] Running in SERVER mode
[DEBUG] tcpx_get_device_count: 1
[DEBUG] Listening on device 0
[DEBUG] Bootstrap connection established, sending handle
[DEBUG] Device handle: meta=0x... bounce_buf=0x... head=-1
[DEBUG] Connection accepted; recv_comm=0x...
[DEBUG] ✓ Test PASSED
[DEBUG] Server test completed successfully
END
    cat >"$TAP_WORK/golden_client" <<'END'
[DEBUG] === TCPX connection test ===
[DEBUG] Running in CLIENT mode, server=127.0.0.1
[DEBUG] tcpx_get_device_count: 1
[DEBUG] Connecting to device 0
[DEBUG] Connection established; send_comm=0x...
[DEBUG] ✓ Test PASSED
[DEBUG] Client test completed successfully
END
}

# pair_said server|client: the lines of $TAP_WORK/golden_server or golden_client, and no others.
pair_said()
{
    pair_masked "$TAP_WORK/$1" | diff "$TAP_WORK/golden_$1" -
}

# pair_port_is_taken: somebody listens on $port, soon.
pair_port_is_taken()
{
    within 5 grep -qi ":$(printf '%04X' $port) .* 0A " /proc/net/tcp /proc/net/tcp6 >/dev/null
}
