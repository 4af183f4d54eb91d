/*
 * Keeps the last warning of the plugins, whether or not it is logged, and reports it on standard
 * error when a plugin ends the process by exit(), which would otherwise leave no text.
 */
#ifndef TCPX_PLUGIN_HOST_EXIT_WATCH_H
#define TCPX_PLUGIN_HOST_EXIT_WATCH_H

#include <stddef.h>

enum { EXIT_WATCH_TEXT = 200 };

/* `inside`: any address in the plugin's file. Both stay as they are. */
void exit_watch_plugin(const char *name, const void *inside);

/* May be called by any thread. */
void exit_watch_keep_warning(const char *text);

/* "" if there was none. */
void exit_watch_last_warning(char text[EXIT_WATCH_TEXT]);

#endif
