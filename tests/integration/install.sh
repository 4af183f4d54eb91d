# What `make install` gives can be used as a stranger would use it: found through pkg-config, linked
# shared and static, from C and C++; and `make uninstall` leaves nothing behind.
. tests/tap.sh

root=$TAP_WORK/root
sanitize=${SANITIZE:+-fsanitize=$SANITIZE}

check "make install with DESTDIR" \
    make --no-print-directory install BUILD="$BUILD" CC="$CC" DESTDIR="$root" PREFIX=/usr
for file in bin/tcpx lib/libtcpx.so lib/libtcpx.so.0 lib/libtcpx.a lib/pkgconfig/tcpx.pc \
    include/tcpx.h share/man/man1/tcpx.1 share/man/man3/tcpx.3 \
    share/bash-completion/completions/tcpx; do
    check "installs $file" test -e "$root/usr/$file"
done
check_output "the installed program runs" '^tcpx [0-9]+\.[0-9]+\.[0-9]+$' "$root/usr/bin/tcpx" version

if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH="$root/usr/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
    flags=$(pkg-config --cflags --libs tcpx)
    check_output "pkg-config knows the version" \
        "^$("$BUILD/tcpx" version | cut -d' ' -f2)\$" pkg-config --modversion tcpx
    # shellcheck disable=SC2086
    check "the example compiles" $CC $sanitize -o "$TAP_WORK/shared" examples/gpus.c $flags
    check_output "and prints the GPUs" '^GPU 0: emulated GPU 0$' \
        env UCCL_TCPX_GPU=host LD_LIBRARY_PATH="$root/usr/lib" "$TAP_WORK/shared"
    # shellcheck disable=SC2086
    check "the example links statically with the library" \
        $CC $sanitize -I"$root/usr/include" -o "$TAP_WORK/static" examples/gpus.c \
        "$root/usr/lib/libtcpx.a" $(pkg-config --libs-only-other --static tcpx) -ldl -pthread
    check_output "and prints the GPUs, too" '^GPU 0: emulated GPU 0$' \
        env UCCL_TCPX_GPU=host "$TAP_WORK/static"
else
    tap_skip "the example through pkg-config" "pkg-config is not installed"
fi

echo '#include <tcpx.h>' >"$TAP_WORK/header.c"
cp "$TAP_WORK/header.c" "$TAP_WORK/header.cc"
check "the header is strict C11" \
    "$CC" -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$root/usr/include" -fsyntax-only \
    "$TAP_WORK/header.c"
with_program c++ check "the header is strict C++" \
    c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -I"$root/usr/include" -fsyntax-only \
    "$TAP_WORK/header.cc"

check "make uninstall" \
    make --no-print-directory uninstall BUILD="$BUILD" CC="$CC" DESTDIR="$root" PREFIX=/usr
check_output "leaves no file behind" '^0$' sh -c "find '$root' ! -type d | wc -l"

tap_end
