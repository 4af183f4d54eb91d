/*
 * Fuzzes one-sided access in a session whose peer says anything. An input is a script: messages on
 * the control connection, records on the sockets of the channel, and what the program does besides.
 * The session is a real one, without threads, which is moved on step by step. Beside it a model
 * keeps the rules of docs/protocol.md that need no time: which bytes of which window may change,
 * which script must end the session, and that one without a lie does not.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/support/tcp_pair.h"

#include "session/access.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

enum {
    WINDOWS = 3, /* of this side: that may be written, read, and nothing but used here */
    WINDOW = 4096,
    NUMBERS = 8,
    TRANSFERS = 8, /* of this side's at once */
    MOST_STEPS = 120,
    MOST_LIST = 4,
    MOST_SAID = 8192, /* bytes of a message */
    POISON = 0xaa,
    RELEASED = 0xdd,
    SENT = 0x33, /* what the peer puts to places */
};

/* An access of the peer whose list is being said. */
struct listing {
    bool is_open;
    uint32_t parts; /* that are not said, */
    uint64_t bytes; /* and theirs */
    bool is_read;
    bool is_odd; /* its sum is not what it said */
};

static struct {
    struct script script;
    struct tcpx_session *session;
    struct control *peer;
    int raw; /* the peer's end of the control connection */
    struct net_link to;
    struct net_link from;
    struct tcpx_window *windows[WINDOWS];
    struct tcpx_remote *remote;
    struct tcpx_transfer *transfers[TRANSFERS];
    int bound[NUMBERS]; /* the window; WINDOWS: a wrong key; -1: none */
    uint64_t next_id;
    uint32_t next_place;
    uint32_t next_sent; /* place that honest bytes go to */
    uint64_t place_bytes[256];
    struct listing listing;
    uint64_t begun;  /* accesses of this side, */
    bool may_cancel; /* of which one may have been given up */
    bool lied;       /* something that may end the session */
    bool must_fail;  /* something that has to */
} now;

static uint8_t *memory; /* of all windows, with a page that cannot be touched behind each */
static bool may_change[WINDOWS][WINDOW]; /* some part of a write was there */

static uint8_t next(void)
{
    return script_next(&now.script);
}

static uint8_t *memory_of(int window)
{
    return memory + (size_t)window * 2 * WINDOW;
}

/* --- a session without threads -----------------------------------------------------------------
 */

static struct net_comm *make_comm(enum net_side side, struct net_link *peer)
{
    struct net_link link = {.sockets = 1,
                            .match = WIRE_MATCH_TAG,
                            .framing = WIRE_INLINE,
                            .eager_limit = 200,
                            .eager_credit = 1000,
                            .largest_slice = 512,
                            .requests = 64,
                            .peer = "the peer"};
    struct net_comm *comm;
    int pair[2];

    *peer = link;
    for (int i = 0; i < 2; i++) {
        PROMISE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        *(i == 0 ? &link.forward[0] : &link.reverse) = pair[0];
        *(i == 0 ? &peer->forward[0] : &peer->reverse) = pair[1];
    }
    PROMISE(net_comm_create(&link, side, &comm) == TCPX_SUCCESS);
    return comm;
}

static void make_session(void)
{
    struct tcpx_session *session = calloc(1, sizeof *session);
    const int at_once = 1;
    int ours;
    int theirs;

    PROMISE(session != NULL && tcp_pairs(&ours, &theirs, 1));
    PROMISE(control_create(theirs, "the peer", SESSION_VERSION, &session->control) == TCPX_SUCCESS);
    PROMISE(setsockopt(ours, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once) == 0);
    PROMISE(fcntl(ours, F_SETFL, O_NONBLOCK) == 0);
    now.raw = ours;
    now.session = session;
    session->gpu_number = -1;
    session->channels = 1;
    session->event_fd = -1;
    session->directions[SENDING].sending = true;
    session->worker = WORKER_THREAD; /* which this program is */
    session->wake_fd = eventfd(0, EFD_NONBLOCK);
    pthread_mutex_init(&session->lock, NULL);
    condition_init(&session->changed);
    for (int i = 0; i < 2; i++) {
        session->directions[i].lanes = calloc(1, sizeof(struct lane));
        PROMISE(session->directions[i].lanes != NULL);
        session_channel(session, i == SENDING, 0)->builtin =
            make_comm(i == SENDING ? NET_SENDER : NET_RECEIVER, i == SENDING ? &now.from : &now.to);
    }
    PROMISE(accesses_create(session) == TCPX_SUCCESS);
    session->accesses->allowed[OURS] = session->accesses->allowed[THEIRS] = true;
    memset(session->accesses->nonces, 7, sizeof session->accesses->nonces);
}

static void take_steps(int count)
{
    bool all_seen;

    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(&now.session->lock);
        worker_step(now.session, &all_seen);
        pthread_mutex_unlock(&now.session->lock);
    }
}

static void open_window(int window)
{
    static const int access[WINDOWS] = {TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, TCPX_WINDOW_READ, 0};

    PROMISE(tcpx_window_open(-1, memory_of(window), WINDOW, access[window], &now.windows[window]) ==
            TCPX_SUCCESS);
}

static void open_remote(void)
{
    uint8_t key[TCPX_KEY_BYTES];

    PROMISE(tcpx_window_key(now.windows[0], key) == TCPX_SUCCESS);
    PROMISE(tcpx_remote_open(now.session, key, sizeof key, &now.remote) == TCPX_SUCCESS);
}

/* --- what must always hold ---------------------------------------------------------------------
 */

static void check_memory(void)
{
    for (int i = 0; i < WINDOWS; i++)
        for (size_t k = 0; k < WINDOW; k++) {
            uint8_t byte = memory_of(i)[k];

            PROMISE(byte == (now.windows[i] == NULL ? RELEASED : POISON) ||
                    (now.windows[i] != NULL && byte == SENT && may_change[i][k]));
        }
}

static void check_session(void)
{
    const struct accesses *accesses = now.session->accesses;

    PROMISE(now.session->failure == TCPX_SUCCESS || *now.session->why != '\0');
    PROMISE(accesses->count[THEIRS] <= 2 * MOST_ACCESSES && accesses->count[OURS] <= MOST_ACCESSES);
    PROMISE(accesses->charged_here - accesses->taken_said <= MOST_NOTES ||
            now.session->failure != TCPX_SUCCESS);
    PROMISE(now.lied || now.session->failure == TCPX_SUCCESS);
}

static void lie(void)
{
    now.lied = true;
}

/* Unless the session has failed before it was said. */
static void broken(void)
{
    now.lied = true;
    now.must_fail = true;
}

/* --- what the peer says --------------------------------------------------------------------------
 */

static void say(uint8_t type, const void *bytes, size_t count)
{
    uint8_t frame[CONTROL_HEADER_BYTES + MOST_SAID];

    PROMISE(count <= MOST_SAID);
    control_header_write(type, (uint32_t)count, frame);
    memcpy(frame + CONTROL_HEADER_BYTES, bytes, count);
    (void)!send(now.raw, frame, CONTROL_HEADER_BYTES + count, MSG_NOSIGNAL);
}

static void say_number(uint8_t type, uint64_t number)
{
    const uint64_t wire = htole64(number);

    say(type, &wire, sizeof wire);
}

static void bind_number(uint8_t operand)
{
    const uint32_t number = operand % NUMBERS;
    const int window = operand / NUMBERS % 4; /* 3: none has this id */
    const bool is_wrong = operand >= 128 || window == 3 || now.windows[window] == NULL;
    struct access_bind bind = {.number = number};
    uint8_t context[44];
    uint8_t bytes[ACCESS_BIND_BYTES];
    uint64_t id = window < WINDOWS && now.windows[window] != NULL ? now.windows[window]->id : 0;
    const uint64_t wire_id = htole64(id);
    const uint32_t wire_number = htole32(number);
    static const uint8_t none[WINDOW_SECRET_BYTES];

    bind.id = id;
    memset(context, 7, 32);
    memcpy(context + 32, &wire_id, sizeof wire_id);
    memcpy(context + 40, &wire_number, sizeof wire_number);
    window_proof(id != 0 ? now.windows[window]->secret : none, context, sizeof context, bind.proof);
    bind.proof[3] ^= is_wrong ? 4 : 0;
    if (now.bound[number] >= 0)
        broken();
    else
        now.bound[number] = is_wrong ? WINDOWS : window;
    access_bind_write(&bind, bytes);
    say(ACCESS_BIND, bytes, sizeof bytes);
}

/* Numbers are given up when no access is under way that names them; the model does not know. */
static void unbind_number(uint8_t operand)
{
    const uint32_t number = operand % NUMBERS;

    if (now.bound[number] < 0)
        broken();
    now.bound[number] = -1;
    say_number(ACCESS_UNBIND, number);
}

/* One of a few that matter. */
static uint64_t choose_offset(uint8_t operand)
{
    static const uint64_t offsets[] = {0, 1, 100, 2000, WINDOW - 1, WINDOW, UINT64_MAX, 1ull << 63};

    return offsets[operand % 8];
}

static uint64_t choose_bytes(uint8_t operand)
{
    static const uint64_t lengths[] = {0, 1, 50, 200, 201, 1500, WINDOW, UINT64_MAX};

    return lengths[operand % 8];
}

static void note_part(const struct access_item *item, bool is_read)
{
    int window = item->number < NUMBERS ? now.bound[item->number] : -1;

    if (is_read || window != 0 || item->offset > WINDOW || item->bytes > WINDOW - item->offset)
        return;
    for (uint64_t i = 0; i < item->bytes; i++)
        may_change[window][item->offset + i] = true;
}

static size_t choose_items(struct access_item *items, size_t count, uint64_t *sum, bool *wraps)
{
    uint8_t bytes[MOST_LIST];

    *sum = 0;
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct access_item){.number = next() % (NUMBERS + 1)};
        bytes[i] = next();
        items[i].offset = choose_offset(bytes[i] >> 3);
        items[i].bytes = choose_bytes(bytes[i]);
        *wraps = *wraps || *sum + items[i].bytes < *sum;
        *sum += items[i].bytes;
    }
    return count;
}

static size_t write_items(uint8_t *bytes, const struct access_item *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        access_item_write(&items[i], bytes + i * ACCESS_ITEM_BYTES);
        note_part(&items[i], now.listing.is_read);
    }
    return count * ACCESS_ITEM_BYTES;
}

/* Bits of how: read, note, what is wrong (3), and how many parts come later. */
static void begin_access(uint8_t how)
{
    uint8_t bytes[MOST_SAID];
    struct access_item items[MOST_LIST];
    bool wraps = false;
    uint64_t sum;
    size_t count = choose_items(items, next() % (MOST_LIST + 1), &sum, &wraps);
    uint32_t later = how >> 6;
    const unsigned wrong = how >> 2 & 7;
    size_t length = ACCESS_HEAD_BYTES;
    struct access_head head = {.id = now.next_id,
                               .kind = how & 1 ? ACCESS_READ : ACCESS_WRITE,
                               .has_note = (how & 2) != 0,
                               .items = (uint32_t)count + later,
                               .bytes = sum + 10 * (uint64_t)later};

    if (wraps || head.bytes < sum || now.listing.is_open)
        broken();
    head.is_inline = wrong == 4 && later == 0 && head.bytes > 0 && head.bytes <= 6000;
    if (head.bytes > 0 && !head.is_inline)
        head.place = how & 1 ? NET_OPEN_PLACE + (uint32_t)head.id % 1000 : now.next_place;
    head.note_bytes = head.has_note ? how : 0;
    if (wrong == 7 && later > 0)
        lie(); /* found when the list is whole */
    else if (wrong >= 5)
        broken();
    head.id += wrong == 5;
    head.place += wrong == 6 ? (head.kind == ACCESS_READ ? NET_OPEN_PLACE : 1) : 0;
    head.bytes += wrong == 7;
    if (wrong == 6 && head.bytes == 0 && head.kind == ACCESS_READ)
        head.place = 1;
    now.next_id++;
    if (head.kind == ACCESS_WRITE && head.bytes > 0 && !head.is_inline) {
        now.place_bytes[now.next_place % 256] = head.bytes;
        now.next_place++;
    }
    now.listing = (struct listing){.is_open = later > 0,
                                   .parts = later,
                                   .bytes = 10 * (uint64_t)later,
                                   .is_read = head.kind == ACCESS_READ,
                                   .is_odd = wrong == 7};
    access_head_write(&head, bytes);
    memset(bytes + length, 'n', head.note_bytes);
    length += head.note_bytes;
    length += write_items(bytes + length, items, count);
    if (head.is_inline && head.kind == ACCESS_WRITE) {
        memset(bytes + length, SENT, head.bytes);
        length += head.bytes;
    }
    say(ACCESS_BEGIN, bytes, length);
}

/* Of 10 bytes each, or others. */
static void say_more(uint8_t how)
{
    uint8_t bytes[MOST_LIST * ACCESS_ITEM_BYTES];
    struct access_item items[MOST_LIST];
    size_t count = how % (MOST_LIST + 1);

    for (size_t i = 0; i < count; i++)
        items[i] = (struct access_item){.number = next() % (NUMBERS + 1),
                                        .offset = choose_offset(next()),
                                        .bytes = 10 + (how & 0x80 && i == 0)};
    if (count == 0 || !now.listing.is_open || count > now.listing.parts ||
        (how & 0x80 && !now.listing.is_odd))
        broken();
    else if (how & 0x80)
        lie(); /* two of them may be the truth */
    if (count <= now.listing.parts)
        now.listing.parts -= (uint32_t)count;
    now.listing.is_open = now.listing.is_open && now.listing.parts > 0;
    if (how & 0x80 && now.listing.is_open)
        now.must_fail = false; /* found when the list is whole */
    say(ACCESS_MORE, bytes, write_items(bytes, items, count));
}

/* Of an id that may have been. */
static void say_id(uint8_t type, uint8_t operand)
{
    uint64_t id = operand & 0x80 ? now.next_id + (operand & 3) : operand % 16;

    lie();
    if ((type == ACCESS_CANCEL && id >= now.next_id) ||
        (type == ACCESS_CANCELLED && (!now.may_cancel || id >= now.begun)))
        broken();
    say_number(type, id);
}

static void say_answer(uint8_t operand)
{
    const struct access_answer answer = {
        .id = operand & 15, .result = operand >> 4 & 7, .text = "no"};
    uint8_t bytes[ACCESS_ANSWER_BYTES];

    lie();
    if (answer.result == 7 || answer.id >= now.begun)
        broken();
    say(ACCESS_ANSWER, bytes, access_answer_write(&answer, bytes));
}

/* Of a read of this side, which may have asked for as many, or of anything else. */
static void say_data(uint8_t operand)
{
    uint8_t bytes[ACCESS_DATA_HEAD_BYTES + 1024];
    const uint64_t id = htole64(operand & 15);
    size_t length = 1 + next() * 4u;

    lie();
    if ((operand & 15) >= now.begun)
        broken();
    memcpy(bytes, &id, sizeof id);
    memset(bytes + sizeof id, SENT, length);
    say(ACCESS_DATA, bytes, sizeof id + length);
}

static void say_note(uint8_t operand)
{
    uint8_t bytes[1024] = {0};

    say(ACCESS_NOTE, bytes, (size_t)operand * 4);
}

static void say_anything(uint8_t type)
{
    uint8_t bytes[64];
    size_t count = next() % sizeof bytes;

    for (size_t i = 0; i < count; i++)
        bytes[i] = next();
    broken();
    now.must_fail = false;
    say(type % (ACCESS_DATA + 2), bytes, count);
    memset(may_change[0], true, sizeof may_change[0]); /* whatever it was */
}

/* --- what the peer puts ---------------------------------------------------------------------- */

static void put(const struct wire_record *record, bool with_bytes)
{
    uint8_t bytes[WIRE_RECORD_BYTES + 2 * WINDOW];
    size_t length = with_bytes ? record->length : 0;

    wire_record_write(record, bytes);
    memset(bytes + WIRE_RECORD_BYTES, SENT, length);
    (void)!send(now.to.forward[0], bytes, WIRE_RECORD_BYTES + length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* All bytes of the next place, as an honest peer cuts them. */
static void put_place(void)
{
    uint64_t total = now.place_bytes[now.next_sent % 256];

    if (now.next_sent >= now.next_place || total > 2 * WINDOW)
        return;
    for (uint64_t at = 0; at < total; at += 512)
        put(&(struct wire_record){.type = WIRE_SLICE,
                                  .flags = WIRE_TO_PLACE,
                                  .sequence = now.next_sent,
                                  .offset = at,
                                  .length = total - at < 512 ? total - at : 512,
                                  .tag = total},
            true);
    now.next_sent++;
}

static void put_anything(uint8_t operand)
{
    struct wire_record record = {.type = operand & 1 ? WIRE_SLICE : WIRE_CANCELLED,
                                 .flags = WIRE_TO_PLACE,
                                 .sequence = next() % 16};

    lie();
    if (operand & 2)
        record.sequence += NET_OPEN_PLACE;
    record.length = next() * 2u;
    if (record.type == WIRE_SLICE) {
        record.offset = next() * 8u;
        record.tag = choose_bytes(operand >> 3);
        if (record.length == 0 || record.offset + record.length > record.tag)
            return;
    }
    put(&record, record.type == WIRE_SLICE);
}

/* --- what the program does ------------------------------------------------------------------- */

static void begin_transfer(uint8_t how)
{
    const unsigned place = how % TRANSFERS;
    struct tcpx_part part = {now.windows[how & 8 ? 0 : 2], choose_offset(how >> 4) % WINDOW,
                             now.remote, 0, 1};
    const struct tcpx_access access = {
        .parts = &part, .part_count = 1, .note = "note", .note_bytes = 4};

    if (now.transfers[place] != NULL || part.window == NULL)
        return;
    part.bytes = 1 + next() * 4u % (WINDOW - part.offset);
    now.session->accesses->inline_bytes = place % 2 ? WINDOW : 0;
    if ((how & 0x80 ? tcpx_read : tcpx_write)(now.session, &access, &now.transfers[place]) !=
        TCPX_SUCCESS) {
        PROMISE(now.session->failure != TCPX_SUCCESS && *error_text() != '\0');
        now.transfers[place] = NULL;
        return;
    }
    now.begun++;
    if (how & 0x80)
        memset(&may_change[how & 8 ? 0 : 2][part.offset], true, part.bytes);
}

static void test_transfer(unsigned place)
{
    int done = 0;

    if (now.transfers[place] == NULL)
        return;
    if (tcpx_transfer_test(now.transfers[place], &done) != TCPX_SUCCESS) {
        PROMISE(*error_text() != '\0');
        done = 1;
    }
    if (done)
        now.transfers[place] = NULL;
}

/* It needs no peer. */
static void close_window(int window)
{
    int result = TCPX_IN_PROGRESS;

    if (now.windows[window] == NULL)
        return;
    now.may_cancel = true;
    for (int i = 0; i < 8 && result == TCPX_IN_PROGRESS; i++) {
        result = tcpx_window_close(now.windows[window], 0);
        take_steps(1);
    }
    PROMISE(result == TCPX_SUCCESS);
    check_memory();
    now.windows[window] = NULL;
    memset(memory_of(window), RELEASED, WINDOW);
}

static void reopen_window(int window)
{
    if (now.windows[window] != NULL)
        return;
    memset(memory_of(window), POISON, WINDOW);
    memset(may_change[window], false, WINDOW);
    open_window(window);
}

static void take_note(void)
{
    uint8_t note[TCPX_NOTE_BYTES];
    size_t bytes;
    int there;

    if (tcpx_note_take(now.session, note, sizeof note, &bytes, &there) != TCPX_SUCCESS)
        PROMISE(now.session->failure != TCPX_SUCCESS);
}

/* The memory may be used for something else at once, though the peer has said nothing. */
static void cancel_transfer(unsigned place)
{
    if (now.transfers[place] == NULL)
        return;
    take_steps(3); /* of a session that has failed, all ends by itself */
    now.may_cancel = true;
    PROMISE(tcpx_transfer_cancel(now.transfers[place]) == TCPX_SUCCESS);
    lie(); /* what it does not confirm in time */
}

static void drain(void)
{
    uint8_t bytes[4096];

    while (recv(now.from.forward[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    while (recv(now.raw, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
}

/* --- scripts --------------------------------------------------------------------------------- */

static void step(void)
{
    uint8_t what = next();
    uint8_t operand = next();

    switch (what % 20) {
    case 0:
    case 1:
        bind_number(operand);
        break;
    case 2:
        unbind_number(operand);
        break;
    case 3:
    case 4:
    case 5:
        begin_access(operand);
        break;
    case 6:
        say_more(operand);
        break;
    case 7:
        say_id(ACCESS_FINISHED, operand);
        break;
    case 8:
        say_id(ACCESS_CANCEL, operand);
        break;
    case 9:
        say_id(ACCESS_CANCELLED, operand);
        break;
    case 10:
        operand & 0x80 ? say_data(operand) : say_answer(operand);
        break;
    case 11:
        say_note(operand);
        break;
    case 12:
        say_anything(operand);
        break;
    case 13:
    case 14:
        put_place();
        break;
    case 15:
        put_anything(operand);
        break;
    case 16:
        begin_transfer(operand);
        break;
    case 17:
        operand % 2 ? cancel_transfer(operand / 2 % TRANSFERS)
                    : test_transfer(operand / 2 % TRANSFERS);
        break;
    case 18:
        operand % 2 ? close_window(operand / 2 % WINDOWS) : reopen_window(operand / 2 % WINDOWS);
        break;
    default:
        operand % 2 ? take_note() : drain();
        break;
    }
    if (!(what & 0x80)) /* else several come at once */
        take_steps(1);
    check_session();
}

/* All that was said has been read. */
static void settle(void)
{
    for (int i = 0; i < 16; i++) {
        drain();
        take_steps(1);
        check_session();
    }
    check_memory();
    PROMISE(!now.must_fail || now.session->failure != TCPX_SUCCESS);
}

static void finish(void)
{
    for (int i = 0; i < WINDOWS; i++)
        close_window(i);
    if (now.session->failure != TCPX_SUCCESS) {
        take_steps(4);
        for (unsigned i = 0; i < TRANSFERS; i++) {
            test_transfer(i);
            PROMISE(now.transfers[i] == NULL);
        }
    }
    close(now.raw);
    close(now.session->wake_fd);
    now.session->worker = WORKER_NONE;
    tcpx_session_close(now.session);
    net_link_close(&now.to);
    net_link_close(&now.from);
    check_memory();
}

static void prepare(void)
{
    static bool prepared;

    if (prepared)
        return;
    prepared = true;
    PROMISE(setenv("UCCL_TCPX_THREADS", "0", 1) == 0);
    memory = mmap(NULL, (size_t)2 * WINDOWS * WINDOW, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PROMISE(memory != MAP_FAILED);
    for (int i = 0; i < WINDOWS; i++)
        PROMISE(mprotect(memory_of(i) + WINDOW, WINDOW, PROT_NONE) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prepare();
    memset(&now, 0, sizeof now);
    memset(may_change, 0, sizeof may_change);
    memset(now.bound, -1, sizeof now.bound);
    now.next_place = now.next_sent = 1;
    now.script = (struct script){.data = data, .left = size};
    make_session();
    for (int i = 0; i < WINDOWS; i++) {
        memset(memory_of(i), POISON, WINDOW);
        open_window(i);
    }
    open_remote();
    for (int i = 0; i < MOST_STEPS && now.script.left > 0; i++)
        step();
    settle();
    finish();
    return 0;
}
