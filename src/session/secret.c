/* Reads the file, loads libsodium, and hashes. */
#include "session/secret.h"

#include "net/socket/socket.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_BYTES = 32 };

/* SODIUM(name, result, arguments): what we call of it. */
#define SODIUM_CALLS(SODIUM)                                                                       \
    SODIUM(sodium_init, int, (void))                                                               \
    SODIUM(randombytes_buf, void, (void *bytes, size_t count))                                     \
    SODIUM(crypto_generichash, int,                                                                \
           (unsigned char *out, size_t out_bytes, const unsigned char *in,                         \
            unsigned long long in_bytes, const unsigned char *key, size_t key_bytes))              \
    SODIUM(sodium_memcmp, int, (const void *a, const void *b, size_t count))                       \
    SODIUM(sodium_memzero, void, (void *bytes, size_t count))

struct sodium {
    void *library;
#define SODIUM_FIELD(name, result, arguments) result(*name) arguments;
    SODIUM_CALLS(SODIUM_FIELD)
#undef SODIUM_FIELD
};

static const struct {
    const char *name;
    size_t offset; /* in struct sodium */
} calls[] = {
#define SODIUM_ROW(name, result, arguments) {#name, offsetof(struct sodium, name)},
    SODIUM_CALLS(SODIUM_ROW)
#undef SODIUM_ROW
};

struct secret {
    struct sodium sodium;
    uint8_t key[KEY_BYTES];
};

const char *const secret_libraries[] = {"libsodium.so.23", "libsodium.so.26", "libsodium.so", NULL};

/* So that the same file, used for something else, gives another key. */
static const unsigned char purpose[] = "tcpx bootstrap secret";

/* --- libsodium ----------------------------------------------------------------------------- */

static int sodium_find_calls(const char *name, struct sodium *sodium)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *address = dlsym(sodium->library, calls[i].name);

        if (address == NULL)
            return error_set(TCPX_INVALID_USAGE,
                             "a shared secret needs libsodium, and %s is not: it lacks %s", name,
                             calls[i].name);
        memcpy((char *)sodium + calls[i].offset, &address, sizeof address);
    }
    if (sodium->sodium_init() < 0)
        return error_set(TCPX_SYSTEM_ERROR, "%s cannot be started", name);
    return TCPX_SUCCESS;
}

/* It stays in the process: other users of it may have begun to rely on it. */
static int sodium_load(const char *const *names, struct sodium *sodium)
{
    int result;

    while (*names != NULL) {
        sodium->library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (sodium->library != NULL)
            break;
        names++;
    }
    if (*names == NULL)
        return error_set(TCPX_INVALID_USAGE, "a shared secret needs libsodium, which is not "
                                             "installed (Debian: libsodium23)");
    result = sodium_find_calls(*names, sodium);
    if (result != TCPX_SUCCESS)
        dlclose(sodium->library);
    return result;
}

/* --- the file ------------------------------------------------------------------------------ */

static int secret_check_file(const char *path, int fd)
{
    struct stat file;

    if (fstat(fd, &file) != 0)
        return error_system(errno, "the secret file %s", path);
    if (!S_ISREG(file.st_mode))
        return error_set(TCPX_INVALID_ARGUMENT, "the secret file %s is not a file", path);
    if ((file.st_mode & 077) != 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the secret file %s is open to others than its owner: its mode is %04o, "
                         "expected 0600 or 0400 (chmod 600)",
                         path, (unsigned)file.st_mode & 07777);
    return TCPX_SUCCESS;
}

/* One byte more than allowed, if there are so many. */
static int secret_read_all(const char *path, int fd, uint8_t bytes[SECRET_LARGEST + 1],
                           size_t *length)
{
    size_t have = 0;

    while (have < SECRET_LARGEST + 1) {
        ssize_t got = read(fd, bytes + have, SECRET_LARGEST + 1 - have);

        if (got == 0)
            break;
        if (got > 0)
            have += (size_t)got;
        else if (errno != EINTR)
            return error_system(errno, "the secret file %s", path);
    }
    if (have == 0)
        return error_set(TCPX_INVALID_ARGUMENT, "the secret file %s is empty", path);
    if (have > SECRET_LARGEST)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the secret file %s is too long: 1 to %d bytes are possible", path,
                         SECRET_LARGEST);
    *length = have;
    return TCPX_SUCCESS;
}

static int secret_read_file(const char *path, uint8_t bytes[SECRET_LARGEST + 1], size_t *length)
{
    /* Non-blocking, since a pipe would wait for its writer before it could be refused. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int result;

    if (fd < 0)
        return error_system(errno, "the secret file %s", path);
    result = secret_check_file(path, fd);
    if (result == TCPX_SUCCESS)
        result = secret_read_all(path, fd, bytes, length);
    close(fd);
    return result;
}

static int secret_derive_key(struct secret *secret, const char *path)
{
    uint8_t bytes[SECRET_LARGEST + 1];
    size_t length = 0;
    int result = secret_read_file(path, bytes, &length);

    if (result == TCPX_SUCCESS &&
        secret->sodium.crypto_generichash(secret->key, sizeof secret->key, bytes, length, purpose,
                                          sizeof purpose) != 0)
        result = error_set(TCPX_INTERNAL_ERROR, "libsodium cannot derive a key");
    secret->sodium.sodium_memzero(bytes, sizeof bytes);
    return result;
}

int secret_load(const char *path, const char *const *libraries, struct secret **out)
{
    struct secret *secret;
    int result;

    if (path == NULL || *path == '\0') {
        *out = NULL;
        return TCPX_SUCCESS;
    }
    secret = calloc(1, sizeof *secret);
    if (secret == NULL)
        return error_system(ENOMEM, "a shared secret");
    result = sodium_load(libraries, &secret->sodium);
    if (result != TCPX_SUCCESS) {
        free(secret);
        return result;
    }
    result = secret_derive_key(secret, path);
    if (result != TCPX_SUCCESS) {
        secret_free(secret);
        return result;
    }
    *out = secret;
    return TCPX_SUCCESS;
}

void secret_free(struct secret *secret)
{
    if (secret == NULL)
        return;
    secret->sodium.sodium_memzero(secret->key, sizeof secret->key);
    dlclose(secret->sodium.library);
    free(secret);
}

/* --- proofs -------------------------------------------------------------------------------- */

int secret_nonce(const struct secret *secret, uint8_t nonce[SECRET_NONCE_BYTES])
{
    if (secret == NULL)
        return socket_random(nonce, SECRET_NONCE_BYTES);
    secret->sodium.randombytes_buf(nonce, SECRET_NONCE_BYTES);
    return TCPX_SUCCESS;
}

static bool secret_hash(const struct secret *secret, uint8_t role,
                        const uint8_t own[SECRET_NONCE_BYTES],
                        const uint8_t other[SECRET_NONCE_BYTES], uint8_t proof[SECRET_PROOF_BYTES])
{
    uint8_t hashed[1 + 2 * SECRET_NONCE_BYTES];

    hashed[0] = role;
    memcpy(hashed + 1, own, SECRET_NONCE_BYTES);
    memcpy(hashed + 1 + SECRET_NONCE_BYTES, other, SECRET_NONCE_BYTES);
    return secret->sodium.crypto_generichash(proof, SECRET_PROOF_BYTES, hashed, sizeof hashed,
                                             secret->key, sizeof secret->key) == 0;
}

int secret_prove(const struct secret *secret, uint8_t role, const uint8_t own[SECRET_NONCE_BYTES],
                 const uint8_t other[SECRET_NONCE_BYTES], uint8_t proof[SECRET_PROOF_BYTES])
{
    if (!secret_hash(secret, role, own, other, proof))
        return error_set(TCPX_INTERNAL_ERROR, "libsodium cannot hash");
    return TCPX_SUCCESS;
}

bool secret_verify(const struct secret *secret, uint8_t role, const uint8_t own[SECRET_NONCE_BYTES],
                   const uint8_t other[SECRET_NONCE_BYTES], const uint8_t proof[SECRET_PROOF_BYTES])
{
    uint8_t expected[SECRET_PROOF_BYTES];
    bool same = secret_hash(secret, role, own, other, expected) &&
                secret->sodium.sodium_memcmp(expected, proof, sizeof expected) == 0;

    secret->sodium.sodium_memzero(expected, sizeof expected);
    return same;
}
