/*
 * Shows what a shared secret is for: only a side that has it is a peer, whatever else it says or
 * sends back; both sides are told what is wrong; and which files are secrets.
 */
#include "tests/unit/bootstrap_peers.h"

#include <sys/stat.h>

static struct secret *load(const char *path)
{
    struct secret *secret;

    assert_success(secret_load(path, secret_libraries, &secret));
    return secret;
}

/* Both sides are told what is wrong; true peers come through, by whatever name of their file. */
BOOTSTRAP_TEST(test_other_secrets)
{
    const struct {
        const char *here;
        const char *there;
        int result;
        const char *listener_word;
        const char *client_word;
    } rows[] = {
        {secret_path, other_path, TCPX_REMOTE_ERROR, "has another shared secret than this side",
         "refused: the two sides have different shared secrets"},
        {secret_path, NULL, TCPX_INVALID_USAGE, "has no shared secret, this side has one",
         "has a shared secret, this side has none"},
        {NULL, secret_path, TCPX_INVALID_USAGE, "has a shared secret, this side has none",
         "has no shared secret, this side has one"},
    };

    need_sodium();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bootstrap_listener *listener = listen_at("127.0.0.1", 0, rows[i].here);
        struct client client;

        start_client(&client, "127.0.0.1", bootstrap_port(listener), rows[i].there, PATIENCE_MS);
        accept_nobody(listener, rows[i].listener_word);
        join_failed(&client, rows[i].result, rows[i].client_word);
        assert_non_null(strstr(client.text, "127.0.0.1:"));
        meet(listener, "127.0.0.1", rows[i].here);
        meet(listener, "127.0.0.1", rows[i].here != NULL ? same_path : NULL);
        bootstrap_listener_close(listener);
    }
}

/* A server with the client's own nonce and, as its proof, the client's. */
static void reflect_to_client(void)
{
    uint8_t bytes[64];
    struct client client;
    uint16_t port;
    int listening = listen_raw(&port);
    int fd;

    start_client(&client, "127.0.0.1", port, secret_path, PATIENCE_MS);
    fd = accept_raw(listening, bytes, BOOTSTRAP_GREETING_BYTES);
    bytes[10] = BOOTSTRAP_LISTENS;
    say(fd, bytes, BOOTSTRAP_GREETING_BYTES);
    assert_int_equal(recv(fd, bytes, 40, MSG_WAITALL), 40);
    say(fd, bytes, 40);
    join_failed(&client, TCPX_INVALID_USAGE, "has another shared secret than this side");
    assert_int_equal(recv(fd, bytes, sizeof bytes, 0) > CONTROL_HEADER_BYTES, true);
    assert_int_equal(bytes[0], CONTROL_REFUSED);
    close(fd);
    close(listening);
}

/* A client with the proof that the listener itself would give. */
static void reflect_to_listener(void)
{
    uint8_t bytes[64];
    uint8_t answer[BOOTSTRAP_GREETING_BYTES];
    uint8_t own[SECRET_NONCE_BYTES] = {1};
    uint8_t proof[SECRET_PROOF_BYTES];
    struct secret *secret = load(secret_path);
    struct bootstrap_listener *listener = listen_at("127.0.0.1", 0, secret_path);
    struct control *control;
    int fd = connect_raw(bootstrap_port(listener));

    greeting_bytes(BOOTSTRAP_CONNECTS, true, bytes);
    say(fd, bytes, BOOTSTRAP_GREETING_BYTES);
    do {
        assert_int_equal(bootstrap_accept(listener, deadline_after_ms(10), &control),
                         TCPX_IN_PROGRESS);
    } while (!wait_readable(fd, 0));
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), 48);
    assert_success(secret_prove(secret, BOOTSTRAP_LISTENS, answer + 16, own, proof));
    say(fd, bytes, frame(CONTROL_PROOF, proof, sizeof proof, bytes));
    accept_nobody(listener, "has another shared secret");
    close(fd);
    bootstrap_listener_close(listener);
    secret_free(secret);
}

/* A side without the secret that sends back what it has read proves nothing. */
BOOTSTRAP_TEST(test_reflected_proofs)
{
    need_sodium();
    reflect_to_client();
    reflect_to_listener();
}

/* What comes behind a right greeting instead of the proof, and what each side says of it. */
BOOTSTRAP_TEST(test_no_proof)
{
    static const struct {
        uint8_t type;
        uint32_t length; /* 0: the connection is shut down */
        const char *to_client;
        const char *to_listener; /* NULL: only a server sends this */
    } rows[] = {
        {CONTROL_PROOF, 31, "expected its proof", NULL},
        {CONTROL_PROOF, 33, "at most 32", "at most 32"},
        {1, 32, "expected its proof", "expected its proof"},
        {CONTROL_REFUSED, 2, "refused: no", NULL},
        {CONTROL_PROOF, 32, NULL, "another shared secret"},
        {0, 0, NULL, "closed the connection"},
    };
    uint8_t payload[SECRET_PROOF_BYTES + 1] = "no";
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES + 100];
    struct bootstrap_listener *listener;

    need_sodium();
    listener = listen_at("127.0.0.1", 0, secret_path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t length = BOOTSTRAP_GREETING_BYTES;

        if (rows[i].length > 0)
            length += frame(rows[i].type, payload, rows[i].length, bytes + length);
        if (rows[i].to_client != NULL) {
            greeting_bytes(BOOTSTRAP_LISTENS, true, bytes);
            assert_answer_fails(bytes, length, secret_path, TCPX_REMOTE_ERROR, rows[i].to_client);
        }
        if (rows[i].to_listener != NULL) {
            int fd = connect_raw(bootstrap_port(listener));

            greeting_bytes(BOOTSTRAP_CONNECTS, true, bytes);
            say(fd, bytes, length);
            if (rows[i].length == 0)
                shutdown(fd, SHUT_WR);
            accept_nobody(listener, rows[i].to_listener);
            close(fd);
        }
    }
    meet(listener, "127.0.0.1", secret_path);
    bootstrap_listener_close(listener);
}

/*
 * A listener that has to make place closes a connection whose proof is on its way: the client tries
 * again, until its deadline.
 */
BOOTSTRAP_TEST(test_a_client_that_gave_way)
{
    struct client client;
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES];
    uint16_t port;
    int listening;

    need_sodium();
    listening = listen_raw_at(free_port(), &port);
    start_client(&client, "127.0.0.1", port, secret_path, PATIENCE_MS);
    for (int i = 0; i < 4; i++) {
        int fd = accept_raw(listening, bytes, sizeof bytes);

        greeting_bytes(BOOTSTRAP_LISTENS, true, bytes);
        say(fd, bytes, sizeof bytes);
        /* With its proof unread the end is a reset, without it an end of file. */
        if (i % 2 == 0)
            assert_int_equal(recv(fd, bytes, 40, MSG_WAITALL), 40);
        else
            assert_true(wait_readable(fd, PATIENCE_MS));
        close(fd);
    }
    close(listening);
    accept_waiting(&client, port, secret_path);
}

static void assert_bad_secret(const char *path, int result, const char *word)
{
    struct bootstrap_listener *listener;
    struct control *control;

    assert_fails(bootstrap_listen("127.0.0.1", 0, path, &listener), result, word);
    expect_text(path);
    assert_fails(bootstrap_connect("127.0.0.1", 1, path, 0, &control), result, word);
    expect_text(path);
}

BOOTSTRAP_TEST(test_secret_files)
{
    static uint8_t bytes[SECRET_LARGEST + 1];
    static const struct {
        size_t length;
        mode_t mode;
        const char *word; /* NULL: it is a secret */
    } rows[] = {
        {0, 0600, "is empty"},
        {SECRET_LARGEST + 1, 0600, "is too long: 1 to 4096 bytes"},
        {1, 0601, "open to others than its owner"},
        {1, 0602, "open to others than its owner"},
        {1, 0604, "open to others than its owner"},
        {1, 0610, "open to others than its owner"},
        {1, 0620, "open to others than its owner"},
        {1, 0640, "its mode is 0640, expected 0600"},
        {1, 0600, NULL},
        {SECRET_LARGEST, 0600, NULL},
    };
    const char *path = tree_path("/file");

    need_sodium();
    assert_bad_secret(path, TCPX_SYSTEM_ERROR, "No such file");
    assert_bad_secret(tree_root, TCPX_INVALID_ARGUMENT, "is not a file");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_bad_secret(path, TCPX_INVALID_ARGUMENT, "is not a file");
    unlink(path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_file(path, bytes, rows[i].length, rows[i].mode);
        if (rows[i].word != NULL) {
            assert_bad_secret(path, TCPX_INVALID_ARGUMENT, rows[i].word);
        } else {
            struct bootstrap_listener *listener = listen_at("127.0.0.1", 0, path);

            meet(listener, "127.0.0.1", path);
            bootstrap_listener_close(listener);
        }
    }
    unlink(path);
}

BOOTSTRAP_TEST(test_without_libsodium)
{
    static const char *const nothing[] = {"libtcpx-no-such-library.so.1", NULL};
    static const char *const another[] = {"libtcpx-no-such-library.so.1", "libc.so.6", NULL};
    struct secret *secret;

    assert_fails(secret_load(secret_path, nothing, &secret), TCPX_INVALID_USAGE,
                 "a shared secret needs libsodium, which is not installed (Debian: libsodium23)");
    assert_fails(secret_load(secret_path, another, &secret), TCPX_INVALID_USAGE,
                 "libc.so.6 is not: it lacks sodium_init");
    /* No secret needs no library. */
    assert_success(secret_load(NULL, nothing, &secret));
    assert_null(secret);
    assert_success(secret_load("", nothing, &secret));
    assert_null(secret);
    secret_free(NULL);
}

/* A proof depends on the secret, on who gives it, and on both nonces. */
BOOTSTRAP_TEST(test_proofs)
{
    uint8_t a[SECRET_NONCE_BYTES];
    uint8_t b[SECRET_NONCE_BYTES];
    uint8_t proof[SECRET_PROOF_BYTES];
    struct secret *secret;
    struct secret *same;
    struct secret *other;

    need_sodium();
    secret = load(secret_path);
    same = load(same_path);
    other = load(other_path);
    assert_success(secret_nonce(NULL, a));
    assert_success(secret_nonce(secret, b));
    assert_memory_not_equal(a, b, sizeof a);
    assert_success(secret_prove(secret, 1, a, b, proof));
    assert_true(secret_verify(same, 1, a, b, proof));
    assert_false(secret_verify(other, 1, a, b, proof));
    assert_false(secret_verify(same, 2, a, b, proof));
    assert_false(secret_verify(same, 1, b, a, proof));
    assert_false(secret_verify(same, 1, a, a, proof));
    for (size_t i = 0; i < 8 * sizeof proof; i++) {
        uint8_t *one = i % 3 == 0 ? a : i % 3 == 1 ? b : proof;

        one[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_false(secret_verify(same, 1, a, b, proof));
        one[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    assert_true(secret_verify(same, 1, a, b, proof));
    secret_free(secret);
    secret_free(same);
    secret_free(other);
}

SUITE(.name = "secrets of the bootstrap", .set_up = make_secrets, .tear_down = tree_remove);
