# Memory for devmem TCP: what an emulated GPU exports, and that only dm0 can use it.

if command -v test_devmem_memory >/dev/null; then
    check "memory can be exported, and bound to dm0 only" env UCCL_TCPX_GPU=host \
        NCCL_SOCKET_IFNAME=dm0,lo TCPX_TEST_DEVMEM_NIC=dm0 timeout 60 test_devmem_memory
else
    tap_skip "memory" "test_devmem_memory was not built: cmocka.h is not installed"
fi
