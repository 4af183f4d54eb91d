#!/bin/sh
# What the tests need beyond gcc and make. Installs what is missing where that is possible (root,
# apt-get, DEPS is not 0), then says what is still missing and what will be skipped without it.
# Never fails: a test that cannot run is a skip with a reason. Says nothing when all is there.
#
# VM=1: also what the tests in a virtual machine need. PORTABLE=1: also other compilers and libcs.
# MODEL=1: also the model checker. PACKAGES=1: also what makes and checks Debian's packages.
#
# usage: deps.sh [--list]

APT_SECONDS=300

# name | Debian package | what is skipped without it. The probe of a name is the function
# has_<name>; a package of "?" is found by package_of.
table()
{
    cat <<'END'
cmocka|libcmocka-dev|the unit tests
pkg_config|pkg-config|the test of the installed library through pkg-config
clang|clang|the build with clang and everything that is fuzzed
clang_tidy|clang-tidy|the static analysis of make lint
clang_format|clang-format|the check of the source format in make lint
clang_runtime|?|the sanitizers of clang and everything that is fuzzed
mandoc|mandoc|the check of the man pages
node|nodejs|the checks of what the page of tcpx perf draws
sodium|?|the tests of shared secrets
nft|nftables|the test of a firewall that lets one port through
END
    [ -z "${VM-}" ] || cat <<'END'
qemu|qemu-system-x86|the tests in a virtual machine
busybox|busybox-static|the tests in a virtual machine
cpio|cpio|the tests in a virtual machine
END
    [ -z "${PORTABLE-}" ] || cat <<'END'
musl|musl-tools|the build with musl and its units
arm_gcc|gcc-aarch64-linux-gnu|the build for aarch64 and its units
arm_libc|libc6-dev-arm64-cross|the build for aarch64 and its units
qemu_user|qemu-user|the units of aarch64
newer_clang|?|the build with clang 16 or later
newer_gcc|?|the build with gcc 13 or later
END
    [ -z "${MODEL-}" ] || cat <<'END'
spin|spin|the models of the protocol
END
    [ -z "${PACKAGES-}" ] || cat <<'END'
debhelper|debhelper|Debian's packages
dh_python|dh-python|Debian's packages
lintian|lintian|the check of Debian's packages for what Debian expects
man|man-db|the check that man finds the pages of an installed package
python_headers|libpython3-dev|Debian's packages
END
}

has_cmocka()
{
    printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h |
        "${CC:-cc}" -fsyntax-only -x c - 2>/dev/null
}

has_pkg_config()
{
    command -v pkg-config >/dev/null
}

has_nft()
{
    command -v nft >/dev/null || [ -x /usr/sbin/nft ]
}

has_clang()
{
    command -v clang >/dev/null
}

has_clang_tidy()
{
    command -v clang-tidy >/dev/null
}

has_clang_format()
{
    command -v clang-format >/dev/null
}

has_qemu()
{
    command -v qemu-system-x86_64 >/dev/null
}

# The static one, which needs nothing of the machine it runs in.
has_busybox()
{
    command -v busybox >/dev/null && ! ldd "$(command -v busybox)" >/dev/null 2>&1
}

has_cpio()
{
    command -v cpio >/dev/null
}

has_musl()
{
    command -v musl-gcc >/dev/null
}

has_arm_gcc()
{
    command -v aarch64-linux-gnu-gcc >/dev/null
}

has_arm_libc()
{
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ]
}

has_qemu_user()
{
    command -v qemu-aarch64 >/dev/null || command -v qemu-aarch64-static >/dev/null
}

# has_newer COMPILER LEAST MOST: of one of these versions, by whichever name.
has_newer()
{
    [ "$("$1" -dumpversion 2>/dev/null | cut -d. -f1)" -lt "$2" ] 2>/dev/null || return 0
    for version in $(seq "$2" "$3"); do
        ! command -v "$1-$version" >/dev/null || return 0
    done
    return 1
}

# newer_package COMPILER LEAST MOST: the newest that there is a package of.
newer_package()
{
    for version in $(seq "$3" -1 "$2"); do
        if apt-cache show "$1-$version" >/dev/null 2>&1; then
            echo "$1-$version"
            return
        fi
    done
    echo "$1-$2"
}

has_debhelper()
{
    command -v dh >/dev/null
}

has_dh_python()
{
    command -v dh_python3 >/dev/null
}

has_lintian()
{
    command -v lintian >/dev/null
}

has_man()
{
    command -v man >/dev/null
}

# Of the system's own Python.
has_python_headers()
{
    /usr/bin/python3 -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null
}

has_spin()
{
    command -v spin >/dev/null
}

has_newer_clang()
{
    has_newer clang 16 22
}

newer_clang_package()
{
    newer_package clang 16 22
}

has_newer_gcc()
{
    has_newer gcc 13 16
}

newer_gcc_package()
{
    newer_package gcc 13 16
}

has_mandoc()
{
    command -v mandoc >/dev/null
}

has_node()
{
    command -v node >/dev/null
}

# The library opens it by its name when a secret is asked for.
has_sodium()
{
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libsodium\.so'
}

# Named after its version, which newer releases have moved on from.
sodium_package()
{
    for candidate in libsodium23 libsodium26; do
        if apt-cache show "$candidate" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo libsodium-dev
}

# The runtime is a package of its own and must fit the compiler, so only linking proves it.
has_clang_runtime()
{
    has_clang || return 1
    probe=$(mktemp) || return 1
    printf '%s\n' '#include <stddef.h>' \
        'int LLVMFuzzerTestOneInput(const unsigned char *d, size_t n);' \
        'int LLVMFuzzerTestOneInput(const unsigned char *d, size_t n) { return !d && n; }' |
        clang -fsanitize=fuzzer,address -x c - -o "$probe" 2>/dev/null
    status=$?
    rm -f "$probe"
    return $status
}

# Debian 12 names it after the compiler's version, older releases keep it in another package, and
# with no clang yet the unnumbered package follows the clang that will come.
clang_runtime_package()
{
    major=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
    if [ -n "$major" ]; then
        for candidate in "libclang-rt-$major-dev" "libclang-common-$major-dev"; do
            if apt-cache show "$candidate" >/dev/null 2>&1; then
                echo "$candidate"
                return
            fi
        done
    fi
    echo libclang-rt-dev
}

# package_of NAME PACKAGE
package_of()
{
    if [ "$2" = "?" ]; then
        "${1}_package"
    else
        echo "$2"
    fi
}

missing_names()
{
    table | while IFS='|' read -r name package purpose; do
        "has_$name" </dev/null || echo "$name"
    done
}

# packages_for NAME...
packages_for()
{
    table | while IFS='|' read -r name package purpose; do
        case " $* " in
        *" $name "*) package_of "$name" "$package" </dev/null ;;
        esac
    done
}

apt()
{
    DEBIAN_FRONTEND=noninteractive timeout "$APT_SECONDS" apt-get \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
        "$@" </dev/null 2>&1
}

# install PACKAGE...
install()
{
    output=$(apt install -y --no-install-recommends "$@") && return
    echo "deps: cannot install $*: $(printf '%s\n' "$output" | grep '^E:' | head -n 1)"
    return 1
}

# A package that does not exist must not keep the others out, so after a failure each is tried
# alone; not without a network, where that would only take longer to fail.
install_all()
{
    if ! output=$(apt update); then
        echo "deps: apt-get update failed: $(printf '%s\n' "$output" | grep '^[EW]:' | head -n 1)"
        install "$@"
        return
    fi
    install "$@" && return
    [ $# -eq 1 ] || for package; do
        install "$package"
    done
}

report()
{
    table | while IFS='|' read -r name package purpose; do
        case " $* " in
        *" $name "*)
            echo "deps: missing $(package_of "$name" "$package" </dev/null): skipped without it:" \
                "$purpose"
            ;;
        esac
    done
}

list()
{
    table | while IFS='|' read -r name package purpose; do
        if "has_$name" </dev/null; then
            state=present
        else
            state=missing
        fi
        printf '%-8s %-14s %-20s %s\n' "$state" "$name" \
            "$(package_of "$name" "$package" </dev/null)" "$purpose"
    done
}

if [ "${1-}" = --list ]; then
    list
    exit 0
fi

# Names and packages are single words, so the unquoted lists below split as they should.
missing=$(missing_names)
[ -n "$missing" ] || exit 0

if [ "${DEPS-1}" = 0 ] || ! command -v apt-get >/dev/null; then
    :
elif [ "$(id -u)" -ne 0 ]; then
    echo "deps: to install what is missing, type:"
    echo "    sudo apt-get install -y --no-install-recommends" $(packages_for $missing)
else
    echo "deps: installing" $(packages_for $missing)
    install_all $(packages_for $missing)
    missing=$(missing_names)
fi

report $missing
exit 0
