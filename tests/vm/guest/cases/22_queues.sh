# Receive queues and rules are shared with others, and few.

. /cases/ends.inc

free_device()
{
    [ -z "$(nictool bound dm0)" ] && [ -z "$(nictool rules dm0)" ]
}

UCCL_TCPX_DEVMEM_QUEUES=2
export UCCL_TCPX_DEVMEM_QUEUES
two_queues()
{
    before2=$(counter dm0 rx2_device_bytes) before3=$(counter dm0 rx3_device_bytes)
    transfer --size 8M --sockets 3 --iters 4 || return 1
    echo "queue 2: $(($(counter dm0 rx2_device_bytes) - before2))"
    echo "queue 3: $(($(counter dm0 rx3_device_bytes) - before3))"
    [ $(($(counter dm0 rx2_device_bytes) - before2)) -gt 1000000 ] &&
        [ $(($(counter dm0 rx3_device_bytes) - before3)) -gt 1000000 ]
}
check_output "two connections on two queues" '^verified' two_queues
unset UCCL_TCPX_DEVMEM_QUEUES

# Others keep their queues, and sessions side by side have one each.
several()
{
    PORT=$((PORT + 10))
    several_status=0 several_ends=
    for number in 1 2 3; do
        NCCL_SOCKET_IFNAME=dm0 timeout 100 tcpx perf server --port $((PORT + number)) --timeout 60 \
            >"$WORK/server$number" 2>&1 &
        several_ends="$several_ends $!"
        NCCL_SOCKET_IFNAME=dm1 in_peer timeout 100 tcpx perf client $RECEIVER \
            --port $((PORT + number)) --timeout 60 --no-progress --size 2M --iters 4 \
            >"$WORK/client$number" 2>&1 &
        several_ends="$several_ends $!"
    done
    for process in $several_ends; do
        wait "$process" || several_status=1
    done
    PORT=$((PORT + 10))
    cat "$WORK"/server? "$WORK"/client?
    return $several_status
}
check_output "three sessions in processes of their own" '^verified' several

# As others do who take queues: with the rest for ordinary traffic.
hold()
{
    nictool rss dm0 equal $((4 - $#))
    for queue in "$@"; do
        nictool hold dm0 "$queue" >/dev/null 2>&1 &
        held="${held-} $!"
    done
    held_count=$#
    within 10 all_held
}
all_held()
{
    [ "$(nictool bound dm0 | wc -l)" -ge $held_count ]
}
release()
{
    for process in $held; do
        kill "$process"
        wait "$process" 2>/dev/null
    done
    held=
    nictool rss dm0 equal 4
    within 10 free_device
}
hold 3
before=$(counter dm0 rx2_device_bytes)
check_output "another queue, where the last one is taken" '^verified' transfer --size 2M --iters 2
check "which is the one before it" test "$(counter dm0 rx2_device_bytes)" -gt "$before"
release
hold 1 2 3
UCCL_TCPX_DEVMEM=on
check_fails_output "no queue is free" 'no receive queue of dm0 is free' transfer --size 1M --iters 1
UCCL_TCPX_DEVMEM=auto
check_output "then it goes without" '^verified' transfer --size 1M --iters 1
also "and says why" 'dm0 receives without devmem TCP: no receive queue of dm0 is free'
UCCL_TCPX_DEVMEM=$WANTED
release

rules=$(cat $PARAMETERS/most_rules)
set_parameter most_rules 0
UCCL_TCPX_DEVMEM=on
check_fails_output "no rule is left" 'dm[01]: cannot add a rule' transfer --size 1M --iters 1
UCCL_TCPX_DEVMEM=auto
check_output "then a connection is received without" '^verified' transfer --size 1M --iters 1
UCCL_TCPX_DEVMEM=$WANTED
set_parameter most_rules "$rules"

# Ordinary traffic does not come to the queues that were taken, and afterwards it may again.
rss_avoids()
{
    [ "$(nictool rss dm0 | grep -c '\b3\b')" -eq 0 ]
}
rss_before=$(nictool rss dm0)
NCCL_SOCKET_IFNAME=dm0 timeout 60 tcpx perf server --port 7000 --timeout 40 >"$WORK/server" 2>&1 &
server=$!
(sleep 1; NCCL_SOCKET_IFNAME=dm1 in_peer timeout 60 tcpx perf client $RECEIVER --port 7000 \
    --timeout 40 --no-progress --size 16M --iters 10 >"$WORK/client" 2>&1) &
client=$!
is_bound()
{
    [ -n "$(nictool bound dm0)" ]
}
check "a queue is bound" within 20 is_bound
check "ordinary traffic is kept away from it" within 5 rss_avoids
check "both ends succeed" wait $server
wait $client
check "and comes back afterwards" test "$(nictool rss dm0)" = "$rss_before"
