# The program as a person or a script uses it: what it prints, and how it refuses.
. tests/tap.sh

tcpx=$BUILD/tcpx
export UCCL_TCPX_GPU=host

check_output "version" '^tcpx [0-9]+\.[0-9]+\.[0-9]+$' "$tcpx" version
check_output "--version" '^tcpx [0-9]+\.[0-9]+\.[0-9]+$' "$tcpx" --version
check_output "help lists the commands" '^  devices ' "$tcpx" help
check_output "help of one command" '^usage: tcpx env' "$tcpx" help env
check_fails_output "no command at all" '^usage: tcpx COMMAND' "$tcpx"
check_fails_output "a command that is not there" "no command 'fly'" "$tcpx" fly
check_fails_output "an argument that is not there" "unknown argument '--fly'" "$tcpx" devices --fly
check_fails_output "an argument too many" "unexpected argument 'x'" "$tcpx" version x
check_status "wrong arguments give status 2" 2 "$tcpx" fly

check_output "devices" '^GPU 0: emulated GPU 0, 16\.0 GiB$' "$tcpx" devices
check_output "devices says why" 'GPU layer: host \(UCCL_TCPX_GPU asks for it\)' "$tcpx" devices
check_output "several emulated GPUs" '^GPU 2: emulated GPU 2, 1\.0 GiB$' \
    env UCCL_TCPX_HOST_GPUS=3 UCCL_TCPX_HOST_GPU_MEMORY=1g "$tcpx" devices
check_output "what an interface can do" '^    device memory +no: by way of pinned host memory$' \
    env NCCL_SOCKET_IFNAME=lo "$tcpx" devices
check_output "and how far it is from each GPU" '^    to GPU 2 +unknown$' \
    env NCCL_SOCKET_IFNAME=lo UCCL_TCPX_HOST_GPUS=3 "$tcpx" devices
check_output "the same for scripts" '"driver": "", "driver_has_devmem": false, "gpu_distances": \[null, null\]' \
    env NCCL_SOCKET_IFNAME=lo UCCL_TCPX_HOST_GPUS=2 "$tcpx" devices --json
check_output "device memory for scripts" \
    '"gpu_distances": \[null\], "devmem_receive": false, "devmem_send": false, "devmem_reason": "not with loopback"\}' \
    env NCCL_SOCKET_IFNAME=lo "$tcpx" devices --json
check_output "a debug line on request" '^\[TCPX\] GPU layer: host, 1 device' \
    env UCCL_TCPX_DEBUG=1 "$tcpx" devices
check_output "an empty variable counts as not set" 'emulated GPU 0' \
    env UCCL_TCPX_HOST_GPUS= "$tcpx" devices

# How many I/O threads there would be, and why. The shell has the mask that they would have.
cpus=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
check_output "I/O threads and their reasons" \
    "^I/O threads: (up to [0-9]+|1, and calls move the data) \\(auto: $cpus CPUs? in the affinity mask, (no quota|a quota of [0-9]+), 1 process\\)$" \
    env UCCL_TCPX_PROCESSES=1 "$tcpx" devices
check_output "I/O threads that are set" '^I/O threads: up to 3 \(UCCL_TCPX_THREADS: ' \
    env UCCL_TCPX_THREADS=3 "$tcpx" devices
check_output "no I/O threads" '^I/O threads: none \(UCCL_TCPX_THREADS: ' env UCCL_TCPX_THREADS=0 "$tcpx" devices
check_output "more processes than CPUs" '^I/O threads: 1, and calls move the data .*, 4096 processes\)$' \
    env UCCL_TCPX_PROCESSES=4096 "$tcpx" devices
check_output "what a launcher says" '^I/O threads: .*, ([2-9]|[0-9]{2,}) processes\)$' \
    env UCCL_TCPX_PROCESSES=auto LOCAL_WORLD_SIZE=4096 "$tcpx" devices
check_output "I/O threads in JSON" \
    "\"io_threads\": \{\"most\": 1, .*\"mask_cpus\": $cpus, .*\"processes\": 4096, \"calls_move_data\": true\}," \
    env UCCL_TCPX_PROCESSES=4096 "$tcpx" devices --json

# The plugin is tried out in a process of its own, so that nothing it does ends this one.
plugin=$BUILD/libnccl-net-tcpx.so
check_output "no plugin" '^Network plugin: none, the built-in transport$' \
    env UCCL_TCPX_PLUGIN_PATH=builtin "$tcpx" devices
check_output "our own plugin" '^    TCPX, table version 12, 1 device: lo \(' \
    env UCCL_TCPX_PLUGIN_PATH="$plugin" NCCL_SOCKET_IFNAME=lo "$tcpx" devices
check_output "lines that users know" '^\[TCPX\] net->devices rc=0 ndev=1$' \
    env UCCL_TCPX_PLUGIN_PATH="$plugin" NCCL_SOCKET_IFNAME=lo UCCL_TCPX_DEBUG=1 "$tcpx" devices
check_output "a file that is no library" 'DOES NOT WORK: the plugin cannot be loaded: .*ELF' \
    env UCCL_TCPX_PLUGIN_PATH=README.md "$tcpx" devices
check_output "a library that is no plugin" 'DOES NOT WORK: .* is not a network plugin for NCCL' \
    env UCCL_TCPX_PLUGIN_PATH="$BUILD/libtcpx.so" "$tcpx" devices
for fault in 'exit(7);it ended the process with status 7' 'abort();it crashed: Aborted'; do
    printf '%s\n' '#include <stdlib.h>' "static int start(void *logger) { (void)logger; ${fault%%;*}; return 0; }" \
        'struct { const char *name; int (*init)(void *); void *rest[17]; } ncclNetPlugin_v7 =' \
        '    {"faulty", start, {0}};' >"$TAP_WORK/faulty.c"
    if ${CC:-cc} -shared -fPIC -o "$TAP_WORK/faulty.so" "$TAP_WORK/faulty.c" 2>/dev/null; then
        check_output "a plugin that calls ${fault%%;*}" "DOES NOT WORK: ${fault#*;}" \
            env UCCL_TCPX_PLUGIN_PATH="$TAP_WORK/faulty.so" "$tcpx" devices
    else
        tap_skip "a plugin that calls ${fault%%;*}" "it cannot be compiled"
    fi
done

if [ -e /dev/nvidia0 ]; then
    tap_skip "auto without a driver" "this machine has one"
else
    check_output "auto without a driver falls back and says why" 'no CUDA: .*libcuda\.so\.1' \
        env UCCL_TCPX_GPU=auto "$tcpx" devices
    check_fails_output "cuda without a driver is refused" 'libcuda\.so\.1' \
        env UCCL_TCPX_GPU=cuda "$tcpx" devices
fi
check_output "auto takes CUDA where it is" 'GPU layer: cuda' \
    env UCCL_TCPX_GPU=auto LD_LIBRARY_PATH="$BUILD/tests/fakecuda" "$tcpx" devices
check_output "auto without a device falls back" 'no CUDA: .*no device' \
    env UCCL_TCPX_GPU=auto LD_LIBRARY_PATH="$BUILD/tests/fakecuda" FAKECUDA_DEVICES=0 "$tcpx" devices
check_output "auto with a broken driver falls back" 'no CUDA: .*cuInit: CUDA_ERROR_NO_DEVICE' \
    env UCCL_TCPX_GPU=auto LD_LIBRARY_PATH="$BUILD/tests/fakecuda" FAKECUDA_FAULTS=cuInit=100 \
    "$tcpx" devices
check_fails_output "cuda with a broken driver is refused" 'cuInit: CUDA_ERROR_NO_DEVICE' \
    env UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH="$BUILD/tests/fakecuda" FAKECUDA_FAULTS=cuInit=100 \
    "$tcpx" devices
check_output "the stand-in's call log has the first call" '^cuInit$' sh -c "
    UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH='$BUILD/tests/fakecuda' FAKECUDA_LOG='$TAP_WORK/log' \
        '$tcpx' devices >/dev/null; cat '$TAP_WORK/log'"

# Each variable of the table refuses nonsense with a sentence, before anything else happens.
for name in $("$tcpx" env --json | sed -n 's/.*"name": "\([A-Z_]*\)".*/\1/p'); do
    check_fails_output "$name=nonsense is refused" "^tcpx: $name=nonsense " \
        env "$name=nonsense" "$tcpx" devices
done
check_fails_output "env shows what is wrong" 'ERROR: UCCL_TCPX_HOST_GPUS=65 .* from 1 to 64' \
    env UCCL_TCPX_HOST_GPUS=65 "$tcpx" env
check_output "env shows where a value comes from" '^UCCL_TCPX_HOST_GPUS=2  \(from the environment\)' \
    env UCCL_TCPX_HOST_GPUS=2 "$tcpx" env
check_output "what is set comes first" "^UCCL_TCPX_HOST_GPUS=2 " sh -c "UCCL_TCPX_HOST_GPUS=2 '$tcpx' env | sed -n '/^UCCL_TCPX_HOST/{p;q}'"
bare_autos()
{
    env -i UCCL_TCPX_GPU=auto "$tcpx" env | grep -E '^[A-Z_]+=auto ' | grep -v '; here: '
}
check "no auto without what it means here" quiet bare_autos
check_output "as the number of I/O threads" '^UCCL_TCPX_THREADS=auto  \(default; here: [0-9]+\)$' \
    env -u UCCL_TCPX_THREADS "$tcpx" env
check_output "and the interfaces" '^NCCL_SOCKET_IFNAME=lo  \(from the environment\)$' \
    env NCCL_SOCKET_IFNAME=lo "$tcpx" env
check_fails_output "also where another variable is wrong" '^UCCL_TCPX_THREADS=auto  .*here: unknown while a variable is wrong' \
    env UCCL_TCPX_HOST_GPUS=65 "$tcpx" env
check_output "env points out unknown names" '^UCCL_TCPX_DEBUGG ' env UCCL_TCPX_DEBUGG=1 "$tcpx" env

for command in devices env; do
    with_program python3 check "$command --json is JSON" \
        sh -c "'$tcpx' $command --json | python3 -m json.tool"
done
with_program python3 check "also with strange bytes in a value" sh -c "
    UCCL_TCPX_HOST_GPUS=\$(printf 'a\"\\\\\\001\\377') '$tcpx' env --json 2>/dev/null |
        python3 -m json.tool"

check_fails_output "a full disk is noticed" 'cannot write' sh -c "'$tcpx' devices >/dev/full"
check "a reader that goes away is no crash" sh -c "UCCL_TCPX_DEBUG=1 '$tcpx' env | head -1"

tap_end
