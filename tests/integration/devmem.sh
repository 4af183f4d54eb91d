# Receiving by device-memory TCP, the software kind: GPU memory in random fragments through every way
# to unpack and pools of different size, every byte verified and every token back.
. tests/tap.sh

tcpx=$BUILD/tests/support/tcpx
size=32M
[ -z "${SANITIZE-}" ] || size=4M
size=${TCPX_TEST_DEVMEM_SIZE:-$size}
said=$TAP_WORK/said

# transfer SEED POOL WAY: the NIC that the number makes up.
transfer()
{
    UCCL_TCPX_SOFT_DEVMEM=$1 UCCL_TCPX_DEVMEM_BYTES=$2 UCCL_TCPX_UNPACK_IMPL=$3 UCCL_TCPX_DEBUG=1 \
        "$tcpx" perf --loopback --iters 1 --warm-up 0 --size "$size" --sockets 3 >"$said" 2>&1 || {
        cat "$said"
        return 1
    }
    grep '^verified\|GB/s' "$said"
}

# A token that was handed out and not returned keeps a page for ever. Either socket may have carried
# everything: which one the slices take is up to the threads. Each end has two for what it receives.
tokens_are_back()
{
    awk '/devmem socket/ {
             sockets++
             match($0, /tokens: [0-9]+ out, [0-9]+ back/)
             split(substr($0, RSTART, RLENGTH), word, " ")
             out += word[2]
             if (word[2] != word[4]) wrong = 1
             print
         }
         END { exit wrong || sockets != 4 || out == 0 }' "$said"
}

seed=1
for pool in 1M 64M; do
    for way in d2d host kernel auto; do
        check_output "$way, a pool of $pool" '^verified' transfer $seed $pool $way
        check "$way, a pool of $pool: all tokens are back" tokens_are_back
        seed=$((seed + 1))
    done
done

# With I/O threads, whose lanes no event wakes when pages come back.
UCCL_TCPX_THREADS=3
UCCL_TCPX_TIMEOUT_MS=20000
export UCCL_TCPX_THREADS UCCL_TCPX_TIMEOUT_MS
for seed in 2 4 5; do
    check_output "with 3 I/O threads, NIC $seed" '^verified' transfer $seed 1M auto
    check "with 3 I/O threads, NIC $seed: all tokens are back" tokens_are_back
done

tap_end
