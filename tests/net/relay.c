/*
 * A bad network between two network namespaces: joins a TUN device in each of them and carries IP
 * packets across with loss, duplicates, reordering, delay, a rate and corruption, or not at all
 * while the link is cut. What happens to the nth packet of a direction depends on the seed and n
 * only. One thread, no busy loop; it ends by itself with its parent or at its time limit.
 *
 * A packet here may stand for several on the wire (offload.h). They are counted one by one, and
 * each has its own chance to be lost.
 */
#include "tests/net/offload.h"
#include "tests/net/program.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PACKET_MAX = 65536 + OFFLOAD_HEADER, /* no IP packet is larger */
    READ_BATCH = 64,      /* packets taken from one device before the other gets its turn */
    DEVICE_QUEUE = 4096,  /* packets; what overflows there would be lost without our knowing */
    HELD_MAX = 256 << 20, /* bytes held by both directions together */
    COMMAND_MAX = 256,    /* a control message */
    REPLY_MAX = 2048,     /* its answer */
    HOLD_MS = 5,          /* the longest that a packet is held back */
    LIMIT_SECONDS_MAX = 3600,
    MTU_MAX = 65535,
};

static const uint64_t NANOS = 1000000000;

static const char usage[] =
    "usage: relay [options] NAMESPACE_A[:DEVICE] NAMESPACE_B[:DEVICE]\n"
    "Joins a TUN device (default: relay0) in each namespace of /run/netns and carries packets.\n"
    "For one direction only: 'a:VALUE' for what comes from A, 'b:VALUE' for what comes from B.\n"
    "  --loss P  --duplicate P  --corrupt P    probabilities from 0 to 1 for each packet\n"
    "  --reorder P    held back so that later packets pass it, for up to 5 ms\n"
    "  --delay MS     for every packet\n"
    "  --jitter MS    up to so much more, in order\n"
    "  --rate BITS    a second, with k, m or g (0: no limit), and before it a queue of\n"
    "  --queue BYTES  with k or m (default 256k); what does not fit is dropped\n"
    "  --mtu BYTES    of both devices (default 1500)\n"
    "  --offload      takes up to 64 KiB of a TCP stream from the kernel at once, for high rates;\n"
    "                 --corrupt spares those without a checksum\n"
    "  --seed N       (default 1)\n"
    "  --control PREFIX  reads commands from PREFIX.control, a FIFO, and answers each with a line\n"
    "                    to PREFIX.reply, another one; an answer to none says that the link is up\n"
    "  --limit SECONDS   ends by itself after this time, with status 1 (default 300)\n"
    "Commands: cut [a|b], restore [a|b], stats, quit, and 'OPTION VALUE' for those from --loss\n"
    "to --queue. Statistics go to stdout at the end as one line of JSON.\n";

/* --- small helpers ----------------------------------------------------------------------------*/

static uint64_t now_nanos(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NANOS + (uint64_t)now.tv_nsec;
}

static uint64_t millis_to_nanos(double millis)
{
    return (uint64_t)(millis * 1e6);
}

/* --- what can be set --------------------------------------------------------------------------*/

/* Of one direction. All are doubles so that one table serves options and commands. */
struct shape {
    double loss;
    double duplicate;
    double corrupt;
    double reorder;
    double delay;
    double jitter;
    double rate;
    double queue;
};

enum unit { PROBABILITY, MILLISECONDS, BITS_PER_SECOND, BYTES };

static const struct setting {
    const char *name;
    enum unit unit;
    size_t offset;
} settings[] = {
    {"loss", PROBABILITY, offsetof(struct shape, loss)},
    {"duplicate", PROBABILITY, offsetof(struct shape, duplicate)},
    {"corrupt", PROBABILITY, offsetof(struct shape, corrupt)},
    {"reorder", PROBABILITY, offsetof(struct shape, reorder)},
    {"delay", MILLISECONDS, offsetof(struct shape, delay)},
    {"jitter", MILLISECONDS, offsetof(struct shape, jitter)},
    {"rate", BITS_PER_SECOND, offsetof(struct shape, rate)},
    {"queue", BYTES, offsetof(struct shape, queue)},
};

enum { SETTINGS = sizeof settings / sizeof settings[0] };

static const struct shape perfect = {.queue = 256 << 10};

static const struct unit_rule {
    double least, most;
    double kilo; /* 0: takes no suffix */
    const char *expected;
} unit_rules[] = {
    [PROBABILITY] = {0, 1, 0, "a probability from 0 to 1"},
    [MILLISECONDS] = {0, 60000, 0, "milliseconds from 0 to 60000"},
    [BITS_PER_SECOND] = {1000, 1e12, 1000, "bits per second from 1k to 1000g, or 0"},
    [BYTES] = {1, 64 << 20, 1024, "bytes from 1 to 64m"},
};

static bool parse_suffix(const char *text, double kilo, double *factor)
{
    static const char letters[] = "kmg";
    const char *letter;

    *factor = 1;
    if (*text == '\0')
        return true;
    letter = strchr(letters, *text);
    if (kilo == 0 || letter == NULL || (text[1] != '\0' && strcmp(text + 1, "bit") != 0))
        return false;
    for (long i = 0; i <= letter - letters; i++)
        *factor *= kilo;
    return true;
}

static bool parse_value(const char *text, enum unit unit, double *value)
{
    const struct unit_rule *rule = &unit_rules[unit];
    double number;
    double factor;
    char *end;

    if (strchr("0123456789.", *text) == NULL)
        return false;
    number = strtod(text, &end);
    if (end == text || !parse_suffix(end, rule->kilo, &factor))
        return false;
    number *= factor;
    if (!(number >= rule->least && number <= rule->most) &&
        !(unit == BITS_PER_SECOND && number == 0))
        return false;
    *value = number;
    return true;
}

/* --- packets and their fate -------------------------------------------------------------------*/

struct packet {
    uint64_t due;            /* when it is delivered */
    uint64_t number;         /* of the last on the wire, from 1; a duplicate has its original's */
    struct packet *next;     /* in the queue before the rate, or in flight */
    struct packet *previous; /* in flight */
    size_t size;             /* of the data, with the header of offload.h */
    size_t wire_bytes;       /* of all that it stands for */
    unsigned segments;
    int way;
    bool copy;
    unsigned char data[];
};

enum purpose {
    FATE_LOSS,
    FATE_DUPLICATE,
    FATE_CORRUPT,
    FATE_BIT,
    FATE_REORDER,
    FATE_HOLD,
    FATE_JITTER,
    FATE_COPY = 8, /* added to the others for a duplicate */
    FATE_COUNT = 16
};

enum counter {
    PACKETS, /* that came in */
    DELIVERED,
    DELIVERED_BYTES,
    DROPPED,    /* all of the next four */
    LOST,       /* by chance */
    OVERFLOWED, /* the queue was full */
    SEVERED,    /* the link was cut */
    REFUSED,    /* by the device they were for */
    DUPLICATED,
    CORRUPTED,
    REORDERED, /* delivered after a later one */
    HELD,      /* now, queued or in flight */
    COUNTERS
};

static const char *const counter_names[COUNTERS] = {
    "packets", "delivered", "delivered_bytes", "dropped",   "lost",      "overflowed",
    "severed", "refused",   "duplicated",      "corrupted", "reordered", "held"};

/* One direction. The queue's head is the packet being sent at the rate; it is through at sent_at.
 */
struct way {
    struct shape shape;
    uint64_t count[COUNTERS];
    struct packet *head, *tail;
    struct packet *first, *last; /* in flight; the first is the next due */
    size_t queued_bytes;
    uint64_t sent_at;
    uint64_t last_due;
    uint64_t latest; /* the highest number delivered */
    bool cut;
};

struct relay {
    struct way ways[2]; /* [0]: from A to B, [1]: from B to A */
    int devices[2];     /* A, B */
    uint64_t seed;
    size_t held_bytes;    /* queued and in flight */
    int control, replies; /* -1: there are none */
    uint64_t started, deadline;
    bool stop;
    int status;
};

static uint64_t fate(const struct relay *relay, int way, uint64_t number, unsigned purpose)
{
    return mix(mix(relay->seed * 2 + (uint64_t)way) + number * FATE_COUNT + purpose);
}

static double fate_fraction(const struct relay *relay, int way, uint64_t number, unsigned purpose)
{
    return (double)(fate(relay, way, number, purpose) >> 11) * 0x1p-53;
}

static double packet_fraction(const struct relay *relay, const struct packet *packet,
                              enum purpose purpose)
{
    return fate_fraction(relay, packet->way, packet->number,
                         (unsigned)purpose + (packet->copy ? FATE_COPY : 0));
}

static void packet_free(struct relay *relay, struct packet *packet)
{
    relay->held_bytes -= packet->size;
    relay->ways[packet->way].count[HELD] -= packet->segments;
    free(packet);
}

/* Behind the IP header everything is under the transport's checksum, which must notice. */
static void packet_corrupt(struct relay *relay, struct packet *packet)
{
    const unsigned char *ip = packet->data + OFFLOAD_HEADER;
    size_t header = OFFLOAD_HEADER + (ip[0] >> 4 == 6 ? 40 : (size_t)(ip[0] & 15) * 4);
    uint64_t bit;

    if (packet_fraction(relay, packet, FATE_CORRUPT) >= relay->ways[packet->way].shape.corrupt ||
        packet->size <= header || !offload_has_checksum(packet->data))
        return;
    bit = fate(relay, packet->way, packet->number, FATE_BIT) % ((packet->size - header) * 8);
    packet->data[header + bit / 8] ^= (unsigned char)(1U << bit % 8);
    relay->ways[packet->way].count[CORRUPTED]++;
}

/* --- in flight --------------------------------------------------------------------------------*/

/* Behind all that are due before it or at the same time: of these the first in is the first out. */
static void flight_add(struct way *way, struct packet *packet)
{
    struct packet *before = way->last;

    while (before != NULL && before->due > packet->due)
        before = before->previous;
    packet->previous = before;
    packet->next = before != NULL ? before->next : way->first;
    *(before != NULL ? &before->next : &way->first) = packet;
    *(packet->next != NULL ? &packet->next->previous : &way->last) = packet;
}

static struct packet *flight_take(struct way *way)
{
    struct packet *packet = way->first;

    way->first = packet->next;
    *(packet->next != NULL ? &packet->next->previous : &way->last) = NULL;
    return packet;
}

/* From the rate's end, or from the device where there is no rate. */
static void packet_launch(struct relay *relay, struct packet *packet, uint64_t time)
{
    struct way *way = &relay->ways[packet->way];
    const struct shape *shape = &way->shape;
    double jitter = packet_fraction(relay, packet, FATE_JITTER) * shape->jitter;

    packet->due = time + millis_to_nanos(shape->delay + jitter);
    if (packet->due < way->last_due)
        packet->due = way->last_due;
    way->last_due = packet->due;
    if (packet_fraction(relay, packet, FATE_REORDER) < shape->reorder) {
        double part = 0.5 + packet_fraction(relay, packet, FATE_HOLD) / 2;

        packet->due += millis_to_nanos(HOLD_MS * part);
    }
    flight_add(way, packet);
}

static void way_drop(struct way *way, enum counter why, uint64_t packets)
{
    way->count[why] += packets;
    way->count[DROPPED] += packets;
}

static void packet_deliver(struct relay *relay, struct packet *packet)
{
    struct way *way = &relay->ways[packet->way];
    ssize_t written = write(relay->devices[!packet->way], packet->data, packet->size);

    if (written == (ssize_t)packet->size) {
        way->count[DELIVERED] += packet->segments;
        way->count[DELIVERED_BYTES] += packet->wire_bytes;
        if (packet->number > way->latest)
            way->latest = packet->number;
        else if (packet->number < way->latest && !packet->copy)
            way->count[REORDERED] += packet->segments;
    } else {
        way_drop(way, REFUSED, packet->segments);
    }
    packet_free(relay, packet);
}

/* --- the rate and its queue -------------------------------------------------------------------*/

static uint64_t send_nanos(const struct way *way, const struct packet *packet)
{
    if (way->shape.rate == 0)
        return 0;
    return (uint64_t)((double)packet->wire_bytes * 8e9 / way->shape.rate);
}

static void queue_append(struct way *way, struct packet *packet, uint64_t now)
{
    if (way->head == NULL) {
        way->head = packet;
        way->sent_at = now + send_nanos(way, packet);
    } else {
        way->tail->next = packet;
    }
    way->tail = packet;
    way->queued_bytes += packet->wire_bytes;
}

static struct packet *queue_take(struct way *way)
{
    struct packet *packet = way->head;

    way->head = packet->next;
    way->queued_bytes -= packet->wire_bytes;
    return packet;
}

/* Each starts where the one before ended, not when the timer woke us: lateness costs no rate. */
static void queue_send(struct relay *relay, struct way *way, uint64_t now)
{
    while (way->head != NULL && way->sent_at <= now) {
        packet_launch(relay, queue_take(way), way->sent_at);
        if (way->head != NULL)
            way->sent_at += send_nanos(way, way->head);
    }
}

static void relay_advance(struct relay *relay, uint64_t now)
{
    for (int i = 0; i < 2; i++) {
        struct way *way = &relay->ways[i];

        queue_send(relay, way, now);
        while (way->first != NULL && way->first->due <= now)
            packet_deliver(relay, flight_take(way));
    }
}

/* --- in and out -------------------------------------------------------------------------------*/

/* How many of these segments the queue takes. */
static unsigned way_room(const struct relay *relay, const struct way *way,
                         const struct offload *whole, unsigned count)
{
    double each = (double)(whole->headers + whole->segment_size);
    double room = way->shape.queue - (double)way->queued_bytes;

    if (relay->held_bytes + PACKET_MAX > HELD_MAX)
        return 0;
    if (way->head == NULL || room >= each * count)
        return count;
    return room >= each ? (unsigned)(room / each) : 0;
}

/* Of what was read, `count` segments behind the first ones. */
static void packet_enter(struct relay *relay, int from, const unsigned char *data,
                         const struct offload *whole, unsigned first, unsigned count, bool copy,
                         uint64_t now)
{
    struct way *way = &relay->ways[from];
    unsigned fit = way_room(relay, way, whole, count);
    struct packet *packet;

    way_drop(way, OVERFLOWED, count - fit);
    if (fit == 0)
        return;
    packet = malloc(sizeof *packet + OFFLOAD_HEADER + offload_wire_bytes(whole));
    if (packet == NULL)
        die(1, "out of memory for a packet of %zu bytes", offload_wire_bytes(whole));
    *packet = (struct packet){.number = way->count[PACKETS] - whole->segments + first + fit,
                              .segments = fit,
                              .way = from,
                              .copy = copy};
    packet->size = offload_cut(data, whole, first, fit, packet->data);
    packet->wire_bytes = packet->size - OFFLOAD_HEADER + (fit - 1) * whole->headers;
    relay->held_bytes += packet->size;
    way->count[HELD] += fit;
    packet_corrupt(relay, packet);
    if (way->shape.rate == 0 && way->head == NULL)
        packet_launch(relay, packet, now);
    else
        queue_append(way, packet, now);
}

/* Segments of which none is lost. */
static void packet_pass(struct relay *relay, int from, const unsigned char *data,
                        const struct offload *whole, unsigned first, unsigned count, uint64_t now)
{
    struct way *way = &relay->ways[from];
    uint64_t number = way->count[PACKETS] - whole->segments + first + count;

    if (count == 0)
        return;
    packet_enter(relay, from, data, whole, first, count, false, now);
    if (fate_fraction(relay, from, number, FATE_DUPLICATE) < way->shape.duplicate) {
        way->count[DUPLICATED] += count;
        packet_enter(relay, from, data, whole, first, count, true, now);
    }
}

static void packet_arrive(struct relay *relay, int from, const unsigned char *data, size_t size,
                          uint64_t now)
{
    struct way *way = &relay->ways[from];
    const struct offload whole = offload_read(data, size);
    uint64_t before = way->count[PACKETS];
    unsigned passing = 0;

    way->count[PACKETS] += whole.segments;
    if (way->cut) {
        way_drop(way, SEVERED, whole.segments);
        return;
    }
    for (unsigned i = 0; i < whole.segments; i++) {
        if (fate_fraction(relay, from, before + i + 1, FATE_LOSS) >= way->shape.loss) {
            passing++;
            continue;
        }
        way_drop(way, LOST, 1);
        packet_pass(relay, from, data, &whole, i - passing, passing, now);
        passing = 0;
    }
    packet_pass(relay, from, data, &whole, whole.segments - passing, passing, now);
}

__attribute__((format(printf, 2, 3))) static void relay_fail(struct relay *relay,
                                                             const char *format, ...)
{
    va_list arguments;

    fputs("relay: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    relay->stop = true;
    relay->status = 1;
}

static void device_read(struct relay *relay, int from)
{
    unsigned char data[PACKET_MAX];
    uint64_t now = now_nanos();

    relay_advance(relay, now);
    for (int i = 0; i < READ_BATCH; i++) {
        ssize_t size = read(relay->devices[from], data, sizeof data);

        if (size > OFFLOAD_HEADER) {
            packet_arrive(relay, from, data, (size_t)size, now);
        } else {
            if (size < 0 && errno != EAGAIN && errno != EINTR)
                relay_fail(relay, "device %c: %m", 'a' + from);
            return;
        }
    }
}

/* What is on its way, in the queue or in flight. Returns how many packets that were. */
static uint64_t way_clear(struct relay *relay, struct way *way)
{
    uint64_t held = way->count[HELD];

    while (way->head != NULL)
        packet_free(relay, queue_take(way));
    while (way->first != NULL)
        packet_free(relay, flight_take(way));
    return held;
}

static void way_cut(struct relay *relay, int which)
{
    struct way *way = &relay->ways[which];

    way->cut = true;
    way_drop(way, SEVERED, way_clear(relay, way));
}

/* --- control ----------------------------------------------------------------------------------*/

/* "a:VALUE", "b:VALUE" or "VALUE"; NULL or what was expected instead. */
static const char *relay_set(struct relay *relay, const struct setting *setting, const char *text)
{
    bool one = (*text == 'a' || *text == 'b') && text[1] == ':';
    double value;

    if (!parse_value(one ? text + 2 : text, setting->unit, &value))
        return unit_rules[setting->unit].expected;
    for (int i = 0; i < 2; i++) {
        if (!one || *text == 'a' + i)
            *(double *)((char *)&relay->ways[i].shape + setting->offset) = value;
    }
    return NULL;
}

static void relay_json(const struct relay *relay, char reply[REPLY_MAX])
{
    FILE *out = fmemopen(reply, REPLY_MAX, "w");

    if (out == NULL)
        die(1, "statistics: %m");
    fprintf(out, "{\"seconds\": %.3f", (double)(now_nanos() - relay->started) / 1e9);
    for (int i = 0; i < 2; i++) {
        const uint64_t *count = relay->ways[i].count;

        fprintf(out, ", \"%c\": {", 'a' + i);
        for (int j = 0; j < COUNTERS; j++)
            fprintf(out, "%s\"%s\": %ju", j > 0 ? ", " : "", counter_names[j], (uintmax_t)count[j]);
        fprintf(out, "}");
    }
    fprintf(out, "}");
    fclose(out);
}

static bool command_cut(struct relay *relay, const char *verb, const char *which)
{
    bool cut = strcmp(verb, "cut") == 0;

    if (strcmp(which, "") != 0 && strcmp(which, "a") != 0 && strcmp(which, "b") != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        if (*which != '\0' && *which != 'a' + i)
            continue;
        if (cut)
            way_cut(relay, i);
        else
            relay->ways[i].cut = false;
    }
    return true;
}

static const struct setting *setting_find(const char *name)
{
    for (int i = 0; i < SETTINGS; i++) {
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    }
    return NULL;
}

static void command_run(struct relay *relay, const char *command, char reply[REPLY_MAX])
{
    char verb[32] = "";
    char value[64] = "";
    char rest[2] = "";
    int words = sscanf(command, "%31s %63s %1s", verb, value, rest);
    const struct setting *setting = setting_find(verb);
    const char *expected = NULL;

    snprintf(reply, REPLY_MAX, "ok");
    if (words == 2 && setting != NULL) {
        expected = relay_set(relay, setting, value);
    } else if (words < 3 && (strcmp(verb, "cut") == 0 || strcmp(verb, "restore") == 0)) {
        if (!command_cut(relay, verb, value))
            expected = "a or b";
    } else if (words == 1 && strcmp(verb, "stats") == 0) {
        relay_json(relay, reply);
    } else if (words == 1 && strcmp(verb, "quit") == 0) {
        relay->stop = true;
    } else {
        expected = "cut, restore, stats, quit or an option and its value";
    }
    if (expected != NULL)
        snprintf(reply, REPLY_MAX, "error: '%s': expected %s", command, expected);
}

static void control_read(struct relay *relay)
{
    char command[COMMAND_MAX];
    char reply[REPLY_MAX];
    ssize_t size = read(relay->control, command, sizeof command - 1);

    if (size < 0)
        return;
    command[size] = '\0';
    command[strcspn(command, "\n")] = '\0';
    relay_advance(relay, now_nanos());
    command_run(relay, command, reply);
    dprintf(relay->replies, "%s\n", reply);
}

/* For reading and writing, so that nobody has to be at the other end. */
static int control_fifo(const char *prefix, const char *suffix)
{
    char path[4096];
    int fd;

    snprintf(path, sizeof path, "%s.%s", prefix, suffix);
    fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        die(1, "%s: %m", path);
    return fd;
}

static void control_open(struct relay *relay, const char *prefix)
{
    relay->control = control_fifo(prefix, "control");
    relay->replies = control_fifo(prefix, "reply");
    dprintf(relay->replies, "ready\n");
}

/* --- devices ----------------------------------------------------------------------------------*/

struct arguments {
    const char *a, *b;
    const char *control;
    uint64_t mtu;
    uint64_t limit;
    bool offload;
};

static void device_up(const char *name, int mtu)
{
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        die(1, "socket: %m");
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    request.ifr_mtu = mtu;
    if (ioctl(fd, SIOCSIFMTU, &request) < 0)
        die(1, "%s: an MTU of %d bytes: %m", name, mtu);
    request.ifr_qlen = DEVICE_QUEUE;
    if (ioctl(fd, SIOCSIFTXQLEN, &request) < 0)
        die(1, "%s: a queue of %d packets: %m", name, DEVICE_QUEUE);
    if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
        die(1, "%s: flags: %m", name);
    request.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        die(1, "%s: up: %m", name);
    close(fd);
}

static int device_create(const char *name, bool offload)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        die(1, "/dev/net/tun: %m");
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(fd, TUNSETIFF, &request) < 0)
        die(1, "TUN device '%s': %m", name);
    if (offload && ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0)
        die(1, "offloads of TUN device '%s': %m", name);
    return fd;
}

static void namespace_enter(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
        die(1, "network namespace %s: %m", path);
    close(fd);
}

/* The device belongs to the namespace in which it was made; we come back from there. */
static int device_open(const char *where, const struct arguments *arguments)
{
    const char *colon = strchr(where, ':');
    const char *device = colon != NULL ? colon + 1 : "relay0";
    int length = colon != NULL ? (int)(colon - where) : (int)strlen(where);
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    char path[128];
    int fd;

    if (home < 0)
        die(1, "/proc/self/ns/net: %m");
    if (length == 0 || length > 64 || memchr(where, '/', (size_t)length) != NULL ||
        *device == '\0' || strlen(device) >= IFNAMSIZ || strpbrk(device, "/:% ") != NULL)
        die(2, "'%s' is not a namespace and a device: expected NAME or NAME:DEVICE", where);
    snprintf(path, sizeof path, "/run/netns/%.*s", length, where);
    namespace_enter(path);
    fd = device_create(device, arguments->offload);
    device_up(device, (int)arguments->mtu);
    if (setns(home, CLONE_NEWNET) < 0)
        die(1, "back to the own network namespace: %m");
    close(home);
    return fd;
}

/* --- the loop ---------------------------------------------------------------------------------*/

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    (void)number;
    signalled = true;
}

/* Signals come only while it waits, with the mask *unblocked. */
static void signals_open(sigset_t *unblocked)
{
    static const int ending[] = {SIGTERM, SIGINT, SIGHUP};
    sigset_t blocked;

    sigemptyset(&blocked);
    for (int i = 0; i < 3; i++) {
        sigaddset(&blocked, ending[i]);
        signal(ending[i], on_signal);
    }
    sigprocmask(SIG_BLOCK, &blocked, unblocked);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_TIMERSLACK, 1UL); /* short delays are exact */
}

static uint64_t relay_next_event(const struct relay *relay)
{
    uint64_t next = relay->deadline;

    for (int i = 0; i < 2; i++) {
        const struct way *way = &relay->ways[i];

        if (way->first != NULL && way->first->due < next)
            next = way->first->due;
        if (way->head != NULL && way->sent_at < next)
            next = way->sent_at;
    }
    return next;
}

/* Until something has arrived or is due; false: neither, but a signal. */
static bool relay_wait(struct relay *relay, struct pollfd *sources, nfds_t count,
                       const sigset_t *unblocked)
{
    uint64_t next = relay_next_event(relay);
    uint64_t now = now_nanos();
    uint64_t span = next > now ? next - now : 0;
    struct timespec time = {.tv_sec = (time_t)(span / NANOS), .tv_nsec = (long)(span % NANOS)};

    if (ppoll(sources, count, &time, unblocked) >= 0)
        return true;
    if (errno != EINTR)
        relay_fail(relay, "ppoll: %m");
    return false;
}

static void relay_run(struct relay *relay, const sigset_t *unblocked)
{
    struct pollfd sources[] = {{.fd = relay->devices[0], .events = POLLIN},
                               {.fd = relay->devices[1], .events = POLLIN},
                               {.fd = relay->control, .events = POLLIN}};

    while (!relay->stop && !signalled) {
        if (!relay_wait(relay, sources, 3, unblocked))
            continue;
        for (int i = 0; i < 2; i++) {
            if ((sources[i].revents & (POLLERR | POLLHUP)) != 0)
                relay_fail(relay, "device %c is gone", 'a' + i);
            else if (sources[i].revents != 0)
                device_read(relay, i);
        }
        if (sources[2].revents != 0)
            control_read(relay);
        relay_advance(relay, now_nanos());
        if (now_nanos() >= relay->deadline)
            relay_fail(relay, "the time limit of %.0f s is over",
                       (double)(relay->deadline - relay->started) / 1e9);
    }
}

static void relay_close(struct relay *relay)
{
    for (int i = 0; i < 2; i++) {
        way_clear(relay, &relay->ways[i]);
        close(relay->devices[i]);
    }
    if (relay->control >= 0) {
        close(relay->control);
        close(relay->replies);
    }
}

/* --- options ----------------------------------------------------------------------------------*/

static void options_parse(struct relay *relay, struct arguments *arguments, int argc, char **argv)
{
    const struct {
        const char *name;
        uint64_t least;
        uint64_t most;
        uint64_t *value;
    } numbers[] = {
        {"mtu", 576, MTU_MAX, &arguments->mtu},
        {"seed", 0, UINT32_MAX, &relay->seed},
        {"limit", 1, LIMIT_SECONDS_MAX, &arguments->limit},
    };
    enum { NUMBERS = 3, CONTROL = SETTINGS + NUMBERS, OFFLOAD, HELP, OPTIONS };
    struct option options[OPTIONS + 1] = {
        [CONTROL] = {"control", required_argument, NULL, CONTROL},
        [OFFLOAD] = {"offload", no_argument, NULL, OFFLOAD},
        [HELP] = {"help", no_argument, NULL, HELP},
    };
    int option;

    for (int i = 0; i < CONTROL; i++)
        options[i] = (struct option){i < SETTINGS ? settings[i].name : numbers[i - SETTINGS].name,
                                     required_argument, NULL, i};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1 && option < HELP) {
        const char *name = options[option].name;
        const char *expected = NULL;

        if (option < SETTINGS)
            expected = relay_set(relay, &settings[option], optarg);
        else if (option < CONTROL)
            *numbers[option - SETTINGS].value = parse_number(
                name, optarg, numbers[option - SETTINGS].least, numbers[option - SETTINGS].most);
        else if (option == CONTROL)
            arguments->control = optarg;
        else
            arguments->offload = true;
        if (expected != NULL)
            die(2, "--%s %s: expected %s", name, optarg, expected);
    }
    if (option == HELP) {
        fputs(usage, stdout);
        exit(0);
    }
    if (option != -1 || argc - optind != 2) {
        fputs(usage, stderr);
        exit(2);
    }
    arguments->a = argv[optind];
    arguments->b = argv[optind + 1];
}

int main(int argc, char **argv)
{
    struct relay relay = {
        .ways = {{.shape = perfect}, {.shape = perfect}}, .seed = 1, .control = -1};
    struct arguments arguments = {.mtu = 1500, .limit = 300};
    char statistics[REPLY_MAX];
    sigset_t unblocked;

    options_parse(&relay, &arguments, argc, argv);
    signals_open(&unblocked);
    relay.devices[0] = device_open(arguments.a, &arguments);
    relay.devices[1] = device_open(arguments.b, &arguments);
    relay.started = now_nanos();
    relay.deadline = relay.started + arguments.limit * NANOS;
    if (arguments.control != NULL)
        control_open(&relay, arguments.control);
    relay_run(&relay, &unblocked);
    relay_json(&relay, statistics);
    puts(statistics);
    if (fflush(stdout) != 0)
        relay_fail(&relay, "statistics: %m");
    relay_close(&relay);
    return relay.status;
}
