/*
 * The secret that two sides may share: only a side that has it is a peer. It is read from a file
 * and proven by a keyed hash over two nonces, so that it is never sent. libsodium does the hashing,
 * and is loaded only when there is a secret.
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
 * Reads the file: 1 to SECRET_LARGEST bytes, all of which count, readable by its owner only. The
 * first of `libraries` that can be loaded does the hashing; TCPX_INVALID_USAGE if there is none. A
 * path of NULL or "" is no secret: *secret is NULL then, which is allowed below where noted.
 */
MUST_CHECK int secret_load(const char *path, const char *const *libraries, struct secret **secret);

/* A fresh random number. Secret NULL: from the kernel. */
MUST_CHECK int secret_nonce(const struct secret *secret, uint8_t nonce[SECRET_NONCE_BYTES]);

/* The proof of a side of this role, with its own nonce and the other side's. */
MUST_CHECK int secret_prove(const struct secret *secret, uint8_t role,
                            const uint8_t own[SECRET_NONCE_BYTES],
                            const uint8_t other[SECRET_NONCE_BYTES],
                            uint8_t proof[SECRET_PROOF_BYTES]);

/* Whether secret_prove() gives this proof, in a time that does not depend on how much is right. */
MUST_CHECK bool secret_verify(const struct secret *secret, uint8_t role,
                              const uint8_t own[SECRET_NONCE_BYTES],
                              const uint8_t other[SECRET_NONCE_BYTES],
                              const uint8_t proof[SECRET_PROOF_BYTES]);

/* Wipes the key. NULL is allowed. */
void secret_free(struct secret *secret);

#endif
