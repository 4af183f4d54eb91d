# Memory for devmem TCP: what an emulated GPU exports, and that only dm0 can use it.

for program in test_gpu_layer test_devmem_memory; do
    if command -v $program >/dev/null; then
        check "$program" env UCCL_TCPX_GPU=host NCCL_SOCKET_IFNAME=dm0,lo TCPX_TEST_DEVMEM_NIC=dm0 \
            timeout 60 $program
    else
        skip "$program" "it was not built: cmocka.h is not installed"
    fi
done
