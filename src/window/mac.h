/*
 * HMAC with SHA-256 (RFC 2104, FIPS 180-4): how a peer proves that it has the key of a window
 * without sending it. Here because libtcpx must not need another library for its windows.
 */
#ifndef TCPX_WINDOW_MAC_H
#define TCPX_WINDOW_MAC_H

#include <stddef.h>
#include <stdint.h>

enum { MAC_BYTES = 32, MAC_LONGEST_KEY = 64, MAC_LONGEST_TEXT = 128 };

/* `key_bytes` and `bytes`: at most the above. */
void mac_compute(const uint8_t *key, size_t key_bytes, const void *text, size_t bytes,
                 uint8_t mac[MAC_BYTES]);

#endif
