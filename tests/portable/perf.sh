# A transfer between two processes by a program for another machine or libc, verified.
# usage: perf.sh [EMULATOR] PROGRAM
. tests/tap.sh

check_output "1 MiB, four times" 'verified: every byte of 4 iterations' \
    env UCCL_TCPX_GPU=host "$@" perf --loopback --size 1M --iters 4
check_output "64 KiB over 3 channels, in chunks" 'verified: every byte' \
    env UCCL_TCPX_GPU=host UCCL_TCPX_NUM_CHANNELS=3 "$@" perf --loopback --size 64K --iters 10
tap_end
