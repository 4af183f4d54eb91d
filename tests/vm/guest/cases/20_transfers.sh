# Sessions of the library over devmem TCP, both ways of it: into pages that are bound to receive
# queues, and out of the memory that was registered. Every byte is verified by the program, and the
# counters of both devices tell where payload travelled.

. /cases/ends.inc

for size in 1 1000 65536 1000019 16M; do
    verifies "$size bytes" --size $size --iters 3
done
also "what the path is called" 'GPU memory by the transport, received by devmem TCP'
verifies "a list of pieces" --size 4000019 --pieces 500 --iters 3
verifies "in chunks" --size 4M --chunk-bytes 300K --iters 2
verifies "both directions at once" --size 4M --both --iters 3
verifies "there and back" --size 64K --ping-pong --iters 20
verifies "two channels" --size 8M --channels 2 --iters 3
check_output "over IPv6" '^verified' transfer_over6 --size 4M --iters 3
verifies "host memory over the same connections" --host --size 4M --iters 3
for way in d2d host kernel; do
    verifies "unpacked by $way" --unpack $way --size 4000019 --iters 2
done

BYTES=$((64 * 1024 * 1024))
mtu 9000
check_output "payload travels in device pages only" '^verified' \
    travelled --size 32M --iters 2 --warm-up 0
