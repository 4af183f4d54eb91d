# Ends that die, pages that run out, and a device that is shut down in the middle: an error in words
# at whoever is left, in bounded time, and nothing stays behind.

. /cases/ends.inc

status_of()
{
    status=0
    wait "$1" || status=$?
    echo "status $status"
    [ $status -eq 1 ]
}

# killed server|client: what the other one says then.
killed()
{
    begin || return 1
    kill -9 "$(process_of "$1")"
    if [ "$1" = server ]; then
        status_of $client
        cat "$TAP_WORK/client"
    else
        status_of $server
        cat "$TAP_WORK/server"
    fi
    wait
}
lost='^tcpx: .*(closed|broke|lost|gone|Connection reset)'
check_output "the receiver is killed" "$lost" killed server
check "its rules are left behind" test -n "$(nictool rules dm0)"
check_output "the next one removes them" 'rules of processes that are gone were removed' \
    transfer --size 1M --iters 1

check_output "the sender is killed" "$lost" killed client
transfer --size 1M --iters 1 >/dev/null

# Pages for a fraction of what is under way: packets are dropped until some come back.
UCCL_TCPX_DEVMEM_BYTES=2M
verifies "a pool that is much too small" --size 8M --both --channels 4 --sockets 3 --iters 2 --warm-up 0
UCCL_TCPX_DEVMEM_BYTES=32M

# Pages that stay away for long, with what the GPU is slow to unpack: the NIC has none left for a
# while, and it goes on when they come back.
slow_unpack()
{
    before=$(all_queues dm0 pool_empty)
    PATH=/build/support:$PATH TCPX_TEST_THROTTLE=unpack:2M UCCL_TCPX_DEVMEM_BYTES=1M transfer \
        --size 4M --iters 2 --warm-up 0 || return 1
    dropped=$(($(all_queues dm0 pool_empty) - before))
    echo "dropped for want of a page: $dropped"
    [ $dropped -gt 0 ]
}
check_output "all pages are out for a while" '^verified' slow_unpack

shut_down()
{
    begin || return 1
    on_host dm1 ip link set dm1 down
    status_of $client
    cat "$TAP_WORK/client"
    kill -9 "$(process_of server)"
    wait $server
    on_host dm1 ip link set dm1 up
    on_host dm1 ip addr add $SENDER6/64 dev dm1 2>/dev/null
    true
}
# A sender that is bound to its device is told; another one has only the time without an answer.
if can_send; then
    told='dm1 cannot send from GPU memory any more|No route to host|unreachable'
else
    told='No route to host|unreachable|Connection timed out|did not end within'
fi
check_output "the sender's device is shut down" "^tcpx: .*($told)" shut_down
transfer --size 1M --iters 1 >/dev/null

export TCPX_TEST_DEVMEM_UNBIND=3000000
verifies "the queue is bound no more in the middle" --size 8M --iters 3
also "what came then is told to be in ordinary memory" 'payload comes through dm0 in ordinary memory'
