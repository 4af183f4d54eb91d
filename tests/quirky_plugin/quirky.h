/* What the quirky plugin tells a test beside its table, under the symbol quirky_counts. */
#ifndef TCPX_TESTS_QUIRKY_H
#define TCPX_TESTS_QUIRKY_H

struct quirky_counts {
    unsigned inits;
    unsigned finalizes;
    unsigned unknown_states; /* handles whose state the plugin it is modelled on would have followed
                                into nowhere */
    unsigned free_pages;     /* of the bounce pool; 0 where there is none */
    unsigned lost_pages;     /* whose tokens were forgotten */
    unsigned long fragments;
    unsigned long chunk_bytes; /* as it has read its variable */
};

#define QUIRKY_NAME     "GPUDirectTCPX_quirky"
#define QUIRKY_PCI_PATH "/sys/devices/pci0000:00/0000:00:04.0"

/* Of version 12, without name and path. No two members are alike, so that none can pass for
 * another. */
#define QUIRKY_PROPERTIES(unpacks)                                                                 \
    .guid = 0x1122334455667788,                                                                    \
    .pointer_support = NET_POINTER_HOST | ((unpacks) ? NET_POINTER_CUDA : 0),                      \
    .registration_is_global = 3, .force_flush = 4, .speed = 12345, .port = 2, .latency = 1.5f,     \
    .max_comms = 65536, .max_receives = 1,                                                         \
    .device_type = (unpacks) ? NET_DEVICE_UNPACK : NET_DEVICE_HOST,                                \
    .device_version = (unpacks) ? UNPACK_VERSION : 0,                                              \
    .parts = {.count = 2, .devices = {5, 6, 8, 9}}, .max_p2p_bytes = 10000000000,                  \
    .max_collective_bytes = 11000000000, .max_multi_request = 12, .rail = 13, .plane = 14

#endif
