# Two links of different speed used together: the sockets of one comm are spread over both by their
# ports (a route with two hops), and the faster link carries more, since whichever socket is idle
# takes the next slice. A cut of one link for a while is survived; one for good is an error on both
# ends, and the other link still serves a new comm.
. tests/tap.sh
. tests/net/netns.sh

netns_start a b
[ -e /proc/sys/net/ipv4/fib_multipath_hash_policy ] ||
    tap_skip_all "this kernel has no routes over several links"
mebibyte=1048576

# --- one comm on two links -----------------------------------------------------------------------

# carried DEVICE: the bytes that came to b on it.
carried()
{
    netns_bytes b "$1" rx
}

carried_on_both()
{
    [ "$(carried "$fast_device")" -ge $((fast_before + mebibyte)) ] &&
        [ "$(carried "$slow_device")" -ge $((slow_before + mebibyte / 2)) ]
}

# start_on_both ADDRESS COUNT OPTION...: returns in mid-transfer. By chance all sockets can be on
# one link; then again with other ports.
start_on_both()
{
    attempts=5
    while [ "$attempts" -gt 0 ]; do
        attempts=$((attempts - 1))
        fast_before=$(carried "$fast_device")
        slow_before=$(carried "$slow_device")
        exchange_start a b "$@"
        within 5 carried_on_both && return 0
        exchange_drop
        echo "not on both links:"
        cat "$SAID.sender" "$SAID.receiver"
    done
    return 1
}

# --- speed ---------------------------------------------------------------------------------------

# spent: the milliseconds that the last run's receiver took.
spent()
{
    sed -n 's/.* verified in \([0-9]*\)\.\([0-9]*\) s$/\1\2/p' "$SAID.receiver" | sed 's/^0*//'
}

# compare: the same messages over the fast link alone and over both. Sets $alone_ms and $both_ms,
# and the bytes of the messages and of the links, $bytes, $fast and $slow.
compare()
{
    set -- 32 --seed 7 --largest 4M --sockets 8
    exchange_run a b 10.80.0.2 "$@" || return 1
    alone_ms=$(spent)
    start_on_both 10.80.9.2 "$@" || return 1
    exchange_finish || return 1
    both_ms=$(spent)
    bytes=$(sed -n 's/.* \([0-9]*\) bytes verified .*/\1/p' "$SAID.receiver")
    fast=$(($(carried "$fast_device") - fast_before))
    slow=$(($(carried "$slow_device") - slow_before))
}

not_slower()
{
    [ "$both_ms" -le $((alone_ms * 11 / 10)) ]
}

# A busy machine can spoil a measurement, so there are several: the first good one counts.
measure()
{
    measurements=5
    while [ "$measurements" -gt 0 ]; do
        measurements=$((measurements - 1))
        compare || return 1
        ! not_slower || return 0
    done
}

check "the program compiles" compile_with_library exchange
[ -x "$EXCHANGE" ] || tap_end
check "a fast link" netns_veth a b 10.80.0.1 10.80.0.2 200m
fast_device=$NETNS_DEVICE
check "a slow link" netns_veth a b 10.80.1.1 10.80.1.2 50m
slow_device=$NETNS_DEVICE
# More of the sockets are on the slow link: it must not get more than it can carry all the same.
check "a route over both" netns_spread a 10.80.9.1 10.80.9.2 10.80.0.2 "10.80.1.2 weight 2"
check "and back" netns_spread b 10.80.9.2 10.80.9.1 10.80.0.1 "10.80.1.1 weight 2"
check "eight sockets over the fast link, and over both" measure
if [ -n "${slow-}" ]; then
    printf '# %d bytes: %d on the fast link, %d on the slow one\n' "$bytes" "$fast" "$slow"
    printf '# %d ms over both, %d ms over the fast link alone: %d %%\n' "$both_ms" "$alone_ms" \
        $((both_ms * 100 / alone_ms))
    check "the links carried the bytes" test $((fast + slow)) -ge "$bytes"
    check "and little else" test $((fast + slow)) -le $((bytes * 13 / 10))
    check "the slow link carried its share" test "$slow" -ge $((bytes / 20))
    check "the fast link carried more" test $((fast * 2)) -gt $((slow * 3))
    check "both together are not slower than the fast one alone" not_slower
fi

# --- one of two links is cut ---------------------------------------------------------------------

fast_device=fast slow_device=slow
check "a fast relay" netns_relay fast a b 10.80.2.1 10.80.2.2 --rate 80m --delay 1
check "a slow relay" netns_relay slow a b 10.80.3.1 10.80.3.2 --rate 20m --delay 5
check "a route over both" netns_spread a 10.80.8.1 10.80.8.2 10.80.2.2 10.80.3.2
check "and back" netns_spread b 10.80.8.2 10.80.8.1 10.80.2.1 10.80.3.1

check "separate framing, nine sockets" exchange_run a b 10.80.8.2 16 --sockets 9 --framing separate

check "a transfer over both" start_on_both 10.80.8.2 24 --sockets 8
check "the slow link is cut" relay_say slow cut
sleep 1
check "neither end minds" kill -0 "$SENDER" "$RECEIVER"
check "something was in flight" test "$(relay_stat slow a severed)" -gt 0
check "the slow link is restored" relay_say slow restore
check "the transfer completes" exchange_finish

check "another transfer over both" start_on_both 10.80.8.2 100000 --sockets 8 --timeout 3000
cut_at=$(now_ms)
check "the fast link is cut for good" relay_say fast cut
check "the sender reports it" exchange_lost "$SENDER" "$SAID.sender" 10.80.8.2
check "the receiver reports it" exchange_lost "$RECEIVER" "$SAID.receiver" 10.80.8.1
check "the route is over the slow link only" netns_spread a 10.80.8.1 10.80.8.2 10.80.3.2
check "and back" netns_spread b 10.80.8.2 10.80.8.1 10.80.3.1
check "a new comm works" exchange_run a b 10.80.8.2 16 --largest 256K --sockets 8
check "the fast relay ends" relay_stop fast
check "the slow relay ends" relay_stop slow

netns_end
