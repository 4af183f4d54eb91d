/* What the default of a variable means on this machine, for `tcpx env`. */
#ifndef TCPX_TOOLS_ENV_RESOLVE_H
#define TCPX_TOOLS_ENV_RESOLVE_H

#include <stddef.h>

/*
 * `value`: of the variable `name`, as it is set or by default. Writes what it stands for here; ""
 * where it stands for itself, and why not where that cannot be found out.
 */
void env_resolve(const char *name, const char *value, char *text, size_t room);

#endif
