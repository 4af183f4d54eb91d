#!/bin/sh
# Builds the module of tests/vm/nic for a kernel that kernel.sh unpacked, in a copy, with the
# machine's gcc, which can be older than the one that the kernel was built with.
#
# usage: module.sh KERNEL_FOLDER     prints the path of the module

here=$(cd "$(dirname "$0")" && pwd) || exit 1
if [ $# -ne 1 ] || [ ! -f "$1/release" ]; then
    echo "usage: module.sh KERNEL_FOLDER, one that kernel.sh printed" >&2
    exit 2
fi
kernel=$(cd "$1" && pwd -P) || exit 1
folder=$(dirname "$(dirname "$kernel")")/module/$(cat "$kernel/release")
headers=$(cd "$kernel/headers" && pwd -P) || exit 1
common=$(cd "$kernel/common" && pwd -P) || exit 1

# An option that this gcc lacks gets the one that comes nearest.
write_compiler()
{
    cat >"$1" <<'END'
#!/bin/sh
for word; do
    shift
    case $word in
    -fmin-function-alignment=*) word=-falign-functions=${word#*=} ;;
    esac
    set -- "$@" "$word"
done
exec gcc -Wno-attributes "$@"
END
    chmod +x "$1"
}

mkdir -p "$folder" || exit 1
# One at a time.
exec 9>"$folder/lock"
timeout 120 flock 9 || exit 1
# As they are now, and only those that changed, so that nothing is built twice.
for source in "$here"/nic/*.[ch] "$here"/nic/Makefile; do
    cmp -s "$source" "$folder/${source##*/}" || cp "$source" "$folder/" || exit 1
done
[ -x "$folder/gcc" ] || write_compiler "$folder/gcc"
# The Makefile of the headers is passed over: it names the place where they would be installed.
# Without BTF, which would take pahole.
if ! env -u MAKEFLAGS -u MAKELEVEL timeout 120 make -C "$headers" -f "$common/Makefile" \
    KBUILD_OUTPUT="$headers" M="$folder" CC="$folder/gcc" KCFLAGS=-Werror \
    CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$folder/log" 2>&1 9>&-; then
    cat "$folder/log" >&2
    exit 1
fi
strip -g -o "$folder/devmem_pair.stripped" "$folder/devmem_pair.ko" || exit 1
echo "$folder/devmem_pair.stripped"
