# The same under the interface that NCCL calls: buffers of the GPU. In mode unpack payload arrives in
# device pages, and the receiver unpacks it; mode cuda receives through host memory.

. /cases/ends.inc

# pages -ge|-eq NUMBER: of a transfer of 16 MiB so many bytes arrived in device pages.
pages()
{
    pages_before=$(all_queues dm0 device_bytes)
    transfer --size 8M --iters 2 --warm-up 0 || return 1
    pages_bytes=$(($(all_queues dm0 device_bytes) - pages_before))
    echo "$pages_bytes bytes in device pages"
    test $pages_bytes "$1" "$2"
}

export UCCL_TCPX_PLUGIN_PATH=/build/libnccl-net-tcpx.so
for mode in cuda unpack; do
    UCCL_TCPX_PLUGIN_MODE=$mode
    export UCCL_TCPX_PLUGIN_MODE
    for way in $([ $mode = cuda ] && echo auto || echo d2d host kernel); do
        verifies "mode $mode, $way" --unpack $way --size 3000019 --iters 2
    done
    verifies "mode $mode, both directions" --size 2M --both --iters 2
    set_parameter unsplit_nth 9
    verifies "mode $mode, headers not split off" --size 2M --iters 2
    set_parameter unsplit_nth 0
done
UCCL_TCPX_PLUGIN_MODE=unpack
check_output "mode unpack, payload arrives in device pages" '^verified' pages -ge 16777216
UCCL_TCPX_PLUGIN_MODE=cuda
check_output "mode cuda, payload arrives in host memory" '^verified' pages -eq 0
