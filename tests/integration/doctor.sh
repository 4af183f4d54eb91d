# What is wrong with a machine is named, and nothing else is: each thing broken in turn, each stage
# of a transfer made slow in turn.
. tests/tap.sh

tcpx=$BUILD/tcpx
UCCL_TCPX_GPU=host
NCCL_SOCKET_IFNAME=lo
export UCCL_TCPX_GPU NCCL_SOCKET_IFNAME
unset TCPX_TEST_ROOT TCPX_TEST_THROTTLE UCCL_TCPX_PLUGIN_PATH NO_COLOR

# Under the thread sanitizer a transfer takes a quarter of a minute, and every stage is slow.
transfers=yes
case ${SANITIZE-} in *thread*) transfers= ;; esac

# The checks below look at what the latest command has printed; each check prints itself.
seen=$TAP_WORK/seen
keep()
{
    cp "$TAP_OUTPUT" "$seen"
}

# names_only NAME REGEX COMMAND...: status 1, one line with PROBLEM, and it is NAME's; advice below.
names_only()
{
    tap_name="$1 is named, and nothing else"
    problem_name=$1
    problem_regex=$2
    shift 2
    tap_run "$@"
    problems=$(grep -c '^  PROBLEM ' "$TAP_OUTPUT")
    if [ "$TAP_STATUS" -eq 1 ] && [ "$problems" -eq 1 ] &&
        grep -A1 -F "  PROBLEM  $problem_name" "$TAP_OUTPUT" | tr -s '\n ' ' ' |
        grep -Eq -e "$problem_regex" &&
        grep -A9 '^  PROBLEM ' "$TAP_OUTPUT" | grep -q -e '^ *-> ' &&
        grep -Eq '^(no notes|[0-9]+ notes?), 1 problem$' "$TAP_OUTPUT"; then
        tap_ok "$tap_name"
    else
        tap_fail "$tap_name" "status $TAP_STATUS, $problems problems, not just /$problem_regex/, of: $*
$(cat "$TAP_OUTPUT")"
    fi
    keep
}

# --- nothing wrong -------------------------------------------------------------------------------

check_output "nothing wrong: status 0" '^(no notes|[0-9]+ notes?), no problems$' "$tcpx" doctor
cp "$TAP_OUTPUT" "$TAP_WORK/text"
for group in configuration kernel network plugin GPU limits cores secret transfer; do
    check "there is a group $group" grep -qx "$group" "$TAP_WORK/text"
done
for way in d2d host kernel; do
    check "unpack $way is right, and has a rate" \
        grep -Eq "^  ok +GPU 0 unpack $way +right, [0-9.]+ GB/s$" "$TAP_WORK/text"
done
check "the transfer has a rate" \
    grep -Eq '^  ok +256 MiB +[0-9]+\.[0-9]+ GB/s ' "$TAP_WORK/text"
for stage in 'D2H copy' send network receive 'unpack \(H2D\)'; do
    check "the table has the stage $stage" \
        grep -Eq "^  $stage +(- +not used|[0-9.]+ ms +[0-9.]+ GB/s)" "$TAP_WORK/text"
done
check_fails "no colours in a file" grep -q "$(printf '\033')" "$TAP_WORK/text"
check "whatever is no ok has advice" awk '
    /^  (note|PROBLEM) / { if (open) exit 1; open = 1 }
    /^ +-> / { open = 0 }
    /^  ok / { if (open) exit 1 }
    END { exit open }' "$TAP_WORK/text"

check_output "--quick measures nothing" '^(no notes|[0-9]+ notes?), no problems$' \
    "$tcpx" doctor --quick
keep
check_fails "and shows no stages" grep -Eq '<- limits|^  stage|^transfer$' "$seen"
check_output "--gpu looks at one GPU" '^  ok +GPU 1 unpack kernel ' \
    env UCCL_TCPX_HOST_GPUS=3 "$tcpx" doctor --quick --gpu 1
keep
check_fails "and at no other" grep -Eq 'GPU [02] unpack' "$seen"
check_output "without it, at all" '^  ok +GPU 2 unpack kernel ' \
    env UCCL_TCPX_HOST_GPUS=3 "$tcpx" doctor --quick

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

names_only "UCCL_TCPX_TIMEOUT_MS" 'expected a whole number' \
    env UCCL_TCPX_TIMEOUT_MS=soon "$tcpx" doctor
tap_run env UCCL_TCPX_TIMEOUT_MS=soon UCCL_TCPX_SOCKETS=none "$tcpx" doctor
keep
check "two wrong values are two problems" grep -Eq '(no|[0-9]+) notes?, 2 problems$' "$seen"
check "nothing is measured then" grep -Eq '^  note +256 MiB +not measured$' "$seen"
names_only "UCCL_TCPX_SOCKTES" 'does not read it' env UCCL_TCPX_SOCKTES=3 "$tcpx" doctor
check "the right name is told" grep -q 'probably UCCL_TCPX_SOCKETS is meant' "$seen"
check_output "a name that is like no other is a note" '^  note +UCCL_TCPX_WOOLLEN_SOCKS' \
    env UCCL_TCPX_WOOLLEN_SOCKS=3 "$tcpx" doctor --quick
names_only "UCCL_TCPX_BOUNCE_BYTES" 'no room for one comm' \
    env UCCL_TCPX_BOUNCE_BYTES=1M "$tcpx" doctor
check_output "two variables that differ are a note" '^  note +interfaces +NCCL_SOCKET_IFNAME and ' \
    env NCCL_GPUDIRECTTCPX_SOCKET_IFNAME==lo "$tcpx" doctor --quick
names_only "GPU 7" 'no GPU 7' "$tcpx" doctor --gpu 7
names_only "interfaces" 'nosuch0' env NCCL_SOCKET_IFNAME=nosuch0 "$tcpx" doctor
names_only "plugin" 'nonexistent' env UCCL_TCPX_PLUGIN_PATH=/nonexistent.so "$tcpx" doctor
names_only "plugin" 'does not work: .*ELF' env UCCL_TCPX_PLUGIN_PATH=README.md "$tcpx" doctor
printf '%s\n' '#include <stdlib.h>' 'static int start(void *logger) { (void)logger; abort(); }' \
    'struct { const char *name; int (*init)(void *); void *rest[17]; } ncclNetPlugin_v7 =' \
    '    {"faulty", start, {0}};' >"$TAP_WORK/faulty.c"
if ${CC:-cc} -shared -fPIC -o "$TAP_WORK/faulty.so" "$TAP_WORK/faulty.c" 2>/dev/null; then
    names_only "plugin" 'it crashed: Aborted' \
        env UCCL_TCPX_PLUGIN_PATH="$TAP_WORK/faulty.so" "$tcpx" doctor
else
    tap_skip "a plugin that crashes" "it cannot be compiled"
fi
if [ -e /dev/nvidia0 ]; then
    tap_skip "UCCL_TCPX_GPU=cuda without a driver" "this machine has one"
else
    names_only "layer" 'libcuda\.so\.1' env UCCL_TCPX_GPU=cuda "$tcpx" doctor
fi
printf '%s\n' '#include <stdlib.h>' \
    '__attribute__((constructor)) static void at_once(void) { abort(); }' >"$TAP_WORK/driver.c"
mkdir "$TAP_WORK/driver"
if ${CC:-cc} -shared -fPIC -o "$TAP_WORK/driver/libcuda.so.1" "$TAP_WORK/driver.c" 2>/dev/null; then
    names_only "checks" 'they crashed: Aborted' \
        env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$TAP_WORK/driver" "$tcpx" doctor
else
    tap_skip "a driver that crashes" "it cannot be compiled"
fi
names_only "open files" '64 are enough for 0 peers' sh -c "ulimit -n 64; exec '$tcpx' doctor"
if unshare -n true 2>/dev/null; then
    names_only "interfaces" 'interface' \
        env -u NCCL_SOCKET_IFNAME unshare -n "$tcpx" doctor
else
    tap_skip "no interface that is up" "network namespaces are not permitted"
fi

# The stand-in for the driver, healthy and with calls that fail.
standin=$BUILD/tests/fakecuda
if [ -e "$standin/libcuda.so.1" ]; then
    check_output "CUDA is no note" '^  ok +layer +cuda ' \
        env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$standin" "$tcpx" doctor --quick
    names_only "GPU 0 memory" 'cuMemAlloc' env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$standin" \
        FAKECUDA_FAULTS=cuMemAlloc_v2=2 "$tcpx" doctor --gpu 0
    names_only "GPU 0 unpack kernel" 'launching tcpx_unpack' \
        env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$standin" \
        FAKECUDA_FAULTS=cuLaunchKernel=719 "$tcpx" doctor --gpu 0
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
in_root()
{
    TCPX_TEST_ROOT=$root "$@"
}

make_root 5.10.0-8
check_output "an old kernel has no device memory" '^  note +devmem receive +.* cannot receive' \
    in_root "$tcpx" doctor --quick
make_root 6.12.1
echo 'CONFIG_NET_DEVMEM=y' >"$root/boot/config-6.12.1"
check_output "6.12 receives it" '^  ok +devmem receive +.* can receive into device memory' \
    in_root "$tcpx" doctor --quick
keep
check "and does not send it" grep -Eq '^  note +devmem send ' "$seen"
echo '# CONFIG_NET_DEVMEM is not set' >"$root/boot/config-6.12.1"
check_output "unless it is built without" '^  note +devmem receive .*cannot receive' \
    in_root "$tcpx" doctor --quick
rm "$root/boot/config-6.12.1"
tap_run in_root "$tcpx" doctor --quick
keep
check "what is not known is said to be" sh -c "tr -s '\n ' ' ' <'$seen' |
    grep -q 'whether CONFIG_NET_DEVMEM is set is unknown'"
make_root 6.18.0
echo '4096 16384 65536' >"$root/proc/sys/net/ipv4/tcp_rmem"
names_only "tcp_rmem" '0\.06 MiB a connection' in_root "$tcpx" doctor
echo '4096 16384 4194304' >"$root/proc/sys/net/ipv4/tcp_rmem"
check_output "4 MiB are enough for 10 Gbit/s" '^  ok +tcp_rmem +up to 4\.0 MiB a connection$' \
    in_root env UCCL_TCPX_SPEED=10000 "$tcpx" doctor --quick
check_output "and little for 100" '^  note +tcp_rmem +up to 4\.00 MiB a connection, ' \
    in_root env UCCL_TCPX_SPEED=100000 "$tcpx" doctor --quick
make_root 6.18.0
echo 0 >"$root/proc/sys/net/ipv4/tcp_window_scaling"
names_only "tcp_window_scaling" '64 KiB' in_root "$tcpx" doctor
make_root 6.18.0
echo 'MemAvailable:   100000 kB' >"$root/proc/meminfo"
names_only "pinned memory" 'only 97 MiB are available' in_root "$tcpx" doctor
make_root 6.18.0
echo reno >"$root/proc/sys/net/ipv4/tcp_congestion_control"
echo 128 >"$root/proc/sys/net/core/somaxconn"
check_output "an old congestion control is a note" '^  note +congestion control +reno' \
    in_root "$tcpx" doctor --quick
keep
check "a short backlog too" grep -Eq '^  note +somaxconn +128: ' "$seen"

# --- device-memory TCP ---------------------------------------------------------------------------

check_output "loopback has nothing to do with it" '^(no notes|[0-9]+ notes?), no problems$' \
    env UCCL_TCPX_DEVMEM=on "$tcpx" doctor --quick
keep
check_fails "and says nothing of it" grep -Eq '^  [a-zA-Z]+ +lo [a-z]' "$seen"

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
        '^  ok +nic0 devmem +not with an interface without a device: data goes through' \
        with_pair "$tcpx" doctor --quick
    keep
    for need in 'header split' privilege steering queues; do
        check_fails "its $need is not looked at" grep -Eq "^  [a-zA-Z]+ +nic0 $need " "$seen"
    done
    names_only "nic0 devmem" 'not with an interface without a device, and UCCL_TCPX_DEVMEM=on' \
        with_pair UCCL_TCPX_DEVMEM=on "$tcpx" doctor
    check_output "off is told" '^  ok +nic0 devmem +not used: UCCL_TCPX_DEVMEM=off$' \
        with_pair UCCL_TCPX_DEVMEM=off "$tcpx" doctor --quick
    check_output "software takes its place" '^  ok +nic0 devmem +not used: UCCL_TCPX_SOFT_DEVMEM ' \
        with_pair UCCL_TCPX_SOFT_DEVMEM=3 UCCL_TCPX_DEVMEM=on "$BUILD/tests/support/tcpx" doctor --quick
    check_output "devices says so" '^    device memory +no: by way of pinned host memory$' \
        with_pair "$tcpx" devices
    check_output "and for scripts" '"devmem_receive": false, "devmem_send": false, "devmem_reason": "not with an' \
        with_pair "$tcpx" devices --json
else
    tap_skip "device-memory TCP" "veth pairs in a network namespace are not permitted"
fi

# An interface whose driver could do more than it does.
if with_pair true 2>/dev/null; then
    make_root 6.18.0
    mkdir -p "$root/sys/class/net/nic0/device" "$root/sys/class/net/nic0/queues/rx-0"
    ln -s ../../../bus/pci/drivers/gve "$root/sys/class/net/nic0/device/driver"
    tap_run with_pair TCPX_TEST_ROOT="$root" "$tcpx" doctor --quick
    keep
    check "an interface with notes is no problem" test "$TAP_STATUS" -eq 0
    check "it is described" grep -Eq \
        '^  ok +nic0 +up, 10\.9\.8\.7, .* MTU 1500, 1 receive queue, driver' "$seen"
    for note in speed MTU steering queues; do
        check "there is a note on its $note" grep -Eq "^  note +nic0 $note " "$seen"
    done
    check "with a command" grep -q "'ethtool -K nic0 ntuple on'" "$seen"
    check "header split is tried" grep -Eq '^  ok +nic0 header split +the driver does not tell: ' "$seen"
    check "privilege is there" grep -Eq '^  ok +nic0 privilege +this process has CAP_NET_ADMIN' "$seen"
    check "the first thing that is missing is the reason" sh -c "tr -s '\n ' ' ' <'$seen' |
        grep -Eq ' note nic0 devmem not used: .*(ntuple|steer).* -> as root: .ethtool -K'"
    tap_run with_pair UCCL_TCPX_DEVMEM=on TCPX_TEST_ROOT="$root" "$tcpx" doctor --quick
    keep
    check "what was asked for and is missing is a problem" test "$TAP_STATUS" -eq 1
    for need in steering queues devmem; do
        check "so is its $need" grep -Eq "^  PROBLEM +nic0 $need " "$seen"
    done
    check_fails "a speed or an MTU is none" grep -Eq '^  PROBLEM +nic0 (speed|MTU) ' "$seen"
    if command -v setpriv >/dev/null; then
        check_output "without a privilege that is told" \
            '^  note +nic0 privilege +CAP_NET_ADMIN is missing$' \
            with_pair TCPX_TEST_ROOT="$root" setpriv --bounding-set -net_admin \
            --inh-caps -net_admin "$tcpx" doctor --quick
    else
        tap_skip "without a privilege that is told" "setpriv is not installed"
    fi
else
    tap_skip "an interface with notes" "veth pairs in a network namespace are not permitted"
fi

# A plugin of Google's name wants its daemon's sockets, where it looks for them.
quirky=$BUILD/tests/quirky_plugin/libquirky_v7.so
if [ -e "$quirky" ] && command -v python3 >/dev/null; then
    make_root 6.18.0
    QUIRKY_CUDA=0
    UCCL_TCPX_PLUGIN_PATH=$quirky
    export QUIRKY_CUDA UCCL_TCPX_PLUGIN_PATH
    names_only "receive daemon" 'no socket /run/tcpx/get_gpu_fd_' \
        env NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx TCPX_TEST_ROOT="$root" "$tcpx" doctor
    (cd "$root/run/tcpx" &&
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("get_gpu_fd_0000:04:00.0")')
    check_output "the daemon is there" '^  ok +receive daemon +1 socket /run/tcpx' \
        env NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx TCPX_TEST_ROOT="$root" \
        "$tcpx" doctor --quick
    if [ -n "$transfers" ]; then
        check_output "a plugin does not tell its stages" '^  ok +256 MiB +.*machine; the plugin' \
            env NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx TCPX_TEST_ROOT="$root" \
            "$tcpx" doctor
    fi
    names_only "receive daemon" 'no socket /tmp/get_gpu_fd_' in_root "$tcpx" doctor
    check "and where it is, is told" grep -q 'PREFIX=/run/tcpx' "$seen"
    unset QUIRKY_CUDA UCCL_TCPX_PLUGIN_PATH
else
    tap_skip "the daemon of a plugin" "python3 or the plugin of the tests is not there"
fi

# --- slow stages ---------------------------------------------------------------------------------

# A quarter of what this machine does now, in bytes a second: slower than any other stage.
slow_rate()
{
    "$tcpx" doctor | sed -n 's/^  ok *256 MiB *\([0-9.]*\) GB\/s .*/\1/p' |
        awk '{ rate = $1 * 250000000 } END { print int(rate < 300000000 ? rate : 300000000) }'
}

# is_named STAGE NAME: made slow, it is the one that is named. If not, the machine is not what it was.
slow=
is_named()
{
    slow=${slow:-$(slow_rate)}
    TCPX_TEST_THROTTLE=$1:$slow "$BUILD/tests/support/tcpx" doctor >"$seen" 2>&1
    echo "$slow bytes a second:"
    cat "$seen"
    grep -F '<- limits' "$seen" | grep -qF "  $2 " &&
        tr -s '\n ' ' ' <"$seen" | grep -qF "limited by: $2 " && return 0
    slow=
    return 1
}

is_slow()
{
    check "a slow stage is named: $2" sometimes is_named "$1" "$2"
}

if [ -n "$transfers" ]; then
    is_slow d2h 'D2H copy'
    is_slow send send
    is_slow network network
    is_slow recv receive
    is_slow unpack 'unpack (H2D)'
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
' "$TAP_WORK/json" "$slow"
    }
    check "the stages in JSON" sometimes stages_in_json
else
    tap_skip "the stages in JSON" "python3 is not installed, or a transfer takes too long here"
fi

check_fails "nothing is left running" pgrep -s 0 -f "^$BUILD/(tests/support/)?tcpx doctor"
tap_end
