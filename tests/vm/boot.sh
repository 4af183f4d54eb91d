#!/bin/sh
# Packs a folder as the root of a virtual machine, boots it, and passes on what it prints. The
# machine is emulated, with no disk and no network; a crash of its kernel ends it.
#
# usage: boot.sh KERNEL_IMAGE FOLDER SECONDS
#
# The status is that of the emulator; 124 when the time was up.

if [ $# -ne 3 ]; then
    echo "usage: boot.sh KERNEL_IMAGE FOLDER SECONDS" >&2
    exit 2
fi
image=$1 folder=$2 seconds=$3
archive=$(mktemp) || exit 1
trap 'rm -f "$archive"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
(cd "$folder" && find . | cpio -o -H newc -R 0:0 --quiet | gzip -1) >"$archive" || exit 1

# Without cmpxchg16b, which QEMU 7.2 emulates with wrong flags at times: a kernel that uses it
# crashes. Only what ends the machine goes to its console: a message within a result would spoil it.
# In the background, so that a signal to this script is not held up.
timeout -k 5 "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 3G -cpu max,-cx16 \
    -nodefaults -no-reboot -display none -serial stdio -net none \
    -kernel "$image" -initrd "$archive" \
    -append "console=ttyS0 quiet loglevel=1 panic=-1 oops=panic mitigations=off" </dev/null &
machine=$!
trap 'kill $machine 2>/dev/null; exit 143' TERM
trap 'kill $machine 2>/dev/null; exit 130' INT
wait $machine
