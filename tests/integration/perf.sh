# tcpx perf as a person runs it, and the demo that the README promises.
. tests/tap.sh

tcpx=$BUILD/tcpx

check_output "a small transfer is verified" '^verified: every byte is right$' \
    "$tcpx" perf --loopback --size 10000019
check_output "it moves GPU memory" 'of GPU memory' "$tcpx" perf --loopback --size 1M
check_output "or host memory" 'of host memory' "$tcpx" perf --loopback --host --size 1M
check_output "which is verified, too" '^verified' "$tcpx" perf --loopback --host --size 10000019
check_output "over several sockets" '^verified' "$tcpx" perf --loopback --size 40M --sockets 5
check_output "with the longest timeout" '^verified' \
    env UCCL_TCPX_TIMEOUT_MS=3600000 "$tcpx" perf --loopback --size 1M
check_output "of one byte" '^1 bytes in ' "$tcpx" perf --loopback --size 1
# 1 GiB of emulated GPU memory takes a minute under a sanitizer.
[ -n "${SANITIZE-}" ] || check_output "make demo" '^1073741824 bytes in .* GB/s$' make --no-print-directory demo
check_fails_output "a size that is none" "not a size, such as 512K or 1G: 'x'" \
    "$tcpx" perf --loopback --size x
check_fails_output "no sockets" "not a number from 1 to 64: '0'" "$tcpx" perf --loopback --sockets 0
check_fails_output "two machines, so far" "it needs the argument '--loopback'" "$tcpx" perf
check_fails_output "more memory than there is" 'a buffer of [0-9]+ bytes: ' \
    "$tcpx" perf --loopback --host --size 60T
check_fails_output "more memory than the GPU has" '[Oo]ut of|memory' \
    "$tcpx" perf --loopback --size 60T

tap_end
