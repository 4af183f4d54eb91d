/*
 * The secret that two sides may share, so that only who has it is a peer: read from a file, and
 * proven by a keyed hash over two nonces, so that it never travels. libsodium does the hashing; it
 * is loaded when a secret is asked for and not before.
 */
#ifndef TCPX_SESSION_SECRET_H
#define TCPX_SESSION_SECRET_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { SECRET_NONCE_BYTES = 32, SECRET_PROOF_BYTES = 32, SECRET_LARGEST = 4096 };

struct secret;

/* The names that libsodium goes by, the last one NULL. */
extern const char *const secret_libraries[];

/*
 * Reads the file: 1 to SECRET_LARGEST bytes, all of which count, that nobody but its owner may
 * read. The first of `libraries` that can be loaded does the hashing; TCPX_INVALID_USAGE if there
 * is none. A path of NULL or "" is no secret: *secret is NULL then, which is allowed below where it
 * says so.
 */
MUST_CHECK int secret_load(const char *path, const char *const *libraries, struct secret **secret);

/* A fresh number that nobody can guess. NULL: from the kernel. */
MUST_CHECK int secret_nonce(const struct secret *secret, uint8_t nonce[SECRET_NONCE_BYTES]);

/* What a side of this role shows, which has drawn `own` and heard `other`. */
MUST_CHECK int secret_prove(const struct secret *secret, uint8_t role,
                            const uint8_t own[SECRET_NONCE_BYTES],
                            const uint8_t other[SECRET_NONCE_BYTES],
                            uint8_t proof[SECRET_PROOF_BYTES]);

/* Whether that is what secret_prove() gives, in a time that does not tell how much was right. */
MUST_CHECK bool secret_verify(const struct secret *secret, uint8_t role,
                              const uint8_t own[SECRET_NONCE_BYTES],
                              const uint8_t other[SECRET_NONCE_BYTES],
                              const uint8_t proof[SECRET_PROOF_BYTES]);

/* Wipes the key. NULL is allowed. */
void secret_free(struct secret *secret);

#endif
