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

#endif
