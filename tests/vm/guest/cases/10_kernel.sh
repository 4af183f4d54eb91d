# The kernel's own devmem TCP, with the probe and without the library: bytes arrive in a dma-buf, sent
# from ordinary and from device memory, in packets of all kinds, lost, unsplit, and in part beside
# the headers. The device's counters must agree with what the probe saw.

QUEUE=2
PORT=5000

# receive BYTES [KIB]: in the background, as $receiver, until it listens.
receive()
{
    probe receive dm0 $QUEUE $PORT "$@" >"$TAP_WORK/receiver" 2>&1 &
    receiver=$!
    within 10 grep -q listening "$TAP_WORK/receiver"
}

# transfer BYTES device|ordinary [ADDRESS]: prints what both said.
transfer()
{
    transfer_status=0
    receive "$1" && in_peer probe send dm1 "${3:-$RECEIVER}" $PORT "$1" "$2" || transfer_status=$?
    [ $transfer_status -eq 0 ] || kill $receiver 2>/dev/null
    wait $receiver || transfer_status=$?
    cat "$TAP_WORK/receiver"
    return $transfer_status
}

# other_bytes: that the queue received elsewhere than in device pages.
other_bytes()
{
    echo $(($(counter dm0 rx${QUEUE}_page_bytes) + $(counter dm0 rx${QUEUE}_linear_bytes)))
}

# all_in_device BYTES HOW [ADDRESS]: and the counters of both devices say the same, to the byte.
all_in_device()
{
    rx=$(counter dm0 rx${QUEUE}_device_bytes) other=$(other_bytes) tx=$(counter dm1 tx_device_bytes)
    transfer "$@" || return 1
    rx=$(($(counter dm0 rx${QUEUE}_device_bytes) - rx)) other=$(($(other_bytes) - other))
    tx=$(($(counter dm1 tx_device_bytes) - tx))
    echo "received in device pages $rx, otherwise $other; sent from device pages $tx"
    grep -q "^received $1 device $1 linear 0 ordinary 0$" "$TAP_WORK/receiver" || return 1
    # A retransmission counts again.
    [ $rx -ge "$1" ] && [ $other -eq 0 ] || return 1
    [ "$2" = ordinary ] || [ $tx -ge "$1" ]
}

# What this kernel can send from, and the best of it.
if can_send; then
    sources='ordinary device' how=device
else
    sources=ordinary how=ordinary
fi

check "the hash leaves the queue alone" nictool rss dm0 equal 2
check "a rule leads to it" nictool rule-add dm0 $QUEUE tcp4 - - - $PORT
check "and one for IPv6" nictool rule-add dm0 $QUEUE tcp6 "$SENDER6" - "$RECEIVER6" $PORT

for source in $sources; do
    check "from $source memory" all_in_device 4000000 "$source"
    check "from $source memory over IPv6" all_in_device 1000000 "$source" "$RECEIVER6"
done
can_send || tap_skip "from device memory" "this kernel only receives"

for lro in 0 1; do
    for gro in 0 1; do
        set_parameter lro $lro
        set_parameter gro $gro
        check "lro $lro gro $gro" all_in_device 1000000 "$how"
    done
done
for lro in 0 1; do
    set_parameter lro $lro
    for bytes in 9000 8244; do
        check "an MTU of $bytes" mtu $bytes
        check "lro $lro, an MTU of $bytes" all_in_device 2000000 "$how"
    done
    mtu 1500
    set_parameter drop_nth 20
    check "lro $lro, every 20th packet lost" all_in_device 1000000 "$how"
    set_parameter drop_nth 0
    set_parameter unsplit_nth 7
    check_output "lro $lro, every 7th packet unsplit" \
        '^received 1000000 device [1-9][0-9]* linear 0 ordinary [1-9]' transfer 1000000 "$how"
    set_parameter unsplit_nth 0
    set_parameter linear_bytes 30
    # A packet that has no more than these is an ordinary one.
    if can_send; then
        check_output "lro $lro, 30 bytes beside the headers" \
            '^received 1000000 device [1-9][0-9]* linear [1-9][0-9]* ordinary [0-9]{1,3}$' \
            transfer 1000000 "$how"
    else
        tap_skip "lro $lro, 30 bytes beside the headers" "this kernel ends such a stream with ENODEV"
    fi
    set_parameter linear_bytes 0
done

set_parameter frag_size 1000
check "pages that are not full" all_in_device 1000000 "$how"
set_parameter frag_size 4096

# dry: with 16 pages, of which each packet takes one. What finds none is lost and comes again, but
# packets behind it can have all pages and keep it out, so nobody waits for the end.
dry()
{
    set_parameter lro 0
    dry_before=$(counter dm0 rx${QUEUE}_pool_empty)
    receive 100000000 64
    in_peer probe send dm1 "$RECEIVER" $PORT 100000000 "$how" >"$TAP_WORK/sender" 2>&1 &
    dry_sender=$!
    within 10 is_dry
    dry_status=$?
    kill $dry_sender $receiver
    wait $dry_sender $receiver
    cat "$TAP_WORK/sender" "$TAP_WORK/receiver"
    set_parameter lro 1
    within 10 no_connection || dry_status=1
    return $dry_status
}

# What a killed sender left is sent again and again until the receiver's host refuses it.
no_connection()
{
    ! on_host dm1 awk -v port="$(printf ':%04X' $PORT)" \
        'index($3, port) && $4 != "06" { found = 1 } END { exit !found }' /proc/net/tcp
}

is_dry()
{
    [ "$(counter dm0 rx${QUEUE}_pool_empty)" -gt "$dry_before" ]
}

check "a dma-buf that runs dry" dry
check "and then one that does not" all_in_device 1000000 "$how"

check "the rules go" nictool rule-del dm0 all
check_output "without a rule nothing is in device memory" \
    '^received 100000 device 0 linear 0 ordinary 100000$' transfer 100000 "$how"
