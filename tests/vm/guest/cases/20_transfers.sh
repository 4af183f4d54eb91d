# Sessions of the library over devmem TCP, both ways of it: into pages that are bound to receive
# queues, and out of the memory that was registered. Every byte is verified by the program, and the
# counters of both devices tell where payload travelled.

. /cases/ends.inc

for size in 1 1000 65536 1000019 16M; do
    check_output "$size bytes" '^verified' transfer --size $size --iters 3
done
also "what the path is called" 'GPU memory by the transport, received by devmem TCP'
check_output "a list of pieces" '^verified' transfer --size 4000019 --pieces 500 --iters 3
check_output "in chunks" '^verified' transfer --size 4M --chunk-bytes 300K --iters 2
check_output "both directions at once" '^verified' transfer --size 4M --both --iters 3
check_output "there and back" '^verified' transfer --size 64K --ping-pong --iters 20
check_output "two channels" '^verified' transfer --size 8M --channels 2 --iters 3
check_output "over IPv6" '^verified' transfer_over6 --size 4M --iters 3
check_output "host memory over the same connections" '^verified' transfer --host --size 4M --iters 3
for way in d2d host kernel; do
    check_output "unpacked by $way" '^verified' transfer --unpack $way --size 4000019 --iters 2
done

BYTES=$((64 * 1024 * 1024))
mtu 9000
check_output "payload travels in device pages only" '^verified' \
    travelled --size 32M --iters 2 --warm-up 0
