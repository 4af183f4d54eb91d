/*
 * A stand-in for the CUDA driver: libcuda.so.1 with the entry points that tcpx uses, over the
 * emulated GPU's memory and engine. It is stricter than the driver (a call that needs a current
 * context fails without one) and fails on demand. Tests reach these controls through dlsym().
 */
#ifndef TCPX_TESTS_FAKECUDA_H
#define TCPX_TESTS_FAKECUDA_H

#include <stdint.h>

/*
 * Makes calls fail: "cuMemAlloc_v2=2" each, "cuMemAlloc_v2@3=2" the third from now. Several are
 * separated by commas; NULL or "" ends all faults. The variable FAKECUDA_FAULTS does the same.
 */
typedef void fakecuda_fault_call(const char *faults);

/* How many faults have happened. */
typedef unsigned fakecuda_faults_seen_call(void);

/*
 * Calls of this entry point wait, as the driver's do for kernels that run: until the next call of
 * this function, or for `most_ms`, after which they go on by themselves. NULL: none waits.
 */
typedef void fakecuda_hold_call(const char *entry_point, uint64_t most_ms);

/* How many calls wait now. */
typedef unsigned fakecuda_held_call(void);

/* How often an entry point has been called. */
typedef unsigned fakecuda_calls_call(const char *entry_point);

/* What cuDeviceGetAttribute answers from now on. */
typedef void fakecuda_attribute_call(int attribute, int value);

/* Makes a stream look as if a graph were being captured on it. */
typedef void fakecuda_capture_call(void *stream, int capturing);

/* Every call fails from now on, as after the driver's own exit handler. */
typedef void fakecuda_shutdown_call(int on);

/* How many contexts are retained, over all devices; allocations, streams and events that live. */
struct fakecuda_balance {
    int contexts;
    int memory;
    int registered;
    int streams;
    int events;
    int modules;
};
typedef void fakecuda_balance_call(struct fakecuda_balance *balance);

/* What cuPointerGetAttributes says of [start, end): a mapping in a reserved range. */
struct fakecuda_mapping {
    uint64_t start;
    uint64_t end;
    uint64_t range_start;
    uint64_t range_bytes;
    int memory_type; /* 0: reserved only */
    int device;
    int managed;
};
typedef void fakecuda_mapping_call(const struct fakecuda_mapping *mapping);

/*
 * The argument of the kernel test_spin (tests/spinning_kernel.h), which the driver knows by its
 * name. Device addresses of 32-bit words.
 */
struct fakecuda_spin {
    uint64_t until; /* it spins as long as this is 0, */
    uint64_t begun; /* writes 1 here when it begins */
    uint64_t ended; /* and here when it ends */
    uint64_t most_ns;
};

/* Each is fakecuda_NAME(), of the type above. */
#define FAKECUDA_CONTROLS(CONTROL)                                                                 \
    CONTROL(fault)                                                                                 \
    CONTROL(faults_seen)                                                                           \
    CONTROL(hold)                                                                                  \
    CONTROL(held)                                                                                  \
    CONTROL(calls)                                                                                 \
    CONTROL(attribute)                                                                             \
    CONTROL(capture)                                                                               \
    CONTROL(shutdown)                                                                              \
    CONTROL(balance)                                                                               \
    CONTROL(mapping)

#endif
