/* Processes as /proc shows them. When in doubt a process is alive, and its rules stay. */
#include "net/nic/rule_owner.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

uint64_t rule_owner_name_space(const char *kind)
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
    *owner = (struct rule_owner){.pid = (int)getpid(),
                                 .started = status.started,
                                 .name_space = rule_owner_name_space("pid")};
    return owner->name_space != 0;
}

bool rule_owner_is_gone(const struct rule_owner *owner)
{
    struct owner_status status;

    if (owner->name_space != rule_owner_name_space("pid"))
        return false;
    if (kill(owner->pid, 0) != 0)
        return errno == ESRCH;
    if (!owner_read_status(owner->pid, &status))
        return false;
    /* A zombie is gone, unless only its first thread has ended. */
    return status.started != owner->started || (status.state == 'Z' && status.threads <= 1);
}
