#!/bin/sh
# The tests that need the kernel's devmem TCP, in a virtual machine that has it: a stock kernel, the
# module of tests/vm/nic as the network, and the cases of tests/vm/guest/cases. Prints TAP, two
# groups a case. Status 77 where there is no such kernel to be had, or no emulator.
#
# usage: run.sh [CASE...]     such as 10_kernel; all of them if none is given
#
# BUILD            what is tested: the program and libraries in this folder (build)
# TCPX_VM_CASES    the cases, if none is given as arguments
# TCPX_VM_KERNEL   the kernel's version (7.2)
# TCPX_VM_PROGRAMS further programs for the guest's /bin, as paths
# TCPX_VM_CACHE    where kernels are kept (build/vm)
# TCPX_VM_SECONDS  how long the machine may run (560)

here=$(dirname "$0")
. "$here/../tap.sh"
build=${BUILD:-build}
version=${TCPX_VM_KERNEL:-7.2}
seconds=${TCPX_VM_SECONDS:-560}
root=$TAP_WORK/root
log=$TAP_WORK/log

# need PROGRAM PACKAGE
need()
{
    command -v "$1" >/dev/null || tap_skip_all "$1 is not installed (Debian: $2)"
}

fail()
{
    echo "run.sh: $*" >&2
    exit 1
}

# --- what the guest has --------------------------------------------------------------------------

# compile PROGRAM: one of this folder, static, so that it needs nothing of the guest.
compile()
{
    # Words on purpose: the compiler can be several.
    # shellcheck disable=SC2086
    ${CC:-cc} -std=gnu17 -D_GNU_SOURCE -I"$here/../.." -O2 -Wall -Wextra -Wshadow \
        -Wstrict-prototypes -Wmissing-prototypes ${WERROR:+-Werror} -static \
        "$here/$1.c" "$here/kernel_calls.c" -o "$root/bin/$1" || fail "cannot compile $1"
}

# add PROGRAM TO: with the libraries that it is linked to, where its loader looks for them.
add()
{
    cp -L "$1" "$root/$2" || fail "cannot copy $1"
    ldd "$1" 2>/dev/null | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
        [ -e "$root$library" ] && continue
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library" || exit 1
    done || fail "cannot copy the libraries of $1"
}

add_build()
{
    for file in "$build"/tcpx "$build"/libtcpx.so.? "$build"/libnccl-net-tcpx.so; do
        [ ! -e "$file" ] || add "$file" "build/${file##*/}"
    done
    # The program with the parts of the tests: a throttle.
    [ ! -e "$build/tests/support/tcpx" ] || add "$build/tests/support/tcpx" build/support/tcpx
    for file in ${TCPX_VM_PROGRAMS-}; do
        add "$file" "bin/${file##*/}"
    done
}

fill_root()
{
    mkdir -p "$root/bin" "$root/guest" "$root/cases" "$root/build/support"
    cp "$(command -v busybox)" "$root/bin/busybox" || fail "cannot copy busybox"
    cp "$here"/../tap.sh "$here"/guest/lib.sh "$here"/guest/case.sh "$root/guest/"
    cp "$here"/guest/cases/* "$root/cases/"
    cp "$module" "$root/guest/devmem_pair.ko"
    cp "$here/guest/init" "$root/init"
    chmod +x "$root/init"
    echo "$cases" >"$root/guest/selected"
    compile nictool
    compile probe
    add_build
}

# --- what it says --------------------------------------------------------------------------------

# planned: every group has as many results as its plan says, which comes behind them, and none is open.
planned()
{
    awk '
        /^(not )?ok [0-9]/ { seen++ }
        /^1\.\.[0-9]+$/ {
            if (substr($0, 4) + 0 != seen)
                mismatch = mismatch " " $0 " behind " seen + 0 " results;"
            seen = 0
            groups++
        }
        END { print groups + 0 " groups;" mismatch, seen + 0 " results behind the last"
            exit groups == 0 || mismatch != "" || seen > 0 }' "$log"
}

# judge: a group of the machine's own behind those of the guest.
judge()
{
    check "the machine reached its end" grep '^# the guest has ended' "$log"
    check_fails "its kernel did not crash" grep -E 'Kernel panic|Oops|BUG:|WARNING:' "$log"
    check "the emulator ended with status 0, and not for want of time" test $status -eq 0
    check "every case has the results that it planned" planned
    check_fails "no check of the guest has failed" grep '^not ok ' "$log"
    tap_end
}

# --- all of it -----------------------------------------------------------------------------------

[ "$(uname -m)" = x86_64 ] || tap_skip_all "the module can only be built on x86_64"
need qemu-system-x86_64 qemu-system-x86
need cpio cpio
need gcc gcc
need make make
busybox=$(command -v busybox) || tap_skip_all "busybox is not installed (Debian: busybox-static)"
! ldd "$busybox" >/dev/null 2>&1 ||
    tap_skip_all "busybox is not the static one (Debian: busybox-static)"

cases=${*:-${TCPX_VM_CASES-}}
if [ -z "$cases" ]; then
    cases=$(for case in "$here"/guest/cases/*.sh; do basename "$case" .sh; done)
fi
kernel=$(sh "$here/kernel.sh" "$version" 2>&1) || {
    status=$?
    echo "$kernel" | tail -n 1
    exit $status
}
kernel=$(echo "$kernel" | tail -n 1)
module=$(sh "$here/module.sh" "$kernel") || fail "cannot build the module"

# The machine ends with this script.
trap 'kill $machine 2>/dev/null; exit 130' INT
trap 'kill $machine 2>/dev/null; exit 143' TERM HUP
fill_root

(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet | gzip -1) >"$TAP_WORK/archive" ||
    fail "cannot pack the guest"

# An emulated machine, with no disk and no network; a crash of its kernel ends it. What it prints is
# shown as it comes, and judged when it has ended. Without cmpxchg16b, which QEMU 7.2 emulates with
# wrong flags at times: a kernel that uses it crashes. Only what ends the machine goes to its console:
# a message within a result would spoil it.
boot()
{
    : >"$TAP_WORK/raw"
    timeout -k 5 "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 3G \
        -cpu max,-cx16 -nodefaults -no-reboot -display none -serial stdio -net none \
        -kernel "$kernel/image" -initrd "$TAP_WORK/archive" \
        -append "console=ttyS0 quiet loglevel=1 panic=-1 oops=panic mitigations=off" \
        >>"$TAP_WORK/raw" 2>&1 </dev/null &
    machine=$!
    (tail -n +1 -f --pid=$machine "$TAP_WORK/raw" 2>/dev/null | tr -d '\r' | tee "$log") &
    shown=$!
    status=0
    wait $machine || status=$?
    wait $shown
}

# Now and then the emulator trips over the kernel's patching of itself, long before anything of ours
# runs: that boot is none.
tries=3
boot
while ! grep -q '^# Linux ' "$log" && [ $((tries -= 1)) -gt 0 ]; do
    echo "# the kernel did not get to its first process; once more"
    boot
done
judge
