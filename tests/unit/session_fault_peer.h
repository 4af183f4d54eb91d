/*
 * The peers of tests/unit/test_session_faults.c: processes that get exactly as far as they are told
 * and then end, stop or hang up. Until a session is there they speak its protocol by hand.
 */
#ifndef TCPX_TESTS_SESSION_FAULT_PEER_H
#define TCPX_TESTS_SESSION_FAULT_PEER_H

#include "tests/unit/session_fault_world.h"

#include "net/device/device.h"
#include "session/agreement.h"
#include "session/bootstrap.h"
#include "session/channel.h"

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>

/* The messages of a session, as session/open.c and session/matching.c number them. */
enum { AGREEMENT, READY, OFFER, GRANT, REFUSE, DONE, GOODBYE };

enum stage {
    /* By hand, in this order. */
    TCP,
    HALF_GREETING,
    GREETING,
    HALF_AGREEMENT,
    ODD_AGREEMENT, /* `count` says which */
    AGREED,
    CONNECTED, /* `count` of the channels of both directions */
    IS_READY,
    OFFERED, /* by whoever sends */
    MOVED,   /* `count` chunks, or whole messages and something of one more */
    GARBAGE, /* over the control connection; `count` says which */
    LATE,    /* data that comes when the transfer has failed */
    EMPTY,   /* `count` chunks, and then one of zero bytes */
    /* By the library. */
    OPEN,
    REGISTERED,
    SILENT,   /* posts nothing */
    RECEIVES, /* `count` messages */
    WORKS,    /* sends and receives for ever */
    CLOSES,   /* `count`: 1 with transfers under way */
    ECHOES,
};

enum ending {
    DIES,     /* SIGKILL */
    STOPS,    /* SIGSTOP */
    HANGS_UP, /* closes the control connection and lives on */
    STAYS,    /* does nothing */
};

/* What a peer is told. */
struct part {
    enum stage stage;
    enum ending ending;
    unsigned count;
    bool listens;
    bool sends;        /* the peer does, the tested side receives */
    bool on_gpu;       /* the memory of either side */
    unsigned delay_us; /* of the peer's GPU */
    uint16_t port;     /* where the tested side listens */
};

enum odd {
    BAD_BYTES,
    SHORT,
    VERSION,
    TRANSPORT,
    MORE_CHANNELS,
    CHUNK_BYTES,
    TYPE,
    LONG,
    HANDLES,
    ODDS
};

enum garbage {
    UNKNOWN_TYPE,
    SHORT_OFFER,
    EMPTY_GRANT,
    LONG_DONE,
    LONG_HEADER,
    RESERVED_BYTES,
    AGREEMENT_AGAIN,
    READY_AGAIN,
    UNKNOWN_GRANT,
    SECOND_GRANT,
    UNKNOWN_REFUSAL,
    LATE_REFUSAL,
    UNKNOWN_DONE,
    EARLY_DONE,
    OFFERS,
    REFUSAL,
    FAREWELL,
    HALF_A_MESSAGE,
    GARBAGES
};

/* A peer that does it all by hand. */
struct player {
    struct part part;
    int fd; /* until there is a control */
    struct control *control;
    struct gpu *gpu;
    struct gpu_scope scope;
    const struct import_plugin *plugin; /* NULL: built in */
    struct net_device devices[NET_DEVICES_MOST];
    struct channel_listener listeners[CHANNELS];
    struct channel senders[CHANNELS];
    struct channel receivers[CHANNELS];
    struct channel_memory memories[CHANNELS];
    struct agreement mine;
    struct agreement theirs;
    uint64_t id; /* of the transfer */
    uint8_t *data;
};

/* --- the end ------------------------------------------------------------------------------- */

static inline _Noreturn void rest(void)
{
    for (;;)
        pause();
}

static inline _Noreturn void leave(struct player *player)
{
    atomic_store(&shared->gone, clock_now());
    atomic_store(&shared->reached, 1);
    if (player->part.ending == DIES)
        raise(SIGKILL);
    if (player->part.ending == STOPS)
        raise(SIGSTOP);
    if (player->part.ending == HANGS_UP)
        shutdown(player->control != NULL ? control_fd(player->control) : player->fd, SHUT_RDWR);
    rest();
}

static inline void stop_at(struct player *player, enum stage stage)
{
    if (player->part.stage == stage)
        leave(player);
}

/* --- bootstrap ----------------------------------------------------------------------------- */

static inline struct sockaddr_in loopback_at(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline void reach(struct player *player)
{
    struct sockaddr_in address = loopback_at(player->part.listens ? 0 : player->part.port);
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    if (!player->part.listens) {
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        player->fd = fd;
        return;
    }
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &bytes) == 0);
    atomic_store(&shared->port, ntohs(address.sin_port));
    player->fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    CHECK(player->fd >= 0);
    close(fd);
}

static inline void greet(struct player *player)
{
    const struct bootstrap_greeting greeting = {
        .role = player->part.listens ? BOOTSTRAP_LISTENS : BOOTSTRAP_CONNECTS, .nonce = {1}};
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES];
    size_t length = player->part.stage == HALF_GREETING ? sizeof bytes / 2 : sizeof bytes;
    ssize_t got;

    bootstrap_greeting_write(&greeting, bytes);
    CHECK(send(player->fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
    stop_at(player, HALF_GREETING);
    got = recv(player->fd, bytes, sizeof bytes, MSG_WAITALL);
    CHECK(got == (ssize_t)sizeof bytes);
    CHECK(control_create(player->fd, "the tested side", &player->control) == TCPX_SUCCESS);
}

/* --- agreement ----------------------------------------------------------------------------- */

static inline void listen_everywhere(struct player *player)
{
    struct agreement *mine = &player->mine;
    int count;

    CHECK(import_open_named(world.plugin, &player->plugin) == TCPX_SUCCESS);
    if (import_is_builtin(player->plugin))
        player->plugin = NULL;
    if (player->plugin == NULL)
        CHECK(net_devices_find_configured(player->devices, NET_DEVICES_MOST, &count) ==
              TCPX_SUCCESS);
    CHECK(gpu_open(0, &player->gpu) == TCPX_SUCCESS);
    CHECK(gpu_enter(player->gpu, &player->scope) == TCPX_SUCCESS);
    for (unsigned i = 0; i < world.channels; i++)
        CHECK(channel_listen(player->plugin, player->devices, 0, -1, mine->handles[i],
                             &player->listeners[i]) == TCPX_SUCCESS);
    mine->version = AGREEMENT_VERSION;
    snprintf(mine->transport, sizeof mine->transport, "%s",
             player->plugin != NULL ? player->plugin->table.name : "builtin");
    mine->channels = world.channels;
    mine->chunk_bytes = CHUNK;
    CHECK(net_handle_process(&mine->process) == TCPX_SUCCESS);
    snprintf(mine->host, sizeof mine->host, "peer");
}

static inline void spoil(struct agreement *mine, enum odd odd)
{
    if (odd == VERSION)
        mine->version = 77;
    if (odd == TRANSPORT)
        snprintf(mine->transport, sizeof mine->transport, "carrier pigeons");
    if (odd == MORE_CHANNELS)
        mine->channels = world.channels + 1;
    if (odd == CHUNK_BYTES)
        mine->chunk_bytes = CHUNK / 2;
    if (odd == HANDLES)
        memset(mine->handles, 0, sizeof mine->handles);
}

/* The whole of it, however little the socket takes at a time. */
static inline void send_frame(struct player *player, uint8_t type, const void *bytes, size_t count)
{
    CHECK(control_send(player->control, type, bytes, count) == TCPX_SUCCESS);
    CHECK(control_send_all(player->control, deadline_after_ms(PATIENCE_MS)) == TCPX_SUCCESS);
}

static inline void say_agreement(struct player *player)
{
    const bool odd = player->part.stage == ODD_AGREEMENT;
    const unsigned which = player->part.count;
    uint8_t bytes[AGREEMENT_BYTES];
    size_t length;

    if (odd)
        spoil(&player->mine, (enum odd)which);
    length = agreement_encode(&player->mine, bytes);
    if (odd && which == BAD_BYTES)
        memset(bytes + 4, 0xff, length - 4);
    if (odd && which == SHORT)
        length = 10;
    if (odd && which == LONG)
        length += AGREEMENT_HANDLE_BYTES;
    send_frame(player, odd && which == TYPE ? DONE : AGREEMENT, bytes, length);
}

/* A frame, and then only half of what it announces. */
static inline void say_half(struct player *player, uint8_t type, uint32_t length)
{
    uint8_t bytes[CONTROL_HEADER_BYTES + 1024] = {0};
    size_t part = CONTROL_HEADER_BYTES + length / 2;

    control_header_write(type, length, bytes);
    CHECK(part <= sizeof bytes);
    CHECK(send(control_fd(player->control), bytes, part, MSG_NOSIGNAL) == (ssize_t)part);
}

/* Reads on until the other side gives up, which says why. */
static inline _Noreturn void hear_refusal(struct player *player)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    uint8_t bytes[CONTROL_LARGEST];
    uint8_t type;
    size_t length;

    while (control_await(player->control, "a refusal", &type, bytes, sizeof bytes, &length,
                         deadline) == TCPX_SUCCESS)
        continue;
    CHECK(said("refused: "));
    atomic_store(&shared->reached, 1);
    rest();
}

static inline void agree(struct player *player)
{
    uint8_t bytes[AGREEMENT_BYTES];
    uint8_t type;
    size_t length;

    if (player->part.stage == HALF_AGREEMENT) {
        say_half(player, AGREEMENT, AGREEMENT_HEAD_BYTES + world.channels * AGREEMENT_HANDLE_BYTES);
        leave(player);
    }
    say_agreement(player);
    atomic_store(&shared->gone, clock_now());
    if (player->part.stage == ODD_AGREEMENT && player->part.count != HANDLES)
        hear_refusal(player);
    stop_at(player, AGREED);
    CHECK(control_await(player->control, "an agreement", &type, bytes, sizeof bytes, &length,
                        deadline_after_ms(PATIENCE_MS)) == TCPX_SUCCESS);
    CHECK(type == AGREEMENT);
    CHECK(agreement_decode(bytes, length, &player->theirs) == TCPX_SUCCESS);
    stop_at(player, ODD_AGREEMENT);
}

/* --- channels ------------------------------------------------------------------------------ */

/* As many as there are to be: by turns one that is connected and one that is accepted. */
static inline void connect_some(struct player *player, unsigned count)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    for (unsigned i = 0; i < count; i++) {
        unsigned channel = i / 2;
        bool there = false;

        while (!there) {
            int result = i % 2 == 0 ? channel_connect(player->plugin, player->devices, 0,
                                                      player->theirs.handles[channel],
                                                      &player->senders[channel], &there)
                                    : channel_accept(&player->listeners[channel],
                                                     &player->receivers[channel], &there);

            CHECK(result == TCPX_SUCCESS);
            CHECK(!deadline_passed(deadline));
            nap(20);
        }
    }
}

static inline void be_ready(struct player *player)
{
    uint8_t type;
    size_t length;

    send_frame(player, READY, NULL, 0);
    stop_at(player, IS_READY);
    CHECK(control_await(player->control, "that it is ready", &type, NULL, 0, &length,
                        deadline_after_ms(PATIENCE_MS)) == TCPX_SUCCESS);
    CHECK(type == READY);
}

/* --- messages of a transfer ---------------------------------------------------------------- */

static inline void say(struct player *player, uint8_t type, unsigned count, uint64_t first,
                       uint64_t second, uint64_t third)
{
    const uint64_t numbers[3] = {htole64(first), htole64(second), htole64(third)};

    send_frame(player, type, numbers, count * sizeof *numbers);
}

/* Of this type, and of a transfer with this tag if it is an offer; its first number. */
static inline uint64_t hear(struct player *player, uint8_t wanted, uint64_t tag)
{
    for (;;) {
        uint64_t numbers[3] = {0};
        uint8_t type;
        size_t length;

        CHECK(control_await(player->control, "a message", &type, numbers, sizeof numbers, &length,
                            deadline_after_ms(PATIENCE_MS)) == TCPX_SUCCESS);
        if (type == wanted && (type != OFFER || le64toh(numbers[1]) == tag))
            return le64toh(numbers[0]);
    }
}

/* --- data ---------------------------------------------------------------------------------- */

/* Where a chunk of the message begins, and how long it is; or all of a whole one. */
static inline uint64_t unit_at(unsigned unit, uint64_t *bytes)
{
    uint64_t at = world.chunks ? (uint64_t)unit * CHUNK : 0;
    uint64_t most = world.chunks ? CHUNK : MESSAGE;

    *bytes = MESSAGE - at < most ? MESSAGE - at : most;
    return at;
}

/* NULL: the connection is broken. */
static inline channel_request start_unit(struct player *player, struct channel *channel,
                                         unsigned unit)
{
    const bool sends = player->part.sends;
    const struct channel_memory *memory = &player->memories[unit % world.channels];
    channel_request request = NULL;
    uint64_t bytes;
    uint64_t at = unit_at(unit, &bytes);
    const struct net_buffer buffer = {.data = player->data + at, .bytes = bytes};
    int result = TCPX_SUCCESS;

    while (request == NULL && result == TCPX_SUCCESS)
        if (world.chunks)
            result = sends ? channel_send(channel, buffer.data, bytes, memory, &request)
                           : channel_receive(channel, buffer.data, bytes, memory, &request);
        else
            result = sends ? net_isend_buffer(channel->builtin, &buffer, FROM_PEER,
                                              (struct net_request **)&request)
                           : net_irecv_buffer(channel->builtin, &buffer, TO_PEER,
                                              (struct net_request **)&request);
    return request;
}

/* One after the other. */
static inline void move_units(struct player *player, unsigned from, unsigned to)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    for (unsigned unit = from; unit < to; unit++) {
        struct channel *channel = player->part.sends ? &player->senders[unit % world.channels]
                                                     : &player->receivers[unit % world.channels];
        channel_request request = start_unit(player, channel, unit);
        uint64_t bytes;
        bool done = false;

        CHECK(request != NULL);
        while (!done) {
            CHECK(channel_test(channel, request, &done, &bytes) == TCPX_SUCCESS);
            CHECK(!deadline_passed(deadline));
            if (!done)
                nap(20);
        }
    }
}

static inline void prepare_data(struct player *player)
{
    player->data = aligned_alloc(4096, MESSAGE + 4096 - MESSAGE % 4096);
    CHECK(player->data != NULL);
    memcpy(player->data, peers_message, MESSAGE);
    for (unsigned i = 0; i < world.channels; i++)
        CHECK(channel_register(player->part.sends ? &player->senders[i] : &player->receivers[i],
                               player->data, MESSAGE, false, &player->memories[i]) == TCPX_SUCCESS);
}

/* The peer's send meets the receive of the tested side, or the other way round. */
static inline void match(struct player *player)
{
    if (!world.chunks)
        return;
    player->id = 3;
    if (player->part.sends)
        say(player, OFFER, 3, player->id, FROM_PEER, MESSAGE);
    else
        player->id = hear(player, OFFER, TO_PEER);
    stop_at(player, OFFERED);
    if (player->part.sends)
        hear(player, GRANT, 0);
    else
        say(player, GRANT, 1, player->id, 0, 0);
}

/* --- garbage ------------------------------------------------------------------------------- */

static inline void say_raw(struct player *player, const uint8_t *bytes, size_t count)
{
    CHECK(send(control_fd(player->control), bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}

/* More than anybody keeps; the other side stops reading at some point. */
static inline void flood(struct player *player)
{
    int result = TCPX_SUCCESS;

    for (uint64_t i = 0; i < 100000 && result == TCPX_SUCCESS; i++) {
        const uint64_t numbers[3] = {htole64(i), htole64(1000 + i), htole64(100)};

        result = control_send_all(player->control, deadline_after_ms(PATIENCE_MS));
        if (result == TCPX_SUCCESS)
            result = control_send(player->control, OFFER, numbers, sizeof numbers);
    }
}

static inline void say_garbage(struct player *player)
{
    const uint8_t long_header[CONTROL_HEADER_BYTES] = {OFFER, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f};
    const uint8_t reserved[CONTROL_HEADER_BYTES] = {OFFER, 0, 9, 0, 24, 0, 0, 0};
    const uint64_t id = player->id;
    const uint64_t unknown = 123456789;

    switch ((enum garbage)player->part.count) {
    case UNKNOWN_TYPE:
        say(player, 77, 0, 0, 0, 0);
        break;
    case SHORT_OFFER:
        say(player, OFFER, 2, 0, 0, 0);
        break;
    case EMPTY_GRANT:
        say(player, GRANT, 0, 0, 0, 0);
        break;
    case LONG_DONE:
        say(player, DONE, 3, id, 0, 0);
        break;
    case LONG_HEADER:
        say_raw(player, long_header, sizeof long_header);
        break;
    case RESERVED_BYTES:
        say_raw(player, reserved, sizeof reserved);
        break;
    case AGREEMENT_AGAIN:
        say_agreement(player);
        break;
    case READY_AGAIN:
        say(player, READY, 0, 0, 0, 0);
        break;
    case UNKNOWN_GRANT:
        say(player, GRANT, 1, unknown, 0, 0);
        break;
    case SECOND_GRANT:
        say(player, GRANT, 1, id, 0, 0);
        say(player, GRANT, 1, id, 0, 0);
        break;
    case UNKNOWN_REFUSAL:
        say(player, REFUSE, 2, unknown, 1, 0);
        break;
    case LATE_REFUSAL:
        say(player, GRANT, 1, id, 0, 0);
        say(player, REFUSE, 2, id, 1, 0);
        break;
    case UNKNOWN_DONE:
        say(player, DONE, 1, unknown, 0, 0);
        break;
    case EARLY_DONE:
        say(player, DONE, 1, id, 0, 0);
        break;
    case OFFERS:
        flood(player);
        break;
    case REFUSAL:
        control_refuse(player->control, "it is raining");
        CHECK(control_send_all(player->control, deadline_after_ms(PATIENCE_MS)) == TCPX_SUCCESS);
        break;
    case FAREWELL:
        say(player, GOODBYE, 0, 0, 0, 0);
        break;
    case HALF_A_MESSAGE:
        say_half(player, OFFER, 24);
        break;
    case GARBAGES:
        break;
    }
}

/* --- by hand: all of it -------------------------------------------------------------------- */

/* As far as it goes now, in every channel: whoever receives may be gone. */
static inline void push_units(struct player *player, unsigned from, unsigned to)
{
    channel_request requests[CHUNKS] = {NULL};
    uint64_t deadline = deadline_after_ms(20);

    for (unsigned unit = from; unit < to; unit++)
        requests[unit] = start_unit(player, &player->senders[unit % world.channels], unit);
    while (!deadline_passed(deadline))
        for (unsigned unit = from; unit < to; unit++) {
            bool done = false;
            uint64_t bytes;

            if (requests[unit] == NULL)
                continue;
            if (channel_test(&player->senders[unit % world.channels], requests[unit], &done,
                             &bytes) != TCPX_SUCCESS ||
                done)
                requests[unit] = NULL;
        }
}

/* A chunk without a byte, where one of CHUNK bytes is due. */
static inline _Noreturn void play_empty(struct player *player)
{
    unsigned unit = player->part.count;
    struct channel *channel = &player->senders[unit % world.channels];
    channel_request request = NULL;
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    uint64_t bytes;
    bool done = false;

    match(player);
    move_units(player, 0, unit);
    while (request == NULL && !deadline_passed(deadline))
        CHECK(channel_send(channel, player->data, 0, &player->memories[unit % world.channels],
                           &request) == TCPX_SUCCESS);
    atomic_store(&shared->gone, clock_now());
    while (!done && channel_test(channel, request, &done, &bytes) == TCPX_SUCCESS)
        nap(20);
    leave(player);
}

/* What comes when the transfer has failed for the other side. */
static inline _Noreturn void play_late(struct player *player)
{
    enum { EARLY = 3 };

    match(player);
    move_units(player, 0, EARLY);
    say(player, 77, 0, 0, 0, 0);
    atomic_store(&shared->gone, clock_now());
    CHECK(await_number(&shared->go) != 0);
    push_units(player, EARLY, CHUNKS);
    atomic_store(&shared->reached, 1);
    rest();
}

static inline void play_by_hand(const uint8_t *argument)
{
    struct player *player = calloc(1, sizeof *player);

    CHECK(player != NULL);
    memcpy(&player->part, argument, sizeof player->part);
    reach(player);
    stop_at(player, TCP);
    greet(player);
    stop_at(player, GREETING);
    listen_everywhere(player);
    agree(player);
    connect_some(player, player->part.stage == CONNECTED ? player->part.count : 2 * world.channels);
    stop_at(player, CONNECTED);
    be_ready(player);
    prepare_data(player);
    if (player->part.stage == LATE)
        play_late(player);
    if (player->part.stage == EMPTY)
        play_empty(player);
    if (player->part.stage == GARBAGE) {
        player->id = hear(player, OFFER, TO_PEER);
        say_garbage(player);
        leave(player);
    }
    match(player);
    move_units(player, 0, player->part.count);
    if (!world.chunks) {
        struct channel *channel = player->part.sends ? player->senders : player->receivers;

        CHECK(start_unit(player, channel, player->part.count) != NULL);
        nap(player->part.count * 150);
    }
    leave(player);
}

/* --- by the library ------------------------------------------------------------------------ */

static inline struct tcpx_session *open_by_library(const struct part *part)
{
    struct tcpx_session_options options;
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    int port;

    world_options(&options);
    if (!part->listens) {
        CHECK(tcpx_session_connect("127.0.0.1", part->port, &options, PATIENCE_MS, &session) ==
              TCPX_SUCCESS);
        return session;
    }
    CHECK(tcpx_session_listen("127.0.0.1", 0, &options, &listener) == TCPX_SUCCESS);
    CHECK(tcpx_session_port(listener, &port) == TCPX_SUCCESS);
    atomic_store(&shared->port, port);
    CHECK(tcpx_session_accept(listener, PATIENCE_MS, &session) == TCPX_SUCCESS);
    tcpx_session_stop_listening(listener);
    return session;
}

static inline struct tcpx_memory *register_for(struct tcpx_session *session, struct buffer *buffer,
                                               bool on_gpu)
{
    struct tcpx_memory *memory;

    CHECK(buffer_make(buffer, on_gpu, MESSAGE));
    CHECK(tcpx_session_register(session, buffer->address, MESSAGE, &memory) == TCPX_SUCCESS);
    return memory;
}

static inline void echo(struct tcpx_session *session, struct tcpx_memory *memory)
{
    const struct tcpx_move there = world_move(memory, ECHO, ECHO_THERE);
    struct tcpx_transfer *transfer;
    struct tcpx_move back;

    CHECK(tcpx_receive(session, &there, &transfer) == TCPX_SUCCESS);
    CHECK(tcpx_transfer_wait(transfer, PATIENCE_MS) == TCPX_SUCCESS);
    back = world_move(memory, ECHO, ECHO_BACK);
    CHECK(tcpx_send(session, &back, &transfer) == TCPX_SUCCESS);
    CHECK(tcpx_transfer_wait(transfer, PATIENCE_MS) == TCPX_SUCCESS);
    tcpx_session_close(session);
    _exit(0);
}

/* Both ways at once, for ever. */
static inline _Noreturn void work(struct tcpx_session *session, struct tcpx_memory *from,
                                  struct tcpx_memory *to)
{
    for (unsigned turn = 0;; turn++) {
        const uint64_t bytes = turn % 3 == 0 ? MESSAGE : turn % 3 == 1 ? 1000 : 70000;
        const struct tcpx_move in = world_move(to, bytes, TO_PEER);
        struct tcpx_transfer *receive;
        struct tcpx_transfer *send;
        struct tcpx_move out;

        CHECK(tcpx_receive(session, &in, &receive) == TCPX_SUCCESS);
        out = world_move(from, bytes, FROM_PEER);
        CHECK(tcpx_send(session, &out, &send) == TCPX_SUCCESS);
        CHECK(tcpx_transfer_wait(receive, PATIENCE_MS) == TCPX_SUCCESS);
        CHECK(tcpx_transfer_wait(send, PATIENCE_MS) == TCPX_SUCCESS);
        if (turn == 0)
            atomic_store(&shared->reached, 1);
    }
}

static inline void receive_some(struct tcpx_session *session, struct tcpx_memory *memory,
                                unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const struct tcpx_move move = world_move(memory, MESSAGE, TO_PEER);
        struct tcpx_transfer *transfer;

        CHECK(tcpx_receive(session, &move, &transfer) == TCPX_SUCCESS);
    }
}

static inline void slow_down(unsigned delay_us)
{
    char text[16];

    if (delay_us == 0)
        return;
    snprintf(text, sizeof text, "%u", delay_us);
    setenv("UCCL_TCPX_HOST_GPU_DELAY_US", text, 1);
    setenv("FAKECUDA_DELAY_US", text, 1);
}

static inline void play_by_library(const uint8_t *argument)
{
    struct player player = {.fd = -1};
    const struct part *part = &player.part;
    struct tcpx_session *session;
    struct tcpx_memory *memories[2];
    struct buffer buffers[2];

    memcpy(&player.part, argument, sizeof player.part);
    slow_down(part->delay_us);
    session = open_by_library(part);
    stop_at(&player, OPEN);
    for (int i = 0; i < 2; i++)
        memories[i] = register_for(session, &buffers[i], part->on_gpu == (i == 0));
    stop_at(&player, REGISTERED);
    if (part->stage == ECHOES)
        echo(session, memories[0]);
    if (part->stage == WORKS)
        work(session, memories[0], memories[1]);
    if (part->stage == RECEIVES || (part->stage == CLOSES && part->count != 0))
        receive_some(session, memories[0], part->count);
    atomic_store(&shared->gone, clock_now());
    atomic_store(&shared->reached, 1);
    if (part->stage == CLOSES) {
        CHECK(await_number(&shared->go) != 0);
        tcpx_session_close(session);
        leave(&player);
    }
    rest();
}

#endif
