#!/bin/sh
# Runs a command as root on a copy of this machine that is thrown away: its files are those of the
# machine, and changes go to memory; it has processes and a loopback interface of its own, and no
# network. Status 77, with the reason, where this machine does not allow that.
#
# usage: scratch_root.sh FOLDER COMMAND...     in FOLDER, which both see

# mount_root NEW FOLDER: what the copy consists of.
mount_root()
{
    mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/root" &&
        mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root" &&
        mount -t proc proc "$1/root/proc" && mount --rbind /dev "$1/root/dev" &&
        mount --rbind /sys "$1/root/sys" && mount -t tmpfs tmpfs "$1/root/tmp" &&
        mkdir -p "$1/root$2" && mount --rbind "$2" "$1/root$2" && ip link set lo up
}

if [ "${1-}" = --inside ]; then
    new=$2 folder=$3
    shift 3
    if ! reason=$(mount_root "$new" "$folder" 2>&1); then
        echo "a copy of the machine cannot be mounted: $reason"
        exit 77
    fi
    # shellcheck disable=SC2016 # for the shell inside
    exec chroot "$new/root" sh -c 'cd "$1" && shift && exec "$@"' sh "$folder" "$@"
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "a copy of the machine takes root"
    exit 77
fi
folder=$(cd "$1" && pwd) || exit
shift
new=$(mktemp -d) || exit
trap 'rmdir "$new"' EXIT
unshare --mount --net --pid --fork --kill-child "$0" --inside "$new" "$folder" "$@"
