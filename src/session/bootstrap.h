/*
 * How two processes find each other: one listens, the other connects, and both get a control
 * connection. Each side sends a greeting: protocol and version, whether it has a shared secret, and
 * a nonce. With a secret each side then proves that it has it, the connecting one first, so that a
 * stranger that connects gets nothing to guess the secret by. Nothing is encrypted.
 *
 * When a deadline (base/clock.h) has passed, the result is TCPX_IN_PROGRESS. Names are resolved by
 * getaddrinfo(), which waits as long as the system's resolver does, whatever the deadline. An
 * address may stand in brackets, as [::1], and have a scope, as fe80::1%eth0.
 */
#ifndef TCPX_SESSION_BOOTSTRAP_H
#define TCPX_SESSION_BOOTSTRAP_H

#include "session/bootstrap_connect.h"
#include "session/bootstrap_listen.h"
#include "session/greeting.h"

#endif
