# What is wrong with a machine is named, and nothing else is: each thing broken in turn, each stage
# of a transfer made slow in turn.
. tests/tap.sh

tcpx=$BUILD/tcpx
export UCCL_TCPX_GPU=host NCCL_SOCKET_IFNAME=lo
unset TCPX_TEST_ROOT TCPX_TEST_THROTTLE UCCL_TCPX_PLUGIN_PATH NO_COLOR

# Under the thread sanitizer a transfer takes a quarter of a minute, and every stage is slow.
transfers=yes
case ${SANITIZE-} in *thread*) transfers= ;; esac

# findings COMMAND...: what doctor says, a finding and its advice on one line, no two blanks in a row.
findings()
{
    findings_status=0
    "$@" >"$TAP_WORK/text" 2>&1 || findings_status=$?
    awk '/^    / { printf "%s", $0; next } NR > 1 { print "" } { printf "%s", $0 } END { print "" }' \
        "$TAP_WORK/text" | tr -s ' ' | tee "$TAP_WORK/findings"
    return $findings_status
}

# full and quick [NAME=VALUE...]: with these variables.
full()
{
    findings env "$@" "$tcpx" doctor
}

quick()
{
    findings env "$@" "$tcpx" doctor --quick
}

no_problems='^(no notes|[0-9]+ notes?), no problems$'

# names_only NAME REGEX COMMAND...: status 1, one line with PROBLEM, and it is NAME's, with advice.
names_only()
{
    problem_name=$1 problem_regex="^ PROBLEM $1 .*$2.* -> "
    shift 2
    tap_run "$@"
    [ "$TAP_STATUS" -eq 1 ] && [ "$(grep -c '^ PROBLEM ' "$TAP_OUTPUT")" -eq 1 ] &&
        tap_said "$problem_regex" && tap_said '^(no notes|[0-9]+ notes?), 1 problem$'
    tap_judge $? "$problem_name is named, and nothing else" "/$problem_regex/ only" "$@"
}

# --- nothing wrong -------------------------------------------------------------------------------

check_output "nothing wrong: status 0" "$no_problems" full
for group in configuration kernel network plugin GPU limits cores secret transfer; do
    also "there is a group $group" "^$group\$"
done
for way in d2d host kernel; do
    also "unpack $way is right, and has a rate" "^ ok GPU 0 unpack $way right, [0-9.]+ GB/s\$"
done
also "the transfer has a rate" '^ ok 4 x 64 MiB [0-9]+\.[0-9]+ GB/s '
for stage in 'D2H copy' send network receive 'unpack \(H2D\)'; do
    also "the table has the stage $stage" "^ $stage (- not used|[0-9.]+ ms [0-9.]+ GB/s)"
done
also_not "no colours in a file" "$(printf '\033')"
without_advice()
{
    grep -E '^ (note|PROBLEM) ' "$TAP_WORK/findings" | grep -v -e ' -> .'
}
check "whatever is no ok has advice" quiet without_advice

check_output "--quick measures nothing" "$no_problems" quick
also_not "and shows no stages" '<- limits|^ stage|^transfer$'
check_output "--gpu looks at one GPU" '^ ok GPU 1 unpack kernel ' \
    findings env UCCL_TCPX_HOST_GPUS=3 "$tcpx" doctor --quick --gpu 1
also_not "and at no other" 'GPU [02] unpack'
check_output "without it, at all" '^ ok GPU 2 unpack kernel ' quick UCCL_TCPX_HOST_GPUS=3

if command -v python3 >/dev/null; then
    "$tcpx" doctor --quick >"$TAP_WORK/text"
    "$tcpx" doctor --quick --json >"$TAP_WORK/json"
    check "--json has the same findings" python3 -c '
import json, re, sys
found = json.load(open(sys.argv[1]))
marks = {"ok": "ok", "note": "note", "PROBLEM": "problem"}
lines = [l for l in open(sys.argv[2]) if re.match(r"  (ok|note|PROBLEM) ", l)]
assert len(lines) == len(found["findings"]) > 20, (len(lines), len(found["findings"]))
for line, one in zip(lines, found["findings"]):
    mark, rest = line.split(None, 1)
    assert marks[mark] == one["level"] and rest.startswith(one["name"]), (line, one)
    assert one["text"] and (one["advice"] or one["level"] == "ok"), one
assert found["problems"] == 0 and found["transfer"] is None
assert found["notes"] == sum(one["level"] == "note" for one in found["findings"])
' "$TAP_WORK/json" "$TAP_WORK/text"
    UCCL_TCPX_SOCKETS=none "$tcpx" doctor --json >"$TAP_WORK/json"
    check "--json has the same status" test "$?" -eq 1
    check "a problem in JSON" python3 -c '
import json, sys
found = json.load(open(sys.argv[1]))
wrong = [one for one in found["findings"] if one["level"] == "problem"]
assert found["problems"] == 1 and [one["name"] for one in wrong] == ["UCCL_TCPX_SOCKETS"], wrong
' "$TAP_WORK/json"
else
    tap_skip "--json" "python3 is not installed"
fi

# --- wrong arguments -----------------------------------------------------------------------------

for arguments in --fly --gpu '--gpu x' '--gpu -1' '--quick 3' '--gpu 99999999999'; do
    # shellcheck disable=SC2086
    check_status "doctor $arguments is refused" 2 "$tcpx" doctor $arguments
done

# --- something wrong -----------------------------------------------------------------------------

names_only "UCCL_TCPX_TIMEOUT_MS" 'expected a whole number' full UCCL_TCPX_TIMEOUT_MS=soon
tap_run full UCCL_TCPX_TIMEOUT_MS=soon UCCL_TCPX_SOCKETS=none
also "two wrong values are two problems" '(no|[0-9]+) notes?, 2 problems$'
also "nothing is measured then" '^ note 4 x 64 MiB not measured -> '
names_only "UCCL_TCPX_SOCKTES" 'does not read it' full UCCL_TCPX_SOCKTES=3
also "the right name is told" 'probably UCCL_TCPX_SOCKETS is meant'
check_output "a name that is like no other is a note" '^ note UCCL_TCPX_WOOLLEN_SOCKS' \
    quick UCCL_TCPX_WOOLLEN_SOCKS=3
names_only "UCCL_TCPX_BOUNCE_BYTES" 'no room for one comm' full UCCL_TCPX_BOUNCE_BYTES=1M
check_output "NICs of their own for data are as it should be" \
    '^ ok interfaces data goes over NCCL_GPUDIRECTTCPX_SOCKET_IFNAME==lo; NCCL_SOCKET_IFNAME=lo is' \
    quick NCCL_GPUDIRECTTCPX_SOCKET_IFNAME==lo
also_not "and no reason to unset one" 'unset one'
names_only "GPU 7" 'no GPU 7' findings "$tcpx" doctor --gpu 7
names_only "interfaces" 'nosuch0' full NCCL_SOCKET_IFNAME=nosuch0
names_only "plugin" 'nonexistent' full UCCL_TCPX_PLUGIN_PATH=/nonexistent.so
names_only "plugin" 'does not work: .*ELF' full UCCL_TCPX_PLUGIN_PATH=README.md
# crashes NAME WHO LIBRARY VARIABLE=VALUE... <SOURCE: the process that asks WHO, whose library that is.
crashes()
{
    crashes_name=$1 crashes_who=$2 crashes_library=$TAP_WORK/$3
    shift 3
    mkdir -p "${crashes_library%/*}"
    if ${CC:-cc} -shared -fPIC -x c -o "$crashes_library" - 2>/dev/null; then
        names_only "$crashes_who" 'crashed: Aborted' full "$@"
    else
        tap_skip "$crashes_name" "it cannot be compiled"
    fi
}
crashes "a plugin that crashes" plugin faulty.so UCCL_TCPX_PLUGIN_PATH="$TAP_WORK/faulty.so" <<'END'
#include <stdlib.h>
static int start(void *logger) { (void)logger; abort(); }
struct { const char *name; int (*init)(void *); void *rest[17]; } ncclNetPlugin_v7 =
    {"faulty", start, {0}};
END
if [ -e /dev/nvidia0 ]; then
    tap_skip "UCCL_TCPX_GPU=cuda without a driver" "this machine has one"
else
    names_only "layer" 'libcuda\.so\.1' full UCCL_TCPX_GPU=cuda
fi
crashes "a driver that crashes" checks driver/libcuda.so.1 \
    UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$TAP_WORK/driver" <<'END'
#include <stdlib.h>
__attribute__((constructor)) static void at_once(void) { abort(); }
END
names_only "open files" '64 are enough for 0 peers' \
    findings sh -c "ulimit -n 64; exec '$tcpx' doctor"
if unshare -n true 2>/dev/null; then
    names_only "interfaces" 'interface' \
        findings env -u NCCL_SOCKET_IFNAME unshare -n "$tcpx" doctor
else
    tap_skip "no interface that is up" "network namespaces are not permitted"
fi

# The stand-in for the driver, healthy and with calls that fail.
standin=$BUILD/tests/fakecuda
if [ -e "$standin/libcuda.so.1" ]; then
    check_output "CUDA is no note" '^ ok layer cuda ' \
        quick UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$standin"
    names_only "GPU 0 memory" 'cuMemAlloc' findings env UCCL_TCPX_GPU=cuda \
        LD_LIBRARY_PATH="$standin" FAKECUDA_FAULTS=cuMemAlloc_v2=2 "$tcpx" doctor --gpu 0
    names_only "GPU 0 unpack kernel" 'launching tcpx_unpack' findings env UCCL_TCPX_GPU=cuda \
        LD_LIBRARY_PATH="$standin" FAKECUDA_FAULTS=cuLaunchKernel=719 "$tcpx" doctor --gpu 0
else
    tap_skip "CUDA" "the stand-in for its driver is not built"
fi

# --- files of a machine that is not this one -----------------------------------------------------

root=$TAP_WORK/root
make_root()
{
    rm -rf "$root"
    mkdir -p "$root/proc/sys/kernel" "$root/proc/sys/net/core" "$root/proc/sys/net/ipv4" \
        "$root/boot" "$root/run/tcpx"
    echo "$1" >"$root/proc/sys/kernel/osrelease"
    echo 131072 >"$root/proc/sys/net/core/optmem_max"
    echo 4096 >"$root/proc/sys/net/core/somaxconn"
    echo '4096 131072 67108864' | tee "$root/proc/sys/net/ipv4/tcp_rmem" \
        >"$root/proc/sys/net/ipv4/tcp_wmem"
    echo cubic >"$root/proc/sys/net/ipv4/tcp_congestion_control"
    echo 1 >"$root/proc/sys/net/ipv4/tcp_window_scaling"
    echo 'MemAvailable:   16000000 kB' >"$root/proc/meminfo"
}

export TCPX_TEST_ROOT="$root"
make_root 5.10.0-8
check_output "an old kernel has no device memory" '^ note devmem receive .* cannot receive' quick
make_root 6.12.1
echo 'CONFIG_NET_DEVMEM=y' >"$root/boot/config-6.12.1"
check_output "6.12 receives it" '^ ok devmem receive .* can receive into device memory' quick
also "and does not send it" '^ note devmem send '
echo '# CONFIG_NET_DEVMEM is not set' >"$root/boot/config-6.12.1"
check_output "unless it is built without" '^ note devmem receive .*cannot receive' quick
rm "$root/boot/config-6.12.1"
tap_run quick
also "what is not known is said to be" 'whether CONFIG_NET_DEVMEM is set is unknown'
make_root 6.18.0
echo '4096 16384 65536' >"$root/proc/sys/net/ipv4/tcp_rmem"
names_only "tcp_rmem" '0\.06 MiB a connection' full
echo '4096 16384 4194304' >"$root/proc/sys/net/ipv4/tcp_rmem"
check_output "4 MiB are enough for 10 Gbit/s" '^ ok tcp_rmem up to 4\.0 MiB a connection: .* at a round trip of 1 ms, ' \
    quick UCCL_TCPX_SPEED=10000
check_output "and little for 100" '^ note tcp_rmem up to 4\.00 MiB a connection, ' \
    quick UCCL_TCPX_SPEED=100000
make_root 6.18.0
echo 0 >"$root/proc/sys/net/ipv4/tcp_window_scaling"
names_only "tcp_window_scaling" '64 KiB' full
make_root 6.18.0
echo 'MemAvailable:   100000 kB' >"$root/proc/meminfo"
names_only "pinned memory" 'only 97 MiB are available' full
make_root 6.18.0
echo reno >"$root/proc/sys/net/ipv4/tcp_congestion_control"
echo 128 >"$root/proc/sys/net/core/somaxconn"
check_output "an old congestion control is a note" '^ note congestion control reno' quick
also "a short backlog too" '^ note somaxconn 128: '
mkdir -p "$root/proc/self" "$root/sys/fs/cgroup"
echo '0::/' >"$root/proc/self/cgroup"
echo '30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw' >"$root/proc/self/mountinfo"
echo '100000 100000' >"$root/sys/fs/cgroup/cpu.max"
check_output "few CPUs for many processes are a note" '^ note CPUs 1 CPU.* for 8 processes: .* -> ' \
    quick UCCL_TCPX_PROCESSES=8
also "with what that means for I/O threads" \
    '^ ok I/O threads 1, and calls move the data \(auto: .*, a quota of 1, 8 processes\)$'
unset TCPX_TEST_ROOT

# --- device-memory TCP ---------------------------------------------------------------------------

check_output "loopback has nothing to do with it" "$no_problems" quick UCCL_TCPX_DEVMEM=on
also_not "and says nothing of it" '^ [a-zA-Z]+ lo (devmem|header split|privilege|steering|queues) '

# with_pair [NAME=VALUE...] COMMAND...: with a pair of interfaces that are up, of which nic0 has an
# address.
with_pair()
{
    env NCCL_SOCKET_IFNAME==nic0 unshare -nm sh -c '
        mount -t sysfs sysfs /sys && ip link add nic0 type veth peer name nic1 &&
            ip addr add 10.9.8.7/24 dev nic0 && ip link set nic0 up && ip link set nic1 up &&
            tries=2000 || exit 1
        until [ "$(cat /sys/class/net/nic0/operstate)" = up ] || [ $tries -eq 0 ]; do
            tries=$((tries - 1))
            sleep 0.02
        done
        exec "$@"' sh env "$@"
}

if with_pair true 2>/dev/null; then
    check_output "an interface that cannot have it needs nothing" \
        '^ ok nic0 devmem not with an interface without a device: data goes through' \
        findings with_pair "$tcpx" doctor --quick
    for need in 'header split' privilege steering queues; do
        also_not "its $need is not looked at" "^ [a-zA-Z]+ nic0 $need "
    done
    names_only "nic0 devmem" 'not with an interface without a device, and UCCL_TCPX_DEVMEM=on' \
        findings with_pair UCCL_TCPX_DEVMEM=on "$tcpx" doctor
    check_output "off is told" '^ ok nic0 devmem not used: UCCL_TCPX_DEVMEM=off$' \
        findings with_pair UCCL_TCPX_DEVMEM=off "$tcpx" doctor --quick
    check_output "software takes its place" '^ ok nic0 devmem not used: UCCL_TCPX_SOFT_DEVMEM ' \
        findings with_pair UCCL_TCPX_SOFT_DEVMEM=3 UCCL_TCPX_DEVMEM=on \
        "$BUILD/tests/support/tcpx" doctor --quick
    check_output "devices says so" '^    device memory +no: by way of pinned host memory$' \
        with_pair "$tcpx" devices
    check_output "and for scripts" '"devmem_receive": false, "devmem_send": false, "devmem_reason": "not with an' \
        with_pair "$tcpx" devices --json

    # An interface whose driver could do more than it does.
    make_root 6.18.0
    mkdir -p "$root/sys/class/net/nic0/device" "$root/sys/class/net/nic0/queues/rx-0"
    ln -s ../../../bus/pci/drivers/gve "$root/sys/class/net/nic0/device/driver"
    check "an interface with notes is no problem" \
        findings with_pair TCPX_TEST_ROOT="$root" "$tcpx" doctor --quick
    also "it is described" '^ ok nic0 up, 10\.9\.8\.7, .* MTU 1500, 1 receive queue, driver'
    for note in speed MTU steering queues; do
        also "there is a note on its $note" "^ note nic0 $note "
    done
    also "with a command" "'ethtool -K nic0 ntuple on'"
    also "header split is tried" '^ ok nic0 header split the driver does not tell: '
    also "privilege is there" '^ ok nic0 privilege this process has CAP_NET_ADMIN'
    also "the first thing that is missing is the reason" \
        '^ note nic0 devmem not used: .*(ntuple|steer).* -> as root: .ethtool -K'
    check_status "what was asked for and is missing is a problem" 1 \
        findings with_pair UCCL_TCPX_DEVMEM=on TCPX_TEST_ROOT="$root" "$tcpx" doctor --quick
    for need in steering queues devmem; do
        also "so is its $need" "^ PROBLEM nic0 $need "
    done
    also_not "a speed or an MTU is none" '^ PROBLEM nic0 (speed|MTU) '
    with_program setpriv check_output "without a privilege that is told" \
        '^ note nic0 privilege CAP_NET_ADMIN is missing -> ' \
        findings with_pair TCPX_TEST_ROOT="$root" setpriv --bounding-set -net_admin \
        --inh-caps -net_admin "$tcpx" doctor --quick
else
    tap_skip "device-memory TCP" "veth pairs in a network namespace are not permitted"
fi

# A plugin of Google's name wants its daemon's sockets, where it looks for them.
quirky=$BUILD/tests/quirky_plugin/libquirky_v7.so
prefix=NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx
if [ -e "$quirky" ] && command -v python3 >/dev/null; then
    make_root 6.18.0
    export QUIRKY_CUDA=0 UCCL_TCPX_PLUGIN_PATH="$quirky" TCPX_TEST_ROOT="$root"
    names_only "receive daemon" 'no socket /run/tcpx/get_gpu_fd_' full $prefix
    (cd "$root/run/tcpx" &&
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("get_gpu_fd_0000:04:00.0")')
    check_output "the daemon is there" '^ ok receive daemon 1 socket /run/tcpx' quick $prefix
    if [ -n "$transfers" ]; then
        check_output "a plugin does not tell its stages" '^ ok 4 x 64 MiB .*machine; the plugin' \
            full $prefix
    fi
    names_only "receive daemon" 'no socket /tmp/get_gpu_fd_' full
    also "and where it is, is told" 'PREFIX=/run/tcpx'
    unset QUIRKY_CUDA UCCL_TCPX_PLUGIN_PATH TCPX_TEST_ROOT
else
    tap_skip "the daemon of a plugin" "python3 or the plugin of the tests is not there"
fi

# --- slow stages ---------------------------------------------------------------------------------

# A quarter of what this machine does now, in bytes a second: slower than any other stage.
slow_rate()
{
    "$tcpx" doctor | sed -n 's/^  ok *4 x 64 MiB *\([0-9.]*\) GB\/s .*/\1/p' |
        awk '{ rate = $1 * 250000000 } END { print int(rate < 300000000 ? rate : 300000000) }'
}

# is_named STAGE NAME: made slow, it is the one that is named. If not, the machine is not what it was.
slow=
is_named()
{
    slow=${slow:-$(slow_rate)}
    echo "$slow bytes a second:"
    TCPX_TEST_THROTTLE=$1:$slow findings "$BUILD/tests/support/tcpx" doctor
    grep -F '<- limits' "$TAP_WORK/findings" | grep -q "^ $2 " &&
        grep -qF "limited by: $2 " "$TAP_WORK/findings" && return 0
    slow=
    return 1
}

if [ -n "$transfers" ]; then
    for stage in d2h:'D2H copy' send:send network:network recv:receive unpack:'unpack (H2D)'; do
        check "a slow stage is named: ${stage#*:}" sometimes is_named "${stage%%:*}" "${stage#*:}"
    done
else
    tap_skip "slow stages" "under the thread sanitizer every stage is slow"
fi
if [ -n "$transfers" ] && command -v python3 >/dev/null; then
    # Twice the throttle is more than any honest figure.
    stages_in_json()
    {
        slow=$(slow_rate)
        TCPX_TEST_THROTTLE=send:$slow "$BUILD/tests/support/tcpx" doctor --json >"$TAP_WORK/json"
        python3 -c '
import json, sys
transfer = json.load(open(sys.argv[1]))["transfer"]
most = int(sys.argv[2]) * 2e-9
assert 0 < transfer["gigabytes_per_second"] < most, transfer
assert transfer["limit"] == "send", transfer
rates = {one["stage"]: one["gigabytes_per_second"] for one in transfer["stages"]}
assert len(rates) == 5 and 0 < rates["send"] < most, transfer
assert max(transfer["stages"], key=lambda one: one["busy_us"])["stage"] == "send", transfer
' "$TAP_WORK/json" "$slow"
    }
    check "the stages in JSON" sometimes stages_in_json
    "$tcpx" doctor --json >"$TAP_WORK/json"
    check "what is named is the slowest of the table, by a margin" python3 -c '
import json, sys
transfer = json.load(open(sys.argv[1]))["transfer"]
held = sorted((one["busy_us"], one["stage"]) for one in transfer["stages"])
clear = held[-2][0] < 0.79 * held[-1][0]
assert transfer["limit"] == held[-1][1] or not clear, transfer
assert transfer["limit"] in ("balanced", "none") or held[-2][0] < 0.81 * held[-1][0], transfer
' "$TAP_WORK/json"
    tap_run "$tcpx" doctor
    also_not "nothing is said of NICs where all is on one machine" '->.*(interfaces|packets|MTU)'
else
    tap_skip "the stages in JSON" "python3 is not installed, or a transfer takes too long here"
fi

check_fails "nothing is left running" pgrep -s 0 -f "^$BUILD/(tests/support/)?tcpx doctor"
tap_end
