/*
 * A network plugin with the faults of Google's, for tests: a caller that survives this one has a
 * chance with the other. It moves memory over loopback TCP: one control connection and as many data
 * connections as NCCL_NSOCKS_PERTHREAD times NCCL_SOCKET_NTHREADS says. Where there is a CUDA
 * driver, the stand-in's or a real one, and the table's version is 7 or more, it takes GPU memory
 * too: such receives end in a bounce pool on the GPU that the caller unpacks by an unpack queue,
 * and the data connections are steered into that pool, so that a receive into host memory gets
 * nothing but EFAULT. It has one table, the version that QUIRKY_VERSION names.
 *
 * These variables change what it does:
 *
 *   QUIRKY_FAIL_INIT=result   QUIRKY_INIT_MS=milliseconds   QUIRKY_DEVICES=count
 *   QUIRKY_FRAGMENT_BYTES=most   QUIRKY_POOL_PAGES=count
 *   QUIRKY_CUDA=0       it looks for no driver
 *   QUIRKY_STEERED=0    its sockets are plain ones, and receives into host memory work
 *   QUIRKY_LINEAR=n     the n-th fragment comes as linear data, which ends the process
 *   QUIRKY_PCI=0        its device has no PCI path, and to register GPU memory is a crash
 *   QUIRKY_HANG=calls   these never return: any of devices, getProperties, listen, connect, accept,
 *                       regMr, deregMr, closeSend, closeRecv and closeListen; read with every call
 */
#include "tests/quirky_plugin/quirky.h"

#include "abi/net_tables.h"
#include "tests/support/basics.h"
#include "tests/support/cuda_memory.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
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
#define THE_TABLE   JOIN(ncclNetPlugin_v, QUIRKY_VERSION)
#define EXPORT      __attribute__((visibility("default")))
#define UNUSED      __attribute__((unused))
#define CAN_UNPACK  (QUIRKY_VERSION >= 7)

/* --- what differs by version --------------------------------------------------------------- */

/* Arguments that some versions have, and what they have to be. */
#if QUIRKY_VERSION >= 11
#define IN_CONTEXT     void *context,
#define IS_ITS_CONTEXT (context == &the_context)
#define INIT_ARGUMENTS                                                                             \
    void **context, uint64_t communicator UNUSED, struct net_comm_config *config,                  \
        log_nccl_logger with, net_profiler_callback profiler
static char the_context;
#else
#define IN_CONTEXT
#define IS_ITS_CONTEXT true
#endif
#if QUIRKY_VERSION == 10
#define WITH_CONFIG       struct net_comm_config *config,
#define IS_DEFAULT_CONFIG (config != NULL && config->traffic_class == NET_UNDEFINED)
#define INIT_ARGUMENTS    log_nccl_logger with, net_profiler_callback profiler
#else
#define WITH_CONFIG
#define IS_DEFAULT_CONFIG true
#endif
#if QUIRKY_VERSION >= 10
#define CALL_PROFILER(event) profiler(event, 0, NULL, QUIRKY_VERSION, NULL)
#define PROFILE              , void *profile UNUSED
#define PROFILES             , void **profiles UNUSED
#else
#define CALL_PROFILER(event) ((void)(event), SUCCESS)
#define PROFILE
#define PROFILES
#define INIT_ARGUMENTS log_nccl_logger with
#endif
#if CAN_UNPACK
#define ON_GPU       , struct net_device_handle **on_gpu UNUSED
#define GIVEN_ON_GPU (on_gpu != NULL ? *on_gpu : NULL)
#else
#define ON_GPU
#define GIVEN_ON_GPU NULL
#endif
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
    TASKS = 6, /* chunks that wait in one socket */
    PAGE_BYTES = 4096,
    POOL_PAGES = 16384, /* at most, and unless told otherwise */
    MOST_SOCKETS = 8,
    RECORDS = 8, /* of the control connection that are read at once */
    STATES = 64
};

enum { NORMAL = 0, INLINE = 1 };

/* What comes over the control connection for each chunk. */
struct record {
    uint16_t type;
    uint16_t socket;
    uint32_t size;
    uint32_t offset; /* nobody looks at it */
    uint32_t total;
};

struct memory {
    uint8_t *data;
    size_t bytes;
    bool cuda;
};

struct request {
    struct comm *comm;
    uint8_t *data; /* of the GPU's memory: its address there */
    size_t bytes;  /* of a receive: room; once the first record is there, what comes */
    size_t split;  /* handed to tasks */
    size_t moved;  /* in tasks that have ended */
    bool cuda;
    bool begun;
    bool done;
    bool consumed;
    size_t descriptors;
    unsigned tasks;
    unsigned last_task[MOST_SOCKETS]; /* the only one whose tokens are remembered */
};

/* A chunk in a socket's queue. */
struct task {
    struct request *request;
    unsigned number; /* in the request, from 1 */
    size_t at;       /* in the request */
    size_t bytes;
    size_t moved;
    bool fetched;                      /* a send: it has come from the GPU */
    struct unpack_descriptor fragment; /* a receive: that is being filled */
    size_t filled;
    unsigned fragments;
};

struct lane {
    int fd;
    struct task tasks[TASKS];
    uint64_t begun;
    uint64_t ended;
    uint8_t *copy; /* a chunk of the GPU's memory that is being sent */
    bool dead;     /* its thread has ended, without a word */
};

/* Which task a fragment came with. */
struct owner {
    uint16_t socket;
    uint16_t task;
};

struct comm {
    bool sends;
    int control;
    struct lane lanes[MOST_SOCKETS];
    size_t sockets;
    size_t polls; /* until it is there */
    size_t last_socket;
    struct request requests[REQUESTS];
    struct owner owners[REQUESTS][UNPACK_MAX_DESCRIPTORS];
    uint64_t posted;
    uint64_t splitting; /* the request that is being cut into chunks, or put together */
    uint64_t finished;
    uint64_t freed;
    uint8_t records[RECORDS * sizeof(struct record)];
    size_t record_bytes;
    struct unpack_queue *queue; /* NULL: it has none */
    struct cuda_pinned queue_memory;
    uint64_t on_gpu; /* struct unpack_device_handle */
};

struct listener {
    int data;
    int control;
    size_t connections; /* of data, that are there */
    bool accepted;
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
    struct comm *state; /* that is being connected */
};

_Static_assert(offsetof(struct handle, control) == 48, "handle");
_Static_assert(offsetof(struct handle, state) == 80, "handle");
_Static_assert(sizeof(struct handle) == 88, "handle");

EXPORT struct quirky_counts quirky_counts;

static log_nccl_logger logger;
static bool started;
static int devices;
static bool has_gpu;
static bool steered;
static bool has_pci_path;
static unsigned long linear_after; /* fragments; 0: never */
static size_t chunk_bytes;
static size_t sockets;
static size_t fragment_bytes;
static uint64_t random_state = 88172645463325252u;
static struct comm *states[STATES];
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

static size_t any_below(size_t bound)
{
    return random_below(&random_state, bound);
}

static size_t from_1_to(size_t most, const char *name, uint64_t otherwise)
{
    size_t value = number_of(name, otherwise);

    return value < 1 ? 1 : value > most ? most : value;
}

/* As a call does whose daemon is frozen; NULL: one that never does. */
static void hang_if_told(const char *call)
{
    const char *told = call != NULL ? getenv("QUIRKY_HANG") : NULL;
    const char *found = told != NULL ? strstr(told, call) : NULL;

    while (found != NULL && strchr(",", found[strlen(call)]) != NULL)
        pause();
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything here */

static pthread_mutex_t *take_lock(const char *call)
{
    hang_if_told(call);
    pthread_mutex_lock(&lock);
    return &lock;
}

static void give_lock_back(pthread_mutex_t **taken)
{
    pthread_mutex_unlock(*taken);
}

/* The first declaration of a call, which has the lock until it returns. */
#define LOCKED(call)                                                                               \
    __attribute__((cleanup(give_lock_back))) pthread_mutex_t *taken_ UNUSED = take_lock(call)

/* In a thread of its own, as there. */
static void *leave(void *unused)
{
    (void)unused;
    exit(1); /* NOLINT(concurrency-mt-unsafe): as it does */
}

static void end_process(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, leave, NULL) == 0)
        pthread_join(thread, NULL);
    leave(NULL);
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

static struct comm *new_comm(bool sends, size_t of_sockets)
{
    struct comm *comm = calloc(1, sizeof *comm);

    if (comm == NULL)
        return NULL;
    comm->sends = sends;
    comm->sockets = of_sockets;
    comm->control = -1;
    for (size_t i = 0; i < MOST_SOCKETS; i++)
        comm->lanes[i].fd = -1;
    return comm;
}

/* --- the bounce pool ----------------------------------------------------------------------- */

static int make_pool(void)
{
    size_t pages = from_1_to(POOL_PAGES, "QUIRKY_POOL_PAGES", POOL_PAGES);

    arrivals = mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arrivals == MAP_FAILED)
        return SYSTEM;
    bounce = cuda_alloc(pages * PAGE_BYTES);
    for (size_t i = 0; i < pages; i++)
        free_pages[i] = (uint32_t)i;
    quirky_counts.free_pages = (unsigned)pages;
    return SUCCESS;
}

/* Any that is free; the caller has seen that there is one. */
static uint32_t take_page(void)
{
    size_t which = any_below(quirky_counts.free_pages);
    uint32_t page = free_pages[which];

    free_pages[which] = free_pages[--quirky_counts.free_pages];
    return page;
}

static struct unpack_descriptor *descriptors_of(const struct request *request)
{
    return request->comm->queue->descriptors[request - request->comm->requests];
}

static void give_page_back(const struct unpack_descriptor *descriptor)
{
    free_pages[quirky_counts.free_pages++] = descriptor->source_offset / PAGE_BYTES;
}

static struct owner *owners_of(struct request *request)
{
    return request->comm->owners[request - request->comm->requests];
}

/*
 * The second chunk of a request on one socket forgets the tokens of the first: the pages are lost
 * for ever.
 */
static void give_pages_back(struct request *request)
{
    for (size_t i = 0; i < request->descriptors; i++) {
        const struct owner *owner = &owners_of(request)[i];

        if (owner->task != request->last_task[owner->socket])
            quirky_counts.lost_pages++;
        else
            give_page_back(&descriptors_of(request)[i]);
    }
    request->descriptors = 0;
}

static size_t smaller(size_t one, size_t other)
{
    return one < other ? one : other;
}

static bool is_open(const struct task *task)
{
    return task->filled < task->fragment.length;
}

/* Somewhere in a page of its own. False: the pool is empty. */
static bool begin_fragment(struct task *task)
{
    size_t most = any_below(2) == 0 ? fragment_bytes : 1 + any_below(fragment_bytes);
    size_t length = smaller(most, task->bytes - task->moved);

    if (++task->fragments == UNPACK_MAX_DESCRIPTORS ||
        task->request->descriptors == UNPACK_MAX_DESCRIPTORS) {
        NOTE(WARN, "quirky: more than %d fragments", UNPACK_MAX_DESCRIPTORS);
        end_process();
    }
    if (++quirky_counts.fragments == linear_after) {
        NOTE(WARN, "quirky: %zu bytes of data landed on host memory", length);
        end_process();
    }
    if (quirky_counts.free_pages == 0) {
        task->fragments--;
        quirky_counts.fragments--;
        return false;
    }
    task->fragment = (struct unpack_descriptor){
        .source_offset = take_page() * PAGE_BYTES + (uint32_t)any_below(PAGE_BYTES - length + 1),
        .length = (uint32_t)length,
        .destination_offset = task->at + task->moved,
    };
    task->filled = 0;
    return true;
}

static void end_fragment(const struct lane *lane, struct task *task)
{
    struct request *request = task->request;

    cuda_write(bounce + task->fragment.source_offset, arrivals + task->fragment.source_offset,
               task->fragment.length);
    owners_of(request)[request->descriptors] = (struct owner){
        .socket = (uint16_t)(lane - request->comm->lanes), .task = (uint16_t)task->number};
    descriptors_of(request)[request->descriptors++] = task->fragment;
}

/* Of a receive into host memory there is nothing to unpack, but it has its slot. */
static void publish(struct request *request)
{
    struct unpack_descriptor *list = descriptors_of(request);
    struct owner *owners = owners_of(request);

    if (request->cuda)
        cuda_drain();
    for (size_t i = request->descriptors; i > 1; i--) {
        size_t other = any_below(i);
        struct unpack_descriptor last = list[i - 1];
        struct owner owner = owners[i - 1];

        list[i - 1] = list[other];
        list[other] = last;
        owners[i - 1] = owners[other];
        owners[other] = owner;
    }
    __atomic_store_n(&request->comm->queue->counts[request - request->comm->requests],
                     request->descriptors, __ATOMIC_RELEASE);
}

/* --- tasks --------------------------------------------------------------------------------- */

static bool is_full(const struct lane *lane)
{
    return lane->begun - lane->ended == TASKS;
}

static void enqueue(struct request *request, size_t socket, size_t bytes)
{
    struct lane *lane = &request->comm->lanes[socket];

    lane->tasks[lane->begun++ % TASKS] = (struct task){
        .request = request, .number = ++request->tasks, .at = request->split, .bytes = bytes};
    request->last_task[socket] = request->tasks;
    request->split += bytes;
    if (request->split == request->bytes)
        request->comm->splitting++;
}

/* A dead data connection is nobody's failure: its socket just does nothing any more. */
static size_t moved_or_dead(struct lane *lane, ssize_t moved)
{
    if (moved > 0)
        return (size_t)moved;
    if (moved == 0 || (errno != EAGAIN && errno != EINTR))
        lane->dead = true;
    return 0;
}

/* The GPU's memory is read when its turn comes, and not before. */
static size_t send_some(struct lane *lane, struct task *task)
{
    const uint8_t *from = task->request->data + task->at;

    if (task->request->cuda) {
        if (!task->fetched)
            cuda_read(lane->copy, (uintptr_t)from, task->bytes);
        task->fetched = true;
        from = lane->copy;
    }
    return moved_or_dead(
        lane, send(lane->fd, from + task->moved, task->bytes - task->moved, MSG_DONTWAIT));
}

/* A socket whose packets are steered into GPU memory has nothing that a CPU can read. */
static ssize_t read_to_host(const struct lane *lane, uint8_t *to, size_t bytes)
{
    if (!steered)
        return recv(lane->fd, to, bytes, MSG_DONTWAIT);
    errno = EFAULT;
    return -1;
}

static size_t receive_some(struct lane *lane, struct task *task)
{
    size_t moved;

    if (!task->request->cuda)
        return moved_or_dead(lane, read_to_host(lane, task->request->data + task->at + task->moved,
                                                task->bytes - task->moved));
    if (!is_open(task) && !begin_fragment(task))
        return 0;
    moved =
        moved_or_dead(lane, recv(lane->fd, arrivals + task->fragment.source_offset + task->filled,
                                 task->fragment.length - task->filled, MSG_DONTWAIT));
    task->filled += moved;
    if (moved > 0 && !is_open(task))
        end_fragment(lane, task);
    return moved;
}

static void move_lane(struct comm *comm, struct lane *lane)
{
    while (!lane->dead && lane->ended < lane->begun) {
        struct task *task = &lane->tasks[lane->ended % TASKS];
        size_t moved = comm->sends ? send_some(lane, task) : receive_some(lane, task);

        if (moved == 0)
            return;
        task->moved += moved;
        if (task->moved < task->bytes)
            continue;
        task->request->moved += task->bytes;
        lane->ended++;
    }
}

/* No two sockets are equally fast, and the first of several is the slowest. */
static void move_lanes(struct comm *comm)
{
    for (size_t i = 0; i < comm->sockets; i++) {
        size_t patience = comm->sockets == 1 ? 1 : i == 0 ? 16 : 2;

        if (any_below(patience) == 0)
            move_lane(comm, &comm->lanes[i]);
    }
}

/* --- sending ------------------------------------------------------------------------------- */

/* The next one whose queue has room; false: none has. */
static bool choose_socket(struct comm *comm)
{
    for (size_t i = 1; i <= comm->sockets; i++) {
        size_t socket = (comm->last_socket + i) % comm->sockets;

        if (is_full(&comm->lanes[socket]))
            continue;
        comm->last_socket = socket;
        return true;
    }
    return false;
}

/* Both kinds of write raise SIGPIPE when the peer is gone. */
static int announce(struct comm *comm, const struct request *request, size_t bytes)
{
    struct record record = {.type = bytes == 0 ? INLINE : NORMAL,
                            .socket = (uint16_t)comm->last_socket,
                            .size = (uint32_t)bytes,
                            .offset = (uint32_t)request->split,
                            .total = (uint32_t)request->bytes};

    return send(comm->control, &record, sizeof record, 0) == sizeof record ? SUCCESS : SYSTEM;
}

/* At most one chunk for each socket with every call. */
static int split(struct comm *comm)
{
    for (size_t i = 0; i < comm->sockets && comm->splitting < comm->posted; i++) {
        struct request *request = &comm->requests[comm->splitting % REQUESTS];
        size_t bytes = smaller(request->bytes - request->split, chunk_bytes);
        int result;

        if (!choose_socket(comm))
            return SUCCESS;
        result = announce(comm, request, bytes);
        if (result != SUCCESS)
            return result;
        request->begun = true;
        if (bytes == 0)
            comm->splitting++;
        else
            enqueue(request, comm->last_socket, bytes);
    }
    return SUCCESS;
}

/* --- receiving ----------------------------------------------------------------------------- */

/* An end is a failure, whatever came before it and was not looked at yet. */
static int read_control(struct comm *comm)
{
    while (comm->record_bytes < sizeof comm->records) {
        ssize_t got = recv(comm->control, comm->records + comm->record_bytes,
                           sizeof comm->records - comm->record_bytes, MSG_DONTWAIT);

        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (got <= 0)
            return SYSTEM;
        comm->record_bytes += (size_t)got;
    }
    return SUCCESS;
}

/* How long a message is decides its sender: nobody compares that with the room of the receive. */
static bool take_record(struct comm *comm)
{
    struct request *request = &comm->requests[comm->splitting % REQUESTS];
    struct record record;

    memcpy(&record, comm->records, sizeof record);
    if (is_full(&comm->lanes[record.socket]))
        return false;
    comm->record_bytes -= sizeof record;
    memmove(comm->records, comm->records + sizeof record, comm->record_bytes);
    request->begun = true;
    request->bytes = record.total;
    if (record.type == INLINE)
        comm->splitting++;
    else
        enqueue(request, record.socket, record.size);
    return true;
}

static int put_together(struct comm *comm)
{
    int result = read_control(comm);

    while (result == SUCCESS && comm->splitting < comm->posted &&
           comm->record_bytes >= sizeof(struct record) && take_record(comm))
        ;
    return result;
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
    for (size_t i = 0; i < comm->sockets && memory->cuda && comm->sends; i++) {
        if (comm->lanes[i].copy == NULL)
            comm->lanes[i].copy = malloc(chunk_bytes);
        if (comm->lanes[i].copy == NULL)
            return SYSTEM;
    }
    *request = (struct request){.comm = comm, .data = data, .bytes = bytes, .cuda = memory->cuda};
    comm->posted++;
    *out = request;
    return SUCCESS;
}

/* Tags are not looked at. */
static int quirky_isend(void *sender, void *data, message_bytes bytes, int tag UNUSED,
                        void *memory PROFILE, void **request)
{
    LOCKED(NULL);
    struct comm *comm = sender;

    if (!comm->sends)
        return refuse("isend on a receiver");
    if (chunk_bytes == 0) /* it would send chunks of nothing, for ever */
        return refuse("NCCL_DYNAMIC_CHUNK_SIZE is not set");
    return post(comm, data, (size_t)bytes, memory, request);
}

static int quirky_irecv(void *receiver, int count, void **data, message_bytes *bytes,
                        int *tags UNUSED, void **memory PROFILES, void **request)
{
    LOCKED(NULL);
    struct comm *comm = receiver;

    if (comm->sends || count != 1)
        return refuse("irecv of more than one, or on a sender");
    return post(comm, data[0], (size_t)bytes[0], memory[0], request);
}

static int quirky_iflush(void *receiver UNUSED, int count UNUSED, void **data UNUSED,
                         int *bytes UNUSED, void **memory UNUSED, void **request UNUSED)
{
    return refuse("iflush has never worked");
}

static void finish(struct comm *comm, struct request *request, int *done, int *bytes)
{
    if (comm->queue != NULL)
        publish(request);
    comm->finished++;
    if (comm->queue == NULL)
        comm->freed++;
    *done = 1;
    if (!CAN_UNPACK && bytes != NULL)
        *bytes = (int)request->bytes;
}

static int quirky_test(void *tested, int *done, int *bytes)
{
    LOCKED(NULL);
    struct request *request = tested;
    struct comm *comm = request->comm;
    int result;

    *done = 0;
    if (request->done)
        return SUCCESS; /* said once is enough */
    if (request != &comm->requests[comm->finished % REQUESTS])
        return refuse("test of a request that is not the oldest");
    result = comm->sends ? split(comm) : put_together(comm);
    if (result != SUCCESS)
        return result;
    move_lanes(comm);
    request->done = request->begun && request->moved == request->bytes;
    if (request->done)
        finish(comm, request, done, bytes);
    return SUCCESS;
}

static int quirky_irecv_consumed(void *receiver, int count, void *consumed)
{
    LOCKED(NULL);
    struct comm *comm = receiver;
    struct request *request = consumed;

    if (count != 1)
        return refuse("irecvConsumed of more than one");
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

static int quirky_get_device_mr(void *comm UNUSED, void *memory UNUSED, void **on_gpu UNUSED)
{
    return SUCCESS;
}

/* --- memory -------------------------------------------------------------------------------- */

/* GPU memory is exported as a dma-buf: whole pages of one allocation. */
static int check_memory(const void *data, size_t bytes, int type)
{
    if (type == NET_POINTER_HOST)
        return SUCCESS;
    if (type != NET_POINTER_CUDA || !has_gpu)
        return refuse("a type of memory that it does not know");
    if (!has_pci_path)
        raise(SIGSEGV); /* it looks for the last '/' of NULL */
    if (bytes == 0 || (uintptr_t)data % PAGE_BYTES != 0 || bytes % PAGE_BYTES != 0)
        return refuse("GPU memory that is not whole pages");
    if (!cuda_holds((uintptr_t)data, bytes))
        return refuse("GPU memory that is not in one allocation");
    return SUCCESS;
}

static int quirky_reg_mr(void *comm UNUSED, void *data, region_bytes bytes, int type, void **out)
{
    LOCKED("regMr");
    struct memory *memory;
    int result = check_memory(data, (size_t)bytes, type);

    if (result != SUCCESS)
        return result;
    memory = malloc(sizeof *memory);
    if (memory == NULL)
        return SYSTEM;
    *memory =
        (struct memory){.data = data, .bytes = (size_t)bytes, .cuda = type == NET_POINTER_CUDA};
    *out = memory;
    return SUCCESS;
}

static int quirky_dereg_mr(void *comm UNUSED, void *memory)
{
    hang_if_told("deregMr");
    free(memory);
    return SUCCESS;
}

/* --- connections --------------------------------------------------------------------------- */

static int quirky_listen(IN_CONTEXT int device, void *memory, void **out)
{
    LOCKED("listen");
    struct handle handle = {
        .port_start = -1, .port_count = -1, .sockets = (int32_t)sockets, .threads = 1};
    struct listener *listener = calloc(1, sizeof *listener);

    if (!IS_ITS_CONTEXT || listener == NULL || device < 0 || device >= devices) {
        free(listener);
        return refuse("listen on a device, or in a context, that is not there");
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

static struct comm **find_state(const struct comm *state)
{
    for (size_t i = 0; i < STATES; i++)
        if (states[i] == state)
            return &states[i];
    return NULL;
}

static int begin_connect(struct handle *handle)
{
    struct comm **place = find_state(NULL);

    if (handle->sockets < 1 || handle->sockets > MOST_SOCKETS)
        abort(); /* it would write behind its array */
    handle->state = place != NULL ? new_comm(true, (size_t)handle->sockets) : NULL;
    if (handle->state == NULL)
        return SYSTEM;
    *place = handle->state;
    return SUCCESS;
}

/* Its peer learns from the first bytes which of the sockets it is. */
static int connect_data(const struct handle *handle, struct comm *comm, int32_t index)
{
    int fd = connect_to(&handle->data);

    comm->lanes[index].fd = fd;
    return fd >= 0 && send(fd, &index, sizeof index, 0) == sizeof index ? SUCCESS : SYSTEM;
}

static int go_on_connecting(const struct handle *handle, void **out)
{
    struct comm *comm = handle->state;
    size_t poll = comm->polls++;

    if (poll < comm->sockets)
        return connect_data(handle, comm, (int32_t)poll);
    if (poll == comm->sockets) {
        comm->control = connect_to(&handle->control);
        return comm->control >= 0 ? SUCCESS : SYSTEM;
    }
    if (poll == comm->sockets + 1)
        return SUCCESS;
    *out = comm;
    *find_state(comm) = NULL; /* and the handle still points there */
    return SUCCESS;
}

/* The state is found in the caller's handle, and a peer may have put it there. */
static int quirky_connect(IN_CONTEXT int device, WITH_CONFIG void *memory, void **out ON_GPU)
{
    LOCKED("connect");
    struct handle handle;
    int result;

    if (!IS_ITS_CONTEXT)
        return refuse("a context that is not its own");
    if (!IS_DEFAULT_CONFIG)
        return refuse("no configuration");
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
    return go_on_connecting(&handle, out);
}

/* *fd is -1: nobody is there yet. */
static int accept_one(int listening, int *fd)
{
    *fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    return *fd >= 0 || errno == EAGAIN || errno == EINTR ? SUCCESS : SYSTEM;
}

static int accept_data(struct listener *listener)
{
    int32_t index = -1;
    int fd;
    int result = accept_one(listener->data, &fd);

    if (fd < 0)
        return result;
    if (recv(fd, &index, sizeof index, MSG_WAITALL) != sizeof index || index < 0 ||
        (size_t)index >= sockets) {
        close(fd);
        return SYSTEM;
    }
    listener->comm->lanes[index].fd = fd;
    listener->connections++;
    return SUCCESS;
}

static void make_queue(struct comm *comm, struct net_device_handle *on_gpu)
{
    struct unpack_device_handle handle = {.bounce = (void *)(uintptr_t)bounce,
                                          .head = UNPACK_HEAD_START};

    cuda_pin(sizeof *comm->queue, &comm->queue_memory);
    comm->queue = comm->queue_memory.host;
    memset(comm->queue, 0xEE, sizeof *comm->queue); /* nobody may rely on zeros */
    handle.queue = (struct unpack_queue *)(uintptr_t)comm->queue_memory.on_gpu;
    comm->on_gpu = cuda_alloc(sizeof handle);
    cuda_write(comm->on_gpu, &handle, sizeof handle);
    cuda_drain();
    *on_gpu = (struct net_device_handle){.type = NET_DEVICE_UNPACK,
                                         .version = UNPACK_VERSION,
                                         .handle = (void *)(uintptr_t)comm->on_gpu,
                                         .size = sizeof handle,
                                         .needs_proxy_progress = 1};
}

static int quirky_accept(void *accepting, void **out ON_GPU)
{
    LOCKED("accept");
    struct listener *listener = accepting;

    *out = NULL;
    if (CAN_UNPACK && GIVEN_ON_GPU == NULL)
        return refuse("accept without a device handle");
    if (listener->accepted)
        return refuse("a second accept");
    if (listener->comm == NULL) {
        listener->comm = new_comm(false, sockets);
        return listener->comm != NULL ? SUCCESS : SYSTEM;
    }
    if (listener->connections < sockets)
        return accept_data(listener);
    if (listener->comm->control < 0)
        return accept_one(listener->control, &listener->comm->control);
    if (listener->comm->polls++ == 0)
        return SUCCESS;
    if (has_gpu)
        make_queue(listener->comm, GIVEN_ON_GPU);
    listener->accepted = true;
    *out = listener->comm;
    return SUCCESS;
}

/* The page that a task was filling. */
static void close_lane(const struct comm *comm, struct lane *lane)
{
    for (uint64_t i = lane->ended; i < lane->begun && !comm->sends; i++)
        if (is_open(&lane->tasks[i % TASKS]))
            give_page_back(&lane->tasks[i % TASKS].fragment);
    close(lane->fd);
    free(lane->copy);
}

/* Nothing is drained. */
static int close_comm(struct comm *comm)
{
    if (comm->queue != NULL) {
        cuda_drain();
        for (size_t i = 0; i < REQUESTS; i++)
            if (comm->requests[i].comm != NULL)
                give_pages_back(&comm->requests[i]);
        cuda_free(comm->on_gpu);
        cuda_unpin(&comm->queue_memory);
    }
    for (size_t i = 0; i < comm->sockets; i++)
        close_lane(comm, &comm->lanes[i]);
    close(comm->control);
    free(comm);
    return SUCCESS;
}

static int quirky_close_send(void *comm)
{
    LOCKED("closeSend");

    return close_comm(comm);
}

static int quirky_close_recv(void *comm)
{
    LOCKED("closeRecv");

    return close_comm(comm);
}

static int quirky_close_listen(void *closing)
{
    struct listener *listener = closing;

    hang_if_told("closeListen");
    close(listener->data);
    close(listener->control);
    free(listener);
    return SUCCESS;
}

/* --- devices ------------------------------------------------------------------------------- */

static int quirky_devices(int *count)
{
    hang_if_told("devices");
    *count = devices;
    return SUCCESS;
}

static int quirky_properties(int device, void *properties)
{
    static char name[] = "quirky0";
    static char pci_path[] = QUIRKY_PCI_PATH;
    const struct net_properties_v12 newest = {
        .name = name, .pci_path = has_pci_path ? pci_path : NULL, QUIRKY_PROPERTIES(has_gpu)};

    hang_if_told("getProperties");
    if (device < 0 || device >= devices)
        return refuse("properties of a device that is not there");
    net_properties_to(QUIRKY_VERSION, &newest, properties);
    return SUCCESS;
}

/* --- the table ----------------------------------------------------------------------------- */

static int quirky_init(INIT_ARGUMENTS);

/* A cast to the type of a member that is a union chooses the signature that the function has. */
#define TYPE_OF(member) typeof(((struct net_table *)NULL)->member)

/* Before init there is nothing else in it. */
EXPORT struct net_table THE_TABLE = {.name = QUIRKY_NAME, .init = (TYPE_OF(init))quirky_init};

static int quirky_finalize(void *context UNUSED)
{
    quirky_counts.finalizes++;
    return IS_ITS_CONTEXT ? SUCCESS : refuse("a context that is not its own");
}

/* Stands where a table of an older version has ended already. */
static void behind_the_end(void)
{
    abort();
}

#define SINCE(version, member, value)                                                              \
    .member = QUIRKY_VERSION >= (version) ? (value) : (TYPE_OF(member))behind_the_end

static void complete_table(void)
{
    THE_TABLE = (struct net_table){
        .name = QUIRKY_NAME,
        .init = (TYPE_OF(init))quirky_init,
        .devices = quirky_devices,
        .get_properties = quirky_properties,
        .listen = (TYPE_OF(listen))quirky_listen,
        .connect = (TYPE_OF(connect))quirky_connect,
        .accept = (TYPE_OF(accept))quirky_accept,
        .reg_mr = (TYPE_OF(reg_mr))quirky_reg_mr,
        .dereg_mr = quirky_dereg_mr,
        .isend = (TYPE_OF(isend))quirky_isend,
        .irecv = (TYPE_OF(irecv))quirky_irecv,
        .iflush = quirky_iflush,
        .test = quirky_test,
        .close_send = quirky_close_send,
        .close_recv = quirky_close_recv,
        .close_listen = quirky_close_listen,
        SINCE(7, get_device_mr, has_gpu ? quirky_get_device_mr : NULL),
        SINCE(7, irecv_consumed, has_gpu ? quirky_irecv_consumed : NULL),
        SINCE(9, make_virtual, NULL),
        SINCE(11, finalize, quirky_finalize),
        SINCE(11, set_attributes, NULL),
    };
}

/* As far as the text is a number, in any base; else 0. Nobody complains. */
static size_t read_chunk_bytes(void)
{
    const char *text = getenv("NCCL_DYNAMIC_CHUNK_SIZE");
    long long value = text != NULL ? strtoll(text, NULL, 0) : 0;

    return value > 0 ? (size_t)value : 0;
}

/* Variables are read here and never again. */
static int quirky_init(INIT_ARGUMENTS)
{
    LOCKED(NULL);
    int result = (int)number_of("QUIRKY_FAIL_INIT", SUCCESS);
    void *event = NULL;

#if QUIRKY_VERSION >= 11
    *context = &the_context;
    if (config == NULL || config->traffic_class != NET_UNDEFINED)
        return INTERNAL;
#endif
    logger = with;
    NOTE(INFO, "quirky: init, table version %d", QUIRKY_VERSION);
    quirky_counts.inits++;
    usleep((useconds_t)number_of("QUIRKY_INIT_MS", 0) * 1000);
    if (result != SUCCESS)
        return result;
    if (started)
        return refuse("init twice");
    has_gpu = CAN_UNPACK && number_of("QUIRKY_CUDA", 1) != 0 && cuda_start();
    result = has_gpu ? make_pool() : SUCCESS;
    if (result != SUCCESS)
        return result;
    started = true;
    devices = (int)number_of("QUIRKY_DEVICES", 1);
    steered = has_gpu && number_of("QUIRKY_STEERED", 1) != 0;
    has_pci_path = number_of("QUIRKY_PCI", 1) != 0;
    linear_after = number_of("QUIRKY_LINEAR", 0);
    chunk_bytes = read_chunk_bytes();
    quirky_counts.chunk_bytes = chunk_bytes;
    sockets = smaller(from_1_to(MOST_SOCKETS, "NCCL_NSOCKS_PERTHREAD", 1) *
                          from_1_to(MOST_SOCKETS, "NCCL_SOCKET_NTHREADS", 1),
                      MOST_SOCKETS);
    fragment_bytes = from_1_to(PAGE_BYTES, "QUIRKY_FRAGMENT_BYTES", PAGE_BYTES);
    complete_table();
    return CALL_PROFILER(&event);
}
