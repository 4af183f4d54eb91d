/* A text file for each interface of a network namespace, a line for each rule. */
#include "net/nic/rule_journal.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/nic/features.h"
#include "net/nic/steering_files.h"
#include "net/socket/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* --- a line -------------------------------------------------------------------------------- */

static unsigned line_format_address(const struct sockaddr_storage *address,
                                    char text[INET6_ADDRSTRLEN])
{
    const union socket_address any = {.storage = *address};
    bool is_ipv4 = address->ss_family == AF_INET;

    *text = '\0';
    inet_ntop(is_ipv4 ? AF_INET : AF_INET6,
              is_ipv4 ? (const void *)&any.ipv4.sin_addr : &any.ipv6.sin6_addr, text,
              INET6_ADDRSTRLEN);
    return ntohs(is_ipv4 ? any.ipv4.sin_port : any.ipv6.sin6_port);
}

void rule_line_format(const struct rule_line *line, char text[RULE_LINE_BYTES])
{
    char from[INET6_ADDRSTRLEN];
    char to[INET6_ADDRSTRLEN];
    unsigned from_port = line_format_address(&line->rule.from, from);
    unsigned to_port = line_format_address(&line->rule.to, to);

    snprintf(text, RULE_LINE_BYTES, "%d %llu %llu %s %u %s %u %u %u", line->owner.pid,
             (unsigned long long)line->owner.started, (unsigned long long)line->owner.name_space,
             from, from_port, to, to_port, line->rule.queue, line->rule.location);
}

static bool line_parse_address(const char *text, unsigned long long port,
                               struct sockaddr_storage *address)
{
    union socket_address any = {0};

    if (inet_pton(AF_INET, text, &any.ipv4.sin_addr) == 1)
        any.ipv4.sin_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &any.ipv6.sin6_addr) == 1)
        any.ipv6.sin6_family = AF_INET6;
    else
        return false;
    any.ipv4.sin_port = htons((uint16_t)port); /* at the same place in both families */
    *address = any.storage;
    return any.ipv4.sin_port != 0;
}

/* Strict: what rule_line_format() would write in another way is not a line. */
bool rule_line_parse(const char *text, struct rule_line *line)
{
    char from[INET6_ADDRSTRLEN];
    char to[INET6_ADDRSTRLEN];
    char again[RULE_LINE_BYTES];
    unsigned long long numbers[7];
    struct rule_line read = {0};

    _Static_assert(sizeof from == 46, "the width of an address below");
    if (sscanf(text, "%llu %llu %llu %45s %llu %45s %llu %llu %llu", &numbers[0], &numbers[1],
               &numbers[2], from, &numbers[3], to, &numbers[4], &numbers[5], &numbers[6]) != 9)
        return false;
    read.owner = (struct rule_owner){
        .pid = (int)numbers[0], .started = numbers[1], .name_space = numbers[2]};
    read.rule.queue = (unsigned)numbers[5];
    read.rule.location = (uint32_t)numbers[6];
    if (read.owner.pid < 1 || read.owner.name_space == 0 ||
        !line_parse_address(from, numbers[3], &read.rule.from) ||
        !line_parse_address(to, numbers[4], &read.rule.to) ||
        read.rule.from.ss_family != read.rule.to.ss_family || read.rule.queue >= NIC_MOST_QUEUES)
        return false;
    rule_line_format(&read, again);
    if (strcmp(text, again) != 0)
        return false;
    *line = read;
    return true;
}

/* --- the lock ------------------------------------------------------------------------------ */

/* 0, or an errno. */
static int journal_name(const char *interface, bool make_folder, char path[PATH_MAX])
{
    uint64_t network = rule_owner_name_space("net");
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

bool rule_journal_exists(const char *interface)
{
    char path[PATH_MAX];

    return journal_name(interface, false, path) == 0 && access(path, F_OK) == 0;
}

/* The lock file is never removed: that could remove one that another process has just locked. */
static int journal_open_lock(struct rule_journal *journal, const char *lock_name)
{
    char path[PATH_MAX + 16];
    int error;

    if (fork_watch() != TCPX_SUCCESS)
        return ENOMEM;
    snprintf(path, sizeof path, "%s.%s", journal->path, lock_name);
    /* A child that inherits the descriptor would keep the lock. */
    fork_hold();
    error = steering_files_open(path, O_RDWR | O_CREAT, &journal->lock);
    if (fork_release(journal->lock))
        return error;
    journal->lock = -1;
    return ENOMEM;
}

int rule_journal_open(const char *interface, const char *lock_name, unsigned patience_ms,
                      struct rule_journal *journal)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    uint64_t deadline = deadline_after_ms(patience_ms);
    int error = journal_name(interface, true, journal->path);

    journal->lock = -1;
    if (error == 0)
        error = journal_open_lock(journal, lock_name);
    while (error == 0 && flock(journal->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            error = errno;
        else if (deadline_passed(deadline))
            error = EWOULDBLOCK;
        else
            nanosleep(&pause, NULL);
    }
    if (error != 0)
        socket_close(&journal->lock);
    return error;
}

void rule_journal_close(struct rule_journal *journal)
{
    socket_close(&journal->lock);
}

/* --- the file ------------------------------------------------------------------------------ */

static FILE *journal_stream(const char *path, int flags, const char *mode)
{
    FILE *file;
    int fd;

    if (steering_files_open(path, flags, &fd) != 0)
        return NULL;
    file = fdopen(fd, mode);
    if (file == NULL)
        close(fd);
    return file;
}

/* Copies lines to `to`, which may be NULL. Returns how many; *dropped counts the other ones. */
static size_t journal_copy(const char *path, FILE *from, FILE *to, rule_journal_keep *keep,
                           void *context, size_t *dropped)
{
    struct rule_line line;
    char *text = NULL;
    size_t room = 0;
    size_t kept = 0;
    ssize_t length;

    while ((length = getline(&text, &room, from)) > 0) {
        if (text[length - 1] == '\n')
            text[--length] = '\0';
        /* a zero byte inside is not part of any line */
        if (strlen(text) != (size_t)length || !rule_line_parse(text, &line)) {
            if (length > 0)
                log_debug("%s: a line is not understood, and dropped", path);
        } else if (!keep(context, &line)) {
            ++*dropped;
        } else {
            kept++;
            if (to != NULL)
                fprintf(to, "%s\n", text);
        }
    }
    free(text);
    return kept;
}

void rule_journal_rewrite(const struct rule_journal *journal, rule_journal_keep *keep,
                          void *context, const struct rule_line *added)
{
    char path[PATH_MAX + 8];
    char text[RULE_LINE_BYTES];
    FILE *from = journal_stream(journal->path, O_RDONLY, "r");
    FILE *to;
    size_t dropped = 0;
    size_t kept = 0;
    bool was_read = true;
    bool was_written;
    bool good = true;

    snprintf(path, sizeof path, "%s.new", journal->path);
    (void)unlink(path);
    to = journal_stream(path, O_WRONLY | O_CREAT | O_EXCL, "w");
    if (from != NULL) {
        kept = journal_copy(journal->path, from, to, keep, context, &dropped);
        was_read = feof(from) != 0;
        fclose(from);
    }
    if (added != NULL && to != NULL) {
        rule_line_format(added, text);
        fprintf(to, "%s\n", text);
    }
    was_written = to != NULL && ferror(to) == 0;
    was_written = to != NULL && fclose(to) == 0 && was_written;
    if (added != NULL || (dropped > 0 && kept > 0))
        good = was_read && was_written && rename(path, journal->path) == 0;
    else if (dropped > 0)
        good = was_read && unlink(journal->path) == 0;
    if (!good)
        log_debug("%s cannot be written: %s", journal->path, strerror(errno));
    (void)unlink(path);
}
