/*
 * A text file for each interface of a network namespace, a line for each rule. The folder is chosen
 * again in each call, so that all processes of a user choose the same one.
 */
#include "net/nic/rule_journal.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/nic/nic.h"
#include "net/socket/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- owners, as /proc shows processes ------------------------------------------------------ */

struct owner_status {
    char state;
    unsigned long long threads;
    unsigned long long started;
};

/* Fields 3, 20 and 22 of /proc/PID/stat; the name before them can have any characters. */
static bool owner_read_status(int pid, struct owner_status *status)
{
    char path[40];
    char text[1024];
    const char *fields;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    fields = strrchr(text, ')');
    return fields != NULL && sscanf(fields,
                                    ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                    "%*s %*s %llu %*s %llu",
                                    &status->state, &status->threads, &status->started) == 3;
}

/* The namespace of a kind ("pid", "net") that this thread is in; 0: unknown. */
static uint64_t owner_name_space(const char *kind)
{
    char path[40];
    struct stat status;

    snprintf(path, sizeof path, "/proc/thread-self/ns/%s", kind);
    return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

bool rule_owner_self(struct rule_owner *owner)
{
    struct owner_status status;

    if (!owner_read_status((int)getpid(), &status))
        return false;
    *owner = (struct rule_owner){
        .pid = (int)getpid(), .started = status.started, .name_space = owner_name_space("pid")};
    return owner->name_space != 0;
}

/* When in doubt a process is alive, and its rules stay. */
bool rule_owner_is_gone(const struct rule_owner *owner)
{
    struct owner_status status;

    if (owner->name_space != owner_name_space("pid"))
        return false;
    if (kill(owner->pid, 0) != 0)
        return errno == ESRCH;
    if (!owner_read_status(owner->pid, &status))
        return false;
    /* A zombie is gone, unless only its first thread has ended. */
    return status.started != owner->started || (status.state == 'Z' && status.threads <= 1);
}

/* --- a line -------------------------------------------------------------------------------- */

static unsigned line_format_address(const struct sockaddr_storage *address,
                                    char text[INET6_ADDRSTRLEN])
{
    const union socket_address any = {.storage = *address};
    size_t length;

    *text = '\0';
    inet_ntop(address->ss_family, socket_address_bytes(&any, &length), text, INET6_ADDRSTRLEN);
    return ntohs(any.ipv4.sin_port); /* at the same place in both families */
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

/* --- the folder and its files -------------------------------------------------------------- */

/*
 * /run/tcpx can be read by all users, since the daemon of another plugin keeps its sockets there.
 * The folder of a single user is below /tmp, and only that user can read it.
 */
enum { SHARED_MODE = 0755, OWN_MODE = 0700, FILE_MODE = 0600 };

/* Changed by tests only, before anything else. */
static const char *first = "/run/tcpx";
static const char *second = "/tmp/tcpx-"; /* and the number of the user */

void rule_journal_use(const char *new_first, const char *new_second)
{
    first = new_first;
    second = new_second;
}

/* 0 if only this user and root can write to the folder; or an errno. */
static int journal_check_folder(const char *path)
{
    struct stat status;

    if (lstat(path, &status) != 0)
        return errno;
    if (!S_ISDIR(status.st_mode))
        return ENOTDIR;
    if ((status.st_uid != geteuid() && status.st_uid != 0) ||
        (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        log_debug("%s is not used: users other than %u could change it", path, geteuid());
        return EPERM;
    }
    return faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

static int journal_try_folder(const char *path, bool make, mode_t mode)
{
    if (make && mkdir(path, mode) != 0 && errno != EEXIST)
        return errno;
    return journal_check_folder(path);
}

/* `make`: creates it if there is none. 0, or an errno. */
static int journal_folder(bool make, char path[PATH_MAX])
{
    int error;

    snprintf(path, PATH_MAX, "%s", first);
    error = journal_try_folder(path, make, SHARED_MODE);
    if (error == 0 || second == NULL)
        return error;
    snprintf(path, PATH_MAX, "%s%u", second, geteuid());
    return journal_try_folder(path, make, OWN_MODE);
}

/* 0 if it is a file of this user, whose mode is corrected; or an errno. */
static int journal_check_file(int fd)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return errno;
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid())
        return EPERM;
    if ((status.st_mode & 077) != 0 && fchmod(fd, FILE_MODE) != 0)
        return errno;
    return 0;
}

/*
 * Opens a file of the folder, which has to belong to this user; a mode that lets others open it is
 * corrected. 0, or an errno.
 */
static int journal_open_file(const char *path, int flags, int *fd)
{
    int opened = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, FILE_MODE);
    int error = opened >= 0 ? journal_check_file(opened) : errno;

    if (error != 0) {
        if (opened >= 0)
            close(opened);
        return error;
    }
    *fd = opened;
    return 0;
}

/* --- the lock ------------------------------------------------------------------------------ */

/* 0, or an errno. */
static int journal_name(const char *interface, bool make_folder, char path[PATH_MAX])
{
    uint64_t network = owner_name_space("net");
    int error = journal_folder(make_folder, path);
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
    error = journal_open_file(path, O_RDWR | O_CREAT, &journal->lock);
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

/* --- the journal --------------------------------------------------------------------------- */

static FILE *journal_stream(const char *path, int flags, const char *mode)
{
    FILE *file;
    int fd;

    if (journal_open_file(path, flags, &fd) != 0)
        return NULL;
    file = fdopen(fd, mode);
    if (file == NULL)
        close(fd);
    return file;
}

/* Copies the lines to keep; returns how many are not kept. */
static size_t journal_copy(const char *path, FILE *from, FILE *to, rule_journal_keep *keep,
                           void *context)
{
    struct rule_line line;
    char *text = NULL;
    size_t room = 0;
    size_t dropped = 0;
    ssize_t length;

    while ((length = getline(&text, &room, from)) > 0) {
        if (text[length - 1] == '\n')
            text[--length] = '\0';
        /* a zero byte inside is not part of any line */
        if (strlen(text) != (size_t)length || !rule_line_parse(text, &line)) {
            if (length > 0)
                log_debug("%s: a line is not understood, and dropped", path);
        } else if (keep(context, &line)) {
            fprintf(to, "%s\n", text);
        } else {
            dropped++;
        }
    }
    free(text);
    return dropped;
}

static bool journal_replace(const char *path, const char *text)
{
    char fresh[PATH_MAX + 8];
    FILE *file;
    bool good;

    if (*text == '\0')
        return unlink(path) == 0;
    snprintf(fresh, sizeof fresh, "%s.new", path);
    (void)unlink(fresh);
    file = journal_stream(fresh, O_WRONLY | O_CREAT | O_EXCL, "w");
    if (file == NULL)
        return false;
    good = fputs(text, file) >= 0;
    good = fclose(file) == 0 && good && rename(fresh, path) == 0;
    if (!good)
        (void)unlink(fresh);
    return good;
}

void rule_journal_rewrite(const struct rule_journal *journal, rule_journal_keep *keep,
                          void *context, const struct rule_line *added)
{
    char line[RULE_LINE_BYTES];
    char *text = NULL;
    size_t length;
    size_t dropped = 0;
    FILE *from = journal_stream(journal->path, O_RDONLY, "r");
    FILE *to = open_memstream(&text, &length);
    bool good = to != NULL;

    if (from != NULL && to != NULL) {
        dropped = journal_copy(journal->path, from, to, keep, context);
        good = feof(from) != 0;
    }
    if (to != NULL && added != NULL) {
        rule_line_format(added, line);
        fprintf(to, "%s\n", line);
    }
    good = to != NULL && fclose(to) == 0 && good;
    if (good && (added != NULL || dropped > 0))
        good = journal_replace(journal->path, text);
    if (!good)
        log_debug("%s cannot be written: %s", journal->path, strerror(errno));
    if (from != NULL)
        fclose(from);
    free(text);
}
