# A CUDA driver that lacks an entry point: each needed one is reported by name, each optional one is
# done without. The stand-in driver is linked once more for each, with that one hidden.
. tests/tap.sh

tcpx=$BUILD/tcpx
if [ -n "${SANITIZE:-}" ]; then
    tap_skip_all "the plain build covers this"
fi

all=$BUILD/tests/fakecuda/libcuda.so.1
link_without() {
    mkdir -p "$TAP_WORK/$1"
    printf '{ global: cu*; fakecuda_*; local: %s; *; };\n' "$1" >"$TAP_WORK/$1/map"
    # A name that is both exact and local wins over the pattern.
    # shellcheck disable=SC2046 # words on purpose
    "$CC" -shared -Wl,-soname,libcuda.so.1 -Wl,--version-script="$TAP_WORK/$1/map" -pthread \
        "$BUILD/obj/tests/fakecuda/fakecuda.o" $(library_objects) -ldl \
        -o "$TAP_WORK/$1/libcuda.so.1"
}

names=$(sed -n 's/^ *\(NEEDED\|OPTIONAL\)(\(cu[A-Za-z0-9_]*\),.*/\1:\2/p' src/gpu/cuda_driver.h)
check "the table of entry points is read" test "$(echo "$names" | wc -l)" -ge 40
for entry in $names; do
    kind=${entry%%:*}
    name=${entry#*:}
    check "the stand-in has $name" sh -c "nm -D --defined-only '$all' | grep -q ' T $name\$'"
    link_without "$name"
    if [ "$kind" = NEEDED ]; then
        check_fails_output "without $name" "too old: libcuda.so.1 lacks $name\$" \
            env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$TAP_WORK/$name" "$tcpx" devices
    else
        check_output "without $name" 'stand-in GPU 0' \
            env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$TAP_WORK/$name" "$tcpx" devices
    fi
done
check_output "auto falls back where one is missing" 'no CUDA: .*lacks cuMemAlloc_v2' \
    env UCCL_TCPX_GPU=auto LD_LIBRARY_PATH="$TAP_WORK/cuMemAlloc_v2" "$tcpx" devices
check_output "no dma-buf without its entry point" 'dma-buf export +no' \
    env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$TAP_WORK/cuMemGetHandleForAddressRange" "$tcpx" devices

tap_end
