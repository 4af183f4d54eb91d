# Sourced by init and by every case of the virtual machine. The receiving host is where a case runs,
# with dm0; the sending one is the namespace "peer", with dm1. Both devices are as bed_reset leaves
# them when a case starts, and nothing of the case may be left when it ends.
#
#   check, check_output, within, ...    tests/tap.sh has these, and $TAP_WORK, a folder of the case
#   in_peer COMMAND...                  on the sending host
#   on_host DEVICE COMMAND...           on the host that has the device
#   counter DEVICE NAME                 one of nictool stats
#   set_parameter NAME VALUE            of the module
#   mtu BYTES                           of both devices
#   hold QUEUE...                       of dm0, as others do who take queues; let_go: all of them
#   can_send                            this kernel sends from device memory, too
#   expect_kernel REGEX                 the kernel may say this during the case

. /guest/tap.sh

PARAMETERS=/sys/module/devmem_pair/parameters
RECEIVER=10.0.0.1
RECEIVER6=fd00::1
SENDER=10.0.0.2
SENDER6=fd00::2
CASE_SECONDS=180
# What a kernel says when something is wrong with it.
TROUBLE='WARNING|BUG|Oops|Call Trace|non-dmabuf|page_pool_release_retry|refcount|stalled'

uptime_seconds()
{
    cut -d' ' -f1 /proc/uptime
}

# --- hosts and devices ---------------------------------------------------------------------------

# With a /sys that shows the devices of that host; the process id stays the same.
in_peer()
{
    nsenter --net=/run/netns/peer unshare -m sh -c \
        'mount -t sysfs sysfs /sys && exec "$@"' sh "$@"
}

on_host()
{
    on_host_device=$1
    shift
    if [ "$on_host_device" = dm0 ]; then
        "$@"
    else
        nsenter --net=/run/netns/peer "$@"
    fi
}

counter()
{
    on_host "$1" nictool stats "$1" "$2"
}

set_parameter()
{
    echo "$2" >"$PARAMETERS/$1"
}

mtu()
{
    for mtu_device in dm0 dm1; do
        on_host $mtu_device ip link set $mtu_device mtu "$1" || return 1
    done
}

hold()
{
    for hold_queue in "$@"; do
        nictool hold dm0 "$hold_queue" >"$TAP_WORK/hold$hold_queue" 2>&1 &
        HOLDERS="${HOLDERS-} $!"
    done
    within 20 are_bound $# || { cat "$TAP_WORK"/hold?; return 1; }
}

let_go()
{
    for holder in $HOLDERS; do
        kill "$holder"
        wait "$holder" 2>/dev/null
    done
    HOLDERS=
    within 10 are_bound 0
}

# are_bound N: so many queues of dm0.
are_bound()
{
    [ "$(nictool bound dm0 | wc -l)" -eq "$1" ]
}

can_send()
{
    case $(uname -r) in
    6.12.*) return 1 ;;
    esac
}

expect_kernel()
{
    echo "$1" >>/run/expected
}

# --- the bed, for init ---------------------------------------------------------------------------

# A namespace lives as long as it is mounted somewhere; a process holds it until then.
make_peer()
{
    : >/run/netns/peer
    unshare -n sleep 60 &
    holder=$!
    within 5 is_apart $holder && mount --bind /proc/$holder/ns/net /run/netns/peer &&
        ip link set dm1 netns $holder
    made=$?
    kill $holder
    wait $holder 2>/dev/null
    return $made
}

is_apart()
{
    [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/1/ns/net)" ]
}

# bed_set_up: once.
bed_set_up()
{
    insmod /guest/devmem_pair.ko || return 1
    for parameter in "$PARAMETERS"/*; do
        [ "${parameter##*/}" = nq ] || echo "${parameter##*/} $(cat "$parameter")"
    done >/run/parameters
    make_peer || return 1
    ip link set lo up && on_host dm1 ip link set lo up || return 1
    # No addresses of its own choice, whose packets nobody sent, and no wait for an address.
    for device in dm0 dm1; do
        on_host $device sh -c "cd /proc/sys/net/ipv6/conf/$device &&
            echo 1 >addr_gen_mode && echo 0 >accept_dad" || return 1
        on_host $device ip link set $device up || return 1
    done
    ip addr add $RECEIVER/24 dev dm0 && on_host dm1 ip addr add $SENDER/24 dev dm1 || return 1
    ip addr add $RECEIVER6/64 dev dm0 && on_host dm1 ip addr add $SENDER6/64 dev dm1 || return 1
    bed_reset && ping -c 1 -W 5 $SENDER >/dev/null
}

# bed_reset: before every case.
bed_reset()
{
    while read -r parameter value; do
        echo "$value" >"$PARAMETERS/$parameter"
    done </run/parameters
    for device in dm0 dm1; do
        on_host $device ip link set $device up mtu 1500 &&
            on_host $device nictool ntuple $device on &&
            on_host $device nictool rule-del $device all &&
            on_host $device nictool rss $device equal "$(cat $PARAMETERS/nq)" &&
            on_host $device nictool split $device on || return 1
        ! can_send || on_host $device nictool hds $device 0 || return 1
    done
}

# Only init is left; threads of the kernel have no program. In this shell, which would see one that
# it started for it.
no_process()
{
    for process in /proc/[0-9]*; do
        if [ "$process" != /proc/1 ] && [ -e "$process/exe" ]; then
            echo "${process#/proc/}"
        fi
    done >/run/processes
    [ ! -s /run/processes ]
}

device_left()
{
    on_host "$1" nictool rules "$1" | sed "s/^/rule on $1: /"
    on_host "$1" nictool bound "$1" | sed "s/^/bound on $1: /"
    on_host "$1" nictool pages "$1" | sed -n "/dmabuf\|detached/s/^/pages of $1: /p"
}

devices_left()
{
    device_left dm0
    device_left dm1
}

# A pool is gone a second after its last page came back. A CPU keeps packets that were freed on
# another one until it receives something: each gets a packet.
devices_clean()
{
    for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
        taskset $((1 << ${cpu##*cpu})) ping -q -c 1 -W 1 127.0.0.1 >/dev/null
    done
    [ -z "$(devices_left)" ]
}

# A message that the kernel forgot to end is shown only when another one follows.
kernel_said()
{
    echo "end of $TAP_PREFIX" >/dev/kmsg
    dmesg -c >/run/dmesg
    grep -E "$TROUBLE" /run/dmesg | grep -Ev -e "$(cat /run/expected)"
}

# What the case left, in words; true if nothing.
case_left()
{
    within 5 devices_clean || devices_left
    # The second process of busybox's timeout looks once a second whether it is needed.
    within 3 no_process
    while read -r process; do
        echo "process $process: $(tr '\0' ' ' <"/proc/$process/cmdline")"
        kill -9 "$process"
    done </run/processes
    if kernel_said >/run/said; then
        echo "the kernel said:"
        cat /run/dmesg
    fi
    [ ! -s "$TAP_OUTPUT" ]
}

# A group of results of init's own, about this: the case has one, too.
group()
{
    TAP_PREFIX="$1: "
    TAP_COUNT=0
    echo '^$' >/run/expected
}

# take_down: once. A module that is still in use somewhere does not go.
take_down()
{
    group end
    check "the module can be unloaded" rmmod devmem_pair
    check_fails "and the kernel has nothing to say" kernel_said
    echo "1..$TAP_COUNT"
}

# A zombie has no program, either.
has_ended()
{
    [ ! -e "/proc/$1/exe" ]
}

# run_case NAME
run_case()
{
    group "$1"
    started=$(uptime_seconds)
    dmesg -c >/run/dmesg
    sh /guest/case.sh "$1" &
    process=$!
    within $CASE_SECONDS has_ended $process || kill -9 $process
    check "runs to its end" wait $process
    check "leaves nothing behind" case_left
    echo "1..$TAP_COUNT"
    echo "# $1 took $(echo "$(uptime_seconds) $started" | awk '{ printf "%.1f", $1 - $2 }') s"
}
