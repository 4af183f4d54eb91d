# The transport over bad networks: two and three hosts (tests/net/netns.sh) exchange messages while
# packets are lost, reordered, duplicated, delayed, corrupted and cut off, and every byte is checked.
# A link that stays cut is an error on both ends in bounded time. Limits are generous: a busy
# machine only makes things slower.
. tests/tap.sh
. tests/net/netns.sh

netns_start a b c
mebibyte=1048576
separate="--framing separate --sockets 3"
framing=

# impair NAME COUNT OPTION VALUE...: a transfer on link0 that has these, and none afterwards. Both
# ends are told $framing.
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
    # Words on purpose.
    # shellcheck disable=SC2086
    check "$name" exchange_run a b 10.79.0.2 "$messages" --largest 256K $framing
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

# --- one link, one impairment after the other ----------------------------------------------------

check "the program compiles" compile_with_library exchange
[ -x "$EXCHANGE" ] || tap_end
check_fails_output "it wants to know what to do" '^usage: ' "$EXCHANGE"
check_fails_output "separate framing needs two sockets" '^usage: ' \
    "$EXCHANGE" send handle 1 --framing separate

if [ -e /proc/net/if_inet6 ]; then
    check "a link" netns_relay link0 a b 10.79.0.1,fd00:79::1 10.79.0.2,fd00:79::2 --seed 5
    check "IPv6, with the largest messages" exchange_run a b fd00:79::2 12
else
    check "a link" netns_relay link0 a b 10.79.0.1 10.79.0.2 --seed 5
    tap_skip "IPv6, with the largest messages" "this kernel has none"
fi
check "two sockets" exchange_run a b 10.79.0.2 12 --sockets 2
check "no message at all" exchange_run a b 10.79.0.2 0
impair "loss" 32 loss 0.02
happened "packets were lost" lost
impair "reordering" 32 reorder 0.05
happened "packets were reordered" reordered
impair "duplicates" 32 duplicate 0.1
happened "packets were duplicated" duplicated
impair "delay and jitter" 32 delay 10 jitter 10
impair "corruption" 32 corrupt 0.02
happened "packets were corrupted" corrupted
framing=$separate
impair "loss, separate framing" 32 loss 0.02
impair "reordering, separate framing" 32 reorder 0.05
impair "duplicates, separate framing" 32 duplicate 0.1
for setting in 'loss 0.01' 'reorder 0.02' 'duplicate 0.02' 'corrupt 0.005' 'delay 2'; do
    relay_say link0 "$setting" >/dev/null
done
check "all of it, four sockets" exchange_run a b 10.79.0.2 48 --largest 256K --sockets 4
check "all of it, the other way" exchange_run b a 10.79.0.1 32 --largest 256K --sockets 2
check "the relay ends" relay_stop link0

# --- a slow link, and one that is cut for a while ------------------------------------------------

check "a link of 40 Mbit/s" netns_relay slow a b 10.79.1.1 10.79.1.2 --rate 40m --delay 1
check "a transfer at that rate" exchange_run a b 10.79.1.2 24 --largest 256K --sockets 2

# Two pairs at once, one with each framing.
exchange_start a b 10.79.1.2 48 --largest 256K --sockets 2
inline_sender=$SENDER inline_receiver=$RECEIVER inline=$SAID
# shellcheck disable=SC2086
exchange_start a b 10.79.1.2 48 --largest 256K $separate
at=$(($(relay_stat slow a delivered_bytes) + mebibyte))
check "in mid-transfer" within 30 relay_has_delivered slow $at
check "the link is cut" relay_say slow cut
sleep 2
check "no end minds" kill -0 "$SENDER" "$RECEIVER" "$inline_sender" "$inline_receiver"
check "something was in flight" test "$(relay_stat slow a severed)" -gt 0
check "the link is restored" relay_say slow restore
check "the transfer with separate framing completes" exchange_finish
SENDER=$inline_sender RECEIVER=$inline_receiver SAID=$inline
check "the one with inline framing, too" exchange_finish

# --- a link that is cut for good -----------------------------------------------------------------

# Three pairs at once, since the errors take their time: one is idle and waits, and two move data,
# one of them with separate framing.
exchange_start a b 10.79.1.2 4 --largest 64K --timeout 3000 --hold
idle_sender=$SENDER idle_receiver=$RECEIVER idle=$SAID
holding()
{
    grep -q holding "$idle.sender" && grep -q holding "$idle.receiver"
}
check "two ends that wait for each other" within 30 holding
# shellcheck disable=SC2086
exchange_start a b 10.79.1.2 100000 --largest 256K --timeout 3000 $separate
separate_sender=$SENDER separate_receiver=$RECEIVER separate_said=$SAID
at=$(($(relay_stat slow a delivered_bytes) + mebibyte))
check "two that are in mid-transfer, with separate framing" within 30 relay_has_delivered slow $at
exchange_start a b 10.79.1.2 100000 --largest 256K --timeout 3000 --sockets 2
at=$(($(relay_stat slow a delivered_bytes) + 2 * mebibyte))
check "two more, with inline framing" within 30 relay_has_delivered slow $at
cut_at=$(now_ms)
check "the link is cut for good" relay_say slow cut

check "the sender in mid-transfer reports it" exchange_lost "$SENDER" "$SAID.sender" 10.79.1.2
check "the receiver in mid-transfer reports it" exchange_lost "$RECEIVER" "$SAID.receiver" 10.79.1.1
check "the sender with separate framing reports it" \
    exchange_lost "$separate_sender" "$separate_said.sender" 10.79.1.2
check "the receiver with separate framing reports it" \
    exchange_lost "$separate_receiver" "$separate_said.receiver" 10.79.1.1
check "the waiting sender reports it" exchange_lost "$idle_sender" "$idle.sender" 10.79.1.2
check "the waiting receiver reports it" exchange_lost "$idle_receiver" "$idle.receiver" 10.79.1.1

# The listener is there but cannot be reached.
exchange_start a b 10.79.1.2 1 --timeout 3000
cut_at=$(now_ms)
check "a connect over the cut link reports it" exchange_lost "$SENDER" "$SAID.sender" 10.79.1.2
kill "$RECEIVER"
wait "$RECEIVER" 2>/dev/null
check "the relay ends" relay_stop slow

# --- three in a row ------------------------------------------------------------------------------

check "a good link behind a bad one" netns_veth b c 10.79.3.1 10.79.3.2 200m
check "the bad one" netns_relay row a b 10.79.2.1 10.79.2.2 --loss 0.005 --delay 2
check "b passes on" netns_router b
check "a finds c" netns_run a ip route add 10.79.3.2 via 10.79.2.2
check "c finds a" netns_run c ip route add 10.79.2.1 via 10.79.3.1
check "a - b - c" exchange_run a c 10.79.3.2 24 --largest 256K --sockets 2
check "c - b - a" exchange_run c a 10.79.2.1 24 --largest 256K
check "it went that way" relay_has_delivered row $mebibyte
check "the relay ends" relay_stop row

netns_end
