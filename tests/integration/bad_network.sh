# The transport over bad networks: two and three hosts (tests/net/netns.sh) exchange messages while
# packets are lost, reordered, duplicated, delayed, corrupted and cut off, and every byte is checked.
# A link that stays cut is an error on both ends in bounded time. Limits are generous: a busy
# machine only makes things slower.
. tests/tap.sh
. tests/net/netns.sh

netns_start a b c
exchange=$TAP_WORK/exchange
mebibyte=1048576
run=0

compile_exchange()
{
    # Words on purpose: the compiler and the flags can be several.
    # shellcheck disable=SC2086
    ${CC:-cc} -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc -I. -Wall -Wextra -Wshadow \
        -Wstrict-prototypes -Wmissing-prototypes ${WERROR:+-Werror} ${CFLAGS--O2 -g} \
        ${SANITIZE:+-fsanitize=$SANITIZE -fno-sanitize-recover=all} tests/net/exchange.c \
        "${BUILD:-build}"/obj/src/*/*.o -o "$exchange" ${LDFLAGS-} -ldl -pthread
}

# start FROM TO ADDRESS COUNT [OPTION...]: in the background, as $sender and $receiver; what they
# say goes to $said.sender and $said.receiver.
start()
{
    from=$1 to=$2 address=$3 count=$4
    shift 4
    run=$((run + 1))
    said=$TAP_WORK/run$run
    netns_spawn "$to" "$exchange" recv "$address" "$said.handle" "$count" --seed $run "$@" \
        >"$said.receiver" 2>&1 </dev/null
    receiver=$NETNS_PID
    netns_spawn "$from" "$exchange" send "$said.handle" "$count" --seed $run "$@" \
        >"$said.sender" 2>&1 </dev/null
    sender=$NETNS_PID
}

# finish: both ends of the last start; when one has failed, nobody waits for the other.
finish()
{
    sent=0 received=0
    wait "$sender" || sent=$?
    [ "$sent" -eq 0 ] || kill "$receiver" 2>/dev/null
    wait "$receiver" || received=$?
    cat "$said.sender" "$said.receiver"
    [ "$sent" -eq 0 ] && [ "$received" -eq 0 ]
}

transfer()
{
    start "$@"
    finish
}

# impair NAME COUNT OPTION VALUE...: a transfer on link0 that has these, and none afterwards.
impair()
{
    name=$1 messages=$2
    shift 2
    undo=
    while [ $# -gt 0 ]; do
        relay_say link0 "$1" "$2" >/dev/null || tap_fail "$name" "the relay refused $1 $2"
        undo="$undo $1"
        shift 2
    done
    check "$name" transfer a b 10.79.0.2 "$messages" --largest 256K
    for option in $undo; do
        relay_say link0 "$option" 0 >/dev/null
    done
}

# happened NAME STATISTIC: so much for the relay; otherwise the transfers proved nothing.
happened()
{
    count_a=$(relay_stat link0 a "$2")
    count_b=$(relay_stat link0 b "$2")
    check "$1" test "$((count_a + count_b))" -gt 0
}

# within SECONDS COMMAND...: becomes true.
within()
{
    tries=$(($1 * 20))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.05
    done
}

delivered()
{
    [ "$(relay_stat "$1" a delivered_bytes)" -ge "$2" ]
}

now_ms()
{
    echo $(($(date +%s%N) / 1000000))
}

# --- one link, one impairment after the other ----------------------------------------------------

check "the program compiles" compile_exchange
[ -x "$exchange" ] || tap_end
check_fails_output "it wants to know what to do" '^usage: ' "$exchange"

if [ -e /proc/net/if_inet6 ]; then
    check "a link" netns_relay link0 a b 10.79.0.1,fd00:79::1 10.79.0.2,fd00:79::2 --seed 5
    check "IPv6, with the largest messages" transfer a b fd00:79::2 12
else
    check "a link" netns_relay link0 a b 10.79.0.1 10.79.0.2 --seed 5
    tap_skip "IPv6, with the largest messages" "this kernel has none"
fi
check "two sockets" transfer a b 10.79.0.2 12 --sockets 2
check "no message at all" transfer a b 10.79.0.2 0
impair "loss" 32 loss 0.02
happened "packets were lost" lost
impair "reordering" 32 reorder 0.05
happened "packets were reordered" reordered
impair "duplicates" 32 duplicate 0.1
happened "packets were duplicated" duplicated
impair "delay and jitter" 32 delay 10 jitter 10
impair "corruption" 32 corrupt 0.02
happened "packets were corrupted" corrupted
relay_say link0 loss 0.01 >/dev/null
relay_say link0 reorder 0.02 >/dev/null
relay_say link0 duplicate 0.02 >/dev/null
relay_say link0 corrupt 0.005 >/dev/null
relay_say link0 delay 2 >/dev/null
check "all of it, four sockets" transfer a b 10.79.0.2 48 --largest 256K --sockets 4
check "all of it, the other way" transfer b a 10.79.0.1 32 --largest 256K --sockets 2
check "the relay ends" relay_stop link0

# --- a slow link, and one that is cut for a while ------------------------------------------------

check "a link of 40 Mbit/s" netns_relay slow a b 10.79.1.1 10.79.1.2 --rate 40m --delay 1
check "a transfer at that rate" transfer a b 10.79.1.2 24 --largest 256K --sockets 2

start a b 10.79.1.2 80 --largest 256K --sockets 2
at=$(($(relay_stat slow a delivered_bytes) + mebibyte))
check "in mid-transfer" within 30 delivered slow $at
check "the link is cut" relay_say slow cut
sleep 2
check "neither end minds" kill -0 "$sender" "$receiver"
check "something was in flight" test "$(relay_stat slow a severed)" -gt 0
check "the link is restored" relay_say slow restore
check "the transfer completes" finish

# --- a link that is cut for good -----------------------------------------------------------------

# Two pairs at once, since the errors take their time: one moves data, one is idle and waits.
start a b 10.79.1.2 4 --largest 64K --timeout 3000 --hold
idle_sender=$sender idle_receiver=$receiver idle=$said
holding()
{
    grep -q holding "$idle.sender" && grep -q holding "$idle.receiver"
}
check "two ends that wait for each other" within 30 holding
start a b 10.79.1.2 100000 --largest 256K --timeout 3000 --sockets 2
at=$(($(relay_stat slow a delivered_bytes) + mebibyte))
check "two that are in mid-transfer" within 30 delivered slow $at
cut_at=$(now_ms)
check "the link is cut for good" relay_say slow cut

# lost PID FILE PEER: it ended by itself with an error that names the peer. A socket can have been
# silent for half of the timeout before the cut, so that this can take less than all of it.
lost()
{
    status=0
    wait "$1" || status=$?
    spent=$(($(now_ms) - cut_at))
    echo "status $status, $spent ms after the cut:"
    cat "$2"
    [ "$status" -eq 1 ] && [ "$spent" -ge 1000 ] && [ "$spent" -le 20000 ] &&
        grep -q "^exchange: .*$3.* s after the last progress" "$2"
}
check "the sender in mid-transfer reports it" lost "$sender" "$said.sender" 10.79.1.2
check "the receiver in mid-transfer reports it" lost "$receiver" "$said.receiver" 10.79.1.1
check "the waiting sender reports it" lost "$idle_sender" "$idle.sender" 10.79.1.2
check "the waiting receiver reports it" lost "$idle_receiver" "$idle.receiver" 10.79.1.1

# The listener is there but cannot be reached.
start a b 10.79.1.2 1 --timeout 3000
cut_at=$(now_ms)
check "a connect over the cut link reports it" lost "$sender" "$said.sender" 10.79.1.2
kill "$receiver"
wait "$receiver" 2>/dev/null
check "the relay ends" relay_stop slow

# --- three in a row ------------------------------------------------------------------------------

check "a good link behind a bad one" netns_veth b c 10.79.3.1 10.79.3.2 200m
check "the bad one" netns_relay row a b 10.79.2.1 10.79.2.2 --loss 0.005 --delay 2
check "b passes on" netns_router b
check "a finds c" netns_run a ip route add 10.79.3.2 via 10.79.2.2
check "c finds a" netns_run c ip route add 10.79.2.1 via 10.79.3.1
check "a - b - c" transfer a c 10.79.3.2 24 --largest 256K --sockets 2
check "c - b - a" transfer c a 10.79.2.1 24 --largest 256K
check "it went that way" delivered row $mebibyte
check "the relay ends" relay_stop row

netns_cleanup
check_fails "no namespace is left" sh -c "ls /run/netns | grep '^$NETNS_PREFIX'"
check_fails "no process is left" sh -c "ls -l /proc/[0-9]*/exe 2>&1 | grep '$TAP_WORK/'"

tap_end
