# What `make deb` made is what Debian expects, and works where it is installed: on a copy of this
# machine (tests/scratch_root.sh), from which the packages are removed again without a trace.
#
# usage: deb.sh FOLDER     where the packages are
. tests/tap.sh
. tests/packages/transfer.sh
. tests/on_copy.sh

names="libtcpx0 libtcpx-dev tcpx libnccl-net-tcpx tcpx-nixl python3-tcpx"

if [ "${1-}" = --installed ]; then
    folder=$2 version=$3
    export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host PATH=/usr/sbin:/usr/bin:/sbin:/bin
    # shellcheck disable=SC2086 # a list of words
    check "the packages are installed" dpkg -i $(for name in $names; do ls "$folder/${name}"_*.deb; done)

    check_output "the program is of this version" "^tcpx $version\$" tcpx version
    check "it moves memory, verified" tcpx perf --loopback --size 1M --iters 2
    with_program man check_output "man tcpx is the program's page" '/man1/tcpx\.1' man -w tcpx
    with_program man check_output "man 3 tcpx is the library's" '/man3/tcpx\.3' man -w 3 tcpx
    check "bash completes" test -e /usr/share/bash-completion/completions/tcpx

    examples=/usr/share/doc/libtcpx-dev/examples
    for example in session_receive session_send; do
        # shellcheck disable=SC2046
        check "$example compiles, found through pkg-config" \
            cc "$examples/$example.c" $(pkg-config --cflags --libs tcpx) -o "$TAP_WORK/$example"
    done
    check "$example links statically" \
        cc "$examples/$example.c" -l:libtcpx.a -ldl -pthread -o "$TAP_WORK/static"
    "$TAP_WORK/session_receive" >"$TAP_WORK/received" 2>&1 &
    check "one sends" "$TAP_WORK/session_send" 127.0.0.1
    check "the other one has ended well" wait $!
    check_output "every byte arrived" 'verified$' cat "$TAP_WORK/received"

    load='import ctypes, sys; ctypes.CDLL(sys.argv[1])[sys.argv[2]]'
    check "NCCL's plugin is found by its name" python3 -c "$load" libnccl-net-tcpx.so ncclNetPlugin_v8
    packages=/usr/lib/python3/dist-packages/tcpx
    check "the backend for NIXL is there" python3 -c "$load" $packages/nixl/libplugin_TCPX.so nixl_plugin_init
    check_fails_output "python3 -m tcpx nixl looks for a NIXL" 'has no NIXL' python3 -m tcpx nixl
    check_output "python3 -m tcpx is the program" "^tcpx $version\$" python3 -m tcpx version
    check_output "python3 knows the package's version" "^$version\$" \
        python3 -c 'import importlib.metadata as m; print(m.version("tcpx"))'
    check_output "it moves bytes between two processes" '^received: hello$' python_transfer python3

    # shellcheck disable=SC2086
    dpkg -L $names | sort -u | grep tcpx >"$TAP_WORK/files"
    # shellcheck disable=SC2086
    check "the packages are removed" dpkg --purge $names
    # shellcheck disable=SC2016 # for the shell inside
    check "and leave nothing behind" quiet sh -c 'while read -r file; do
        [ ! -e "$file" ] || echo "$file"; done <"$1"' sh "$TAP_WORK/files"
    tap_end
fi

folder=$1
changes=$(echo "$folder"/tcpx_*.changes)
version=$(sed -n 's/^Version: //p' "$changes")
upstream=${version%-*}
on_copy "the packages are installed" sh tests/packages/deb.sh --installed "$folder" "$upstream"
for name in $names; do
    check "there is $name" test -e "$(echo "$folder/${name}_${version}"_*.deb)"
done
with_program lintian check "lintian has no complaint" lintian --no-cfg --fail-on error,warning "$changes"
check "the dependencies on the C library are of its package" sh -c \
    'dpkg-deb -f "$1" Depends | grep -q "libc6 ("' sh "$(echo "$folder"/libtcpx0_*.deb)"

tap_end
