# Receive queues and rules are shared with others, and few.

. /cases/ends.inc

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
    several_status=0 several_ends=
    for PAIR in 1 2 3; do
        ends_start $RECEIVER --size 2M --iters 4
        several_ends="$several_ends $server $client"
    done
    PAIR=
    for process in $several_ends; do
        wait "$process" || several_status=1
    done
    cat "$TAP_WORK"/server? "$TAP_WORK"/client?
    return $several_status
}
SECONDS_EACH=100
check_output "three sessions in processes of their own" '^verified' several

# take QUEUE...: as others do, with the rest for ordinary traffic; give_back: all of them.
take()
{
    nictool rss dm0 equal $((4 - $#))
    hold "$@"
}
give_back()
{
    let_go
    nictool rss dm0 equal 4
}
take 3
before=$(counter dm0 rx2_device_bytes)
verifies "another queue, where the last one is taken" --size 2M --iters 2
check "which is the one before it" test "$(counter dm0 rx2_device_bytes)" -gt "$before"
give_back
take 1 2 3
UCCL_TCPX_DEVMEM=on
check_fails_output "no queue is free" 'no receive queue of dm0 is free' transfer --size 1M --iters 1
UCCL_TCPX_DEVMEM=auto
verifies "then it goes without" --size 1M --iters 1
also "and says why" 'dm0 receives without devmem TCP: no receive queue of dm0 is free'
UCCL_TCPX_DEVMEM=$WANTED
give_back

rules=$(cat $PARAMETERS/most_rules)
set_parameter most_rules 0
UCCL_TCPX_DEVMEM=on
check_fails_output "no rule is left" 'dm[01]: cannot add a rule' transfer --size 1M --iters 1
UCCL_TCPX_DEVMEM=auto
verifies "then a connection is received without" --size 1M --iters 1
UCCL_TCPX_DEVMEM=$WANTED
set_parameter most_rules "$rules"

# Ordinary traffic does not come to the queues that were taken, and afterwards it may again.
rss_avoids()
{
    [ "$(nictool rss dm0 | grep -c '\b3\b')" -eq 0 ]
}
rss_before=$(nictool rss dm0)
ends_start $RECEIVER --size 16M --iters 10
check "a queue is bound" within 20 are_bound 1
check "ordinary traffic is kept away from it" within 5 rss_avoids
check "both ends succeed" ends_finish
check "and comes back afterwards" test "$(nictool rss dm0)" = "$rss_before"
