/*
 * A network plugin with the habits of Google's, for tests: whoever gets along with this one has a
 * chance with the other. It moves memory over loopback TCP. Host memory is received where it
 * belongs. Where there is a CUDA driver, the stand-in's or a real one, and the table's version is 7
 * or more, it takes GPU memory too, and such receives end in a bounce pool on the GPU that the
 * caller unpacks by an unpack queue; else it knows neither. It has one table, the version that
 * QUIRKY_VERSION names.
 *
 * QUIRKY_FAIL_INIT=result, QUIRKY_INIT_MS=milliseconds, QUIRKY_DEVICES=count,
 * QUIRKY_FRAGMENT_BYTES=most, QUIRKY_POOL_PAGES=count and QUIRKY_CUDA=0, which looks for no driver,
 * change what it does.
 */
#include "tests/quirky_plugin/quirky.h"
#include "tests/quirky_plugin/quirky_gpu.h"

#include "abi/net_tables.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef QUIRKY_VERSION
#define QUIRKY_VERSION 7
#endif

#define PASTE(a, b) a##b
#define JOIN(a, b)  PASTE(a, b)
#define TABLE       JOIN(net_table_v, QUIRKY_VERSION)
#if QUIRKY_VERSION == 10
#define PROPERTIES net_properties_v9
#else
#define PROPERTIES JOIN(net_properties_v, QUIRKY_VERSION)
#endif
#define EXPORT     __attribute__((visibility("default")))
#define CAN_UNPACK (QUIRKY_VERSION >= 7)

#if QUIRKY_VERSION >= 8
typedef size_t region_bytes;
#else
typedef int region_bytes;
#endif
#if QUIRKY_VERSION >= 9
typedef size_t message_bytes;
#else
typedef int message_bytes;
#endif

/* It knows no other failures. */
enum { SUCCESS = 0, SYSTEM = 2, INTERNAL = 3 };

enum {
    REQUESTS = 16,
    PAGE_BYTES = 4096,
    POOL_PAGES = 16384, /* at most, and unless told otherwise */
    MOST_SOCKETS = 8,
    HEADERS = 64,
    STATES = 64
};

/* What comes first over the control connection, for each message. */
struct header {
    uint64_t bytes;
};

struct memory {
    uint8_t *data;
    size_t bytes;
    bool cuda;
};

struct request {
    struct comm *comm;
    uint8_t *data; /* of the GPU's memory: its address there */
    size_t bytes;  /* of a receive: room; once the header is there, what comes */
    size_t moved;
    size_t fetched; /* of a send from the GPU: what has come from there */
    size_t chunk;   /* where that begins that came last */
    bool cuda;
    bool begun;
    bool done;
    bool consumed;
    size_t descriptors;
    size_t filled; /* bytes of the last descriptor that are there */
};

struct comm {
    bool sends;
    bool stalled;
    int data;
    int control;
    struct request requests[REQUESTS];
    uint64_t posted;
    uint64_t finished;
    uint64_t freed;
    uint8_t headers[HEADERS * sizeof(struct header)];
    size_t header_bytes;
    uint8_t *copy;              /* a chunk of the GPU's memory that is being sent */
    struct unpack_queue *queue; /* NULL: it has none */
    struct quirky_pinned queue_memory;
    uint64_t on_gpu; /* struct unpack_device_handle */
};

struct listener {
    int data;
    int control;
    int polls;
    bool accepted;
    struct comm *comm;
};

struct connect_state {
    int polls;
    struct comm *comm;
};

/* In the 128 bytes of a handle; what lies behind is not touched. */
struct handle {
    struct sockaddr_in data;
    uint8_t unused[12];
    int32_t port_start;
    int32_t port_count;
    int32_t sockets;
    int32_t threads;
    int32_t redirect;
    struct sockaddr_in control;
    uint8_t unused_too[12];
    uint32_t padding;
    struct connect_state *state;
};

_Static_assert(offsetof(struct handle, control) == 48, "handle");
_Static_assert(offsetof(struct handle, state) == 80, "handle");
_Static_assert(sizeof(struct handle) == 88, "handle");

EXPORT struct quirky_counts quirky_counts;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything here */
static log_nccl_logger logger;
static bool started;
static int devices;
static bool has_gpu;
static size_t chunk_bytes;
static size_t sockets; /* as many as it would have: there is one */
static size_t fragment_bytes;
static uint64_t random_state = 88172645463325252u;
static struct connect_state *states[STATES];
static uint64_t bounce;
static uint8_t *arrivals; /* what goes to the bounce pool, at the same offset */
static uint32_t free_pages[POOL_PAGES];

/* Without asking whether there is a logger. */
#define NOTE(level, ...) logger(level, ~0ul, __func__, __LINE__, __VA_ARGS__)
enum { WARN = 2, INFO = 3 };

static int refuse(const char *why)
{
    NOTE(WARN, "quirky: %s", why);
    return INTERNAL;
}

static size_t random_below(size_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state % bound);
}

static long from_environment(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

static size_t between(const char *name, long otherwise, long least, long most)
{
    long value = from_environment(name, otherwise);

    return (size_t)(value < least ? least : value > most ? most : value);
}

/* --- sockets ------------------------------------------------------------------------------- */

static int listen_somewhere(struct sockaddr_in *address)
{
    socklen_t bytes = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 && bind(fd, (struct sockaddr *)address, bytes) == 0 && listen(fd, 16) == 0 &&
        getsockname(fd, (struct sockaddr *)address, &bytes) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static int connect_to(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static struct comm *new_comm(bool sends)
{
    struct comm *comm = calloc(1, sizeof *comm);

    if (comm == NULL)
        return NULL;
    comm->sends = sends;
    comm->data = comm->control = -1;
    return comm;
}

/* --- the bounce pool ----------------------------------------------------------------------- */

static int make_pool(void)
{
    size_t pages = between("QUIRKY_POOL_PAGES", POOL_PAGES, 1, POOL_PAGES);

    arrivals = mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arrivals == MAP_FAILED)
        return SYSTEM;
    bounce = quirky_gpu_alloc(pages * PAGE_BYTES);
    for (size_t i = 0; i < pages; i++)
        free_pages[i] = (uint32_t)i;
    quirky_counts.free_pages = (unsigned)pages;
    return SUCCESS;
}

/* Any that is free; the caller has seen that there is one. */
static uint32_t take_page(void)
{
    size_t which = random_below(quirky_counts.free_pages);
    uint32_t page = free_pages[which];

    free_pages[which] = free_pages[--quirky_counts.free_pages];
    return page;
}

static struct unpack_descriptor *descriptors_of(const struct request *request)
{
    return request->comm->queue->descriptors[request - request->comm->requests];
}

/* A second chunk of one request on the same connection: the tokens of the first are forgotten. */
static bool is_forgotten(const struct request *request, const struct unpack_descriptor *descriptor)
{
    size_t chunks;

    if (chunk_bytes == 0)
        return false;
    chunks = (request->bytes + chunk_bytes - 1) / chunk_bytes;
    return chunks > sockets && descriptor->destination_offset / chunk_bytes < chunks - sockets;
}

static void give_pages_back(struct request *request)
{
    for (size_t i = 0; i < request->descriptors; i++)
        if (!is_forgotten(request, &descriptors_of(request)[i]))
            free_pages[quirky_counts.free_pages++] =
                descriptors_of(request)[i].source_offset / PAGE_BYTES;
    request->descriptors = 0;
}

static size_t smaller(size_t one, size_t other)
{
    return one < other ? one : other;
}

/* Somewhere in a page of its own, and in one chunk. False: the pool is empty. */
static bool begin_fragment(struct request *request)
{
    size_t most = random_below(2) == 0 ? fragment_bytes : 1 + random_below(fragment_bytes);
    size_t length = smaller(most, request->bytes - request->moved);

    if (chunk_bytes != 0)
        length = smaller(length, chunk_bytes - request->moved % chunk_bytes);
    if (request->descriptors == UNPACK_MAX_DESCRIPTORS) {
        NOTE(WARN, "quirky: more than %d fragments", UNPACK_MAX_DESCRIPTORS);
        exit(1); /* NOLINT(concurrency-mt-unsafe): as it does */
    }
    if (quirky_counts.free_pages == 0)
        return false;
    descriptors_of(request)[request->descriptors++] = (struct unpack_descriptor){
        .source_offset = take_page() * PAGE_BYTES + (uint32_t)random_below(PAGE_BYTES - length + 1),
        .length = (uint32_t)length,
        .destination_offset = request->moved,
    };
    request->filled = 0;
    return true;
}

/* Of a receive into host memory there is nothing to unpack, but it has its slot. */
static void publish(struct request *request)
{
    struct unpack_descriptor *list = descriptors_of(request);

    if (request->cuda)
        quirky_gpu_drain();
    for (size_t i = request->descriptors; i > 1; i--) {
        size_t other = random_below(i);
        struct unpack_descriptor last = list[i - 1];

        list[i - 1] = list[other];
        list[other] = last;
    }
    __atomic_store_n(&request->comm->queue->counts[request - request->comm->requests],
                     request->descriptors, __ATOMIC_RELEASE);
}

/* --- progress ------------------------------------------------------------------------------ */

/* A dead data connection is nobody's failure: the comm just does nothing any more. */
static size_t moved_or_stalled(struct comm *comm, ssize_t moved)
{
    if (moved > 0)
        return (size_t)moved;
    if (moved == 0 || (errno != EAGAIN && errno != EINTR))
        comm->stalled = true;
    return 0;
}

/* What is to be sent next; the GPU's memory is read when its turn comes, and not before. */
static const uint8_t *outgoing(struct comm *comm, struct request *request, size_t *bytes)
{
    size_t left = smaller(request->bytes - request->moved, chunk_bytes);

    if (!request->cuda) {
        *bytes = left;
        return request->data + request->moved;
    }
    if (request->moved == request->fetched) {
        quirky_gpu_read(comm->copy, (uintptr_t)request->data + request->moved, left);
        request->chunk = request->moved;
        request->fetched += left;
    }
    *bytes = request->fetched - request->moved;
    return comm->copy + (request->moved - request->chunk);
}

/* Both kinds of write raise SIGPIPE when the peer is gone. */
static int move_send(struct comm *comm, struct request *request)
{
    struct header header = {request->bytes};

    if (!request->begun && send(comm->control, &header, sizeof header, 0) != sizeof header)
        return SYSTEM;
    request->begun = true;
    while (request->moved < request->bytes) {
        size_t bytes;
        const uint8_t *from = outgoing(comm, request, &bytes);
        size_t moved = moved_or_stalled(comm, send(comm->data, from, bytes, MSG_DONTWAIT));

        if (moved == 0)
            return SUCCESS;
        request->moved += moved;
    }
    request->done = true;
    return SUCCESS;
}

/* An end is a failure, whatever came before it and was not looked at yet. */
static int read_control(struct comm *comm)
{
    while (comm->header_bytes < sizeof comm->headers) {
        ssize_t got = recv(comm->control, comm->headers + comm->header_bytes,
                           sizeof comm->headers - comm->header_bytes, MSG_DONTWAIT);

        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (got <= 0)
            return SYSTEM;
        comm->header_bytes += (size_t)got;
    }
    return SUCCESS;
}

static int take_header(struct comm *comm, struct request *request)
{
    struct header header;

    if (request->begun || comm->header_bytes < sizeof header)
        return SUCCESS;
    memcpy(&header, comm->headers, sizeof header);
    comm->header_bytes -= sizeof header;
    memmove(comm->headers, comm->headers + sizeof header, comm->header_bytes);
    /* in the pool there is room for more than was asked for, so that nobody looks */
    if (!request->cuda && header.bytes > request->bytes)
        return refuse("the message is longer than its receive");
    request->bytes = header.bytes;
    request->begun = true;
    return SUCCESS;
}

/* Where the next bytes go to, and how many; NULL: there is no room now. */
static uint8_t *next_place(struct request *request, size_t *room)
{
    const struct unpack_descriptor *last;

    if (!request->cuda) {
        *room = request->bytes - request->moved;
        return request->data + request->moved;
    }
    if (request->descriptors == 0 ||
        request->filled == descriptors_of(request)[request->descriptors - 1].length)
        if (!begin_fragment(request))
            return NULL;
    last = &descriptors_of(request)[request->descriptors - 1];
    *room = last->length - request->filled;
    return arrivals + last->source_offset + request->filled;
}

static void account(struct request *request, size_t moved)
{
    const struct unpack_descriptor *last;

    request->moved += moved;
    request->filled += moved;
    if (!request->cuda)
        return;
    last = &descriptors_of(request)[request->descriptors - 1];
    if (request->filled == last->length)
        quirky_gpu_write(bounce + last->source_offset, arrivals + last->source_offset,
                         last->length);
}

static int move_receive(struct comm *comm, struct request *request)
{
    int result = read_control(comm);

    if (result == SUCCESS)
        result = take_header(comm, request);
    if (result != SUCCESS || !request->begun)
        return result;
    while (request->moved < request->bytes) {
        size_t room;
        uint8_t *place = next_place(request, &room);
        size_t moved =
            place != NULL ? moved_or_stalled(comm, recv(comm->data, place, room, MSG_DONTWAIT)) : 0;

        if (moved == 0)
            return SUCCESS;
        account(request, moved);
    }
    if (comm->queue != NULL)
        publish(request);
    request->done = true;
    return SUCCESS;
}

/* --- requests ------------------------------------------------------------------------------ */

static int post(struct comm *comm, void *data, size_t bytes, const struct memory *memory,
                void **out)
{
    struct request *request = &comm->requests[comm->posted % REQUESTS];

    if (memory == NULL)
        return refuse("memory that is not registered");
    if (bytes != 0 && ((uint8_t *)data < memory->data || bytes > memory->bytes ||
                       (size_t)((uint8_t *)data - memory->data) > memory->bytes - bytes))
        return refuse("a request beyond its registered memory");
    if (comm->posted - comm->freed == REQUESTS)
        return refuse("too many requests");
    if (memory->cuda && comm->sends && comm->copy == NULL) {
        comm->copy = malloc(chunk_bytes);
        if (comm->copy == NULL)
            return SYSTEM;
    }
    *request = (struct request){.comm = comm, .data = data, .bytes = bytes, .cuda = memory->cuda};
    comm->posted++;
    *out = request;
    return SUCCESS;
}

static int post_send(struct comm *comm, void *data, size_t bytes, void *memory, void **out)
{
    int result;

    pthread_mutex_lock(&lock);
    if (!comm->sends)
        result = refuse("isend on a receiver");
    else if (chunk_bytes == 0) /* it would send chunks of nothing, for ever */
        result = refuse("NCCL_DYNAMIC_CHUNK_SIZE is not set");
    else
        result = post(comm, data, bytes, memory, out);
    pthread_mutex_unlock(&lock);
    return result;
}

static int post_receive(struct comm *comm, int count, void **data, const message_bytes *bytes,
                        void **memory, void **out)
{
    int result;

    pthread_mutex_lock(&lock);
    if (comm->sends || count != 1)
        result = refuse("irecv of more than one, or on a sender");
    else
        result = post(comm, data[0], (size_t)bytes[0], memory[0], out);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Tags are not looked at. */
#if QUIRKY_VERSION >= 10
static int quirky_isend(void *sender, void *data, message_bytes bytes, int tag, void *memory,
                        void *profile, void **request)
{
    (void)tag;
    (void)profile;
    return post_send(sender, data, bytes, memory, request);
}

static int quirky_irecv(void *receiver, int count, void **data, message_bytes *bytes, int *tags,
                        void **memory, void **profiles, void **request)
{
    (void)tags;
    (void)profiles;
    return post_receive(receiver, count, data, bytes, memory, request);
}
#else
static int quirky_isend(void *sender, void *data, message_bytes bytes, int tag, void *memory,
                        void **request)
{
    (void)tag;
    return post_send(sender, data, (size_t)bytes, memory, request);
}

static int quirky_irecv(void *receiver, int count, void **data, message_bytes *bytes, int *tags,
                        void **memory, void **request)
{
    (void)tags;
    return post_receive(receiver, count, data, bytes, memory, request);
}
#endif

static int quirky_iflush(void *receiver, int count, void **data, int *bytes, void **memory,
                         void **request)
{
    (void)receiver;
    (void)count;
    (void)data;
    (void)bytes;
    (void)memory;
    (void)request;
    return refuse("iflush has never worked");
}

static void finish(struct comm *comm, const struct request *request, int *done, int *bytes)
{
    comm->finished++;
    if (comm->queue == NULL)
        comm->freed++;
    *done = 1;
    if (!CAN_UNPACK && bytes != NULL)
        *bytes = (int)request->bytes;
}

static int test_locked(struct request *request, int *done, int *bytes)
{
    struct comm *comm = request->comm;
    int result = SUCCESS;

    *done = 0;
    if (request->done)
        return SUCCESS; /* said once is enough */
    if (request != &comm->requests[comm->finished % REQUESTS])
        return refuse("test of a request that is not the oldest");
    if (!comm->stalled)
        result = comm->sends ? move_send(comm, request) : move_receive(comm, request);
    if (result == SUCCESS && request->done)
        finish(comm, request, done, bytes);
    return result;
}

static int quirky_test(void *request, int *done, int *bytes)
{
    int result;

    pthread_mutex_lock(&lock);
    result = test_locked(request, done, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

#if CAN_UNPACK
static int consume(struct comm *comm, struct request *request)
{
    if (comm->sends) {
        NOTE(WARN, "quirky: irecvConsumed of a send");
        return SUCCESS;
    }
    if (!request->done || request->consumed || request != &comm->requests[comm->freed % REQUESTS])
        return refuse("irecvConsumed out of order, twice, or too early");
    request->consumed = true;
    give_pages_back(request);
    comm->freed++;
    return SUCCESS;
}

static int quirky_irecv_consumed(void *receiver, int count, void *request)
{
    int result;

    pthread_mutex_lock(&lock);
    result = count == 1 ? consume(receiver, request) : refuse("irecvConsumed of more than one");
    pthread_mutex_unlock(&lock);
    return result;
}

static int quirky_get_device_mr(void *comm, void *memory, void **on_gpu)
{
    (void)comm;
    (void)memory;
    (void)on_gpu;
    return SUCCESS;
}
#endif

/* --- memory -------------------------------------------------------------------------------- */

/* GPU memory is exported as a dma-buf: whole pages of one allocation. */
static int check_memory(const void *data, size_t bytes, int type)
{
    if (type == NET_POINTER_HOST)
        return SUCCESS;
    if (type != NET_POINTER_CUDA || !has_gpu)
        return refuse("a type of memory that it does not know");
    if (bytes == 0 || (uintptr_t)data % PAGE_BYTES != 0 || bytes % PAGE_BYTES != 0)
        return refuse("GPU memory that is not whole pages");
    if (!quirky_gpu_holds((uintptr_t)data, bytes))
        return refuse("GPU memory that is not in one allocation");
    return SUCCESS;
}

static int register_locked(void *data, size_t bytes, int type, void **out)
{
    struct memory *memory;
    int result = check_memory(data, bytes, type);

    if (result != SUCCESS)
        return result;
    memory = malloc(sizeof *memory);
    if (memory == NULL)
        return SYSTEM;
    *memory = (struct memory){.data = data, .bytes = bytes, .cuda = type == NET_POINTER_CUDA};
    *out = memory;
    return SUCCESS;
}

static int quirky_reg_mr(void *comm, void *data, region_bytes bytes, int type, void **out)
{
    int result;

    (void)comm;
    pthread_mutex_lock(&lock);
    result = register_locked(data, (size_t)bytes, type, out);
    pthread_mutex_unlock(&lock);
    return result;
}

static int quirky_dereg_mr(void *comm, void *memory)
{
    (void)comm;
    free(memory);
    return SUCCESS;
}

/* --- connections --------------------------------------------------------------------------- */

static int listen_locked(int device, void *memory, void **out)
{
    struct handle handle = {
        .port_start = -1, .port_count = -1, .sockets = (int32_t)sockets, .threads = 1};
    struct listener *listener = calloc(1, sizeof *listener);

    if (listener == NULL || device < 0 || device >= devices) {
        free(listener);
        return refuse("listen on a device that is not there");
    }
    listener->data = listen_somewhere(&handle.data);
    listener->control = listen_somewhere(&handle.control);
    if (listener->data < 0 || listener->control < 0) {
        free(listener);
        return SYSTEM;
    }
    memcpy(memory, &handle, sizeof handle);
    *out = listener;
    return SUCCESS;
}

static struct connect_state **find_state(const struct connect_state *state)
{
    for (size_t i = 0; i < STATES; i++)
        if (states[i] == state)
            return &states[i];
    return NULL;
}

static int begin_connect(struct handle *handle)
{
    struct connect_state **place = find_state(NULL);
    struct connect_state *state = calloc(1, sizeof *state);

    if (state == NULL || place == NULL || (state->comm = new_comm(true)) == NULL) {
        free(state);
        return SYSTEM;
    }
    *place = state;
    handle->state = state;
    return SUCCESS;
}

static int go_on_connecting(const struct handle *handle, struct connect_state *state, void **out)
{
    struct comm *comm = state->comm;

    switch (state->polls++) {
    case 0:
        comm->data = connect_to(&handle->data);
        return comm->data >= 0 ? SUCCESS : SYSTEM;
    case 1:
        comm->control = connect_to(&handle->control);
        return comm->control >= 0 ? SUCCESS : SYSTEM;
    case 2:
        return SUCCESS;
    default:
        *out = comm;
        *find_state(state) = NULL;
        free(state); /* and the handle still points there */
        return SUCCESS;
    }
}

/* The state is found in the caller's handle, and a peer may have put it there. */
static int connect_locked(int device, void *memory, void **out)
{
    struct handle handle;
    int result;

    if (device < 0 || device >= devices)
        return refuse("connect on a device that is not there");
    memcpy(&handle, memory, sizeof handle);
    *out = NULL;
    if (handle.state == NULL) {
        result = begin_connect(&handle);
        memcpy(memory, &handle, sizeof handle);
        return result;
    }
    if (find_state(handle.state) == NULL) {
        quirky_counts.unknown_states++;
        NOTE(WARN, "quirky: unknown connect state %p, %u so far", (void *)handle.state,
             quirky_counts.unknown_states);
        return INTERNAL;
    }
    return go_on_connecting(&handle, handle.state, out);
}

static int accept_one(int listening, int *fd)
{
    *fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    return *fd >= 0 || errno == EAGAIN || errno == EINTR ? SUCCESS : SYSTEM;
}

static void make_queue(struct comm *comm, struct net_device_handle *on_gpu)
{
    struct unpack_device_handle handle = {.bounce = (void *)(uintptr_t)bounce,
                                          .head = UNPACK_HEAD_START};

    quirky_gpu_pin(sizeof *comm->queue, &comm->queue_memory);
    comm->queue = comm->queue_memory.host;
    memset(comm->queue, 0xEE, sizeof *comm->queue); /* nobody may rely on zeros */
    handle.queue = (struct unpack_queue *)(uintptr_t)comm->queue_memory.on_gpu;
    comm->on_gpu = quirky_gpu_alloc(sizeof handle);
    quirky_gpu_write(comm->on_gpu, &handle, sizeof handle);
    quirky_gpu_drain();
    *on_gpu = (struct net_device_handle){.type = NET_DEVICE_UNPACK,
                                         .version = UNPACK_VERSION,
                                         .handle = (void *)(uintptr_t)comm->on_gpu,
                                         .size = sizeof handle,
                                         .needs_proxy_progress = 1};
}

static int give_receiver(struct listener *listener, struct net_device_handle *on_gpu, void **out)
{
    struct comm *comm = listener->comm;

    if (has_gpu)
        make_queue(comm, on_gpu);
    listener->accepted = true;
    *out = comm;
    return SUCCESS;
}

static int accept_locked(struct listener *listener, struct net_device_handle *on_gpu, void **out)
{
    *out = NULL;
    if (CAN_UNPACK && on_gpu == NULL)
        return refuse("accept without a device handle");
    if (listener->accepted)
        return refuse("a second accept");
    if (listener->comm == NULL) {
        listener->comm = new_comm(false);
        return listener->comm != NULL ? SUCCESS : SYSTEM;
    }
    if (listener->comm->data < 0)
        return accept_one(listener->data, &listener->comm->data);
    if (listener->comm->control < 0)
        return accept_one(listener->control, &listener->comm->control);
    return listener->polls++ == 0 ? SUCCESS : give_receiver(listener, on_gpu, out);
}

/* Nothing is drained. */
static int quirky_close(void *closing)
{
    struct comm *comm = closing;

    pthread_mutex_lock(&lock);
    if (comm->queue != NULL) {
        quirky_gpu_drain();
        for (size_t i = 0; i < REQUESTS; i++)
            if (comm->requests[i].comm != NULL)
                give_pages_back(&comm->requests[i]);
        quirky_gpu_free(comm->on_gpu);
        quirky_gpu_unpin(&comm->queue_memory);
    }
    close(comm->data);
    close(comm->control);
    free(comm->copy);
    free(comm);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static int quirky_close_listen(void *closing)
{
    struct listener *listener = closing;

    close(listener->data);
    close(listener->control);
    free(listener);
    return SUCCESS;
}

/* --- what differs by version --------------------------------------------------------------- */

#define LOCKED(call)                                                                               \
    int result;                                                                                    \
                                                                                                   \
    pthread_mutex_lock(&lock);                                                                     \
    result = call;                                                                                 \
    pthread_mutex_unlock(&lock);                                                                   \
    return result

#if QUIRKY_VERSION >= 11
static char the_context;

static int quirky_listen(void *context, int device, void *handle, void **listener)
{
    LOCKED(context == &the_context ? listen_locked(device, handle, listener)
                                   : refuse("a context that is not its own"));
}

static int quirky_connect(void *context, int device, void *handle, void **sender,
                          struct net_device_handle **on_gpu)
{
    (void)on_gpu;
    LOCKED(context == &the_context ? connect_locked(device, handle, sender)
                                   : refuse("a context that is not its own"));
}

static int quirky_finalize(void *context)
{
    quirky_counts.finalizes++;
    return context == &the_context ? SUCCESS : refuse("a context that is not its own");
}
#else
static int quirky_listen(int device, void *handle, void **listener)
{
    LOCKED(listen_locked(device, handle, listener));
}
#endif

#if QUIRKY_VERSION == 6
static int quirky_connect(int device, void *handle, void **sender)
{
    LOCKED(connect_locked(device, handle, sender));
}

static int quirky_accept(void *listener, void **receiver)
{
    LOCKED(accept_locked(listener, NULL, receiver));
}
#else
static int quirky_accept(void *listener, void **receiver, struct net_device_handle **on_gpu)
{
    LOCKED(accept_locked(listener, on_gpu != NULL ? *on_gpu : NULL, receiver));
}
#endif

#if QUIRKY_VERSION >= 7 && QUIRKY_VERSION <= 9
static int quirky_connect(int device, void *handle, void **sender,
                          struct net_device_handle **on_gpu)
{
    (void)on_gpu;
    LOCKED(connect_locked(device, handle, sender));
}
#elif QUIRKY_VERSION == 10
static int quirky_connect(int device, struct net_comm_config *config, void *handle, void **sender,
                          struct net_device_handle **on_gpu)
{
    (void)on_gpu;
    LOCKED(config != NULL && config->traffic_class == NET_UNDEFINED
               ? connect_locked(device, handle, sender)
               : refuse("no configuration"));
}
#endif

static int quirky_devices(int *count)
{
    *count = devices;
    return SUCCESS;
}

/* No two members are alike, so that none can pass for another. */
static int quirky_properties(int device, struct PROPERTIES *properties)
{
    static char name[] = "quirky0";

    if (device < 0 || device >= devices)
        return refuse("properties of a device that is not there");
    *properties = (struct PROPERTIES)
    {
        .name = name, .guid = 0x1122334455667788,
        .pointer_support = NET_POINTER_HOST | (has_gpu ? NET_POINTER_CUDA : 0), .speed = 12345,
        .port = 2, .latency = 1.5f, .max_comms = 65536, .max_receives = 1,
#if QUIRKY_VERSION >= 7
        .device_type = has_gpu ? NET_DEVICE_UNPACK : NET_DEVICE_HOST,
        .device_version = has_gpu ? UNPACK_VERSION : 0,
#endif
#if QUIRKY_VERSION >= 8
        .registration_is_global = 3,
#endif
#if QUIRKY_VERSION >= 9
        .force_flush = 4, .parts = {.count = 2, .devices = {5, 6, 8, 9}},
        .max_p2p_bytes = 10000000000, .max_collective_bytes = 11000000000,
#endif
#if QUIRKY_VERSION >= 11
        .max_multi_request = 12,
#endif
#if QUIRKY_VERSION >= 12
        .rail = 13, .plane = 14,
#endif
    };
    return SUCCESS;
}

/* --- the table ----------------------------------------------------------------------------- */

#if QUIRKY_VERSION >= 11
static int quirky_init(void **context, uint64_t communicator, struct net_comm_config *config,
                       log_nccl_logger with, net_profiler_callback profiler);
#elif QUIRKY_VERSION == 10
static int quirky_init(log_nccl_logger with, net_profiler_callback profiler);
#else
static int quirky_init(log_nccl_logger with);
#endif

/* Before init there is nothing else in it. */
EXPORT struct TABLE JOIN(ncclNetPlugin_v, QUIRKY_VERSION) = {.name = QUIRKY_NAME,
                                                             .init = quirky_init};

static void complete_table(void)
{
    JOIN(ncclNetPlugin_v, QUIRKY_VERSION) = (struct TABLE)
    {
        .name = QUIRKY_NAME, .init = quirky_init, .devices = quirky_devices,
        .get_properties = quirky_properties, .listen = quirky_listen, .connect = quirky_connect,
        .accept = quirky_accept, .reg_mr = quirky_reg_mr, .dereg_mr = quirky_dereg_mr,
        .isend = quirky_isend, .irecv = quirky_irecv, .iflush = quirky_iflush, .test = quirky_test,
        .close_send = quirky_close, .close_recv = quirky_close, .close_listen = quirky_close_listen,
#if CAN_UNPACK
        .get_device_mr = has_gpu ? quirky_get_device_mr : NULL,
        .irecv_consumed = has_gpu ? quirky_irecv_consumed : NULL,
#endif
#if QUIRKY_VERSION >= 11
        .finalize = quirky_finalize,
#endif
    };
}

/* Variables are read here and never again. */
static int start(log_nccl_logger with)
{
    int result = (int)from_environment("QUIRKY_FAIL_INIT", SUCCESS);

    logger = with;
    NOTE(INFO, "quirky: init, table version %d", QUIRKY_VERSION);
    quirky_counts.inits++;
    usleep((useconds_t)from_environment("QUIRKY_INIT_MS", 0) * 1000);
    if (result != SUCCESS)
        return result;
    if (started)
        return refuse("init twice");
    has_gpu = CAN_UNPACK && from_environment("QUIRKY_CUDA", 1) != 0 && quirky_gpu_start();
    result = has_gpu ? make_pool() : SUCCESS;
    if (result != SUCCESS)
        return result;
    started = true;
    devices = (int)from_environment("QUIRKY_DEVICES", 1);
    chunk_bytes = (size_t)from_environment("NCCL_DYNAMIC_CHUNK_SIZE", 0);
    sockets = smaller(between("NCCL_NSOCKS_PERTHREAD", 1, 1, MOST_SOCKETS) *
                          between("NCCL_SOCKET_NTHREADS", 1, 1, MOST_SOCKETS),
                      MOST_SOCKETS);
    fragment_bytes = between("QUIRKY_FRAGMENT_BYTES", PAGE_BYTES, 1, PAGE_BYTES);
    complete_table();
    return SUCCESS;
}

#if QUIRKY_VERSION >= 10
static int call_profiler(net_profiler_callback profiler, int result)
{
    void *event = NULL;

    return result == SUCCESS ? profiler(&event, 0, NULL, QUIRKY_VERSION, NULL) : result;
}
#endif

#if QUIRKY_VERSION >= 11
static int quirky_init(void **context, uint64_t communicator, struct net_comm_config *config,
                       log_nccl_logger with, net_profiler_callback profiler)
{
    (void)communicator;
    *context = &the_context;
    LOCKED(config != NULL && config->traffic_class == NET_UNDEFINED
               ? call_profiler(profiler, start(with))
               : INTERNAL);
}
#elif QUIRKY_VERSION == 10
static int quirky_init(log_nccl_logger with, net_profiler_callback profiler)
{
    LOCKED(call_profiler(profiler, start(with)));
}
#else
static int quirky_init(log_nccl_logger with)
{
    LOCKED(start(with));
}
#endif
