# The driver is taken out while both ends are bound to it. Linux 7.2 crashes when memory that is bound
# for sending outlives the device; so it must not. The last case: the devices are made anew.

. /cases/ends.inc

gone()
{
    begin || return 1
    rmmod devmem_pair &
    remover=$!
    ended=0
    wait $client || ended=$?
    cat "$TAP_WORK/client"
    wait $server
    cat "$TAP_WORK/server"
    wait $remover && [ $ended -ne 0 ] && [ $ended -lt 124 ]
}
check_output "the driver goes in the middle" '^tcpx: ' gone
check "the devices are gone" test ! -e /sys/class/net/dm0
umount /run/netns/peer
check "they can be made anew" bed_set_up
verifies "and used" --size 1M --iters 2
