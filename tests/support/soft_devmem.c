/*
 * Software devmem. A call of recvmsg looks how much there is to read, plans the pieces it will come
 * in, and only then takes as many bytes from the socket: what is not planned stays there, and a
 * call that gets nothing changes nothing, so that the pieces do not depend on how often one asks.
 */
#include "tests/support/soft_devmem.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { COPY_WAIT_MS = 60000, BEFORE = 1, AFTER = 1 };

struct page {
    uint32_t references; /* fragments that have not come back; 0: the page is free */
    uint32_t taken;      /* how often it has been: tells it from the same page used again */
};

/* A part of a page that more may be put into, as long as the page was not free in between. */
struct place {
    uint32_t page;
    uint32_t taken; /* the page's, then */
    uint32_t offset;
    uint32_t bytes; /* 0: there is none */
};

struct soft_devmem_pool {
    struct gpu *gpu;
    struct gpu_memory memory;
    struct soft_devmem_options options; /* with the defaults filled in */
    uint32_t id;
    uint32_t page_count;

    pthread_mutex_t lock; /* guards what follows */
    struct page *pages;
    uint32_t *free_pages; /* in no order: one is taken from anywhere */
    uint32_t free_count;
    uint64_t random;
    struct place open; /* what the last shared page has left */
    uint64_t sockets;  /* opened so far */
};

enum kind { DEVICE, LINEAR, PLAIN };

struct piece {
    enum kind kind;
    uint32_t page;
    uint32_t offset;
    uint32_t bytes;
};

struct soft_devmem {
    struct soft_devmem_pool *pool;
    int fd;
    int broken; /* errno of every further call; 0: none */
    struct gpu_stream *stream;
    struct gpu_event *copied;
    struct gpu_pinned staging; /* BEFORE bytes, those of a call, and AFTER bytes */
    uint64_t seed;
    uint64_t pieces_made; /* the number of the next piece, which decides what it is like */
    struct place rest;    /* of the last fragment, where the iovec was too short for it */
    struct piece plan[SOFT_DEVMEM_CALL_FRAGMENTS];

    uint32_t *page_behind; /* by token: the page's number + 1; 0: it is not outstanding */
    uint32_t token_room;
    uint32_t first_unused; /* all tokens below it are outstanding; from 1 on */

    struct soft_devmem_statistics statistics;
};

static int fail(int error)
{
    errno = error;
    return -1;
}

/* --- random numbers ------------------------------------------------------------------------ */

/* Number `step` of the sequence that `seed` chooses (splitmix64). */
static uint64_t random_at(uint64_t seed, uint64_t step)
{
    uint64_t z = seed + (step + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The next number of a sequence that *state remembers. */
static uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return random_at(0, (*state)++) % limit;
}

static bool random_percent(uint64_t *state, uint32_t percent)
{
    return random_below(state, 100) < percent;
}

/* --- pages: under the pool's lock ---------------------------------------------------------- */

static bool still_taken(const struct soft_devmem_pool *pool, const struct place *place)
{
    const struct page *page = &pool->pages[place->page];

    return place->bytes > 0 && page->references > 0 && page->taken == place->taken;
}

static void drop_page(struct soft_devmem_pool *pool, uint32_t page)
{
    if (--pool->pages[page].references == 0)
        pool->free_pages[pool->free_count++] = page;
}

/* Any of the free pages. */
static uint32_t take_page(struct soft_devmem_pool *pool)
{
    uint32_t at = (uint32_t)random_below(&pool->random, pool->free_count);
    uint32_t page = pool->free_pages[at];

    pool->free_pages[at] = pool->free_pages[--pool->free_count];
    pool->pages[page].taken++;
    return page;
}

/* Not every page is filled, as another queue may get the next packet. */
static bool leaves_early(struct soft_devmem_pool *pool)
{
    return pool->free_count > 0 && random_below(&pool->random, 4) == 0;
}

/* A part of a page for one fragment; false: no page is free. */
static bool take_part(struct soft_devmem_pool *pool, struct place *part)
{
    uint32_t bytes = SOFT_DEVMEM_PAGE / pool->options.fragments_per_page;

    if (!still_taken(pool, &pool->open) || leaves_early(pool)) {
        uint32_t page;

        if (pool->free_count == 0)
            return false;
        page = take_page(pool);
        pool->open = (struct place){page, pool->pages[page].taken, 0, SOFT_DEVMEM_PAGE};
    }
    *part = pool->open;
    part->bytes = bytes;
    pool->pages[part->page].references++;
    pool->open.offset += bytes;
    pool->open.bytes -= bytes;
    if (pool->open.bytes < bytes)
        pool->open.bytes = 0;
    return true;
}

/* --- planning the pieces of a call: under the pool's lock ---------------------------------- */

struct plan {
    uint32_t count;
    uint32_t bytes;
    uint32_t limit;    /* of bytes */
    uint32_t most;     /* of control messages */
    bool more;         /* there is more to read than the limit */
    bool iovec_usable; /* bytes can be put there */
    bool begins_with_rest;
    int error; /* why planning ended early */
};

/* What piece `number` wants to be, before it meets limits. */
static struct piece draw_piece(const struct soft_devmem *socket, uint64_t number, uint64_t *random)
{
    const struct soft_devmem_options *options = &socket->pool->options;
    uint32_t range = options->largest_fragment - options->smallest_fragment + 1;
    struct piece piece = {.kind = DEVICE, .bytes = options->largest_fragment};

    *random = random_at(socket->seed, number);
    if (random_percent(random, options->plain_percent))
        piece.kind = PLAIN;
    else if (random_percent(random, options->linear_percent))
        piece.kind = LINEAR;
    if (!random_percent(random, options->full_percent))
        piece.bytes = options->smallest_fragment + (uint32_t)random_below(random, range);
    return piece;
}

static void add_piece(struct soft_devmem *socket, struct plan *plan, const struct piece *piece)
{
    socket->plan[plan->count++] = *piece;
    plan->bytes += piece->bytes;
}

static bool stop(struct plan *plan, int error)
{
    plan->error = error;
    return false;
}

/* The rest of a fragment that an iovec was too short for comes from the same page. */
static bool plan_rest(struct soft_devmem *socket, struct plan *plan)
{
    struct place *rest = &socket->rest;
    struct piece piece = {DEVICE, rest->page, rest->offset, rest->bytes};

    if (plan->most == 0)
        return stop(plan, DEVMEM_ETOOSMALL);
    if (piece.bytes > plan->limit)
        piece.bytes = plan->limit;
    rest->offset += piece.bytes;
    rest->bytes = plan->more ? rest->bytes - piece.bytes : 0;
    socket->pool->pages[piece.page].references++;
    plan->begins_with_rest = true;
    add_piece(socket, plan, &piece);
    return true;
}

/* Gives a fragment its place; false: no page is free. */
static bool place_piece(struct soft_devmem *socket, struct piece *piece, uint64_t *random)
{
    struct place part;

    if (!take_part(socket->pool, &part))
        return false;
    piece->page = part.page;
    piece->offset = part.offset;
    if (random_percent(random, socket->pool->options.unaligned_percent))
        piece->offset += (uint32_t)random_below(random, part.bytes - piece->bytes + 1);
    return true;
}

/* False: this piece waits for another call. */
static bool plan_piece(struct soft_devmem *socket, struct plan *plan)
{
    struct soft_devmem_pool *pool = socket->pool;
    uint32_t room = plan->limit - plan->bytes;
    uint64_t random;
    struct piece piece = draw_piece(socket, socket->pieces_made, &random);
    uint32_t cut = piece.bytes > room ? piece.bytes - room : 0;

    if (piece.kind == PLAIN ? plan->count > 0 : plan->count == plan->most)
        return stop(plan, DEVMEM_ETOOSMALL);
    if (piece.kind != DEVICE && !plan->iovec_usable)
        return stop(plan, EFAULT);
    /* what goes to the iovec is a part of packets that need a page as well */
    if (piece.kind == DEVICE ? !place_piece(socket, &piece, &random) : pool->free_count == 0)
        return stop(plan, EAGAIN);
    piece.bytes -= cut;
    if (piece.kind == DEVICE && cut > 0 && plan->more)
        socket->rest = (struct place){piece.page, pool->pages[piece.page].taken,
                                      piece.offset + piece.bytes, cut};
    add_piece(socket, plan, &piece);
    socket->pieces_made++;
    return true;
}

static void make_plan(struct soft_devmem *socket, struct plan *plan)
{
    struct soft_devmem_pool *pool = socket->pool;
    bool goes_on = true;

    pthread_mutex_lock(&pool->lock);
    if (still_taken(pool, &socket->rest))
        goes_on = plan_rest(socket, plan);
    while (goes_on && plan->bytes < plan->limit && plan->count < SOFT_DEVMEM_CALL_FRAGMENTS) {
        goes_on = plan_piece(socket, plan);
        if (goes_on && socket->plan[0].kind == PLAIN)
            break;
    }
    pthread_mutex_unlock(&pool->lock);
}

/* Only the first `bytes` of what was planned came. */
static void cut_plan(struct soft_devmem *socket, struct plan *plan, uint32_t bytes)
{
    struct soft_devmem_pool *pool = socket->pool;

    pthread_mutex_lock(&pool->lock);
    while (plan->bytes > bytes) {
        struct piece *last = &socket->plan[plan->count - 1];
        uint32_t surplus = plan->bytes - bytes;

        if (surplus < last->bytes) {
            last->bytes -= surplus;
            plan->bytes = bytes;
            break;
        }
        if (last->kind == DEVICE)
            drop_page(pool, last->page);
        plan->bytes -= last->bytes;
        plan->count--;
    }
    pthread_mutex_unlock(&pool->lock);
    socket->rest.bytes = 0;
}

/* --- tokens -------------------------------------------------------------------------------- */

/* Room for `count` more. Under the pool's lock, once the socket is open. */
static bool reserve_tokens(struct soft_devmem *socket, uint32_t count)
{
    uint64_t needed = 1 + socket->statistics.tokens_held + count;
    uint32_t room = socket->token_room > 0 ? socket->token_room : 2 * SOFT_DEVMEM_CALL_FRAGMENTS;
    uint32_t *pages;

    if (needed <= socket->token_room)
        return true;
    while (room < needed)
        room *= 2;
    pages = realloc(socket->page_behind, room * sizeof *pages);
    if (pages == NULL)
        return false;
    memset(pages + socket->token_room, 0, (room - socket->token_room) * sizeof *pages);
    socket->page_behind = pages;
    socket->token_room = room;
    return true;
}

/* The lowest number that is not in use, as the kernel does. Under the pool's lock. */
static uint32_t hand_out_token(struct soft_devmem *socket, uint32_t page)
{
    uint32_t token = socket->first_unused;

    while (socket->page_behind[token] != 0)
        token++;
    socket->first_unused = token + 1;
    socket->page_behind[token] = page + 1;
    socket->statistics.tokens_out++;
    socket->statistics.tokens_held++;
    return token;
}

/* Under the pool's lock; false: there is no such token. */
static bool take_token_back(struct soft_devmem *socket, uint32_t token)
{
    if (token >= socket->token_room || socket->page_behind[token] == 0)
        return false;
    drop_page(socket->pool, socket->page_behind[token] - 1);
    socket->page_behind[token] = 0;
    if (token < socket->first_unused)
        socket->first_unused = token;
    socket->statistics.tokens_back++;
    socket->statistics.tokens_held--;
    return true;
}

int soft_devmem_dontneed(struct soft_devmem *socket, const struct devmem_token_range *ranges,
                         unsigned count)
{
    uint32_t looked_at = 0;
    int freed = 0;

    if (count > DEVMEM_DONTNEED_MAX_RANGES)
        return fail(EINVAL);
    if (ranges == NULL && count > 0)
        return fail(EFAULT);
    pthread_mutex_lock(&socket->pool->lock);
    for (unsigned i = 0; i < count; i++)
        for (uint32_t k = 0; k < ranges[i].count && looked_at < DEVMEM_DONTNEED_MAX_FRAGMENTS;
             k++, looked_at++)
            freed += take_token_back(socket, ranges[i].first + k);
    socket->statistics.tokens_unknown += looked_at - (uint32_t)freed;
    pthread_mutex_unlock(&socket->pool->lock);
    return freed;
}

/* --- recvmsg ------------------------------------------------------------------------------- */

/* Fills in what the message itself allows; -1 with errno: it makes no sense. */
static int read_message(const struct msghdr *message, struct plan *plan)
{
    uint64_t room = 0;

    if (message == NULL || (message->msg_iov == NULL && message->msg_iovlen > 0))
        return fail(EFAULT);
    if (message->msg_iovlen > IOV_MAX)
        return fail(EMSGSIZE);
    plan->iovec_usable = true;
    for (size_t i = 0; i < (size_t)message->msg_iovlen; i++) { /* an int with musl */
        const struct iovec *part = &message->msg_iov[i];

        if (part->iov_base == NULL && part->iov_len > 0)
            plan->iovec_usable = false;
        room += part->iov_len < SOFT_DEVMEM_CALL_BYTES ? part->iov_len : SOFT_DEVMEM_CALL_BYTES;
    }
    plan->limit = room < SOFT_DEVMEM_CALL_BYTES ? (uint32_t)room : SOFT_DEVMEM_CALL_BYTES;
    if (message->msg_control != NULL) {
        size_t most = message->msg_controllen / CMSG_SPACE(sizeof(struct devmem_fragment));

        plan->most =
            most < SOFT_DEVMEM_CALL_FRAGMENTS ? (uint32_t)most : SOFT_DEVMEM_CALL_FRAGMENTS;
    }
    return 0;
}

/* 1: there are bytes, and the plan knows how many; otherwise what recvmsg returns. */
static ssize_t look(struct soft_devmem *socket, int flags, struct plan *plan)
{
    char byte;
    int there;
    ssize_t got = recv(socket->fd, &byte, sizeof byte, MSG_PEEK | (flags & MSG_DONTWAIT));

    if (got <= 0)
        return got;
    if (ioctl(socket->fd, FIONREAD, &there) != 0)
        return -1;
    if (there <= 0) /* not for us: urgent data */
        return fail(EAGAIN);
    plan->more = (uint32_t)there > plan->limit;
    if (!plan->more)
        plan->limit = (uint32_t)there;
    return 1;
}

static char *staged(const struct soft_devmem *socket)
{
    return (char *)socket->staging.host + BEFORE;
}

/* Takes the planned bytes; 0 or -1 with errno: none came, and nothing is planned any more. */
static ssize_t take_bytes(struct soft_devmem *socket, struct plan *plan)
{
    ssize_t got = -1;
    int error = ENOMEM;
    bool reserved;

    pthread_mutex_lock(&socket->pool->lock);
    reserved = reserve_tokens(socket, plan->count);
    pthread_mutex_unlock(&socket->pool->lock);
    if (reserved) {
        got = recv(socket->fd, staged(socket), plan->bytes, MSG_DONTWAIT);
        error = errno;
    }
    if (got < (ssize_t)plan->bytes)
        cut_plan(socket, plan, got > 0 ? (uint32_t)got : 0);
    errno = error;
    return got;
}

/*
 * A copy of one byte could wait for kernels (gpu.h), which a NIC does not. So one more byte of the
 * same part of the page is written, which holds nothing yet; or the one before it, where this is
 * the rest of a fragment: that byte is the last one of the call before, and does not change.
 */
static int copy_fragment(struct soft_devmem *socket, const struct piece *piece, const char *from,
                         bool is_rest)
{
    uint32_t part = SOFT_DEVMEM_PAGE / socket->pool->options.fragments_per_page;
    gpu_address to =
        socket->pool->memory.address + (uint64_t)piece->page * SOFT_DEVMEM_PAGE + piece->offset;
    bool single = piece->bytes == 1 && part > 1;

    if (single && (is_rest || piece->offset % part == part - 1))
        return gpu_copy_to_device(socket->stream, to - 1, from - 1, 2);
    return gpu_copy_to_device(socket->stream, to, from, single ? 2 : piece->bytes);
}

static int copy_fragments(struct soft_devmem *socket, const struct plan *plan)
{
    const char *from = staged(socket);
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < plan->count && result == TCPX_SUCCESS; i++) {
        const struct piece *piece = &socket->plan[i];

        if (piece->kind == DEVICE)
            result = copy_fragment(socket, piece, from, i == 0 && plan->begins_with_rest);
        from += piece->bytes;
    }
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(socket->copied, socket->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_wait(socket->copied, deadline_after_ms(COPY_WAIT_MS));
    if (result == TCPX_IN_PROGRESS)
        result = error_set(TCPX_CUDA_ERROR, "a copy into the pool took longer than %d s",
                           COPY_WAIT_MS / 1000);
    return result;
}

/* Puts bytes into the iovec, `position` bytes from its start on. */
static void put(const struct msghdr *message, size_t position, const char *from, size_t bytes)
{
    for (const struct iovec *part = message->msg_iov; bytes > 0; part++) {
        size_t some;

        if (position >= part->iov_len) {
            position -= part->iov_len;
            continue;
        }
        some = part->iov_len - position < bytes ? part->iov_len - position : bytes;
        memcpy((char *)part->iov_base + position, from, some);
        from += some;
        bytes -= some;
        position = 0;
    }
}

static void tell(struct msghdr *message, size_t *used, int type,
                 const struct devmem_fragment *fragment)
{
    char *at = (char *)message->msg_control + *used;
    const struct cmsghdr header = {
        .cmsg_len = CMSG_LEN(sizeof *fragment),
        .cmsg_level = SOL_SOCKET,
        .cmsg_type = type,
    };

    memcpy(at, &header, sizeof header);
    memcpy(at + CMSG_LEN(0), fragment, sizeof *fragment);
    *used += CMSG_SPACE(sizeof *fragment);
}

/* Hands the pieces out: tokens, control messages, and the bytes that belong into the iovec. */
static void hand_out(struct soft_devmem *socket, const struct plan *plan, struct msghdr *message)
{
    const char *from = staged(socket);
    size_t in_iovec = 0;
    size_t used = 0;

    for (uint32_t i = 0; i < plan->count; i++) {
        const struct piece *piece = &socket->plan[i];
        struct devmem_fragment fragment = {.size = piece->bytes};

        if (piece->kind == DEVICE) {
            fragment.offset = (uint64_t)piece->page * SOFT_DEVMEM_PAGE + piece->offset;
            fragment.token = hand_out_token(socket, piece->page);
            fragment.dmabuf_id = socket->pool->id;
            tell(message, &used, DEVMEM_SCM_DMABUF, &fragment);
            socket->statistics.device_bytes += piece->bytes;
        } else {
            put(message, in_iovec, from, piece->bytes);
            in_iovec += piece->bytes;
        }
        if (piece->kind == LINEAR) {
            tell(message, &used, DEVMEM_SCM_LINEAR, &fragment);
            socket->statistics.linear_bytes += piece->bytes;
        } else if (piece->kind == PLAIN) {
            socket->statistics.plain_bytes += piece->bytes;
        }
        from += piece->bytes;
    }
    message->msg_controllen = used;
}

static bool is_past_break(const struct soft_devmem *socket)
{
    const struct soft_devmem_statistics *statistics = &socket->statistics;
    uint64_t after = socket->pool->options.break_after;

    return after > 0 &&
           statistics->device_bytes + statistics->linear_bytes + statistics->plain_bytes >= after;
}

/* The bytes of a call whose plan allows some. */
static ssize_t receive(struct soft_devmem *socket, struct plan *plan, struct msghdr *message)
{
    ssize_t got;

    make_plan(socket, plan);
    if (plan->count == 0) {
        socket->statistics.starved += plan->error == EAGAIN;
        return fail(plan->error);
    }
    got = take_bytes(socket, plan);
    if (got <= 0)
        return got;
    if (copy_fragments(socket, plan) != TCPX_SUCCESS) {
        /* the pages are not free again: a copy into them may be under way */
        socket->broken = EIO;
        return fail(EIO);
    }
    pthread_mutex_lock(&socket->pool->lock);
    hand_out(socket, plan, message);
    pthread_mutex_unlock(&socket->pool->lock);
    memcpy(staged(socket) - 1, staged(socket) + got - 1, 1);
    return got;
}

ssize_t soft_devmem_recvmsg(struct soft_devmem *socket, struct msghdr *message, int flags)
{
    struct plan plan = {0};
    ssize_t got = 0;

    if (socket->broken != 0)
        return fail(socket->broken);
    if (flags & ~(DEVMEM_MSG_FLAG | MSG_DONTWAIT))
        return fail(EINVAL);
    if (read_message(message, &plan) != 0)
        return -1;
    if (plan.limit > 0) {
        got = look(socket, flags, &plan);
        if (got > 0 && !(flags & DEVMEM_MSG_FLAG))
            return fail(EFAULT);
        if (got > 0 && is_past_break(socket))
            return fail(ENODEV);
        if (got > 0)
            got = receive(socket, &plan, message);
    }
    if (got < 0)
        return -1;
    if (got == 0)
        message->msg_controllen = 0;
    message->msg_namelen = 0;
    message->msg_flags = 0;
    return got;
}

void soft_devmem_get_statistics(const struct soft_devmem *socket,
                                struct soft_devmem_statistics *statistics)
{
    pthread_mutex_lock(&socket->pool->lock);
    *statistics = socket->statistics;
    pthread_mutex_unlock(&socket->pool->lock);
}

/* --- life of a socket ---------------------------------------------------------------------- */

int soft_devmem_open(struct soft_devmem_pool *pool, int fd, struct soft_devmem **out)
{
    struct soft_devmem *socket = calloc(1, sizeof *socket);
    int result;

    if (socket == NULL)
        return error_system(ENOMEM, "a socket of software devmem");
    socket->pool = pool;
    socket->fd = fd;
    socket->first_unused = 1;
    pthread_mutex_lock(&pool->lock);
    socket->seed = random_at(pool->options.seed, ++pool->sockets);
    pthread_mutex_unlock(&pool->lock);
    result = gpu_stream_create(pool->gpu, &socket->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_create(pool->gpu, &socket->copied);
    if (result == TCPX_SUCCESS)
        result =
            gpu_pinned_alloc(pool->gpu, BEFORE + SOFT_DEVMEM_CALL_BYTES + AFTER, &socket->staging);
    if (result == TCPX_SUCCESS && !reserve_tokens(socket, 1))
        result = error_system(ENOMEM, "tokens of software devmem");
    if (result != TCPX_SUCCESS) {
        soft_devmem_close(socket);
        return result;
    }
    *out = socket;
    return TCPX_SUCCESS;
}

void soft_devmem_close(struct soft_devmem *socket)
{
    if (socket == NULL)
        return;
    pthread_mutex_lock(&socket->pool->lock);
    for (uint32_t token = 1; token < socket->token_room; token++)
        take_token_back(socket, token);
    pthread_mutex_unlock(&socket->pool->lock);
    gpu_event_destroy(socket->copied);
    gpu_stream_destroy(socket->stream);
    gpu_pinned_free(socket->pool->gpu, &socket->staging);
    free(socket->page_behind);
    free(socket);
}

/* --- life of the pool ---------------------------------------------------------------------- */

static int check_options(struct soft_devmem_options *options)
{
    uint32_t part;

    if (options->pool_bytes == 0 || options->pool_bytes % SOFT_DEVMEM_PAGE != 0 ||
        options->pool_bytes / SOFT_DEVMEM_PAGE > UINT32_MAX)
        return error_set(TCPX_INVALID_ARGUMENT, "a pool of %" PRIu64 " bytes: not whole pages",
                         options->pool_bytes);
    if (options->fragments_per_page == 0)
        options->fragments_per_page = 1;
    if (options->fragments_per_page > SOFT_DEVMEM_PAGE)
        return error_set(TCPX_INVALID_ARGUMENT, "%" PRIu32 " fragments in one page",
                         options->fragments_per_page);
    part = SOFT_DEVMEM_PAGE / options->fragments_per_page;
    if (options->largest_fragment == 0)
        options->largest_fragment = part;
    if (options->smallest_fragment == 0)
        options->smallest_fragment = 1;
    if (options->largest_fragment > part || options->smallest_fragment > options->largest_fragment)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "fragments of %" PRIu32 " to %" PRIu32 " bytes, where one has %" PRIu32
                         " bytes of a page",
                         options->smallest_fragment, options->largest_fragment, part);
    return TCPX_SUCCESS;
}

static int fill_pool(struct soft_devmem_pool *pool)
{
    pool->pages = calloc(pool->page_count, sizeof *pool->pages);
    pool->free_pages = malloc(pool->page_count * sizeof *pool->free_pages);
    if (pool->pages == NULL || pool->free_pages == NULL)
        return error_system(ENOMEM, "a pool of %" PRIu32 " pages", pool->page_count);
    for (uint32_t i = 0; i < pool->page_count; i++)
        pool->free_pages[i] = i;
    pool->free_count = pool->page_count;
    return gpu_memory_alloc(pool->gpu, pool->options.pool_bytes, SOFT_DEVMEM_PAGE, &pool->memory);
}

int soft_devmem_pool_create(struct gpu *gpu, const struct soft_devmem_options *options,
                            struct soft_devmem_pool **out)
{
    static atomic_uint ids;
    struct soft_devmem_options checked = *options;
    struct soft_devmem_pool *pool;
    int result = check_options(&checked);

    if (result != TCPX_SUCCESS)
        return result;
    pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return error_system(ENOMEM, "a pool of software devmem");
    pool->gpu = gpu;
    pool->options = checked;
    pool->id = atomic_fetch_add(&ids, 1) + 1;
    pool->page_count = (uint32_t)(checked.pool_bytes / SOFT_DEVMEM_PAGE);
    pool->random = random_at(checked.seed, 0);
    pthread_mutex_init(&pool->lock, NULL);
    result = fill_pool(pool);
    if (result != TCPX_SUCCESS) {
        soft_devmem_pool_destroy(pool);
        return result;
    }
    *out = pool;
    return TCPX_SUCCESS;
}

void soft_devmem_pool_destroy(struct soft_devmem_pool *pool)
{
    if (pool == NULL)
        return;
    gpu_memory_free(pool->gpu, &pool->memory);
    pthread_mutex_destroy(&pool->lock);
    free(pool->free_pages);
    free(pool->pages);
    free(pool);
}

const struct gpu_memory *soft_devmem_pool_memory(const struct soft_devmem_pool *pool)
{
    return &pool->memory;
}

uint32_t soft_devmem_pool_id(const struct soft_devmem_pool *pool)
{
    return pool->id;
}

uint64_t soft_devmem_pool_pages(const struct soft_devmem_pool *pool)
{
    return pool->page_count;
}

uint64_t soft_devmem_pool_free_pages(struct soft_devmem_pool *pool)
{
    uint64_t count;

    pthread_mutex_lock(&pool->lock);
    count = pool->free_count;
    pthread_mutex_unlock(&pool->lock);
    return count;
}
