/*
 * The public calls with arguments that are missing, wrong or another comm's, what they write then,
 * and memory: what is registered, and the GPU's. tests/unit/calls.h says how these tests run.
 */
#include "tests/unit/calls.h"

/* --- arguments ----------------------------------------------------------------------------- */

/* The text names the function of the call, and the argument. */
static bool said_missing(const char *call, const char *argument)
{
    char name[64];
    char words[64];

    snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "("), call);
    snprintf(words, sizeof words, "%s is NULL", argument);
    return check_said(name) && check_said(words);
}

#define CHECK_MISSING(call, argument)                                                              \
    do {                                                                                           \
        CHECK((call) == TCPX_INVALID_ARGUMENT);                                                    \
        CHECK(said_missing(#call, argument));                                                      \
    } while (0)

static void check_missing_comms(void)
{
    uint8_t handle[TCPX_HANDLE_BYTES];
    void *comm = NULL;

    CHECK_MISSING(tcpx_get_properties(0, NULL), "properties");
    CHECK_MISSING(tcpx_listen(0, NULL, &comm), "handle");
    CHECK_MISSING(tcpx_listen(0, handle, NULL), "listen_comm");
    CHECK_MISSING(tcpx_connect_v5(0, NULL, &comm, NULL), "handle");
    CHECK_MISSING(tcpx_connect_v5(0, handle, NULL, NULL), "send_comm");
    CHECK_MISSING(tcpx_accept_v5(NULL, &comm, NULL), "listen_comm");
    CHECK_MISSING(tcpx_accept_v5(handle, NULL, NULL), "recv_comm");
    CHECK_SUCCESS(tcpx_close_send(NULL));
    CHECK_SUCCESS(tcpx_close_recv(NULL));
    CHECK_SUCCESS(tcpx_close_listen(NULL));
}

static void check_missing_requests(struct way *way)
{
    void *data = way->to[HOST].address;
    void *memory = way->to_handle[HOST];
    void *comm = way->receiver;
    void *request = NULL;
    int size = 10;
    int done;

    CHECK_MISSING(tcpx_reg_mr(NULL, data, PAGE, NCCL_PTR_HOST, &memory), "comm");
    CHECK_MISSING(tcpx_reg_mr(way->sender, data, PAGE, NCCL_PTR_HOST, NULL), "mhandle");
    CHECK_MISSING(tcpx_dereg_mr(NULL, memory), "comm");
    CHECK_MISSING(tcpx_isend(NULL, data, 1, 0, NULL, &request), "comm");
    CHECK_MISSING(tcpx_isend(way->sender, data, 1, 0, NULL, NULL), "request");
    CHECK_MISSING(tcpx_irecv(NULL, 1, &data, &size, NULL, &memory, &request), "comm");
    CHECK_MISSING(tcpx_irecv(comm, 1, NULL, &size, NULL, &memory, &request), "data");
    CHECK_MISSING(tcpx_irecv(comm, 1, &data, NULL, NULL, &memory, &request), "sizes");
    CHECK_MISSING(tcpx_irecv(comm, 1, &data, &size, NULL, &memory, NULL), "request");
    CHECK_MISSING(tcpx_test(NULL, &done, &size), "request");
    CHECK_MISSING(tcpx_irecv_consumed(comm, 1, NULL), "request");
    CHECK_MISSING(tcpx_wait_request(NULL, 0, NULL, NULL), "request");
    request = post_receive(way, HOST, 0, 10);
    CHECK_MISSING(tcpx_test(request, NULL, &size), "done");
    CHECK_MISSING(tcpx_irecv_consumed(NULL, 1, request), "comm");
    finish_two(post_send(way, HOST, 0, 10), request, NULL);
}

/* An argument that may not be NULL is named, with the call; what may be NULL is. */
CASE(missing, ALWAYS)
{
    struct way way;

    start();
    check_missing_comms();
    way = make_way();
    check_missing_requests(&way);
    check_way(&way);
    end_way(&way);
}

/* Sizes below 0, several receives in one, and the other direction are refused. */
WAY_CASE(wrong, ALWAYS)
{
    void *to = way->to[HOST].address;
    void *from = way->from[HOST].address;
    void *data[2] = {to, to};
    void *memory[2] = {way->to_handle[HOST], way->to_handle[HOST]};
    void *sent = way->from_handle[HOST];
    void *request = &request;
    int sizes[2] = {10, 10};
    int tags[2] = {1, 2};

    CHECK_REFUSED(tcpx_irecv(way->receiver, 2, data, sizes, tags, memory, &request), "n is 2");
    CHECK_REFUSED(tcpx_irecv(way->receiver, 0, data, sizes, tags, memory, &request), "n is 0");
    CHECK_REFUSED(tcpx_irecv_consumed(way->receiver, 2, &request), "n is 2");
    sizes[0] = -1;
    CHECK_REFUSED(tcpx_irecv(way->receiver, 1, data, sizes, tags, memory, &request), "-1");
    CHECK_REFUSED(tcpx_isend(way->sender, from, INT_MIN, 0, sent, &request), "-2147483648");
    sizes[0] = 10;
    CHECK_MISUSE(tcpx_isend(way->receiver, to, 10, 0, memory[0], &request), "receives");
    CHECK_MISUSE(tcpx_irecv(way->sender, 1, &from, sizes, tags, &sent, &request), "sends");
    CHECK(request == &request);
    check_way(way);
}

/* --- registered memory --------------------------------------------------------------------- */

static void check_outside(struct way *way, int kind)
{
    static const char words[] = "not inside the registered 655360 bytes";
    const struct {
        long at;
        int bytes;
    } wrong[] = {{-1, 1}, {-1, 100}, {SPAN, 1}, {SPAN - 1, 2}, {SPAN - 100, 101}, {-PAGE, PAGE}};
    void *request = &request;

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        void *from = way->from[kind].address + wrong[i].at;
        void *to = way->to[kind].address + wrong[i].at;
        int size = wrong[i].bytes;

        CHECK_REFUSED(tcpx_isend(way->sender, from, size, 0, way->from_handle[kind], &request),
                      words);
        CHECK(said_number(size));
        CHECK_REFUSED(
            tcpx_irecv(way->receiver, 1, &to, &size, NULL, &way->to_handle[kind], &request), words);
    }
    CHECK(request == &request);
}

/* Nothing outside a registration is touched; each belongs to one comm, once. */
WAY_CASE(registration, ALWAYS)
{
    static const char words[] = "not a registration of this comm";
    struct way other = make_way();
    void *data = way->to[HOST].address;
    void *memory = &memory;

    for (int type = 0; type < 20; type++)
        if (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA)
            CHECK_REFUSED(tcpx_reg_mr(way->sender, data, PAGE, type, &memory), "type");
    if (facts.kinds == 1)
        CHECK(tcpx_reg_mr(way->sender, data, PAGE, NCCL_PTR_CUDA, &memory) != TCPX_SUCCESS);
    if (facts.emulated && !facts.builtin)
        CHECK_MISUSE(tcpx_reg_mr(way->sender, data, PAGE, NCCL_PTR_CUDA, &memory), "emulated GPU");
    CHECK(memory == &memory);
    for (int kind = 0; kind < facts.kinds; kind++) {
        check_outside(way, kind);
        CHECK_REFUSED(tcpx_dereg_mr(other.sender, way->from_handle[kind]), words);
        CHECK_REFUSED(tcpx_dereg_mr(way->receiver, way->from_handle[kind]), words);
    }
    CHECK_SUCCESS(tcpx_dereg_mr(way->sender, NULL));
    check_way(way);
    for (int kind = 0; kind < facts.kinds; kind++) { /* again, the other way round */
        CHECK_SUCCESS(tcpx_dereg_mr(way->sender, way->from_handle[kind]));
        CHECK_REFUSED(tcpx_dereg_mr(way->sender, way->from_handle[kind]), words);
        CHECK_SUCCESS(tcpx_dereg_mr(way->receiver, way->to_handle[kind]));
        way->to_handle[kind] = register_area(way->receiver, &way->to[kind]);
        way->from_handle[kind] = register_area(way->sender, &way->from[kind]);
    }
    check_way(way);
    check_way(&other);
    end_way(&other);
}

/* Host memory should be registered: the built-in transport takes it as it is, others say no. */
WAY_CASE(unregistered, ALWAYS)
{
    uint8_t to[100] = {0};
    void *data = to;
    void *no_memory = NULL;
    void *const no_memories[] = {NULL, &no_memory};
    void *receive = NULL;
    void *send = NULL;
    int size = sizeof to;

    if (!facts.builtin) {
        CHECK_REFUSED(tcpx_isend(way->sender, pattern[0], 100, 0, NULL, &send), "registered");
        CHECK_REFUSED(tcpx_irecv(way->receiver, 1, &data, &size, NULL, NULL, &receive),
                      "registered");
        CHECK(send == NULL && receive == NULL);
    }
    for (int i = 0; i < 2 && facts.builtin; i++) {
        memset(to, 0, sizeof to);
        CHECK_SUCCESS(tcpx_irecv(way->receiver, 1, &data, &size, NULL, no_memories[i], &receive));
        CHECK_SUCCESS(tcpx_isend(way->sender, pattern[0], 100, 0, NULL, &send));
        finish_two(send, receive, &size);
        CHECK(size == 100 && memcmp(to, pattern[0], 100) == 0);
    }
    check_way(way);
}

/* --- unpacking ----------------------------------------------------------------------------- */

/* More than 16, nothing, and tickets that nobody gave out are refused. */
CASE(unpack_wrong, ALWAYS)
{
    void *requests[DEPTH + 1] = {NULL};
    struct tcpx_unpack *unpack = NULL;
    uint64_t ticket = 4711;
    int done = 77;
    int gpus;

    start();
    CHECK_SUCCESS(tcpx_gpu_count(&gpus));
    CHECK_REFUSED_NUMBER(tcpx_unpack_create(-1, &unpack), -1);
    CHECK_REFUSED_NUMBER(tcpx_unpack_create(gpus, &unpack), gpus);
    CHECK_REFUSED(tcpx_unpack_create(0, NULL), "NULL");
    CHECK(unpack == NULL);
    CHECK_SUCCESS(tcpx_unpack_create(0, &unpack));
    CHECK_REFUSED(tcpx_unpack_submit(unpack, requests, DEPTH + 1, &ticket), "16");
    CHECK_REFUSED(tcpx_unpack_submit(NULL, requests, 0, &ticket), "");
    CHECK_REFUSED(tcpx_unpack_submit(unpack, NULL, 1, &ticket), "");
    CHECK_REFUSED(tcpx_unpack_submit(unpack, requests, 0, NULL), "");
    CHECK_REFUSED(tcpx_unpack_poll(NULL, 1, &done), "");
    CHECK_REFUSED(tcpx_unpack_wait(NULL, 1, 0), "");
    CHECK_REFUSED(tcpx_unpack_poll(unpack, 1, &done), "no unpack 1");
    CHECK_REFUSED(tcpx_unpack_wait(unpack, 1, 0), "no unpack 1");
    CHECK(ticket == 4711 && done == 77);
    CHECK_SUCCESS(tcpx_unpack_submit(unpack, requests, 0, &ticket));
    CHECK_REFUSED(tcpx_unpack_poll(unpack, ticket, NULL), "");
    CHECK_REFUSED_NUMBER(tcpx_unpack_wait(unpack, ticket, -2), -2);
    CHECK_SUCCESS(tcpx_unpack_wait(unpack, ticket, SOON_MS));
    CHECK_REFUSED(tcpx_unpack_poll(unpack, ticket + 1, &done), "");
    tcpx_unpack_destroy(unpack);
    tcpx_unpack_destroy(NULL);
}

/* So is a request that is NULL, as that of a busy comm is. */
CASE(unpack_nothing, ALWAYS)
{
    void *requests[2] = {NULL, NULL};
    struct tcpx_unpack *unpack = NULL;
    uint64_t ticket = 4711;

    start();
    CHECK_SUCCESS(tcpx_unpack_create(0, &unpack));
    CHECK_REFUSED(tcpx_unpack_submit(unpack, requests, 2, &ticket), "");
    CHECK(ticket == 4711);
    tcpx_unpack_destroy(unpack);
}

/* --- GPU memory ---------------------------------------------------------------------------- */

/* What is written into GPU memory is read from there, and nothing else. */
CASE(gpu_memory, ALWAYS)
{
    enum { BYTES = 100000 };
    static uint8_t found[BYTES];
    uint8_t *one = NULL;
    uint8_t *other = NULL;

    CHECK_SUCCESS(tcpx_gpu_alloc(0, BYTES, (void **)&one));
    CHECK_SUCCESS(tcpx_gpu_alloc(0, 1, (void **)&other));
    CHECK(one != NULL && other != NULL && (uintptr_t)one % PAGE == 0);
    CHECK(other < one || other >= one + BYTES);
    CHECK_SUCCESS(tcpx_gpu_write(one, pattern[GPU], BYTES));
    CHECK_SUCCESS(tcpx_gpu_write(other, "x", 1));
    CHECK_SUCCESS(tcpx_gpu_read(found, one, BYTES));
    CHECK(memcmp(found, pattern[GPU], BYTES) == 0);
    CHECK_SUCCESS(tcpx_gpu_write(one + 3, "abcde", 5));
    memset(found, 0, sizeof found);
    CHECK_SUCCESS(tcpx_gpu_read(found + 1, one + 1, BYTES - 2));
    CHECK(found[0] == 0 && found[BYTES - 1] == 0);
    CHECK(memcmp(found + 1, pattern[GPU] + 1, 2) == 0 && memcmp(found + 3, "abcde", 5) == 0);
    CHECK(memcmp(found + 8, pattern[GPU] + 8, BYTES - 9) == 0);
    CHECK_SUCCESS(tcpx_gpu_write(one, found, 0));
    memset(found, POISON, 8);
    CHECK_SUCCESS(tcpx_gpu_read(found, one, 0));
    CHECK(found[0] == POISON);
    CHECK_SUCCESS(tcpx_gpu_read(found, other, 1));
    CHECK(found[0] == 'x');
    CHECK_SUCCESS(tcpx_gpu_free(other));
    CHECK_SUCCESS(tcpx_gpu_read(found, one, BYTES));
    CHECK_SUCCESS(tcpx_gpu_free(one));
    CHECK_SUCCESS(tcpx_gpu_free(NULL));
}

/* What is no GPU memory, or not all of it, is refused. */
CASE(gpu_memory_wrong, ALWAYS)
{
    uint8_t bytes[64] = {1};
    uint8_t *address = NULL;
    void *none = &none;
    int gpus = 0;

    CHECK_SUCCESS(tcpx_gpu_count(&gpus));
    CHECK_REFUSED(tcpx_gpu_alloc(0, PAGE, NULL), "address is NULL");
    CHECK_REFUSED(tcpx_gpu_alloc(0, 0, &none), "0 bytes");
    CHECK_REFUSED_NUMBER(tcpx_gpu_alloc(-1, PAGE, &none), -1);
    CHECK_REFUSED_NUMBER(tcpx_gpu_alloc(gpus, PAGE, &none), gpus);
    CHECK(tcpx_gpu_alloc(0, (uint64_t)1 << 60, &none) != TCPX_SUCCESS);
    CHECK(tcpx_gpu_alloc(0, UINT64_MAX, &none) != TCPX_SUCCESS);
    CHECK(none == &none);
    CHECK_SUCCESS(tcpx_gpu_alloc(0, 2 * (size_t)PAGE, (void **)&address));
    CHECK_REFUSED(tcpx_gpu_write(address, NULL, 1), "from_host is NULL");
    CHECK_REFUSED(tcpx_gpu_read(NULL, address, 1), "to_host is NULL");
    CHECK_REFUSED(tcpx_gpu_write(NULL, bytes, 1), "");
    CHECK_REFUSED(tcpx_gpu_read(bytes, NULL, 1), "");
    CHECK_REFUSED(tcpx_gpu_write(bytes, bytes, 16), "not memory of a GPU");
    CHECK_REFUSED(tcpx_gpu_read(bytes, bytes, 16), "not memory of a GPU");
    CHECK_REFUSED(tcpx_gpu_read(bytes, address, UINT64_MAX), "");
    CHECK(tcpx_gpu_read(pattern[0], address, SPAN) != TCPX_SUCCESS);
    CHECK(tcpx_gpu_write(address, pattern[0], SPAN) != TCPX_SUCCESS);
    CHECK_REFUSED(tcpx_gpu_free(address + 1), "tcpx_gpu_alloc");
    CHECK_REFUSED(tcpx_gpu_free(bytes), "tcpx_gpu_alloc");
    CHECK_SUCCESS(tcpx_gpu_write(address, bytes, 1));
    CHECK_SUCCESS(tcpx_gpu_free(address));
    CHECK_REFUSED(tcpx_gpu_free(address), "tcpx_gpu_alloc");
    CHECK(tcpx_gpu_write(address, bytes, 1) != TCPX_SUCCESS);
    CHECK(tcpx_gpu_read(bytes, address, 1) != TCPX_SUCCESS);
}

/* --- outputs and errors -------------------------------------------------------------------- */

/* Where no call has failed, there is no text. */
CASE(quiet, ALWAYS)
{
    start();
    check_new_way();
    CHECK(*tcpx_last_error() == '\0');
}

/* Outputs are written on success only. */
WAY_CASE(outputs, ALWAYS)
{
    uint8_t handle[TCPX_HANDLE_BYTES] = {0};
    void *data = handle;
    void *memory = NULL;
    void *request;
    void *untouched = &untouched;
    int size = -5;

    CHECK_REFUSED(tcpx_listen(-1, handle, &untouched), "");
    CHECK_REFUSED(tcpx_reg_mr(way->sender, handle, PAGE, 5, &untouched), "");
    CHECK_REFUSED(tcpx_isend(way->sender, handle, size, 0, NULL, &untouched), "");
    CHECK_REFUSED(tcpx_irecv(way->receiver, 1, &data, &size, NULL, &memory, &untouched), "");
    CHECK(untouched == &untouched);
    request = post_receive(way, HOST, 0, PIECE);
    CHECK(tcpx_wait_request(request, 0, &size, NULL) == TCPX_IN_PROGRESS);
    CHECK(size == -5);
}

/* So are those by which a call says "not yet". */
WAY_CASE(outputs_of_polls, ALWAYS)
{
    uint8_t handle[TCPX_HANDLE_BYTES] = {0};
    void *untouched = &untouched;
    void *request = move_piece(way, HOST);
    int done = 77;
    int size = 77;

    CHECK_MISUSE(tcpx_test(request, &done, &size), "");
    CHECK(done == 77 && size == 77);
    CHECK_REFUSED(tcpx_connect_v5(-1, handle, &untouched, NULL), "");
    CHECK(untouched == &untouched);
}

CALLS_SUITE("calls_arguments");
