# The libraries offer the symbols of src/libtcpx.map and no others, and need libc only.
. tests/tap.sh

listed=$TAP_WORK/listed
sed -n 's/^ *\(tcpx_[a-z0-9_]*\);$/\1/p' src/libtcpx.map | sort >"$listed"
check "the list is not empty" test -s "$listed"
check "the header declares each of them" quiet sh -c "
    while read -r name; do grep -q \"\\b\$name(\" include/tcpx.h || echo \"\$name\"; done <'$listed'"

# A sanitizer's runtime marks are not ours.
exported() {
    nm "$@" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | grep -v -e '^__asan' -e '^__odr_asan' \
        -e '^__start_asan' -e '^__stop_asan' -e '^__sancov' | sort
}
exported -D --defined-only "$BUILD/libtcpx.so" >"$TAP_WORK/shared"
check "libtcpx.so exports exactly these" diff "$listed" "$TAP_WORK/shared"
exported -g --defined-only "$BUILD/libtcpx.a" | sed '/^$/d' >"$TAP_WORK/static"
check "libtcpx.a shows exactly these" diff "$listed" "$TAP_WORK/static"

check_output "its soname is libtcpx.so.0" 'SONAME.*\[libtcpx\.so\.0\]' readelf -d "$BUILD/libtcpx.so"
check_output "it stays loaded" 'NODELETE' readelf -d "$BUILD/libtcpx.so"
check_output "it binds its own symbols" 'SYMBOLIC' readelf -d "$BUILD/libtcpx.so"
if [ -n "${SANITIZE:-}" ]; then
    tap_skip "it needs libc only" "a sanitizer brings its runtime"
else
    check "it needs libc only" quiet sh -c "
        readelf -d '$BUILD/libtcpx.so' | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
            grep -v -e '^libc\.so\.' -e '^libdl\.so\.' -e '^libpthread\.so\.' -e '^ld-linux'"
fi

# Of a library that dlopen() loads, glibc takes it from a small reserve, or from the heap at the first
# use in each thread, and ends the process if there is none.
for library in libtcpx.so libnccl-net-tcpx.so; do
    check "$library has at most 4096 bytes of thread-local memory" sh -c "
        size=\$(readelf -lW '$BUILD/$library' | awk '\$1 == \"TLS\" { print \$6 }')
        echo \"\$size\"
        [ \$((\${size:-0})) -le 4096 ]"
done

tap_end
