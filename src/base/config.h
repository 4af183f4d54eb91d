/*
 * Every variable of the environment that tcpx reads, in one table. The struct below, the parser,
 * `tcpx env`, the man page and the README's table all come from it. Variables for tests only are
 * not in the table: CONFIG_SOFT_DEVMEM, CONFIG_THROTTLE and CONFIG_UNBIND. Neither are those of
 * others that must not cause an error: net/io/processes.c reads them.
 */
#ifndef TCPX_BASE_CONFIG_H
#define TCPX_BASE_CONFIG_H

#include "base/error.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum config_gpu { CONFIG_GPU_AUTO, CONFIG_GPU_CUDA, CONFIG_GPU_HOST };
enum config_plugin_mode { CONFIG_PLUGIN_HOST, CONFIG_PLUGIN_CUDA, CONFIG_PLUGIN_UNPACK };
enum config_devmem { CONFIG_DEVMEM_AUTO, CONFIG_DEVMEM_ON, CONFIG_DEVMEM_OFF };
enum config_family { CONFIG_FAMILY_ANY, CONFIG_FAMILY_INET, CONFIG_FAMILY_INET6 };
enum config_unpack {
    CONFIG_UNPACK_AUTO,
    CONFIG_UNPACK_D2D,
    CONFIG_UNPACK_HOST,
    CONFIG_UNPACK_KERNEL
};

/*
 * BOOL(field, name, default, sentence)
 * CHOICE(field, name, default, words in the order of the enum, sentence)
 * INTEGER(field, name, default, least, most, sentence); the default may be "auto"
 * SIZE: as INTEGER, in bytes, with the suffixes K, M, G, T of 1024.
 * TEXT(field, name, default, what is allowed, sentence): its user checks it
 * OTHER(field, type, name, default, what is allowed, parser, sentence): what a function of config.c
 * makes of the text
 */
/* clang-format off */
#define CONFIG_TABLE(BOOL, CHOICE, INTEGER, SIZE, TEXT, OTHER)                                     \
    BOOL(debug, "UCCL_TCPX_DEBUG", "0",                                                            \
         "Print each step to standard error, as lines that begin with [DEBUG] or "                 \
         "[TCPX].")                                                                                \
    CHOICE(gpu, "UCCL_TCPX_GPU", "auto", "auto|cuda|host",                                         \
         "Which GPUs to use: real ones (cuda), emulated ones in ordinary memory "                  \
         "(host), or real ones if there are any and emulated ones otherwise (auto).")              \
    CHOICE(unpack_impl, "UCCL_TCPX_UNPACK_IMPL", "auto", "auto|d2d|host|kernel",                   \
         "How received fragments get into the GPU buffer, where they have to be "                  \
         "unpacked: by copies (d2d), through host memory (host), by a kernel (kernel), "           \
         "or by what is fastest for each receive (auto).")                                         \
    TEXT(plugin_path, "UCCL_TCPX_PLUGIN_PATH", "", "a file, or builtin",                           \
         "The network plugin to use; builtin is the built-in transport. If not set: "              \
         "the plugin at /usr/local/tcpx/lib64/libnccl-net-tcpx.so if there is one, "               \
         "else the built-in transport.")                                                           \
    INTEGER(num_channels, "UCCL_TCPX_NUM_CHANNELS", "auto", 1, 64,                                 \
         "How many channels a session has to its peer. auto is one for each network device "       \
         "near the GPU, and at least 2 over a plugin; if the two ends differ, the smaller "        \
         "number counts. A number that is set must be the same at both ends.")                     \
    SIZE(chunk_bytes, "UCCL_TCPX_CHUNK_BYTES", "0", 0, 1 << 30,                                    \
         "With several channels or over a plugin, a session cuts each transfer into chunks of "    \
         "this size; it must be the same at both ends. Smaller chunks spread a transfer over "     \
         "several NICs. 0 is NCCL_P2P_NET_CHUNKSIZE over a plugin, and 4M over the built-in "      \
         "transport.")                                                                             \
    SIZE(nccl_chunk_bytes, "NCCL_P2P_NET_CHUNKSIZE", "512K", 1, 1 << 30,                           \
         "How much of a message NCCL sends at once; also the size of a session's chunks over "     \
         "a plugin, and of the chunks of tcpx perf if it is set.")                                 \
    INTEGER(bootstrap_port_base, "UCCL_TCPX_BOOTSTRAP_PORT_BASE", "12345", 1, 65000,               \
         "The TCP port where the two ends of tcpx perf, transfer or connection meet, for GPU 0; "  \
         "for GPU N it is this port plus N. The ranks of tcpx matrix meet at this port itself.")   \
    SIZE(payload_bytes, "UCCL_TCPX_PAYLOAD_BYTES", "23", 1, 4 << 20,                               \
         "How many bytes tcpx transfer sends, the same at both ends.")                             \
    SIZE(perf_size, "UCCL_TCPX_PERF_SIZE", "4M", 1, (uint64_t)1 << 42,                             \
         "How many bytes an iteration of tcpx perf moves.")                                        \
    INTEGER(perf_iters, "UCCL_TCPX_PERF_ITERS", "10", 1, 1000000,                                  \
         "How many iterations tcpx perf measures.")                                                \
    BOOL(host_recv_debug, "UCCL_TCPX_HOST_RECV_DEBUG", "0",                                        \
         "Let tcpx transfer use host memory instead of GPU memory, to see whether the "            \
         "GPU is at fault.")                                                                       \
    CHOICE(plugin_mode, "UCCL_TCPX_PLUGIN_MODE", "host", "host|cuda|unpack",                       \
         "What NCCL hands to the plugin: pinned host buffers (host), GPU buffers "                 \
         "(cuda), or GPU buffers that its own kernels unpack received data into "                  \
         "(unpack).")                                                                              \
    TEXT(socket_ifname, "NCCL_SOCKET_IFNAME", "", "names of interfaces, as eth,=ens5 or ^docker",  \
         "Which network interfaces to use, as for NCCL: eth means all names that begin "           \
         "with it, =eth0 exactly this one, ^docker all but these.")                                \
    TEXT(data_ifname, "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "",                                      \
         "names of interfaces, as eth1,eth2",                                                      \
         "Which network interfaces to use for data; if it is set, it counts instead of "           \
         "NCCL_SOCKET_IFNAME.")                                                                    \
    CHOICE(socket_family, "NCCL_SOCKET_FAMILY", "any", "any|AF_INET|AF_INET6",                     \
         "Which kind of address to use.")                                                          \
    OTHER(ports, struct config_ports, "UCCL_TCPX_PORT", "auto",                                    \
         "auto, a port from 1 to 65535, or a range, such as 20000-20007", parse_ports,             \
         "The TCP port for all connections to this process; of a range, each process "             \
         "takes the first port that is free. auto: each listener has its own port, "               \
         "which the system chooses.")                                                              \
    OTHER(advertise, struct config_address, "UCCL_TCPX_ADVERTISE", "",                             \
         "an IP address, such as 203.0.113.7 or 2001:db8::7", parse_address,                       \
         "The address at which peers reach this process, if its interfaces do not have "           \
         "it: behind address translation, or in a container.")                                     \
    OTHER(stats, struct config_stats, "UCCL_TCPX_STATS", "0",                                      \
         "0, seconds from 1 to 86400, or such a number and a file, such as 10:/tmp/tcpx.log",      \
         parse_stats,                                                                              \
         "Print a line for each peer every so many seconds, to standard error or to "              \
         "the end of a file: rates, what transfers wait for, sockets, retransmissions. "           \
         "0: never.")                                                                              \
    INTEGER(speed, "UCCL_TCPX_SPEED", "0", 0, 10000000,                                            \
         "The speed in Mbit/s of interfaces that do not report their own; 0 means "                \
         "10000.")                                                                                 \
    INTEGER(timeout_ms, "UCCL_TCPX_TIMEOUT_MS", "60000", 1000, 3600000,                            \
         "After how many milliseconds a peer that does not answer, or does not read, "             \
         "is an error.")                                                                           \
    INTEGER(sockets, "UCCL_TCPX_SOCKETS", "auto", 1, 64,                                           \
         "How many TCP connections a comm uses for its data, at most. auto is one for each I/O "   \
         "thread. It is 1 where there are fewer than 4 CPUs, or fewer than 2 for each process.")   \
    INTEGER(socket_budget, "UCCL_TCPX_SOCKET_BUDGET", "32", 0, 4096,                               \
         "How many TCP connections all comms to one process may have together; each comm has "     \
         "one more that does not count.")                                                          \
    INTEGER(threads, "UCCL_TCPX_THREADS", "auto", 0, 64,                                           \
         "How many I/O threads this process has; auto is half of the CPUs that it may "            \
         "use, divided by the processes that share them, from 1 to 16. With 0, data "              \
         "moves only while the program makes calls.")                                              \
    INTEGER(processes, "UCCL_TCPX_PROCESSES", "auto", 1, 4096,                                     \
         "How many processes share the CPUs of this one. auto is the larger of two numbers: the "  \
         "processes of this user that have I/O threads on these CPUs now, and what "               \
         "LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE, SLURM_NTASKS_PER_NODE or "                 \
         "MPI_LOCALNRANKS says.")                                                                  \
    SIZE(eager_bytes, "UCCL_TCPX_EAGER_BYTES", "8K", 0, 1 << 20,                                   \
         "The longest message that is sent before its receive is posted.")                         \
    SIZE(inline_bytes, "UCCL_TCPX_INLINE_BYTES", "8K", 0, 16384,                                    \
         "A read or write of host memory up to this size travels in the message that asks for "    \
         "it; a larger one goes over the connections for data.")                                   \
    SIZE(ahead_bytes, "UCCL_TCPX_AHEAD_BYTES", "8M", 0, 32 << 20,                                  \
         "How many bytes a receiving comm of the NCCL plugin keeps of messages that come before "  \
         "their receive is posted and are longer than UCCL_TCPX_EAGER_BYTES. With 0 such "         \
         "messages wait at the sender.")                                                           \
    SIZE(slice_bytes, "UCCL_TCPX_SLICE_BYTES", "512K", 4096, 1 << 30,                              \
         "A message is cut into slices of at most this size, and each slice goes over one "        \
         "connection. Slices of GPU memory are four times as large.")                              \
    SIZE(staging_bytes, "UCCL_TCPX_STAGING_BYTES", "512M", 65536, (uint64_t)1 << 36,               \
         "How much pinned host memory each GPU has, at most, for data on its way to "              \
         "and from the sockets.")                                                                  \
    SIZE(bounce_bytes, "UCCL_TCPX_BOUNCE_BYTES", "256M", (uint64_t)1 << 20, (uint64_t)1 << 32,     \
         "How much pinned host memory each GPU has for receives that are unpacked by "             \
         "NCCL's kernels or by the caller (bounce memory).")                                       \
    SIZE(unpack_bytes, "UCCL_TCPX_UNPACK_BYTES", "8M", (uint64_t)4 << 20, (uint64_t)1 << 30,       \
         "How much bounce memory one comm has, besides its descriptor queue. A receive takes as "  \
         "much of it as its own size.")                                                            \
    CHOICE(devmem, "UCCL_TCPX_DEVMEM", "auto", "auto|on|off",                                      \
         "Device-memory TCP, for receiving and sending: use it where kernel, NIC, GPU "            \
         "and privileges allow it (auto), fail where they do not (on), or do not use "             \
         "it (off).")                                                                              \
    SIZE(devmem_bytes, "UCCL_TCPX_DEVMEM_BYTES", "256M", (uint64_t)1 << 20, (uint64_t)1 << 32,     \
         "How much GPU memory is set aside for each pair of GPU and NIC, for the NIC to write "    \
         "payload into. A part of it is always in the rings of the NIC.")                          \
    INTEGER(devmem_queues, "UCCL_TCPX_DEVMEM_QUEUES", "auto", 1, 64,                               \
         "How many receive queues of a NIC each GPU takes for itself. auto is a quarter of all "   \
         "queues, and 4 at most.")                                                                 \
    INTEGER(host_gpus, "UCCL_TCPX_HOST_GPUS", "1", 1, 64,                                          \
         "How many emulated GPUs there are.")                                                      \
    SIZE(host_gpu_memory, "UCCL_TCPX_HOST_GPU_MEMORY", "16G", 65536, (uint64_t)1 << 46,            \
         "How much memory each emulated GPU has.")                                                 \
    INTEGER(host_gpu_delay_us, "UCCL_TCPX_HOST_GPU_DELAY_US", "0", 0, 10000000,                    \
         "How many microseconds each operation of an emulated GPU waits before it "                \
         "runs, to find code that does not wait for the GPU.")
/* clang-format on */

/*
 * A number from 0 to 4294967295: receive as if by a device-memory NIC that this number makes up; 0:
 * do not. Software devmem is a part of the tests (tests/support). A build without it refuses every
 * other number.
 */
#define CONFIG_SOFT_DEVMEM "UCCL_TCPX_SOFT_DEVMEM"

/*
 * STAGE:BYTES_PER_SECOND makes a stage of each comm of the built-in transport that slow: the
 * sender's d2h, send or network, or the receiver's recv or unpack; followed by @RANK only in the
 * process whose variable RANK says so. So that tests can see whether the slow one is found. The
 * throttle is a part of the tests, too.
 */
#define CONFIG_THROTTLE "TCPX_TEST_THROTTLE"

/*
 * BYTES ends the binding of a pool to its NIC when a comm has received that many, as an
 * administrator's doing could. So that tests can see whether the rest arrives, too.
 */
#define CONFIG_UNBIND "TCPX_TEST_DEVMEM_UNBIND"

enum config_throttle {
    CONFIG_THROTTLE_NONE,
    CONFIG_THROTTLE_D2H,
    CONFIG_THROTTLE_SEND,
    CONFIG_THROTTLE_NETWORK,
    CONFIG_THROTTLE_RECEIVE,
    CONFIG_THROTTLE_UNPACK,
};

enum { CONFIG_TEXT_BYTES = 256 };

/* The value of a number that is "auto". */
#define CONFIG_AUTO UINT64_MAX

/* From the first to the last; 0: the system chooses. */
struct config_ports {
    uint16_t first;
    uint16_t last;
};

/* Of IPv4 or IPv6, checked; "": none. */
struct config_address {
    char text[INET6_ADDRSTRLEN];
};

struct config_stats {
    unsigned seconds;             /* 0: never */
    char file[CONFIG_TEXT_BYTES]; /* "": standard error */
};

struct config {
#define CONFIG_BOOL_FIELD(field, name, initial, sentence)                         bool field;
#define CONFIG_CHOICE_FIELD(field, name, initial, words, sentence)                int field;
#define CONFIG_NUMBER_FIELD(field, name, initial, least, most, sentence)          uint64_t field;
#define CONFIG_TEXT_FIELD(field, name, initial, allowed, sentence)                char field[CONFIG_TEXT_BYTES];
#define CONFIG_OTHER_FIELD(field, type, name, initial, allowed, parser, sentence) type field;
    CONFIG_TABLE(CONFIG_BOOL_FIELD, CONFIG_CHOICE_FIELD, CONFIG_NUMBER_FIELD, CONFIG_NUMBER_FIELD,
                 CONFIG_TEXT_FIELD, CONFIG_OTHER_FIELD)
#undef CONFIG_BOOL_FIELD
#undef CONFIG_CHOICE_FIELD
#undef CONFIG_NUMBER_FIELD
#undef CONFIG_TEXT_FIELD
#undef CONFIG_OTHER_FIELD
    uint64_t soft_devmem; /* 0: none */
    enum config_throttle throttled;
    uint64_t throttle_rate; /* bytes per second */
    uint64_t unbind_after;  /* bytes; 0: never */
};

/*
 * The configuration of this process: read from the environment at the first call that succeeds,
 * the same ever after. A value that cannot be understood fails every call until it is corrected.
 */
MUST_CHECK int config_get(const struct config **config);

/*
 * From now on the variable has this value, whatever the environment says. A value that is not
 * allowed is an error, and so is another one than the configuration was read with.
 */
MUST_CHECK int config_preset(const char *name, const char *value);

/* The moment when the time is over that a caller of tcpx.h gives a wait. */
MUST_CHECK int config_deadline(int timeout_ms, uint64_t *deadline);

/* Reads the environment as it is now. */
MUST_CHECK int config_read(struct config *config);

/*
 * `read` reads the variable for tests with this name; an error where the value is not valid. The
 * part of the tests that acts on the variable calls it, before the configuration is read first.
 */
typedef int config_test_reader(const char *value, struct config *config);
void config_set_test_reader(const char *name, config_test_reader *read);

enum config_format {
    CONFIG_FORMAT_TEXT,
    CONFIG_FORMAT_JSON,
    CONFIG_FORMAT_MARKDOWN,
    CONFIG_FORMAT_MAN
};

/*
 * Prints the table: TEXT and JSON with the values of this process and where they come from,
 * MARKDOWN and MAN with the defaults, for the documents. In TEXT those that are set come first. A
 * value that is not understood is shown with its reason, and the first one is the result.
 *
 * `resolve` writes what a value stands for here, as auto does; "" where it stands for itself. NULL:
 * nobody knows.
 */
typedef void config_resolver(const char *name, const char *value, char *text, size_t room);
MUST_CHECK int config_print(FILE *out, enum config_format format, config_resolver *resolve);

#endif
