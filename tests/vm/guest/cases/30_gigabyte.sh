# One gigabyte out of device memory and into device memory, every byte verified, and the counters of
# both devices: payload was in device pages all the way.

. /cases/ends.inc

SECONDS_EACH=110
BYTES=$((1024 * 1024 * 1024))
mtu 9000
check_output "1 GiB through devmem TCP both ways" '^verified: every byte of 16 iterations, 1 GiB' \
    travelled --size 64M --iters 16 --warm-up 0
cat "$WORK/travelled" | sed 's/^/# /'
