#!/bin/sh
# The plugin under a real NCCL: two ranks on one GPU and loopback, every byte verified. Needs a GPU
# and libnccl (LIBNCCL=path, else the loader's, else that of a Python package). Prints a line for each
# check, and ends like the other suites. WHICH: "queues" are the checks that kernels which wait for
# the network do not wait for themselves, with and without MPS; "others" the rest; both by default.
#
# usage: tests/nccl/run.sh BUILD [WHICH]
set -u
build=${1:?"usage: tests/nccl/run.sh BUILD [queues|others]"}
which=${2:-all}

# PyTorch's packages have a libnccl where the loader does not look.
packaged_libnccl() {
    python3 -c 'import nvidia.nccl as n, os
print(os.path.join(list(n.__path__)[0], "lib", "libnccl.so.2"))' 2>/dev/null
}
if [ -z "${LIBNCCL:-}" ] && ! ldconfig -p 2>/dev/null | grep -q 'libnccl\.so'; then
    LIBNCCL=$(packaged_libnccl)
    [ -f "$LIBNCCL" ] || LIBNCCL=
fi
pair="$build/bench/nccl_pair ${LIBNCCL:+--libnccl $LIBNCCL}"
log=$(mktemp -d)
trap 'stop_mps; rm -rf "$log"' EXIT
trap 'exit 1' HUP INT TERM
unset CUDA_DEVICE_MAX_CONNECTIONS
passed=0 failed=0 skipped=0 number=0 limit=300

# check NAME OPTIONS...: one run of nccl_pair; what it printed is shown if it fails. It has $limit
# seconds.
check() {
    name=$1
    shift
    number=$((number + 1))
    start=$(date +%s)
    # shellcheck disable=SC2086
    timeout -k 20 "$limit" $pair "$@" >"$log/out" 2>&1
    status=$?
    if [ $status -eq 77 ]; then
        tail -1 "$log/out"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok $number - $name ($(($(date +%s) - start)) s)"
        [ -z "${V:-}" ] || sed 's/^/# /' "$log/out"
    else
        failed=$((failed + 1))
        echo "not ok $number - $name: status $status"
        sed 's/^/# /' "$log/out"
    fi
}

# --- kernels that wait for the network -------------------------------------------------------------

# A server of this script's own: nobody else's is found or touched.
start_mps() {
    command -v nvidia-cuda-mps-control >/dev/null || return 1
    mkdir -p "$log/mps/log" || return 1
    CUDA_MPS_PIPE_DIRECTORY="$log/mps" CUDA_MPS_LOG_DIRECTORY="$log/mps/log"
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    timeout 30 nvidia-cuda-mps-control -d >"$log/mps/out" 2>&1 && mps=running
}

stop_mps() {
    [ "${mps:-}" = running ] || return 0
    mps=
    echo 'quit -t 5' | timeout 30 nvidia-cuda-mps-control >/dev/null 2>&1
    # It ends after it has answered; what is left in its folder is removed with that.
    tries=0
    while [ -e "$log/mps/nvidia-cuda-mps-control.pid" ] && [ $tries -lt 50 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

# All that NCCL's kernels wait for arrives while they wait, also when others are queued behind them:
# with one channel for all kernels of a process (Megatron-LM sets that), with two as under MPS, and
# with as many as usual. What blocks would hang, and is a failure after the limit.
queues() {
    for connections in unset 1; do
        # shellcheck disable=SC2046 # two words or none
        check "bursts of 20, 4 bytes to 64 MiB, all modes, $1, CUDA_DEVICE_MAX_CONNECTIONS $connections" \
            --check --config host,cuda,unpack --burst 20 --limit 15 \
            --op sendrecv,alltoall,all_reduce,all_gather,reduce_scatter,broadcast \
            --size 4,1K,16K,64K,256K,1M,16M,64M \
            $([ $connections = unset ] || echo "--set CUDA_DEVICE_MAX_CONNECTIONS=$connections")
    done
}

if [ "$which" != others ]; then
    limit=150
    queues "no MPS"
    if start_mps; then
        queues MPS
        stop_mps
    else
        skipped=$((skipped + 2))
        echo "# skip: MPS could not be started: $(tail -1 "$log/mps/out" 2>/dev/null || echo no nvidia-cuda-mps-control)"
    fi
    limit=300
fi
if [ "$which" = queues ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
    exit
fi

# --- everything else --------------------------------------------------------------------------------

check "all operations, 0 bytes to 256 MiB, all modes" --check --config host,cuda,unpack --log "$log/nccl"
check "LL" --check --config host --proto LL --size 0,4,1000,64K,1M
check "LL128" --check --config host --proto LL128 --size 0,4,1000,64K,1M,16M
check "Tree" --check --config host,cuda --algo Tree --op all_reduce --size 4,64K,16M
check "PAT" --check --config host --algo PAT --op all_gather,reduce_scatter --size 4,1000,64K,1M,16M
check "CUDA graphs" --graph --config host,cuda
check "registered buffers" --check --config host --register --op sendrecv,all_reduce --size 1M,16M
check "10000 messages over one communicator" --long --config host,cuda,unpack
check "50 communicators, nothing left behind" --many --config host,cuda,unpack
# NCCL 2.27 to 2.29 forget the variable then, but not the name that they look for by themselves.
ln -s "$(realpath "$build")/libnccl-net-tcpx.so" "$log/libnccl-net.so"
LD_LIBRARY_PATH="$log${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    check "50 communicators, the plugin unloaded in between" --many --config host \
    --set NCCL_NET_PLUGIN_REF_COUNT=0 --set NCCL_NET_PLUGIN=libnccl-net.so
check "two communicators in two threads" --threads --config host,cuda,unpack
check "a communicator that is split" --split --config host
check "a killed rank" --kill --config host,cuda,unpack
check "NCCL's bootstrap over the plugin" --check --config host,unpack --op all_reduce --size 4,1M \
    --set NCCL_OOB_NET_ENABLE=1
check "buffers and chunks of other sizes" --check --config host --op sendrecv,all_reduce \
    --size 4,1M,16M --set NCCL_BUFFSIZE=65536 --set NCCL_P2P_NET_CHUNKSIZE=32768
check "16 channels" --check --config host --op sendrecv,all_reduce,alltoall --size 4,1M,16M \
    --set NCCL_MIN_NCHANNELS=16 --set NCCL_NCHANNELS_PER_NET_PEER=16
check "flush" --check --config cuda --op all_reduce --size 1M --set NCCL_NET_FORCE_FLUSH=1
check "sends from host, receives into GPU memory" --check --config cuda --op all_reduce,sendrecv \
    --size 1M --set NCCL_NET_GDR_READ=0

# Each older table, in a plugin that exports no other.
for version in 6 7 8 9 10; do
    old="$log/libnccl-net-v$version.so"
    printf '{ global: ncclNetPlugin_v%s; local: *; };\n' $version >"$log/map"
    # shellcheck disable=SC2046
    ${CC:-cc} -shared -pthread -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,--version-script="$log/map" \
        $(find "$build/obj/src" -name '*.o') -ldl -o "$old" || exit 1
    modes=host,cuda,unpack
    [ $version -gt 6 ] || modes=host,cuda
    check "table v$version" --check --config $modes --op sendrecv,all_reduce,alltoall \
        --size 0,4,64K,16M --plugin "$old"
done

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
