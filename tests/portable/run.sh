#!/bin/sh
# Builds with musl, for aarch64, and with newer compilers, all without a warning, and runs the units
# of the first two. What is not installed is skipped, with its name. From `make check-portable`, which
# sets BUILD (of the runner), and JOBS.
#
# usage: run.sh [musl] [arm64] [newer]

base=$BUILD/portable
log=$base/log
mkdir -p "$log" || exit 1
parts=${*:-musl arm64 newer}
set -- # becomes the list of suites

wanted()
{
    case " $parts " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
    esac
}

# build NAME CC CFLAGS ARGUMENT...: its result is a suite of one test.
build()
{
    name=$1 cc=$2 flags=$3
    shift 3
    if make -j"${JOBS:-2}" WERROR=1 CC="$cc" CFLAGS="$flags" BUILD="$base/$name" "$@" units \
        >"$log/$name" 2>&1; then
        printf 'ok 1 - builds without a warning\n1..1\n' >"$log/$name.tap"
        return 0
    fi
    {
        grep -E 'error|warning|\*\*\*' "$log/$name" | head -n 40 | sed 's/^/# /'
        printf 'not ok 1 - builds without a warning\n1..1\n'
    } >"$log/$name.tap"
    return 1
}

# units_of NAME BEFORE: a suite of every unit that the list of those left out does not have.
units_of()
{
    for program in "$base/$1"/tests/unit/test_*; do
        unit=${program##*/test_}
        case " $left_out " in
        *" $unit "*) ;;
        *) printf '%s\n' "$1/$unit: UCCL_TCPX_GPU=host TCPX_TEST_TURNS=5 $2 $program" ;;
        esac
    done
}

newline='
'
suites=
add()
{
    suites="$suites$*$newline"
}

# --- musl: its wrapper of gcc has no kernel headers, which are the same for every libc --------------

musl()
{
    headers=$base/kernel-headers
    multiarch=$(gcc -print-multiarch 2>/dev/null)
    mkdir -p "$headers"
    ln -sfn /usr/include/linux "$headers/linux"
    ln -sfn /usr/include/asm-generic "$headers/asm-generic"
    ln -sfn "/usr/include/${multiarch:+$multiarch/}asm" "$headers/asm"
    if ! command -v musl-gcc >/dev/null; then
        add "skip musl: musl-gcc is not installed (Debian: musl-tools)"
    elif ! [ -e "$headers/linux/netlink.h" ] || ! [ -e "$headers/asm/types.h" ]; then
        add "skip musl: the kernel's headers are not installed (Debian: linux-libc-dev)"
    else
        build musl musl-gcc "-O1 -isystem $headers" CMOCKA=own
        built=$?
        add "musl/build: cat $log/musl.tap"
        # They measure time, mostly wait, or repeat what others show for longer.
        left_out="net_stages net_progress net_process session_faults net_silence session_silence bootstrap_strangers
            access_floods"
        left_out=$(echo $left_out)
        [ $built -ne 0 ] || add "$(units_of musl "")"
        [ $built -ne 0 ] || add "musl/perf: sh tests/portable/perf.sh $base/musl/tcpx"
    fi
}

# --- aarch64, under an emulator of its user mode ----------------------------------------------------

arm64()
{
    prefix=aarch64-linux-gnu
    if ! command -v $prefix-gcc >/dev/null; then
        add "skip arm64: $prefix-gcc is not installed (Debian: gcc-$prefix, libc6-dev-arm64-cross)"
        return
    fi
    build arm64 $prefix-gcc -O1 CMOCKA=own AR=$prefix-ar OBJCOPY=$prefix-objcopy
    built=$?
    add "arm64/build: cat $log/arm64.tap"
    [ $built -eq 0 ] || return
    emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static)
    if [ -z "$emulator" ]; then
        add "skip arm64/units: qemu-aarch64 is not installed (Debian: qemu-user)"
        return
    fi
    # The emulator has no generic netlink and no error queue of sockets, and a program cannot start
    # itself again in it; the others take long.
    left_out="netlink nic zerocopy net_by_reference child
        net_stages net_progress net_process net_comm net_cost net_silence session_faults session_silence access_floods
        bootstrap bootstrap_secret bootstrap_strangers control import net_strangers net_traffic
        rx_descriptor devmem_source session_data session_order session_peers session_calls session_gpu
        session_close calls_arguments calls_connect calls_data calls_end calls_requests"
    left_out=$(echo $left_out)
    add "$(units_of arm64 "QEMU_LD_PREFIX=/usr/$prefix $emulator")"
    add "arm64/perf: QEMU_LD_PREFIX=/usr/$prefix sh tests/portable/perf.sh $emulator $base/arm64/tcpx"
}

# --- compilers that are newer than the usual ones ---------------------------------------------------

# major COMPILER
major()
{
    "$1" -dumpversion 2>/dev/null | cut -d. -f1
}

# newest NAME LEAST: NAME-N or NAME of at least this version.
newest()
{
    for version in 22 21 20 19 18 17 16 15 14 13; do
        if [ $version -ge "$2" ] && command -v "$1-$version" >/dev/null; then
            echo "$1-$version"
            return
        fi
    done
    if command -v "$1" >/dev/null && [ "$(major "$1")" -ge "$2" ]; then
        echo "$1"
    fi
}

# newer NAME LEAST CFLAGS
newer()
{
    compiler=$(newest "$1" "$2")
    if [ -z "$compiler" ]; then
        add "skip newer/$1: no $1 of version $2 or later is installed"
        return
    fi
    build "$1" "$compiler" "$3"
    add "newer/$compiler: cat $log/$1.tap"
}

! wanted musl || musl
! wanted arm64 || arm64
if wanted newer; then
    newer clang 16 -O0 # its warnings do not depend on the optimizer,
    newer gcc 13 -O2   # and those of gcc do
fi

saved=$IFS
IFS=$newline
# shellcheck disable=SC2086 # a suite is a line
set -- $suites
IFS=$saved
"$BUILD/tests/runner" --timeout 120 --log "$log/suites" --lanes 2 beside "$@"
