/*
 * Rules for connections, and the record of them: a text file for each interface of a network
 * namespace, a line for each rule. It is changed under a lock, and replaced as a whole. It is only
 * a hint: a line that makes no sense is dropped, and a rule is removed only if the NIC still has
 * exactly this one.
 */
#include "net/nic/steering.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/parse.h"
#include "net/socket/socket.h"
#include "net/nic/steering_files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    LOCK_PATIENCE_MS = 2000,
    LOCK_PAUSE_NS = 2000000,
    MOST_RECORD_BYTES = 1 << 20,
};

/* --- a line -------------------------------------------------------------------------------- */

static void format_address(const struct sockaddr_storage *address, char text[INET6_ADDRSTRLEN],
                           unsigned *port)
{
    const union socket_address any = {.storage = *address};

    *text = '\0';
    if (address->ss_family == AF_INET) {
        inet_ntop(AF_INET, &any.ipv4.sin_addr, text, INET6_ADDRSTRLEN);
        *port = ntohs(any.ipv4.sin_port);
    } else {
        inet_ntop(AF_INET6, &any.ipv6.sin6_addr, text, INET6_ADDRSTRLEN);
        *port = ntohs(any.ipv6.sin6_port);
    }
}

void steering_format(const struct steering_line *line, char text[STEERING_LINE_BYTES])
{
    char from[INET6_ADDRSTRLEN];
    char to[INET6_ADDRSTRLEN];
    unsigned from_port;
    unsigned to_port;

    format_address(&line->rule.from, from, &from_port);
    format_address(&line->rule.to, to, &to_port);
    snprintf(text, STEERING_LINE_BYTES, "%d %llu %llu %s %u %s %u %u %u", line->process.pid,
             (unsigned long long)line->process.started,
             (unsigned long long)line->process.name_space, from, from_port, to, to_port,
             line->rule.queue, line->rule.location);
}

static bool parse_within(const char *text, uint64_t least, uint64_t most, uint64_t *number)
{
    uint64_t value;

    if (!parse_number(text, &value) || value < least || value > most)
        return false;
    *number = value;
    return true;
}

static bool parse_address(const char *text, const char *port_text, struct sockaddr_storage *address)
{
    union socket_address any = {0};
    uint64_t port;

    if (!parse_within(port_text, 1, UINT16_MAX, &port))
        return false;
    if (inet_pton(AF_INET, text, &any.ipv4.sin_addr) == 1) {
        any.ipv4.sin_family = AF_INET;
        any.ipv4.sin_port = htons((uint16_t)port);
    } else if (inet_pton(AF_INET6, text, &any.ipv6.sin6_addr) == 1) {
        any.ipv6.sin6_family = AF_INET6;
        any.ipv6.sin6_port = htons((uint16_t)port);
    } else {
        return false;
    }
    *address = any.storage;
    return true;
}

bool steering_parse(const char *text, struct steering_line *line)
{
    enum { PID, STARTED, NAME_SPACE, FROM, FROM_PORT, TO, TO_PORT, QUEUE, LOCATION, FIELDS };
    struct steering_line read = {0};
    char copy[STEERING_LINE_BYTES];
    char *fields[FIELDS];
    char *rest = copy;
    uint64_t pid;
    uint64_t queue;
    uint64_t location;

    if (strlen(text) >= sizeof copy)
        return false;
    memcpy(copy, text, strlen(text) + 1);
    for (int i = 0; i < FIELDS; i++) {
        fields[i] = strsep(&rest, " ");
        if (fields[i] == NULL)
            return false;
    }
    if (rest != NULL || !parse_within(fields[PID], 1, INT_MAX, &pid) ||
        !parse_number(fields[STARTED], &read.process.started) ||
        !parse_within(fields[NAME_SPACE], 1, UINT64_MAX, &read.process.name_space) ||
        !parse_address(fields[FROM], fields[FROM_PORT], &read.rule.from) ||
        !parse_address(fields[TO], fields[TO_PORT], &read.rule.to) ||
        read.rule.from.ss_family != read.rule.to.ss_family ||
        !parse_within(fields[QUEUE], 0, NIC_MOST_QUEUES - 1, &queue) ||
        !parse_within(fields[LOCATION], 0, UINT32_MAX, &location))
        return false;
    read.process.pid = (int)pid;
    read.rule.queue = (unsigned)queue;
    read.rule.location = (uint32_t)location;
    *line = read;
    return true;
}

/* --- processes ----------------------------------------------------------------------------- */

struct status {
    char state;
    uint64_t threads;
    uint64_t started;
};

/* Fields 3, 20 and 22 of /proc/PID/stat; the name before them can have any characters. */
static bool read_status(int pid, struct status *status)
{
    char path[40];
    char text[1024];
    char *rest;
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    rest = strrchr(text, ')');
    if (rest == NULL || rest[1] != ' ')
        return false;
    rest += 2;
    status->state = *rest;
    for (int field = 3; field <= 22; field++) {
        const char *value = strsep(&rest, " ");

        if (value == NULL || (field == 20 && !parse_number(value, &status->threads)) ||
            (field == 22 && !parse_number(value, &status->started)))
            return false;
    }
    return true;
}

/* Which namespace of process ids or of networks this thread is in; 0: unknown. */
static uint64_t name_space(const char *kind)
{
    char path[40];
    struct stat status;

    snprintf(path, sizeof path, "/proc/thread-self/ns/%s", kind);
    return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static bool this_process(struct steering_process *process)
{
    struct status status;

    if (!read_status((int)getpid(), &status))
        return false;
    *process = (struct steering_process){
        .pid = (int)getpid(), .started = status.started, .name_space = name_space("pid")};
    return process->name_space != 0;
}

bool steering_is_gone(const struct steering_process *process)
{
    struct status status;

    /* The numbers of other containers say nothing here. */
    if (process->name_space != name_space("pid"))
        return false;
    if (kill(process->pid, 0) != 0)
        return errno == ESRCH;
    if (!read_status(process->pid, &status))
        return false;
    /* Dead and not yet waited for, unless only its first thread has ended. */
    return status.started != process->started || (status.state == 'Z' && status.threads <= 1);
}

/* --- the record ---------------------------------------------------------------------------- */

struct record {
    int lock;
    char path[PATH_MAX];
    struct steering_line *lines;
    size_t count;
};

/* The lock's file stays: who removes it could remove one that another has just locked. */
static int open_lock(const char *record_path, const char *ending, int *fd)
{
    char path[PATH_MAX + 16];
    int opened = -1;
    int error;

    if (fork_watch() != TCPX_SUCCESS)
        return ENOMEM;
    snprintf(path, sizeof path, "%s.%s", record_path, ending);
    /* A child would keep the lock. */
    fork_hold();
    error = steering_files_open(path, O_RDWR | O_CREAT, &opened);
    if (!fork_release(opened))
        return ENOMEM;
    if (error == 0)
        *fd = opened;
    return error;
}

/* EWOULDBLOCK: another process had it all the time; a patience of 0 tries once. */
static int take_lock(int fd, unsigned patience_ms)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
    uint64_t deadline = deadline_after_ms(patience_ms);

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return errno;
        if (deadline_passed(deadline))
            return EWOULDBLOCK;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* The whole file, as a text; NULL: there is none, or no memory. */
static char *read_file(const char *path)
{
    int fd = -1;
    int error = steering_files_open(path, O_RDONLY, &fd);
    char *text = error == 0 ? malloc(MOST_RECORD_BYTES + 1) : NULL;
    size_t length = 0;
    ssize_t got = 1;

    while (text != NULL && got > 0 && length < MOST_RECORD_BYTES) {
        got = read(fd, text + length, MOST_RECORD_BYTES - length);
        length += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0)
        close(fd);
    if (text == NULL)
        return NULL;
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\0')
            text[i] = '?'; /* not a character of any line that is understood */
    text[length] = '\0';
    return text;
}

/* Room for all lines of the text, and for one more. */
static struct steering_line *make_room(const char *text)
{
    size_t lines = 2;

    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return calloc(lines, sizeof(struct steering_line));
}

static int read_lines(struct record *record)
{
    char *text = read_file(record->path);
    char *rest = text;

    record->count = 0;
    record->lines = make_room(text != NULL ? text : "");
    while (record->lines != NULL && rest != NULL) {
        const char *line = strsep(&rest, "\n");

        if (*line != '\0' && steering_parse(line, &record->lines[record->count]))
            record->count++;
        else if (*line != '\0')
            log_debug("%s: a line is not understood, and dropped", record->path);
    }
    free(text);
    return record->lines != NULL ? 0 : ENOMEM;
}

/* Of this interface, in this network namespace. 0, or an errno. */
static int name_record(const char *interface, bool make_folder, char path[PATH_MAX])
{
    uint64_t network = name_space("net");
    int error = steering_files_folder(make_folder, path);
    size_t length = strlen(path);

    if (error != 0)
        return error;
    if (strchr(interface, '/') != NULL)
        return EINVAL;
    if (snprintf(path + length, PATH_MAX - length, "/steering-%llu-%s", (unsigned long long)network,
                 interface) >= (int)(PATH_MAX - length))
        return ENAMETOOLONG;
    return network != 0 ? 0 : ENOENT;
}

/* 0, or an errno; EWOULDBLOCK: another process has the record. */
static int record_open(const char *interface, unsigned patience_ms, struct record *record)
{
    int error = name_record(interface, true, record->path);

    record->lock = -1;
    if (error == 0)
        error = open_lock(record->path, "lock", &record->lock);
    if (error == 0)
        error = take_lock(record->lock, patience_ms);
    if (error == 0)
        error = read_lines(record);
    if (error != 0)
        socket_close(&record->lock);
    return error;
}

/* Once is enough: the reason is the same for all rules. */
static void warn_unrecorded(const char *interface, const char *path, int error)
{
    static atomic_bool warned;
    char reason[ERROR_REASON_BYTES];

    if (!atomic_exchange(&warned, true))
        log_warn("%s: rules are not recorded, and would stay if this process were killed: %s: %s",
                 interface, path,
                 error == EWOULDBLOCK ? "another process keeps it locked"
                                      : error_reason(error, reason));
}

static void record_close(struct record *record)
{
    free(record->lines);
    socket_close(&record->lock);
}

static bool write_lines(const struct record *record, const char *path)
{
    char text[STEERING_LINE_BYTES];
    FILE *file;
    bool good;
    int fd = -1;

    (void)unlink(path);
    file =
        steering_files_open(path, O_WRONLY | O_CREAT | O_EXCL, &fd) == 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    for (size_t i = 0; i < record->count; i++) {
        steering_format(&record->lines[i], text);
        fprintf(file, "%s\n", text);
    }
    good = !ferror(file);
    return fclose(file) == 0 && good;
}

static void record_write(const struct record *record)
{
    char path[PATH_MAX + 8];

    snprintf(path, sizeof path, "%s.new", record->path);
    if (record->count == 0 && (unlink(record->path) == 0 || errno == ENOENT))
        return;
    if (write_lines(record, path) && rename(path, record->path) == 0)
        return;
    log_debug("%s cannot be written: %s", record->path, strerror(errno));
    (void)unlink(path);
}

/* Takes lines out. */
static void forget(struct record *record,
                   bool (*matches)(const struct steering_line *line,
                                   const struct steering_line *pattern),
                   const struct steering_line *pattern)
{
    size_t kept = 0;

    for (size_t i = 0; i < record->count; i++)
        if (!matches(&record->lines[i], pattern))
            record->lines[kept++] = record->lines[i];
    record->count = kept;
}

static bool is_at(const struct steering_line *line, const struct steering_line *pattern)
{
    return line->rule.location == pattern->rule.location;
}

static bool is_same(const struct steering_line *line, const struct steering_line *pattern)
{
    char one[STEERING_LINE_BYTES];
    char other[STEERING_LINE_BYTES];

    steering_format(line, one);
    steering_format(pattern, other);
    return strcmp(one, other) == 0;
}

/* --- connections --------------------------------------------------------------------------- */

/* IPv4 that came through an IPv6 socket is IPv4 on the wire. */
static void unmap(struct sockaddr_storage *address)
{
    union socket_address any = {.storage = *address};
    union socket_address plain = {0};

    if (address->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&any.ipv6.sin6_addr))
        return;
    plain.ipv4.sin_family = AF_INET;
    plain.ipv4.sin_port = any.ipv6.sin6_port;
    memcpy(&plain.ipv4.sin_addr, any.ipv6.sin6_addr.s6_addr + 12, sizeof plain.ipv4.sin_addr);
    *address = plain.storage;
}

int steering_describe(int socket, struct nic_rule *rule)
{
    struct nic_rule made = {0};
    socklen_t length = sizeof made.to;

    if (getsockname(socket, (struct sockaddr *)&made.to, &length) != 0)
        return error_system(errno, "the address of a socket that is to be steered");
    length = sizeof made.from;
    if (getpeername(socket, (struct sockaddr *)&made.from, &length) != 0)
        return error_system(errno, "the peer of a socket that is to be steered");
    if (socket_address_length(&made.to) == 0 || socket_address_length(&made.from) == 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a socket that is to be steered must be of IPv4 or IPv6");
    unmap(&made.from);
    unmap(&made.to);
    *rule = made;
    return TCPX_SUCCESS;
}

static void remember(struct record *record, const struct nic_rule *rule)
{
    struct steering_line line = {.rule = *rule};

    if (!this_process(&line.process)) {
        log_debug("%s: a rule is not recorded, since /proc does not tell about this process",
                  record->path);
        return;
    }
    /* A location has one rule: what the record says of an earlier one there is over. */
    forget(record, is_at, &line);
    record->lines[record->count++] = line;
    record_write(record);
}

int steering_begin(const char *interface, int socket, unsigned queue, uint64_t patience_ends,
                   struct nic_rule *rule)
{
    struct record record;
    struct nic_rule made;
    int error;
    int result = steering_describe(socket, &made);

    if (result != TCPX_SUCCESS)
        return result;
    made.queue = queue;
    /* The lock is taken first: processes that choose a location at once would take the same. */
    error = record_open(interface, 0, &record);
    if (error == EWOULDBLOCK && !deadline_passed(patience_ends))
        return error_set(TCPX_IN_PROGRESS, "%s: another process changes its rules", interface);
    if (error != 0)
        warn_unrecorded(interface, record.path, error);
    result = nic_rule_add(interface, &made);
    if (error == 0 && result == TCPX_SUCCESS)
        remember(&record, &made);
    if (error == 0)
        record_close(&record);
    if (result == TCPX_SUCCESS)
        *rule = made;
    return result;
}

/* What cannot be removed stays in the record, for the next one to try. */
static bool remove_rule(const char *interface, const struct nic_rule *rule, bool *removed)
{
    *removed = false;
    if (nic_rule_remove(interface, rule, removed) == TCPX_SUCCESS)
        return true;
    log_debug("%s", error_text());
    return false;
}

void steering_end(const char *interface, const struct nic_rule *rule)
{
    struct steering_line line = {.rule = *rule};
    struct record record;
    bool removed;
    bool is_recorded = record_open(interface, LOCK_PATIENCE_MS, &record) == 0;

    if (remove_rule(interface, rule, &removed) && is_recorded && this_process(&line.process)) {
        forget(&record, is_same, &line);
        record_write(&record);
    }
    if (is_recorded)
        record_close(&record);
}

unsigned steering_clean(const char *interface)
{
    struct record record;
    unsigned count = 0;
    size_t kept = 0;

    if (name_record(interface, false, record.path) != 0 || access(record.path, F_OK) != 0 ||
        record_open(interface, LOCK_PATIENCE_MS, &record) != 0)
        return 0;
    for (size_t i = 0; i < record.count; i++) {
        bool removed = false;

        if (steering_is_gone(&record.lines[i].process) &&
            remove_rule(interface, &record.lines[i].rule, &removed))
            count += removed;
        else
            record.lines[kept++] = record.lines[i];
    }
    if (kept != record.count) {
        record.count = kept;
        record_write(&record);
    }
    record_close(&record);
    if (count > 0)
        log_debug("%s: removed %u rule%s of processes that are gone", interface, count,
                  count == 1 ? "" : "s");
    return count;
}

int steering_lock(const char *interface)
{
    char reason[ERROR_REASON_BYTES];
    char path[PATH_MAX];
    int lock = -1;
    int error = name_record(interface, true, path);

    if (error == 0)
        error = open_lock(path, "setup.lock", &lock);
    if (error == 0)
        error = take_lock(lock, LOCK_PATIENCE_MS);
    if (error == 0)
        return lock;
    log_warn("%s: other processes cannot be kept from changing it at the same time: %s: %s",
             interface, path,
             error == EWOULDBLOCK ? "another one keeps it locked" : error_reason(error, reason));
    socket_close(&lock);
    return -1;
}

void steering_unlock(int lock)
{
    socket_close(&lock);
}
