# Two ends of a test as two processes, to be sourced after tests/tap.sh: . tests/pair.sh
# $PAIR_SERVER and $PAIR_CLIENT are what both commands begin with, in words; $port, which goes up by
# one each time, is where they meet, and $SECONDS_EACH how long each step may take on an idle machine.

# pair_run SERVER_ARGUMENTS -- CLIENT_ARGUMENTS: prints what they say, which is also in
# $TAP_WORK/server and client; how they ended is in $server_status and $client_status. The status is 0
# if both succeeded.
pair_run()
{
    pair_server_arguments=
    while [ "$1" != -- ]; do
        pair_server_arguments="$pair_server_arguments $1"
        shift
    done
    shift
    pair_seconds=$(limit "${SECONDS_EACH:-20}")
    # shellcheck disable=SC2086
    $PAIR_SERVER $pair_server_arguments --port $port --timeout "$pair_seconds" \
        >"$TAP_WORK/server" 2>&1 &
    server=$!
    # shellcheck disable=SC2086
    $PAIR_CLIENT "$@" --port $port --timeout "$pair_seconds" >"$TAP_WORK/client" 2>&1
    client_status=$?
    wait $server
    server_status=$?
    port=$((port + 1))
    cat "$TAP_WORK/server" "$TAP_WORK/client"
    [ $client_status -eq 0 ] && [ $server_status -eq 0 ]
}
