# The network as it can be: packets of all sizes, lost ones, and payload that does not come in device
# pages although it should. What cannot arrive in pages is copied; nothing is lost, nothing hangs.

. /cases/ends.inc

# A transfer of some megabytes under parameters of the module: with NAME VALUE NAME VALUE...
with()
{
    while [ $# -gt 1 ]; do
        set_parameter "$1" "$2"
        shift 2
    done
    transfer --size 3000019 --iters 2 --warm-up 0
    with_status=$?
    for with_parameter in drop_nth unsplit_nth linear_bytes; do
        set_parameter $with_parameter 0
    done
    set_parameter lro 1
    set_parameter gro 1
    return $with_status
}

for bytes in 1500 8244 9000; do
    mtu $bytes
    for merged in 0 1; do
        check_output "MTU $bytes, merged packets $merged" '^verified' with lro $merged gro $merged
    done
done
check_output "lost packets" '^verified' with drop_nth 50
mtu 1500
check_output "lost packets of 1500 bytes" '^verified' with drop_nth 70 lro 0
check_output "packets whose headers are not split off" '^verified' with unsplit_nth 7
also "it says so" 'payload comes through dm0 in ordinary memory'

# Linux 7.2 loses a stream of which larger pieces come beside the headers, 6.12 one with a few bytes.
if can_send; then
    check_output "a few bytes of payload beside the headers" '^verified' with linear_bytes 30
    few=20 too_many=700
else
    tap_skip "a few bytes of payload beside the headers" "this kernel ends such a stream with ENODEV"
    few=0 too_many=30
fi
check_output "all of it at once" '^verified' \
    with drop_nth 90 unsplit_nth 11 linear_bytes $few lro 0
expect_kernel 'non-dmabuf'
check_fails_output "a stream that the kernel lost is told as that" \
    'the kernel cannot read on what .* sends through dm0 .*header split' \
    with linear_bytes $too_many
