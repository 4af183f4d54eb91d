/*
 * The peers of tests/unit/test_session_faults.c: processes that follow a script as far as a stage
 * of it and then end, stop or hang up. Until a session is open they send its protocol by hand. The
 * transport is the one that the variable TCPX_TEST_TRANSPORT names:
 *
 *   whole   the built-in transport with one channel: whole messages (also if it is not set)
 *   pieces  the built-in transport with two channels, lists of pieces
 *   own     our own plugin, by its path
 *   6 to 12 the quirky plugin with the table of that version
 */
#ifndef TCPX_TESTS_SESSION_FAULT_PEER_H
#define TCPX_TESTS_SESSION_FAULT_PEER_H

#include "tests/unit/session_pair.h"

#include "base/clock.h"
#include "net/device/device.h"
#include "session/agreement.h"
#include "session/bootstrap.h"
#include "session/channel.h"

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum {
    CHANNELS = 2, /* at most */
    CHUNK = 256 << 10,
    MESSAGE = (2 << 20) + 12345,
    CHUNKS = (MESSAGE + CHUNK - 1) / CHUNK,
    ECHO_BYTES = 300000,
};

/* Tags: those of the peer's receives, of its sends, and one that it never uses. */
enum { TO_PEER = 5, FROM_PEER = 6, TO_NOBODY = 7, ECHO_THERE = 8, ECHO_BACK = 9 };

/* A wait for a peer that is gone ends with an error within this time. */
#define BOUND_MS    limit_ms(SANITIZED ? 6000 : 2000)
#define PATIENCE_MS limit_ms(20000)

/* --- the transport ------------------------------------------------------------------------- */

static struct {
    const char *name;
    const char *plugin; /* "builtin" or a file */
    unsigned channels;
    unsigned pieces; /* of every transfer; 0: it is no list */
    bool chunks;     /* everything goes in chunks */
    bool forgets; /* a connection that is not completed is never given back: only the quirky one */
} transport;

static inline void transport_read(void)
{
    const char *name = getenv("TCPX_TEST_TRANSPORT");
    char file[64] = "libnccl-net-tcpx.so";

    transport.name = name != NULL ? name : "whole";
    transport.plugin = "builtin";
    transport.pieces = strcmp(transport.name, "pieces") == 0 ? 2 : 0;
    transport.chunks = strcmp(transport.name, "whole") != 0;
    transport.channels = transport.chunks ? CHANNELS : 1;
    if (transport.chunks && transport.pieces == 0) {
        transport.forgets = strcmp(transport.name, "own") != 0;
        if (transport.forgets)
            snprintf(file, sizeof file, "tests/quirky_plugin/libquirky_v%s.so", transport.name);
        transport.plugin = path_in_build(file);
    }
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
}

static inline struct tcpx_session_options transport_options(void)
{
    struct tcpx_session_options options = usual_options();

    options.channels = (int)transport.channels;
    options.chunk_bytes = CHUNK;
    options.plugin_path = transport.plugin;
    return options;
}

static inline struct tcpx_transfer *begin_message(struct tcpx_session *session, bool sends,
                                                  const struct area *area, uint64_t bytes,
                                                  uint64_t tag)
{
    return begin_part(session, sends, area, 0, bytes, tag, transport.pieces);
}

/* Of GPU 0 or of the host, in whole pages. */
static inline void area_of_message(struct area *area, struct tcpx_session *session, bool on_gpu)
{
    area_allocate(area, on_gpu, MESSAGE, 0);
    area_register(area, session);
}

/* --- scripts ------------------------------------------------------------------------------- */

/* Its value, once it is not 0; 0 if that takes too long. */
static inline int await_number(atomic_int *number)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    while (atomic_load(number) == 0 && !deadline_passed(deadline))
        nap_us(50);
    return atomic_load(number);
}

/* The messages of a session, as session/open.c and session/matching.c number them. */
enum { AGREEMENT, READY, OFFER, GRANT, REFUSE, DONE, GOODBYE, UNKNOWN = 77 };

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
    OFFERED, /* by the sender */
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

/* How the transfers of the tested side end. */
enum outcome {
    AS_ENDING,  /* a peer that dies or hangs up is an error, else only deadlines end waits */
    ALL_ENDED,  /* by an error, or as what the peer did is enough for */
    ALL_FAILED, /* with TCPX_REMOTE_ERROR */
};

/* What a peer does, and what the tested side does meanwhile. */
struct script {
    const char *name;
    enum stage stage;
    enum ending ending;
    unsigned count;
    unsigned first_turn; /* of those below, which turns choose */
    unsigned turns;
    bool listens;
    bool sends;        /* the peer does, the tested side receives */
    bool on_gpu;       /* the memory of either side */
    unsigned delay_us; /* of the peer's GPU */

    enum outcome outcome;
    bool is_awaited; /* transfers begin when the peer has reached its stage */
    bool overtakes;  /* what CLOSES is before the transfers, what LATE sends before the close */
    unsigned killed_after; /* microseconds after they have begun; 0: it is not killed */
    bool by_events;        /* the tested side waits for the eventfd */
    bool keeps_memory;     /* the tested side does not deregister before it closes */
};

#define SCRIPT(text, where, how, ...)                                                              \
    {                                                                                              \
        .name = text, .stage = where, .ending = how, __VA_ARGS__                                   \
    }

/*
 * Agreements that no peer should send: some bytes of the usual one are overwritten. All but the
 * last one are for one channel, and are refused in words.
 */
static const struct odd_agreement {
    const char *name;
    uint8_t type;
    uint8_t byte;
    size_t at;
    size_t count;
    int longer;        /* by so many bytes */
    const char *words; /* of the refusal, on both sides */
} odd_agreements[] = {
    {"an agreement of other bytes", AGREEMENT, 0xff, 4, AGREEMENT_HEAD_BYTES - 4, 0,
     "agreement: 4294967295 channels, possible are 1 to 64"},
    {"an agreement that is too short", AGREEMENT, 0, 0, 0,
     10 - AGREEMENT_HEAD_BYTES - AGREEMENT_HANDLE_BYTES, "agreement: 10 bytes, expected"},
    {"an agreement of another version", AGREEMENT, 77, 0, 1, 0, "the peer speaks version 77"},
    {"an agreement of another transport", AGREEMENT, 'x', 32, 1, 0,
     "transport: builtin here, xuiltin at peer"},
    {"an agreement of more channels", AGREEMENT, 2, 4, 1, AGREEMENT_HANDLE_BYTES,
     "channels: 1 here, 2 at peer"},
    {"an agreement of other chunks", AGREEMENT, CHUNK / 2 >> 16, 18, 1, 0,
     "chunk bytes: 262144 here, 131072 at peer"},
    {"an agreement of another type", DONE, 0, 0, 0, 0, "a message of type 5 instead of what"},
    {"an agreement that is too long", AGREEMENT, 0, 0, 0, AGREEMENT_HANDLE_BYTES,
     "agreement: 496 bytes, expected are 368"},
    {"handles that are none", AGREEMENT, 0, AGREEMENT_HEAD_BYTES, CHANNELS *AGREEMENT_HANDLE_BYTES,
     0, NULL},
};

enum { ODD_HANDLES = COUNT_OF(odd_agreements) - 1 };

/* A peer that does it all by hand. */
struct player {
    struct script script;
    int fd; /* until there is a control */
    struct control *control;
    struct gpu *gpu;
    struct gpu_scope scope;
    const struct import_plugin *plugin; /* NULL: built in */
    struct channel_devices devices;
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
    atomic_store(&meeting->gone, clock_now());
    atomic_store(&meeting->reached, 1);
    if (player->script.ending == DIES)
        raise(SIGKILL);
    if (player->script.ending == STOPS)
        raise(SIGSTOP);
    if (player->script.ending == HANGS_UP)
        shutdown(player->control != NULL ? control_fd(player->control) : player->fd, SHUT_RDWR);
    rest();
}

static inline void stop_at(struct player *player, enum stage stage)
{
    if (player->script.stage == stage)
        leave(player);
}

/* --- bootstrap ----------------------------------------------------------------------------- */

static inline void reach(struct player *player)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atomic_load(&meeting->ports[0])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    if (!player->script.listens) {
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        player->fd = fd;
        return;
    }
    CHECK(listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &bytes) == 0);
    atomic_store(&meeting->ports[0], ntohs(address.sin_port));
    player->fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    CHECK(player->fd >= 0);
    close(fd);
}

static inline void greet(struct player *player)
{
    const struct bootstrap_greeting greeting = {
        .role = player->script.listens ? BOOTSTRAP_LISTENS : BOOTSTRAP_CONNECTS, .nonce = {1}};
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES];
    size_t length = player->script.stage == HALF_GREETING ? sizeof bytes / 2 : sizeof bytes;

    bootstrap_greeting_write(&greeting, bytes);
    CHECK(send(player->fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
    stop_at(player, HALF_GREETING);
    CHECK(recv(player->fd, bytes, sizeof bytes, MSG_WAITALL) == (ssize_t)sizeof bytes);
    CHECK_SUCCESS(control_create(player->fd, "the tested side", SESSION_VERSION, &player->control));
}

/* --- messages ------------------------------------------------------------------------------ */

/* The whole of it, however little the socket takes at a time. */
static inline void send_frame(struct player *player, uint8_t type, const void *bytes, size_t count)
{
    CHECK_SUCCESS(control_send(player->control, type, bytes, count));
    CHECK_SUCCESS(control_send_all(player->control, deadline_after_ms(PATIENCE_MS)));
}

static inline void send_raw(struct player *player, const void *bytes, size_t count)
{
    CHECK(send(control_fd(player->control), bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}

static inline void send_numbers(struct player *player, uint8_t type, unsigned count, uint64_t first,
                                uint64_t second, uint64_t third)
{
    const uint64_t numbers[3] = {htole64(first), htole64(second), htole64(third)};

    send_frame(player, type, numbers, count * sizeof *numbers);
}

/* Returns its length. */
static inline size_t await_frame(struct player *player, uint8_t *type, void *bytes, size_t room)
{
    size_t length;

    CHECK_SUCCESS(control_await(player->control, "a message", type, bytes, room, &length,
                                deadline_after_ms(PATIENCE_MS)));
    return length;
}

/* Of this type, and of a transfer with this tag if it is an offer; its first number. */
static inline uint64_t await_type(struct player *player, uint8_t wanted, uint64_t tag)
{
    for (;;) {
        uint64_t numbers[3] = {0};
        uint8_t type;

        await_frame(player, &type, numbers, sizeof numbers);
        if (type == wanted && (type != OFFER || le64toh(numbers[1]) == tag))
            return le64toh(numbers[0]);
    }
}

/* --- agreement ----------------------------------------------------------------------------- */

static inline void listen_everywhere(struct player *player)
{
    struct agreement *mine = &player->mine;

    CHECK_SUCCESS(import_open_named(transport.plugin, &player->plugin));
    if (import_is_builtin(player->plugin))
        player->plugin = NULL;
    if (player->plugin == NULL)
        CHECK_SUCCESS(net_devices_find_all_configured(
            player->devices.list, NET_DEVICES_MOST, &player->devices.count, &player->devices.all));
    CHECK_SUCCESS(gpu_open(0, &player->gpu));
    CHECK_SUCCESS(gpu_enter(player->gpu, &player->scope));
    for (unsigned i = 0; i < transport.channels; i++)
        CHECK_SUCCESS(channel_listen(player->plugin, &player->devices, 0, -1, mine->handles[i],
                                     &player->listeners[i]));
    mine->version = SESSION_VERSION;
    snprintf(mine->transport, sizeof mine->transport, "%s",
             player->plugin != NULL ? player->plugin->table.name : "builtin");
    mine->channels = transport.channels;
    mine->chunk_bytes = CHUNK;
    CHECK_SUCCESS(net_handle_process(&mine->process));
    snprintf(mine->host, sizeof mine->host, "peer");
}

/* Whole and as usual, or as the stage wants it. */
static inline void send_agreement(struct player *player)
{
    const unsigned odd = player->script.count;
    uint8_t bytes[CONTROL_HEADER_BYTES + AGREEMENT_BYTES] = {0};
    uint8_t *payload = bytes + CONTROL_HEADER_BYTES;
    size_t length = agreement_encode(&player->mine, payload);
    uint8_t type = AGREEMENT;

    if (player->script.stage == ODD_AGREEMENT) {
        memset(payload + odd_agreements[odd].at, odd_agreements[odd].byte,
               odd_agreements[odd].count);
        length += (size_t)odd_agreements[odd].longer;
        type = odd_agreements[odd].type;
    }
    control_header_write(type, (uint32_t)length, bytes);
    send_raw(player, bytes,
             CONTROL_HEADER_BYTES + (player->script.stage == HALF_AGREEMENT ? length / 2 : length));
}

/* Reads on until the other side gives up, which sends why. */
static inline _Noreturn void await_refusal(struct player *player)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    uint8_t bytes[CONTROL_LARGEST];
    uint8_t type;
    size_t length;

    while (control_await(player->control, "a refusal", &type, bytes, sizeof bytes, &length,
                         deadline) == TCPX_SUCCESS)
        continue;
    CHECK(strstr(tcpx_last_error(), "refused: ") != NULL);
    CHECK(strstr(tcpx_last_error(), odd_agreements[player->script.count].words) != NULL);
    atomic_store(&meeting->reached, 1);
    rest();
}

static inline void agree(struct player *player)
{
    uint8_t bytes[AGREEMENT_BYTES];
    uint8_t type;
    size_t length;

    send_agreement(player);
    stop_at(player, HALF_AGREEMENT);
    atomic_store(&meeting->gone, clock_now());
    if (player->script.stage == ODD_AGREEMENT && player->script.count != ODD_HANDLES)
        await_refusal(player);
    stop_at(player, AGREED);
    length = await_frame(player, &type, bytes, sizeof bytes);
    CHECK(type == AGREEMENT);
    CHECK_SUCCESS(agreement_decode(bytes, length, &player->theirs));
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
            CHECK_SUCCESS(i % 2 == 0 ? channel_connect(player->plugin, &player->devices, 0,
                                                       deadline, player->theirs.handles[channel],
                                                       &player->senders[channel], &there)
                                     : channel_accept(&player->listeners[channel],
                                                      &player->receivers[channel], &there));
            CHECK(!deadline_passed(deadline));
            nap_us(20);
        }
    }
}

static inline void be_ready(struct player *player)
{
    uint8_t type;

    send_frame(player, READY, NULL, 0);
    stop_at(player, IS_READY);
    await_frame(player, &type, NULL, 0);
    CHECK(type == READY);
}

/* --- data ---------------------------------------------------------------------------------- */

static inline struct channel *channel_of(struct player *player, unsigned unit)
{
    unsigned number = unit % transport.channels;

    return player->script.sends ? &player->senders[number] : &player->receivers[number];
}

/* A chunk of the message, or all of a whole one. NULL: the connection is broken. */
static inline channel_request start_unit(struct player *player, unsigned unit, uint64_t most)
{
    const bool sends = player->script.sends;
    const struct channel_memory *memory = &player->memories[unit % transport.channels];
    struct channel *channel = channel_of(player, unit);
    uint64_t at = transport.chunks ? (uint64_t)unit * CHUNK : 0;
    const struct net_buffer buffer = {.data = player->data + at,
                                      .bytes = MESSAGE - at < most ? MESSAGE - at : most};
    channel_request request = NULL;
    int result = TCPX_SUCCESS;

    while (request == NULL && result == TCPX_SUCCESS)
        if (transport.chunks)
            result = channel_post(channel, sends, buffer.data, buffer.bytes, memory, &request);
        else
            result = sends ? net_isend_buffer(channel->builtin, &buffer, FROM_PEER,
                                              (struct net_request **)&request)
                           : net_irecv_buffer(channel->builtin, &buffer, TO_PEER,
                                              (struct net_request **)&request);
    return request;
}

/* Whether it is done; it is looked at until the deadline, and is NULL once it has ended. */
static inline bool finish_unit(struct player *player, unsigned unit, channel_request *request,
                               uint64_t deadline)
{
    bool done = false;
    uint64_t bytes;

    while (*request != NULL) {
        if (channel_test(channel_of(player, unit), *request, &done, &bytes) != TCPX_SUCCESS || done)
            *request = NULL;
        else if (deadline_passed(deadline))
            break;
        else
            nap_us(20);
    }
    return done;
}

/* One after the other. */
static inline void move_units(struct player *player, unsigned count)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    for (unsigned unit = 0; unit < count; unit++) {
        channel_request request = start_unit(player, unit, transport.chunks ? CHUNK : MESSAGE);

        CHECK(finish_unit(player, unit, &request, deadline));
    }
}

static inline void prepare_data(struct player *player)
{
    player->data = aligned_alloc(4096, MESSAGE + 4096 - MESSAGE % 4096);
    CHECK(player->data != NULL);
    pattern_copy(player->data, MESSAGE, FROM_PEER, 0);
    for (unsigned i = 0; i < transport.channels; i++)
        CHECK_SUCCESS(channel_register(channel_of(player, i), player->data, MESSAGE, false,
                                       &player->memories[i]));
}

/* The peer's send meets the receive of the tested side, or the other way round. */
static inline void match(struct player *player)
{
    if (!transport.chunks)
        return;
    player->id = 3;
    if (player->script.sends)
        send_numbers(player, OFFER, 3, player->id, FROM_PEER, MESSAGE);
    else
        player->id = await_type(player, OFFER, TO_PEER);
    stop_at(player, OFFERED);
    if (player->script.sends)
        await_type(player, GRANT, 0);
    else
        send_numbers(player, GRANT, 1, player->id, 0, 0);
}

/* --- garbage ------------------------------------------------------------------------------- */

/* More than either side keeps; the other side stops reading at some point. */
static inline void send_many_offers(struct player *player)
{
    int result = TCPX_SUCCESS;

    for (uint64_t i = 0; i < 100000 && result == TCPX_SUCCESS; i++) {
        const uint64_t numbers[3] = {htole64(i), htole64(1000 + i), htole64(100)};

        result = control_send_all(player->control, deadline_after_ms(PATIENCE_MS));
        if (result == TCPX_SUCCESS)
            result = control_send(player->control, OFFER, numbers, sizeof numbers);
    }
}

/* Numbers of a frame: that of the tested side's transfer, and one of none. */
enum { ITS_ID = 1000, NO_ID = 123456789 };

/* What a peer sends that it may not: frames, bytes as they are, or what a function sends. */
static const struct garbage {
    const char *name;
    struct {
        uint8_t type; /* 0: none */
        unsigned count;
        uint64_t numbers[2];
    } frames[2];
    size_t raw_bytes;
    uint8_t raw[CONTROL_HEADER_BYTES + 12];
    void (*send)(struct player *player);
} garbage[] = {
    {.name = "an unknown type", .frames = {{UNKNOWN, 0, {0}}}},
    {.name = "a short offer", .frames = {{OFFER, 2, {0}}}},
    {.name = "an empty grant", .frames = {{GRANT, 0, {0}}}},
    {.name = "a long acknowledgement", .frames = {{DONE, 3, {ITS_ID}}}},
    {.name = "a header of too many bytes",
     .raw_bytes = CONTROL_HEADER_BYTES,
     .raw = {OFFER, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f}},
    {.name = "reserved bytes that are not zero",
     .raw_bytes = CONTROL_HEADER_BYTES,
     .raw = {OFFER, 0, 9, 0, 24}},
    {.name = "a second agreement", .send = send_agreement},
    {.name = "a second ready", .frames = {{READY, 0, {0}}}},
    {.name = "a grant of nothing", .frames = {{GRANT, 1, {NO_ID}}}},
    {.name = "two grants", .frames = {{GRANT, 1, {ITS_ID}}, {GRANT, 1, {ITS_ID}}}},
    {.name = "a refusal of nothing", .frames = {{REFUSE, 2, {NO_ID, 1}}}},
    {.name = "a late refusal", .frames = {{GRANT, 1, {ITS_ID}}, {REFUSE, 2, {ITS_ID, 1}}}},
    {.name = "an acknowledgement of nothing", .frames = {{DONE, 1, {NO_ID}}}},
    {.name = "an early acknowledgement", .frames = {{DONE, 1, {ITS_ID}}}},
    {.name = "too many offers", .send = send_many_offers},
    {.name = "a refusal of the session",
     .raw_bytes = CONTROL_HEADER_BYTES + 4,
     .raw = {CONTROL_REFUSED, 0, 0, 0, 4, 0, 0, 0, 'r', 'a', 'i', 'n'}},
    {.name = "a goodbye", .frames = {{GOODBYE, 0, {0}}}},
    {.name = "half a message", .raw_bytes = CONTROL_HEADER_BYTES + 12, .raw = {OFFER, 0, 0, 0, 24}},
};

enum { GARBAGES = COUNT_OF(garbage), HALF_A_MESSAGE = GARBAGES - 1 };

static inline _Noreturn void play_garbage(struct player *player)
{
    const struct garbage *sent = &garbage[player->script.count];

    player->id = await_type(player, OFFER, TO_PEER);
    if (sent->send != NULL)
        sent->send(player);
    if (sent->raw_bytes > 0)
        send_raw(player, sent->raw, sent->raw_bytes);
    for (unsigned i = 0; i < 2 && sent->frames[i].type != 0; i++) {
        uint64_t first = sent->frames[i].numbers[0];

        send_numbers(player, sent->frames[i].type, sent->frames[i].count,
                     first == ITS_ID ? player->id : first, sent->frames[i].numbers[1], 0);
    }
    leave(player);
}

/* --- by hand: all of it -------------------------------------------------------------------- */

/* A chunk without a byte, where one of CHUNK bytes is due. */
static inline _Noreturn void play_empty(struct player *player)
{
    unsigned unit = player->script.count;
    channel_request request;

    match(player);
    move_units(player, unit);
    request = start_unit(player, unit, 0);
    CHECK(request != NULL);
    atomic_store(&meeting->gone, clock_now());
    (void)finish_unit(player, unit, &request, deadline_after_ms(PATIENCE_MS));
    leave(player);
}

/* What comes when the transfer has failed for the other side, as far as it goes. */
static inline _Noreturn void play_late(struct player *player)
{
    enum { EARLY = 3 };
    channel_request requests[CHUNKS];
    uint64_t deadline;

    match(player);
    move_units(player, EARLY);
    send_numbers(player, UNKNOWN, 0, 0, 0, 0);
    atomic_store(&meeting->gone, clock_now());
    CHECK(await_number(&meeting->go) != 0);
    for (unsigned unit = EARLY; unit < CHUNKS; unit++)
        requests[unit] = start_unit(player, unit, CHUNK);
    deadline = deadline_after_ms(20);
    while (!deadline_passed(deadline))
        for (unsigned unit = EARLY; unit < CHUNKS; unit++)
            (void)finish_unit(player, unit, &requests[unit], 0);
    atomic_store(&meeting->reached, 1);
    rest();
}

static inline void play_moved(struct player *player)
{
    match(player);
    move_units(player, player->script.count);
    if (!transport.chunks) {
        CHECK(start_unit(player, player->script.count, MESSAGE) != NULL);
        nap_us(player->script.count * 150);
    }
    leave(player);
}

static inline void play_by_hand(struct player *player)
{
    const enum stage stage = player->script.stage;

    reach(player);
    stop_at(player, TCP);
    greet(player);
    stop_at(player, GREETING);
    listen_everywhere(player);
    agree(player);
    connect_some(player, stage == CONNECTED ? player->script.count : 2 * transport.channels);
    stop_at(player, CONNECTED);
    be_ready(player);
    prepare_data(player);
    if (stage == LATE)
        play_late(player);
    if (stage == EMPTY)
        play_empty(player);
    if (stage == GARBAGE)
        play_garbage(player);
    play_moved(player);
}

/* --- by the library ------------------------------------------------------------------------ */

static inline _Noreturn void echo(struct tcpx_session *session, const struct area *area)
{
    FINISH(begin_message(session, false, area, ECHO_BYTES, ECHO_THERE));
    FINISH(begin_message(session, true, area, ECHO_BYTES, ECHO_BACK));
    tcpx_session_close(session);
    _exit(0);
}

/* How much of a message goes in a turn of those that both sides make for ever. */
static inline uint64_t bytes_of_turn(unsigned turn)
{
    return turn % 3 == 0 ? MESSAGE : turn % 3 == 1 ? 1000 : 70000;
}

static inline _Noreturn void work(struct tcpx_session *session, const struct area areas[2])
{
    for (unsigned turn = 0;; turn++) {
        struct tcpx_transfer *transfers[2];

        for (int i = 0; i < 2; i++)
            transfers[i] = begin_message(session, i == 1, &areas[1 - i], bytes_of_turn(turn),
                                         i == 0 ? TO_PEER : FROM_PEER);
        for (int i = 0; i < 2; i++)
            FINISH(transfers[i]);
        if (turn == 0)
            atomic_store(&meeting->reached, 1);
    }
}

static inline void play_by_library(struct player *player)
{
    const struct tcpx_session_options options = transport_options();
    const struct script *script = &player->script;
    struct side side = {.number = script->listens ? 0 : 1};
    struct tcpx_session *session;
    struct area areas[2];

    slow_down_gpus(script->delay_us);
    session = open_session(&side, &options);
    stop_at(player, OPEN);
    for (int i = 0; i < 2; i++)
        area_of_message(&areas[i], session, script->on_gpu == (i == 0));
    stop_at(player, REGISTERED);
    if (script->stage == ECHOES)
        echo(session, &areas[0]);
    if (script->stage == WORKS)
        work(session, areas);
    for (unsigned i = 0; i < script->count; i++)
        begin_message(session, false, &areas[0], MESSAGE, TO_PEER);
    atomic_store(&meeting->gone, clock_now());
    atomic_store(&meeting->reached, 1);
    if (script->stage == CLOSES) {
        CHECK(await_number(&meeting->go) != 0);
        tcpx_session_close(session);
        leave(player);
    }
    rest();
}

/* A process that plays a script. */
static inline void play(const uint8_t *argument)
{
    struct player *player = calloc(1, sizeof *player);

    side_number = 1;
    CHECK(player != NULL);
    player->fd = -1;
    memcpy(&player->script, argument, sizeof player->script);
    if (player->script.stage < OPEN)
        play_by_hand(player);
    else
        play_by_library(player);
}

#endif
