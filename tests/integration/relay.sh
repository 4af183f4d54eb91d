# The test bed for bad networks itself (tests/net): every impairment happens and is counted, TCP's
# bytes arrive whole all the same, rates hold, a cut is silent, and nothing is left behind. Times
# are checked only in the direction in which a busy machine cannot err, or with a wide margin.
. tests/tap.sh
. tests/net/netns.sh

# It is a tool of the tests, and takes a minute.
[ -z "${SANITIZE-}" ] || tap_skip_all "the relay's own tests run without a sanitizer"
netns_start a b c
check "the programs compile" compile_program relay
check "the programs compile" compile_program pump
pump=$TAP_WORK/pump
relay=$TAP_WORK/relay
port=5000
mebibyte=1048576

# receive_on HOST ADDRESS BYTES: in the background, as $receiver, on $port.
receive_on()
{
    port=$((port + 1))
    netns_spawn "$1" "$pump" recv "$2" "$port" "$3" >"$TAP_WORK/received" 2>&1 </dev/null
    receiver=$NETNS_PID
}

# transfer FROM TO ADDRESS BYTES [OPTION...]: both ends are content; leaves $TAP_WORK/sent.
transfer()
{
    from=$1 address=$3 bytes=$4
    receive_on "$2" "$address" "$bytes"
    shift 4
    sent=0
    netns_run "$from" "$pump" "$@" send "$address" "$port" "$bytes" >"$TAP_WORK/sent" 2>&1 || sent=$?
    [ "$sent" -eq 0 ] || kill "$receiver" 2>/dev/null
    received=0
    wait "$receiver" || received=$?
    cat "$TAP_WORK/sent" "$TAP_WORK/received"
    [ "$sent" -eq 0 ] && [ "$received" -eq 0 ]
}

# megabits FILE: whole Mbit/s as the sender saw them, from before the first byte to the answer.
megabits()
{
    sed -n 's/.*: \([0-9]*\)\.[0-9]* Mbit.*/\1/p' "$1"
}

# between LEAST VALUE MOST
between()
{
    echo "$2, expected $1 to $3"
    [ -n "$2" ] && [ "$1" -le "$2" ] && [ "$2" -le "$3" ]
}

# share RATE: what is left of it on a machine that is busy.
share()
{
    echo $(($1 * 100 / $(slowness)))
}

# checksum_errors HOST: TCP segments its kernel refused.
checksum_errors()
{
    netns_run "$1" awk '/^Tcp:/ { if (n++) print $column; else
        for (i = 1; i <= NF; i++) if ($i == "InCsumErrors") column = i }' /proc/net/snmp
}

# balanced LINK: when its relay has ended, no packet is unaccounted for, in either direction.
balanced()
{
    for way in a b; do
        in=$(($(relay_stat "$1" $way packets) + $(relay_stat "$1" $way duplicated)))
        out=$(($(relay_stat "$1" $way delivered) + $(relay_stat "$1" $way dropped) +
            $(relay_stat "$1" $way held)))
        echo "$way: $in in, $out out or held"
        [ "$in" -eq "$out" ] || return 1
    done
}

# --- refusals ------------------------------------------------------------------------------------

for option in 'loss 1.1' 'loss c:0.1' 'delay -1' 'rate fast' 'rate 1' 'queue 0' 'mtu 100' 'limit 0'; do
    # Words on purpose.
    # shellcheck disable=SC2086
    check_fails_output "refused: --$option" '^relay: .*expected ' "$relay" --$option no-such-a no-such-b
done
check_fails_output "a namespace that is not there" 'namespace /run/netns/no-such-a: ' \
    "$relay" no-such-a no-such-b
check_fails_output "one namespace only" '^usage: ' "$relay" no-such-a
check_output "help" '^usage: ' "$relay" --help

# --- one link, one impairment after the other ----------------------------------------------------

if [ -e /proc/net/if_inet6 ]; then
    check "a link" netns_relay link0 a b 10.77.0.1,fd00:77::1 10.77.0.2,fd00:77::2 --seed 3
    check "IPv6" transfer a b fd00:77::2 $((4 * mebibyte))
else
    check "a link" netns_relay link0 a b 10.77.0.1 10.77.0.2 --seed 3
    tap_skip "IPv6" "this kernel has none"
fi
check "IPv4" transfer a b 10.77.0.2 $((4 * mebibyte + 1))
check "the other way" transfer b a 10.77.0.1 $((4 * mebibyte))
check "nothing at all" transfer a b 10.77.0.2 0
check_fails_output "a stream of another seed is noticed" 'wrong bytes' \
    transfer a b 10.77.0.2 1000 --seed 2
check "a good link loses nothing" test "$(relay_stat link0 a dropped)" -eq 0
check_fails_output "a command that is not there" "'fly high': expected " relay_say link0 fly high
check_fails_output "a value out of range" "'loss 2': expected a prob" relay_say link0 loss 2

# impaired NAME OPTION VALUE WHOLE NAME COUNTER: a transfer with this, and without it again.
impaired()
{
    check "$1" relay_say link0 "$2" "$3"
    check "$4" transfer a b 10.77.0.2 $((4 * mebibyte))
    check "$5" test "$(relay_stat link0 a "$6")" -gt 10
    relay_say link0 "$2" 0 >/dev/null
}

impaired "loss, while it runs" loss 0.03 "arrives whole" "packets were lost there" lost
check "and back" test "$(relay_stat link0 b lost)" -gt 0
back=$(relay_stat link0 b duplicated)
impaired "duplicates, in one direction" duplicate a:0.1 "arrive whole" \
    "packets were duplicated there" duplicated
check "but not back" test "$(relay_stat link0 b duplicated)" -eq "$back"
impaired "reordering" reorder 0.05 "arrives whole" "packets were passed by later ones" reordered
errors=$(checksum_errors b)
impaired "corruption" corrupt 0.02 "arrives whole" "packets were corrupted" corrupted
check "and the kernel refused them" test "$(checksum_errors b)" -gt "$errors"

reordered=$(relay_stat link0 a reordered)
check "delay" relay_say link0 delay 30
check "and jitter" relay_say link0 jitter 5
check "arrive whole" transfer a b 10.77.0.2 $mebibyte
connect=$(sed -n 's/^connected in \([0-9]*\).*/\1/p' "$TAP_WORK/sent")
check "in order" test "$(relay_stat link0 a reordered)" -eq "$reordered"
check "a handshake takes both delays" between 60 "$connect" "$(limit 5000)"
check "the relay ends when told" relay_stop link0
check "every packet is accounted for" balanced link0
check "with statistics" grep -q '^{"seconds": .*}$' "$TAP_WORK/link0.json"
check_fails "its device is gone" netns_run a ip link show link0
with_program python3 check "in JSON" python3 -m json.tool "$TAP_WORK/link0.json"

check "everything at once, with large packets" netns_relay mixed a b 10.77.1.1 10.77.1.2 --mtu 9000 \
    --loss 0.01 --duplicate 0.02 --reorder 0.02 --corrupt 0.01 --delay 2 --jitter 1 --rate 400m \
    --queue 512k
check "arrives whole" transfer a b 10.77.1.2 $((4 * mebibyte))
check "in so few packets only when they are large" between 450 "$(relay_stat mixed a packets)" 2500
check "the relay ends" relay_stop mixed
check "every packet is accounted for" balanced mixed

# --- large packets -------------------------------------------------------------------------------

large=10.77.10.2
if [ -e /proc/net/if_inet6 ]; then
    check "a link that takes large packets" netns_relay large a b 10.77.10.1,fd00:79::1 $large,fd00:79::2 --offload
    check "IPv6" transfer a b fd00:79::2 $((4 * mebibyte + 1))
    check "loses some" relay_say large loss 0.01
    check "which arrive whole" transfer a b fd00:79::2 $((4 * mebibyte + 1))
else
    check "a link that takes large packets" netns_relay large a b 10.77.10.1 $large --offload --loss 0.01
fi
lost=$(relay_stat large a lost) packets=$(relay_stat large a packets)
check "IPv4 with losses arrives whole" transfer a b $large $((16 * mebibyte + 1))
lost=$(($(relay_stat large a lost) - lost)) packets=$(($(relay_stat large a packets) - packets))
check "every packet on the wire counts" between $((16 * mebibyte / 1460)) $packets $((20 * mebibyte / 1440))
check "and is lost by itself" between $((packets / 200)) $lost $((packets / 50))
check "with a small queue" relay_say large queue 64k
check "before a rate" relay_say large rate 200m
check "duplicates" relay_say large duplicate 0.02
check "and reordering" relay_say large reorder 0.02
check "it arrives whole" transfer a b $large $((4 * mebibyte))
check "what did not fit was dropped" test "$(relay_stat large a overflowed)" -gt 0
check "the relay ends" relay_stop large
check "every packet is accounted for" balanced large

# --- chance --------------------------------------------------------------------------------------

has_carried_2000()
{
    [ "$(relay_stat "$1" a packets)" -eq 2000 ]
}

# lost_of_2000 LINK SEED: how many of 2000 packets a new link loses, into $TAP_WORK/LINK.
lost_of_2000()
{
    netns_relay "$1" a b 10.77.2.1 10.77.2.2 --loss 0.1 --seed "$2" || return 1
    netns_run a "$pump" datagrams 10.77.2.2 9 2000 || return 1
    within 5 has_carried_2000 "$1" || return 1
    relay_stat "$1" a lost >"$TAP_WORK/$1"
    relay_stop "$1"
}
check "2000 datagrams" lost_of_2000 dice0 1
check "2000 datagrams with the same seed" lost_of_2000 dice1 1
check "2000 datagrams with another" lost_of_2000 dice2 2
check "a tenth of them is lost" between 140 "$(cat "$TAP_WORK/dice0")" 260
check "the same seed, the same losses" cmp "$TAP_WORK/dice0" "$TAP_WORK/dice1"
check_fails "another seed, others" cmp "$TAP_WORK/dice0" "$TAP_WORK/dice2"

# --- rates ---------------------------------------------------------------------------------------

check "a link of 20 Mbit/s" netns_relay slow a b 10.77.3.1 10.77.3.2 --rate 20m --queue 64k
check "a link of 80 Mbit/s" netns_relay fast a b 10.77.4.1 10.77.4.2 --rate 80m
check "3 MiB over the slow one" transfer a b 10.77.3.2 $((3 * mebibyte))
check "its rate holds" between "$(share 6)" "$(megabits "$TAP_WORK/sent")" 20

# both_at_once: 2 MiB over the slow one while 8 MiB go over the fast one.
both_at_once()
{
    receive_on b 10.77.3.2 $((2 * mebibyte))
    slow_receiver=$receiver
    netns_spawn a "$pump" send 10.77.3.2 "$port" $((2 * mebibyte)) >"$TAP_WORK/slow" 2>&1 </dev/null
    slow_sender=$NETNS_PID
    both=0
    transfer a b 10.77.4.2 $((8 * mebibyte)) || both=1
    wait "$slow_sender" || both=1
    wait "$slow_receiver" || both=1
    cat "$TAP_WORK/slow"
    return $both
}
check "both links at once" both_at_once
check "the rate of the fast one" between "$(share 20)" "$(megabits "$TAP_WORK/sent")" 80
check "the rate of the slow one" between "$(share 4)" "$(megabits "$TAP_WORK/slow")" 20
check "the relay ends" relay_stop fast
check "the relay ends on a signal, too" sh -c "kill -TERM $(netns_relay_id slow)"
check "and well" wait "$(netns_relay_id slow)"
check "with statistics" grep -q '^{"seconds": .*}$' "$TAP_WORK/slow.json"

# --- a cut ---------------------------------------------------------------------------------------

check "a link to cut" netns_relay cut0 a b 10.77.5.1 10.77.5.2 --rate 40m --delay 1
receive_on b 10.77.5.2 $((6 * mebibyte))
netns_spawn a "$pump" send 10.77.5.2 "$port" $((6 * mebibyte)) >"$TAP_WORK/sent" 2>&1 </dev/null
sender=$NETNS_PID
check "in mid-transfer" within 10 relay_has_delivered cut0 $((2 * mebibyte))
check "it is cut" relay_say cut0 cut
delivered=$(relay_stat cut0 a delivered)
sleep 1
check "nothing passes" test "$(relay_stat cut0 a delivered)" -eq "$delivered"
check "though the sender tries" test "$(relay_stat cut0 a severed)" -gt 0
check "it has not finished" test "$(relay_stat cut0 a delivered_bytes)" -lt $((6 * mebibyte))
check "neither end has noticed" kill -0 "$sender" "$receiver"
check "the link is restored" relay_say cut0 restore
check "the sender finishes" wait "$sender"
check "the receiver finishes" wait "$receiver"

# A cut in one direction only: the acknowledgements stay away.
receive_on b 10.77.5.2 $((64 * mebibyte))
netns_spawn a "$pump" --user-timeout 1000 send 10.77.5.2 "$port" $((64 * mebibyte)) \
    >"$TAP_WORK/sent" 2>&1 </dev/null
sender=$NETNS_PID
check "in mid-transfer" within 10 relay_has_delivered cut0 $((8 * mebibyte))
check "the way back is cut" relay_say cut0 cut b
check_fails "the sender gives up in the end" wait "$sender"
check_output "by its own clock" 'timed out' cat "$TAP_WORK/sent"
check "the receiver knows nothing of it" kill -0 "$receiver"
kill "$receiver"
wait "$receiver" 2>/dev/null
check "the relay ends" relay_stop cut0

# --- more than one link --------------------------------------------------------------------------

check "a veth link with a rate" netns_veth b c 10.77.7.1,fd00:78::1 10.77.7.2,fd00:78::2 50m
check "a transfer over it" transfer b c 10.77.7.2 $((3 * mebibyte))
check "its rate holds" between "$(share 12)" "$(megabits "$TAP_WORK/sent")" 60
check "a veth link with prefix lengths" netns_veth a c 10.78.0.1/24 10.78.0.2/24
check "a transfer over that" transfer a c 10.78.0.2 $((32 * mebibyte))
check "a lossy link before it" netns_relay row a b 10.77.6.1 10.77.6.2 --loss 0.005 --delay 2
check "b passes on" netns_router b
check "a finds c" netns_run a ip route add 10.77.7.2 via 10.77.6.2
check "c finds a" netns_run c ip route add 10.77.6.1 via 10.77.7.1
check "a - b - c" transfer a c 10.77.7.2 $((2 * mebibyte))
check "it went that way" test "$(relay_stat row a delivered_bytes)" -gt $((2 * mebibyte))
check "the relay ends" relay_stop row

# --- nothing is left -----------------------------------------------------------------------------

check "a relay with a time limit" netns_relay brief a b 10.77.8.1 10.77.8.2 --limit 1
check_fails "ends by itself" wait "$(netns_relay_id brief)"
check_output "and says so" 'the time limit of 1 s is over' cat "$TAP_WORK/brief.errors"

# A script that is ended by a signal while all it has is in use: its id, its relay's and a process's.
cat >"$TAP_WORK/victim.sh" <<'END'
. tests/tap.sh
. tests/net/netns.sh
netns_start x y
cp "$1/relay" "$TAP_WORK/relay"
netns_relay link x y 10.77.9.1 10.77.9.2 --limit 30 || exit 1
netns_spawn x sleep 60
echo "$$ $(netns_relay_id link) $NETNS_PID" >"$1/victim"
wait "$NETNS_PID"
END

# gone COMMAND...: becomes false soon. (A process that nobody waited for has no exe either.)
gone()
{
    within 5 fails "$@"
}

fails()
{
    ! "$@" >/dev/null 2>&1
}

# victim_dies_of SIGNAL
victim_dies_of()
{
    rm -f "$TAP_WORK/victim"
    # What is ignored here, as SIGHUP under nohup, a script could not change.
    TMPDIR=$TAP_WORK env --default-signal=HUP,TERM sh "$TAP_WORK/victim.sh" "$TAP_WORK" &
    victim=$!
    gone test ! -s "$TAP_WORK/victim" || return 1
    read -r victim victims_relay victims_process <"$TAP_WORK/victim"
    ls "/run/netns/tcpx-$victim-x" "/run/netns/tcpx-$victim-y" || return 1
    kill "-$1" "$victim"
    wait "$victim" 2>/dev/null
    echo "status $?"
}
for signal in TERM HUP; do
    check "a script dies of SIG$signal" victim_dies_of "$signal"
    check "its relay is gone" gone test -e "/proc/$victims_relay/exe"
    check "its process is gone" gone test -e "/proc/$victims_process/exe"
    check_fails "its namespaces are gone" sh -c "ls /run/netns | grep 'tcpx-$victim-'"
done
check "a script dies of SIGKILL" victim_dies_of KILL
check "its relay ends" gone test -e "/proc/$victims_relay/exe"
kill "$victims_process"
check "its process ends" gone test -e "/proc/$victims_process/exe"
check "the next one removes its namespaces" netns_sweep
check_fails "they are gone" sh -c "ls /run/netns | grep 'tcpx-$victim-'"

netns_cleanup
check_fails "our namespaces are gone" sh -c "ls /run/netns | grep '^$NETNS_PREFIX'"
check_fails "so are our relays" sh -c "ls -l /proc/[0-9]*/exe 2>&1 | grep '$TAP_WORK/'"

tap_end
