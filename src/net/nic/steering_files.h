/*
 * Where the journal of rules is kept, and how its files are opened. Only this user can open them: a
 * process that can open a lock file can hold the lock. The folder is /run/tcpx or, for a user who
 * may not write there, /tmp/tcpx-UID; a folder that other users could change is not used.
 */
#ifndef TCPX_NET_NIC_STEERING_FILES_H
#define TCPX_NET_NIC_STEERING_FILES_H

#include <limits.h>
#include <stdbool.h>

/* `make`: creates it if there is none. 0, or an errno. */
int steering_files_folder(bool make, char path[PATH_MAX]);

/*
 * Opens a file of the folder, which has to belong to this user; a mode that lets others open it is
 * corrected. `flags`: besides O_CLOEXEC and O_NOFOLLOW. 0, or an errno.
 */
int steering_files_open(const char *path, int flags, int *fd);

/* --- inside, for tests --------------------------------------------------------------------- */

/* Instead of /run/tcpx and /tmp/tcpx-, which the user's number follows; NULL: only the first. */
void steering_files_use(const char *first, const char *second);

#endif
