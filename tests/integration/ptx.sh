# The checked-in PTX belongs to its source, a stale one is noticed, and the assembler takes it for
# the oldest and for the newest kind of GPU it is meant for.
. tests/tap.sh

ptx=src/gpu/unpack_kernels.ptx

check "the PTX belongs to its source" scripts/make-ptx.sh --check
check_output "it is for sm_75" '^\.target sm_75$' cat $ptx
check_output "CUDA 12 drivers know its version" '^\.version [78]\.[0-9]$' cat $ptx

mkdir -p "$TAP_WORK/src" "$TAP_WORK/scripts"
cp -r src/gpu src/abi "$TAP_WORK/src/"
for source in src/gpu/unpack_kernels.cu src/gpu/kernels.h src/abi/unpack_queue.h; do
    cp $source "$TAP_WORK/$source"
    echo '// changed' >>"$TAP_WORK/$source"
    check_fails "a change of $source is noticed" \
        sh -c "cd '$TAP_WORK' && NVCC=/nonexistent '$PWD/scripts/make-ptx.sh' --check"
    cp $source "$TAP_WORK/$source"
done
check "without nvcc the hash is enough" \
    sh -c "cd '$TAP_WORK' && NVCC=/nonexistent '$PWD/scripts/make-ptx.sh' --check"

if command -v "${NVCC:-nvcc}" >/dev/null &&
    "${NVCC:-nvcc}" --version | grep -q "V$(sed -n 's|^// nvcc: ||p' $ptx)"; then
    echo '// edited by hand' >>"$TAP_WORK/$ptx"
    check_fails "an edit of the PTX itself is noticed" \
        sh -c "cd '$TAP_WORK' && '$PWD/scripts/make-ptx.sh' --check"
else
    tap_skip "an edit of the PTX itself is noticed" "there is no nvcc of the version that made it"
fi

for kind in sm_75 sm_90; do
    with_program ptxas check "ptxas accepts it for $kind" \
        ptxas -arch=$kind -o "$TAP_WORK/out" $ptx
done

tap_end
