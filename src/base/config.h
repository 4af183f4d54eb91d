/*
 * Every variable of the environment that tcpx reads, in one table. The struct below, the parser,
 * `tcpx env`, the man page and the README's table all come from it.
 */
#ifndef TCPX_BASE_CONFIG_H
#define TCPX_BASE_CONFIG_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum config_gpu { CONFIG_GPU_AUTO, CONFIG_GPU_CUDA, CONFIG_GPU_HOST };
enum config_unpack {
    CONFIG_UNPACK_AUTO,
    CONFIG_UNPACK_D2D,
    CONFIG_UNPACK_HOST,
    CONFIG_UNPACK_KERNEL
};

/*
 * BOOL(field, name, default, sentence)
 * CHOICE(field, name, default, words in the order of the enum, sentence)
 * INTEGER(field, name, default, least, most, sentence)
 * SIZE: the same as INTEGER, in bytes, with the suffixes K, M, G, T of 1024.
 */
/* clang-format off */
#define CONFIG_TABLE(BOOL, CHOICE, INTEGER, SIZE)                                                  \
    BOOL(debug, "UCCL_TCPX_DEBUG", "0",                                                            \
         "Print each step to standard error, as lines that begin with [DEBUG] or [TCPX].")         \
    CHOICE(gpu, "UCCL_TCPX_GPU", "auto", "auto|cuda|host",                                         \
         "Which GPUs to use: real ones (cuda), emulated ones in ordinary memory (host), or real "  \
         "ones where there are any (auto).")                                                       \
    CHOICE(unpack_impl, "UCCL_TCPX_UNPACK_IMPL", "auto", "auto|d2d|host|kernel",                   \
         "How received fragments get into the GPU buffer: by copies (d2d), gathered in host "      \
         "memory first (host), by a kernel (kernel), or the best for each receive (auto).")        \
    INTEGER(host_gpus, "UCCL_TCPX_HOST_GPUS", "1", 1, 64,                                          \
         "How many emulated GPUs there are.")                                                      \
    SIZE(host_gpu_memory, "UCCL_TCPX_HOST_GPU_MEMORY", "16G", 65536, (uint64_t)1 << 46,            \
         "How much memory each emulated GPU has.")                                                 \
    INTEGER(host_gpu_delay_us, "UCCL_TCPX_HOST_GPU_DELAY_US", "0", 0, 10000000,                    \
         "How many microseconds each operation of an emulated GPU waits before it runs, so that "  \
         "code which does not wait for it goes wrong visibly.")
/* clang-format on */

struct config {
#define CONFIG_BOOL_FIELD(field, name, initial, sentence)                bool field;
#define CONFIG_CHOICE_FIELD(field, name, initial, words, sentence)       int field;
#define CONFIG_NUMBER_FIELD(field, name, initial, least, most, sentence) uint64_t field;
    CONFIG_TABLE(CONFIG_BOOL_FIELD, CONFIG_CHOICE_FIELD, CONFIG_NUMBER_FIELD, CONFIG_NUMBER_FIELD)
#undef CONFIG_BOOL_FIELD
#undef CONFIG_CHOICE_FIELD
#undef CONFIG_NUMBER_FIELD
};

/*
 * The configuration of this process: read from the environment at the first call that succeeds,
 * the same ever after. A value that cannot be understood fails every call until it is corrected.
 */
MUST_CHECK int config_get(const struct config **config);

/* Reads the environment as it is now. */
MUST_CHECK int config_read(struct config *config);

enum config_format {
    CONFIG_FORMAT_TEXT,
    CONFIG_FORMAT_JSON,
    CONFIG_FORMAT_MARKDOWN,
    CONFIG_FORMAT_MAN
};

/*
 * Prints the table: TEXT and JSON with the values of this process and where they come from,
 * MARKDOWN and MAN with the defaults, for the documents. A value that is not understood is shown
 * with its reason, and the first one is the result.
 */
MUST_CHECK int config_print(FILE *out, enum config_format format);

#endif
