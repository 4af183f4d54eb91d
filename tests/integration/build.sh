# The build itself: nothing is done twice, and a change reaches everything that depends on it.
. tests/tap.sh

if [ -n "${SANITIZE:-}" ]; then
    tap_skip_all "the plain build covers this"
fi

unset BUILD
tree=$TAP_WORK/tree
mkdir "$tree"
cp -r Makefile include src tools tests bench python scripts man "$tree/"

# Without optimisation, which takes most of the time and has nothing to do with it.
build() {
    make --no-print-directory -C "$tree" -j2 CC="$CC" CFLAGS="${flags:--O0}" "$@"
}

check "a parallel build from nothing" build
tap_run build
check "a second one does nothing" test ! -s "$TAP_OUTPUT"
touch "$tree/src/base/fork.h"
check_output "a changed header compiles what reads it" 'CC.*src/base/fork.c' build
check_output "and only that" '^$' sh -c "
    touch '$tree/src/base/fork.h'; make --no-print-directory -C '$tree' CC='$CC' CFLAGS=-O0 |
        grep CC | grep -v -e fork.c -e gpu.c; echo"
touch "$tree/src/gpu/unpack_kernels.ptx"
check_output "changed PTX is taken in again" 'CC.*src/gpu/cuda_kernels.c' build
# compiled_again: how many of three objects, with other flags.
compiled_again()
{
    (flags=-O1
    build build/obj/src/base/parse.o build/obj/src/net/wire/wire.o build/obj/tools/main.o) |
        awk '/CC/ { count++ } END { print count + 0 }'
}
check_output "changed flags compile everything again" '^3$' compiled_again
check_output "and once" '^0$' compiled_again
# Where there is none, all of the above was without it.
with_program "${NVCC:-nvcc}" check "without the CUDA toolkit in PATH" env PATH=/usr/bin:/bin \
    make --no-print-directory -C "$tree" BUILD=elsewhere CC="$CC" CFLAGS=-O0 -j2 \
    elsewhere/obj/src/gpu/cuda.o elsewhere/obj/src/gpu/cuda_kernels.o elsewhere/obj/src/gpu/cuda_driver.o
check "make clean" build clean
check_fails "removes the build folder" test -e "$tree/build"

tap_end
