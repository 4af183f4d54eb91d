#include "tests/support/gpu_pair.h"

struct gpu_world world;

int world_open(uint64_t longest, uint64_t window_bytes)
{
    world.text = text_create(longest);
    if (gpu_open(0, &world.gpu) == TCPX_SUCCESS &&
        gpu_stream_create(world.gpu, &world.stream) == TCPX_SUCCESS &&
        gpu_event_create(world.gpu, &world.event) == TCPX_SUCCESS &&
        gpu_pinned_alloc(world.gpu, window_bytes, &world.window) == TCPX_SUCCESS)
        return 0;
    fprintf(stderr, "no GPU: %s\n", tcpx_last_error());
    return -1;
}

int world_close(void)
{
    text_destroy(&world.text);
    gpu_pinned_free(world.gpu, &world.window);
    gpu_event_destroy(world.event);
    gpu_stream_destroy(world.stream);
    gpu_close(world.gpu);
    return 0;
}

void world_drain(void)
{
    assert_success(gpu_event_record(world.event, world.stream));
    assert_success(gpu_event_wait(world.event, deadline_after_ms(LIMIT_MS)));
}

const uint8_t *world_look(gpu_address from, uint64_t bytes)
{
    assert_success(gpu_copy_to_host(world.stream, world.window.host, from, bytes));
    world_drain();
    return world.window.host;
}

/* --- buffers --------------------------------------------------------------------------------- */

void place_create(struct place *place, bool in_gpu, uint64_t bytes)
{
    *place = (struct place){.in_gpu = in_gpu, .host = malloc(bytes), .bytes = bytes};
    assert_non_null(place->host);
    if (in_gpu)
        assert_success(gpu_memory_alloc(world.gpu, bytes, 4096, &place->device));
}

void place_destroy(struct place *place)
{
    if (place->in_gpu)
        gpu_memory_free(world.gpu, &place->device);
    free(place->host);
}

void *place_at(const struct place *place, uint64_t at)
{
    return place->in_gpu ? (void *)(uintptr_t)(place->device.address + at) : place->host + at;
}

void place_begin_to_fill(struct place *place, uint64_t all, uint64_t at, const uint8_t *message,
                         uint64_t bytes)
{
    memset(place->host, GPU_MARK, all);
    if (message != NULL)
        memcpy(place->host + at, message, bytes);
    if (place->in_gpu)
        assert_success(gpu_copy_to_device(world.stream, place->device.address, place->host, all));
}

void place_fill(struct place *place, uint64_t all, uint64_t at, const uint8_t *message,
                uint64_t bytes)
{
    place_begin_to_fill(place, all, at, message, bytes);
    if (place->in_gpu)
        world_drain();
}

const uint8_t *place_look(struct place *place, uint64_t all)
{
    if (place->in_gpu) {
        assert_success(gpu_copy_to_host(world.stream, place->host, place->device.address, all));
        world_drain();
    }
    return place->host;
}

bool place_holds(struct place *place, uint64_t all, uint64_t at, const uint8_t *message,
                 uint64_t bytes)
{
    const uint8_t *seen = place_look(place, all);

    return all_marked(seen, at) && (bytes == 0 || memcmp(seen + at, message, bytes) == 0) &&
           all_marked(seen + at + bytes, all - at - bytes);
}

/* --- two ends -------------------------------------------------------------------------------- */

void gpu_pair_connect(struct gpu_pair *pair, const struct net_link_options *options, uint64_t room)
{
    struct pair comms = pair_open(options);

    *pair = (struct gpu_pair){.sender.comm = comms.sender, .receiver.comm = comms.receiver};
    place_create(&pair->sender.place, true, room);
    place_create(&pair->receiver.place, true, room);
}

static void end_register(struct gpu_end *end)
{
    assert_success(
        net_register(end->comm, place_at(&end->place, 0), end->place.bytes, &end->memory));
}

void gpu_pair_register(struct gpu_pair *pair)
{
    end_register(&pair->sender);
    end_register(&pair->receiver);
}

void gpu_pair_open(struct gpu_pair *pair, const struct net_link_options *options, uint64_t room)
{
    gpu_pair_connect(pair, options, room);
    gpu_pair_register(pair);
}

void gpu_end_close(struct gpu_end *end)
{
    if (end->comm != NULL)
        net_deregister(end->comm, end->memory);
    comm_end(&end->comm);
    end->memory = NULL;
    end->request = NULL;
}

void gpu_pair_close(struct gpu_pair *pair)
{
    gpu_end_close(&pair->sender);
    gpu_end_close(&pair->receiver);
}

void gpu_pair_free(struct gpu_pair *pair)
{
    gpu_pair_close(pair);
    place_destroy(&pair->sender.place);
    place_destroy(&pair->receiver.place);
}

struct net_buffer gpu_end_buffer(const struct gpu_end *end, uint64_t bytes)
{
    return (struct net_buffer){
        .data = place_at(&end->place, GPU_MARGIN), .bytes = bytes, .memory = end->memory};
}

int gpu_pair_send(struct gpu_pair *pair, uint64_t bytes, enum net_after after, void *what)
{
    struct net_buffer buffer = gpu_end_buffer(&pair->sender, bytes);

    buffer.after = after;
    buffer.after_what = what;
    pair->sender.result = net_isend_buffer(pair->sender.comm, &buffer, 1, &pair->sender.request);
    return pair->sender.result;
}

int gpu_pair_receive(struct gpu_pair *pair, uint64_t bytes)
{
    const struct net_buffer buffer = gpu_end_buffer(&pair->receiver, bytes);

    pair->receiver.result =
        net_irecv_buffer(pair->receiver.comm, &buffer, 1, &pair->receiver.request);
    return pair->receiver.result;
}

int gpu_end_step(struct gpu_end *end, bool waiting)
{
    bool done = false;

    if (end->request == NULL)
        return end->result;
    end->result = waiting ? net_wait(end->request, deadline_after_ms(1), &done, NULL)
                          : net_test(end->request, &done, NULL);
    if (done || end->result != TCPX_SUCCESS)
        end->request = NULL;
    return end->result;
}

bool gpu_pair_step(struct gpu_pair *pair, bool waiting)
{
    (void)gpu_end_step(&pair->sender, waiting);
    (void)gpu_end_step(&pair->receiver, waiting);
    return pair->sender.request == NULL && pair->receiver.request == NULL;
}

void gpu_pair_must_end(struct gpu_pair *pair)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    while (!gpu_pair_step(pair, false))
        assert_false(deadline_passed(deadline));
    assert_success(pair->sender.result);
    assert_success(pair->receiver.result);
}
