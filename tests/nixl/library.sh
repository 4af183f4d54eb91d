# The backend for NIXL as a file: what it shows to others, what it needs, and where it is installed.
. tests/tap.sh

library=$BUILD/libplugin_TCPX.so
[ -f "$library" ] || tap_skip_all "there is no C++ compiler"

printf '%s\n' nixl_plugin_fini nixl_plugin_init >"$TAP_WORK/listed"
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$TAP_WORK/shown"
check "it shows its two functions and no others" diff "$TAP_WORK/listed" "$TAP_WORK/shown"
check "it needs no library but those of C and C++" quiet sh -c "
    readelf -d '$library' | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
        grep -v -e '^libc\.so\.' -e '^libm\.so\.' -e '^libdl\.so\.' -e '^libpthread\.so\.' -e '^ld-linux' \
            -e '^libstdc++\.so\.' -e '^libgcc_s\.so\.'"
check "it needs nothing of NIXL" quiet sh -c "nm -DC --undefined-only '$library' | grep -i nixl"
check_output "it stays loaded" 'NODELETE' readelf -d "$library"
check_output "it binds its own symbols" 'SYMBOLIC' readelf -d "$library"

make_install()
{
    make --no-print-directory install-nixl BUILD="$BUILD" "$@"
}

check "installed with DESTDIR and PREFIX" make_install DESTDIR="$TAP_WORK/root" PREFIX=/usr
check "it is in the folder of libraries" test -x "$TAP_WORK/root/usr/lib/nixl/libplugin_TCPX.so"
check "installed into a folder" make_install NIXL_PLUGINS="$TAP_WORK/a folder"
check "it is there" test -x "$TAP_WORK/a folder/libplugin_TCPX.so"
for cuda in cu12 cu13; do
    mkdir -p "$TAP_WORK/site/nixl_$cuda" "$TAP_WORK/site/.nixl_$cuda.mesonpy.libs/plugins"
    touch "$TAP_WORK/site/nixl_$cuda/__init__.py"
done
export PYTHONPATH="$TAP_WORK/site"
check "installed for a Python" make_install PYTHON="${PYTHON:-python3}"
for cuda in cu12 cu13; do
    check "it is beside the backends of its NIXL for $cuda" \
        test -x "$TAP_WORK/site/.nixl_$cuda.mesonpy.libs/plugins/libplugin_TCPX.so"
done
printf '%s\n' '#!/bin/sh' "exec ${PYTHON:-python3} -I -S \"\$@\"" >"$TAP_WORK/bare_python"
chmod +x "$TAP_WORK/bare_python"
check_fails_output "a Python without NIXL" 'has no NIXL: expected nixl-cu12 or nixl-cu13' \
    scripts/nixl-plugins.sh "$TAP_WORK/bare_python"

tap_end
