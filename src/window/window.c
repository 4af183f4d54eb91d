/* The table of windows and the calls of tcpx.h on them. */
#include "window/window.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "base/thread.h"
#include "window/mac.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* --- the table ------------------------------------------------------------------------------- */

static pthread_mutex_t windows_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t use_ended; /* of any window that is being closed */
static pthread_once_t use_ended_once = PTHREAD_ONCE_INIT;
static struct tcpx_window *windows[256]; /* open ones, by id */
static uint64_t next_id = 1;

static void use_ended_init(void)
{
    condition_init(&use_ended);
}

static struct tcpx_window **window_row(uint64_t id)
{
    return &windows[id % (sizeof windows / sizeof *windows)];
}

/* --- uses ------------------------------------------------------------------------------------ */

/* With the lock. */
static void window_use_add(struct tcpx_window *window, struct window_use *use)
{
    use->window = window;
    use->next = window->uses;
    use->here = &window->uses;
    if (window->uses != NULL)
        window->uses->here = &use->next;
    window->uses = use;
}

int window_use_begin(struct tcpx_window *window, struct window_use *use)
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&windows_lock);
    if (window_is_closing(window))
        result = error_set(TCPX_INVALID_USAGE, "the window is being closed");
    else
        window_use_add(window, use);
    pthread_mutex_unlock(&windows_lock);
    return result;
}

void window_use_end(struct window_use *use)
{
    if (use->window == NULL)
        return;
    pthread_mutex_lock(&windows_lock);
    *use->here = use->next;
    if (use->next != NULL)
        use->next->here = use->here;
    if (window_is_closing(use->window))
        pthread_cond_broadcast(&use_ended);
    use->window = NULL;
    pthread_mutex_unlock(&windows_lock);
}

/* --- keys ------------------------------------------------------------------------------------ */

#define KEY_MAGIC 0x4b575854u /* "TXWK" */

enum { KEY_VERSION = 1, KEY_OF_GPU = 4 };

struct key_layout {
    uint32_t magic;
    uint16_t version;
    uint16_t access;
    uint64_t id;
    uint64_t bytes;
    uint8_t secret[WINDOW_SECRET_BYTES];
    uint8_t reserved[24];
} __attribute__((packed));

_Static_assert(sizeof(struct key_layout) == TCPX_KEY_BYTES, "as tcpx.h says");

int tcpx_window_key(const struct tcpx_window *window, void *key)
{
    struct key_layout layout = {.magic = htole32(KEY_MAGIC), .version = htole16(KEY_VERSION)};
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (window == NULL || key == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_window_key: an argument is NULL");
    layout.access = htole16((uint16_t)(window->access | (window->gpu >= 0 ? KEY_OF_GPU : 0)));
    layout.id = htole64(window->id);
    layout.bytes = htole64(window->bytes);
    memcpy(layout.secret, window->secret, sizeof layout.secret);
    memcpy(key, &layout, sizeof layout);
    return TCPX_SUCCESS;
}

int window_key_read(const void *bytes, size_t length, struct window_key *key)
{
    static const uint8_t zeros[sizeof((struct key_layout){0}.reserved)];
    struct key_layout layout;
    int access;

    if (length != sizeof layout)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the key of a window has %d bytes, this one has %zu", TCPX_KEY_BYTES,
                         length);
    memcpy(&layout, bytes, sizeof layout);
    access = le16toh(layout.access);
    if (le32toh(layout.magic) != KEY_MAGIC)
        return error_set(TCPX_INVALID_ARGUMENT, "these %d bytes are not the key of a window",
                         TCPX_KEY_BYTES);
    if (le16toh(layout.version) != KEY_VERSION)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the key of a window has version %u, this library knows version %d",
                         le16toh(layout.version), KEY_VERSION);
    if ((access & ~(TCPX_WINDOW_READ | TCPX_WINDOW_WRITE | KEY_OF_GPU)) != 0 ||
        memcmp(layout.reserved, zeros, sizeof zeros) != 0)
        return error_set(TCPX_INVALID_ARGUMENT, "the key of a window is damaged");
    *key = (struct window_key){.id = le64toh(layout.id),
                               .bytes = le64toh(layout.bytes),
                               .access = access & ~KEY_OF_GPU,
                               .on_gpu = (access & KEY_OF_GPU) != 0};
    memcpy(key->secret, layout.secret, sizeof key->secret);
    return TCPX_SUCCESS;
}

void window_proof(const uint8_t secret[WINDOW_SECRET_BYTES], const void *context, size_t bytes,
                  uint8_t proof[WINDOW_PROOF_BYTES])
{
    uint8_t mac[MAC_BYTES];

    mac_compute(secret, WINDOW_SECRET_BYTES, context, bytes, mac);
    memcpy(proof, mac, WINDOW_PROOF_BYTES);
}

/* Takes the same time wherever they differ. */
static bool window_proof_is(const uint8_t *a, const uint8_t *b)
{
    unsigned difference = 0;

    for (int i = 0; i < WINDOW_PROOF_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

int window_find(uint64_t id, const void *context, size_t bytes,
                const uint8_t proof[WINDOW_PROOF_BYTES], struct window_use *use)
{
    static const uint8_t no_secret[WINDOW_SECRET_BYTES];
    uint8_t right[WINDOW_PROOF_BYTES];
    struct tcpx_window *window;
    bool is_right;

    pthread_mutex_lock(&windows_lock);
    window = *window_row(id);
    while (window != NULL && window->id != id)
        window = window->next;
    window_proof(window != NULL ? window->secret : no_secret, context, bytes, right);
    is_right = window_proof_is(right, proof) && window != NULL;
    if (is_right)
        window_use_add(window, use);
    pthread_mutex_unlock(&windows_lock);
    return is_right
               ? TCPX_SUCCESS
               : error_set(TCPX_INVALID_USAGE, "no such window, or a wrong key: it was closed, "
                                               "or belongs to another process");
}

/* --- opening --------------------------------------------------------------------------------- */

/* What the GPU layer says of the memory has to be what the caller says. */
static int window_check_memory(int gpu, const void *address, uint64_t bytes)
{
    struct gpu_pointer pointer;
    int result = gpu_classify(address, bytes, &pointer);

    if (result != TCPX_SUCCESS)
        return result;
    if (gpu < 0 && pointer.kind == GPU_POINTER_DEVICE)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a window of host memory (GPU -1): %llu bytes at %p are memory of GPU %d",
                         (unsigned long long)bytes, address, pointer.device);
    if (gpu < 0)
        return TCPX_SUCCESS;
    if (pointer.kind != GPU_POINTER_DEVICE && pointer.kind != GPU_POINTER_MANAGED)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a window of GPU %d: %llu bytes at %p are host memory (GPU -1)", gpu,
                         (unsigned long long)bytes, address);
    if (pointer.device != gpu)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a window of GPU %d: %llu bytes at %p are memory of GPU %d", gpu,
                         (unsigned long long)bytes, address, pointer.device);
    return TCPX_SUCCESS;
}

static int window_check(int gpu, const void *address, uint64_t bytes, int access)
{
    const int all = TCPX_WINDOW_READ | TCPX_WINDOW_WRITE;
    uint64_t end;

    if (address == NULL || bytes == 0 || !checked_add((uintptr_t)address, bytes, &end))
        return error_set(TCPX_INVALID_ARGUMENT,
                         "tcpx_window_open: %llu bytes at %p are not a range of memory",
                         (unsigned long long)bytes, address);
    if ((access & ~all) != 0)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_window_open: access is %d, expected 0 to %d",
                         access, all);
    if (gpu < -1)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "there is no GPU %d: expected 0 or more, or -1 for host memory", gpu);
    return TCPX_SUCCESS;
}

static int window_prepare(struct tcpx_window *window)
{
    int result = TCPX_SUCCESS;

    if (getrandom(window->secret, sizeof window->secret, 0) != (ssize_t)sizeof window->secret)
        return error_system(errno, "the key of a window");
    if (window->gpu >= 0)
        result = gpu_open(window->gpu, &window->holds);
    return result == TCPX_SUCCESS ? window_check_memory(window->gpu, window->address, window->bytes)
                                  : result;
}

static void window_free(struct tcpx_window *window)
{
    gpu_close(window->holds);
    explicit_bzero(window->secret, sizeof window->secret);
    free(window);
}

int tcpx_window_open(int gpu, void *address, uint64_t bytes, int access, struct tcpx_window **out)
{
    struct tcpx_window *window;
    int result = fork_watch();

    if (result == TCPX_SUCCESS)
        result = fork_check();
    if (result == TCPX_SUCCESS && out == NULL)
        result = error_set(TCPX_INVALID_ARGUMENT, "tcpx_window_open: window is NULL");
    if (result == TCPX_SUCCESS)
        result = window_check(gpu, address, bytes, access);
    if (result != TCPX_SUCCESS)
        return result;
    window = calloc(1, sizeof *window);
    if (window == NULL)
        return error_system(ENOMEM, "a window");
    window->gpu = gpu;
    window->address = address;
    window->bytes = bytes;
    window->access = access;
    result = window_prepare(window);
    if (result != TCPX_SUCCESS) {
        window_free(window);
        return result;
    }
    pthread_once(&use_ended_once, use_ended_init);
    pthread_mutex_lock(&windows_lock);
    window->id = next_id++;
    window->next = *window_row(window->id);
    *window_row(window->id) = window;
    pthread_mutex_unlock(&windows_lock);
    *out = window;
    return TCPX_SUCCESS;
}

/* --- closing --------------------------------------------------------------------------------- */

/* With the lock: no new use begins, and those that there are end soon. */
static void window_begin_closing(struct tcpx_window *window)
{
    struct tcpx_window **at = window_row(window->id);

    if (window_is_closing(window))
        return;
    while (*at != window)
        at = &(*at)->next;
    *at = window->next;
    atomic_store_explicit(&window->closing, true, memory_order_release);
    for (struct window_use *use = window->uses; use != NULL; use = use->next)
        use->closing(use);
}

int tcpx_window_close(struct tcpx_window *window, int timeout_ms)
{
    uint64_t deadline;
    bool is_unused;
    int result = fork_check();

    if (result != TCPX_SUCCESS || window == NULL)
        return result;
    result = config_deadline(timeout_ms, &deadline);
    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&windows_lock);
    window_begin_closing(window);
    while (window->uses != NULL && !deadline_passed(deadline))
        condition_wait(&use_ended, &windows_lock, deadline);
    is_unused = window->uses == NULL;
    pthread_mutex_unlock(&windows_lock);
    if (!is_unused)
        return error_set(TCPX_IN_PROGRESS, "the memory of the window is still in use: call again");
    window_free(window);
    return TCPX_SUCCESS;
}
