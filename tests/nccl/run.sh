#!/bin/sh
# The plugin under a real NCCL: two ranks on one GPU and loopback, every byte verified. Needs a GPU
# and libnccl (LIBNCCL=path). Prints a line for each check, and ends like the other suites.
#
# usage: tests/nccl/run.sh BUILD
set -u
build=${1:?"usage: tests/nccl/run.sh BUILD"}
pair="$build/bench/nccl_pair ${LIBNCCL:+--libnccl $LIBNCCL}"
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
passed=0 failed=0 number=0

# check NAME OPTIONS...: one run of nccl_pair; what it printed is shown if it fails.
check() {
    name=$1
    shift
    number=$((number + 1))
    start=$(date +%s)
    # shellcheck disable=SC2086
    timeout 300 $pair "$@" >"$log/out" 2>&1
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

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
