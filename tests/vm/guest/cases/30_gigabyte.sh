# One gigabyte out of device memory and into device memory, every byte verified, and the counters of
# both devices: payload was in device pages all the way, or where it arrived if the kernel only
# receives.

. /cases/ends.inc

SECONDS_EACH=110
BYTES=$((1024 * 1024 * 1024))
mtu 9000
if can_send; then
    how='out of device memory and into it'
else
    how='into device memory'
fi
check_output "1 GiB $how" '^verified: every byte of 16 iterations, 1 GiB' \
    travelled --size 64M --iters 16 --warm-up 0
sed "s|^|# |" "$TAP_WORK/travelled"

# Nothing was copied on the way: not by the sender, and by the receiver only from page to buffer.
! can_send || also "the sender copied nothing" 'sender +copy out +0 +0\.0 %'
also "all of it came in pages" 'devmem socket 1: 1[0-9]{9} bytes in pages, 0 linear, 0 plain'
