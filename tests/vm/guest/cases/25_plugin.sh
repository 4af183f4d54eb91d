# The same under the interface that NCCL calls: buffers of the GPU, unpacked by the transport (cuda)
# or by whoever receives them (unpack).

. /cases/ends.inc

export UCCL_TCPX_PLUGIN_PATH=/build/libnccl-net-tcpx.so
for mode in cuda unpack; do
    UCCL_TCPX_PLUGIN_MODE=$mode
    export UCCL_TCPX_PLUGIN_MODE
    for way in $([ $mode = cuda ] && echo auto || echo d2d host kernel); do
        check_output "mode $mode, $way" '^verified' transfer --unpack $way --size 3000019 --iters 2
    done
    check_output "mode $mode, both directions" '^verified' transfer --size 2M --both --iters 2
    set_parameter unsplit_nth 9
    check_output "mode $mode, headers not split off" '^verified' transfer --size 2M --iters 2
    set_parameter unsplit_nth 0
done
UCCL_TCPX_PLUGIN_MODE=cuda
in_pages()
{
    before=$(all_queues dm0 device_bytes)
    transfer --size 8M --iters 2 --warm-up 0 || return 1
    [ $(($(all_queues dm0 device_bytes) - before)) -ge 16777216 ]
}
check_output "payload arrives in device pages" '^verified' in_pages
