/* The stand-in driver: fakecuda.h says what it is for. */
#include "tests/fakecuda/fakecuda.h"

#include "base/clock.h"
#include "gpu/cuda_driver.h"
#include "gpu/host_engine.h"
#include "gpu/host_memory.h"
#include "gpu/kernel_twins.h"
#include "gpu/kernels.h"
#include "tests/support/basics.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    INVALID_VALUE = 1,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    DEVICES = 2,
    STACK_DEPTH = 8,
    /* Real allocations are aligned to 256 bytes and not to pages: ours begin behind a page. */
    MISALIGNMENT = 256,
    /* Plain copies to the device go through a copy engine from here on. */
    LEAST_BY_COPY_ENGINE = 32 << 10,
};

static const uint64_t device_bytes = (uint64_t)1 << 30;

struct cu_context_object {
    int device;
    atomic_int retained;
    struct gpu_stream *default_stream;
};

/* The driver knows what it has given out, also after it has shut down. */
struct object {
    struct object *next;
    struct object **link;
};

struct cu_stream_object {
    struct object object;
    struct gpu_stream *stream;
    int capturing;
};

struct cu_event_object {
    struct object object;
    struct gpu_event *event;
};

struct cu_module_object {
    const char *image;
};

static struct cu_context_object contexts[DEVICES] = {{.device = 0}, {.device = 1}};
static struct cu_function_object {
    enum gpu_kernel kernel;
    const char *name; /* of kernels that tests bring with them; NULL: one of ours */
    int spins;        /* its argument is a struct fakecuda_spin */
} functions[] = {{.kernel = GPU_KERNEL_UNPACK},
                 {.kernel = GPU_KERNEL_COPY},
                 {.kernel = GPU_KERNEL_FILL},
                 {.kernel = GPU_KERNEL_VERIFY},
                 {.kernel = GPU_KERNELS, .name = "test_spin", .spins = 1},
                 {.kernel = GPU_KERNELS, .name = "test_nothing"}};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

#define NAME(name, arguments) #name,
static const char *const entry_points[] = {CUDA_ENTRY_POINTS(NAME, NAME)};
enum { ENTRY_POINTS = sizeof entry_points / sizeof *entry_points };

static _Thread_local cu_context stack[STACK_DEPTH];
static _Thread_local int stack_depth;
static _Thread_local int capture_mode;

/* --- faults, counts and the log ------------------------------------------------------------ */

struct fault {
    char name[64];
    int once;
    int nth; /* calls until it happens; 0: the next; -1: it has happened */
    int error;
};

struct registration {
    void *pages;
    gpu_address alias;
};

/* Guards everything below, and contexts[]. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[16];
static int fault_count;
static unsigned faults_seen;
static struct {
    char name[64];
    uint64_t until;
    unsigned waiting;
} hold;
static unsigned calls[ENTRY_POINTS];
static int attributes[256] = {[CU_ATTRIBUTE_MULTIPROCESSORS] = 4,
                              [CU_ATTRIBUTE_COMPUTE_MAJOR] = 9,
                              [CU_ATTRIBUTE_RDMA_FLUSH_OPTIONS] = 1,
                              [CU_ATTRIBUTE_DMABUF] = 1};
static struct fakecuda_mapping mappings[16];
static int mapping_count;
static struct registration registrations[1024];
static struct fakecuda_balance balance;
static struct object *objects;
static int shut_down;
static int environment_read;

static void release(pthread_mutex_t **held)
{
    pthread_mutex_unlock(*held);
}

/* Has the lock until the end of the block. */
#define LOCKED(mutex)                                                                              \
    __attribute__((cleanup(release), unused)) pthread_mutex_t *held_ =                             \
        (pthread_mutex_lock(&(mutex)), &(mutex))

static void set_faults(const char *text)
{
    fault_count = 0;
    while (text != NULL && *text != '\0' && fault_count < 16) {
        struct fault fault = {0};
        size_t length = strcspn(text, ",");

        fault.once = sscanf(text, "%63[^@=,]@%d=%d", fault.name, &fault.nth, &fault.error) == 3;
        if (fault.once || sscanf(text, "%63[^@=,]=%d", fault.name, &fault.error) == 2)
            faults[fault_count++] = fault;
        else
            fprintf(stderr, "fakecuda: fault '%.*s' is not understood\n", (int)length, text);
        text += length + (text[length] == ',');
    }
}

static unsigned *calls_of(const char *name)
{
    static unsigned of_no_entry_point;

    for (int i = 0; i < ENTRY_POINTS; i++)
        if (strcmp(entry_points[i], name) == 0)
            return &calls[i];
    return &of_no_entry_point;
}

static void write_log(const char *name)
{
    const char *path = getenv("FAKECUDA_LOG");
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;

    if (fd < 0)
        return;
    dprintf(fd, "%s\n", name);
    close(fd);
}

static cu_result planned_fault(const char *name)
{
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];

        if (strcmp(fault->name, name) != 0 || fault->nth < 0)
            continue;
        if (fault->nth > 0 && --fault->nth > 0)
            continue;
        if (fault->once)
            fault->nth = -1;
        faults_seen++;
        return fault->error;
    }
    return CU_OK;
}

/* Has the lock, except while it sleeps. */
static void wait_while_held(const char *name)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    hold.waiting++;
    while (strcmp(hold.name, name) == 0 && !deadline_passed(hold.until)) {
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
    hold.waiting--;
}

static cu_result begin(const char *name)
{
    LOCKED(lock);

    if (!environment_read) {
        set_faults(getenv("FAKECUDA_FAULTS"));
        environment_read = 1;
    }
    ++*calls_of(name);
    write_log(name);
    wait_while_held(name);
    return shut_down ? CU_DEINITIALIZED : planned_fault(name);
}

static cu_context current(void)
{
    return stack_depth > 0 ? stack[stack_depth - 1] : NULL;
}

static cu_result begin_in_context(const char *name)
{
    cu_result error = begin(name);

    return error != CU_OK             ? error
           : current() == NULL        ? INVALID_CONTEXT
           : current()->retained == 0 ? CU_CONTEXT_DESTROYED
                                      : CU_OK;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cu_result error_ = (call);                                                                 \
        if (error_ != CU_OK)                                                                       \
            return error_;                                                                         \
    } while (0)

/* The start of every entry point, and of those that work in a context. */
#define BEGIN(name)            TRY(begin(#name))
#define BEGIN_IN_CONTEXT(name) TRY(begin_in_context(#name))

static void add(int *counter, int change)
{
    LOCKED(lock);

    *counter += change;
}

static void keep(struct object *object, int *counter)
{
    LOCKED(lock);

    object->next = objects;
    object->link = &objects;
    if (objects != NULL)
        objects->link = &object->next;
    objects = object;
    ++*counter;
}

static void drop(struct object *object, int *counter)
{
    LOCKED(lock);

    *object->link = object->next;
    if (object->next != NULL)
        object->next->link = object->link;
    --*counter;
    free(object);
}

/* --- controls ------------------------------------------------------------------------------ */

#define EXPORT_CONTROL(name) EXPORT fakecuda_##name##_call fakecuda_##name;
FAKECUDA_CONTROLS(EXPORT_CONTROL)

void fakecuda_fault(const char *text)
{
    LOCKED(lock);

    set_faults(text);
    environment_read = 1;
}

unsigned fakecuda_faults_seen(void)
{
    LOCKED(lock);

    return faults_seen;
}

void fakecuda_hold(const char *entry_point, uint64_t most_ms)
{
    LOCKED(lock);

    snprintf(hold.name, sizeof hold.name, "%s", entry_point != NULL ? entry_point : "");
    hold.until = deadline_after_ms(most_ms);
}

unsigned fakecuda_held(void)
{
    LOCKED(lock);

    return hold.waiting;
}

unsigned fakecuda_calls(const char *entry_point)
{
    LOCKED(lock);

    return *calls_of(entry_point);
}

void fakecuda_attribute(int attribute, int value)
{
    attributes[attribute] = value;
}

void fakecuda_capture(void *stream, int capturing)
{
    ((cu_stream)stream)->capturing = capturing;
}

void fakecuda_shutdown(int on)
{
    LOCKED(lock);

    shut_down = on;
}

void fakecuda_balance(struct fakecuda_balance *out)
{
    LOCKED(lock);

    *out = balance;
    for (int i = 0; i < DEVICES; i++)
        out->contexts += contexts[i].retained;
}

void fakecuda_mapping(const struct fakecuda_mapping *mapping)
{
    mappings[mapping_count++] = *mapping;
}

/* --- the driver and its devices ------------------------------------------------------------ */

#define DECLARE(name, arguments) EXPORT cu_result name arguments;
CUDA_ENTRY_POINTS(DECLARE, DECLARE)

cu_result cuInit(unsigned flags)
{
    BEGIN(cuInit);
    return flags == 0 ? CU_OK : INVALID_VALUE;
}

cu_result cuGetErrorName(cu_result error, const char **name)
{
    *name = error == CU_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == INVALID_VALUE    ? "CUDA_ERROR_INVALID_VALUE"
            : error == INVALID_CONTEXT  ? "CUDA_ERROR_INVALID_CONTEXT"
            : error == CU_NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
            : error == CU_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
            : error == ILLEGAL_ADDRESS  ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : error == CU_DEINITIALIZED ? "CUDA_ERROR_DEINITIALIZED"
                                        : NULL;
    return *name != NULL ? CU_OK : INVALID_VALUE;
}

cu_result cuGetErrorString(cu_result error, const char **text)
{
    (void)error;
    *text = "said the stand-in driver";
    return CU_OK;
}

cu_result cuDeviceGetCount(int *count)
{
    BEGIN(cuDeviceGetCount);
    *count = (int)number_of("FAKECUDA_DEVICES", DEVICES);
    return CU_OK;
}

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    BEGIN(cuDeviceGet);
    if (ordinal < 0 || ordinal >= DEVICES)
        return INVALID_VALUE;
    *device = ordinal;
    return CU_OK;
}

cu_result cuDeviceGetName(char *name, int length, cu_device device)
{
    BEGIN(cuDeviceGetName);
    snprintf(name, (size_t)length, "stand-in GPU %d", device);
    return CU_OK;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
    BEGIN(cuDeviceTotalMem_v2);
    (void)device;
    *bytes = device_bytes;
    return CU_OK;
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    BEGIN(cuDeviceGetAttribute);
    (void)device;
    *value = attributes[attribute];
    return CU_OK;
}

cu_result cuDeviceGetPCIBusId(char *address, int length, cu_device device)
{
    BEGIN(cuDeviceGetPCIBusId);
    snprintf(address, (size_t)length, "FFFF:%02X:00.0", 0xA0 + device);
    return CU_OK;
}

/* --- contexts ------------------------------------------------------------------------------ */

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    BEGIN(cuDevicePrimaryCtxRetain);
    contexts[device].retained++;
    *context = &contexts[device];
    return CU_OK;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    BEGIN(cuDevicePrimaryCtxRelease_v2);
    if (contexts[device].retained == 0)
        return INVALID_CONTEXT;
    contexts[device].retained--;
    return CU_OK;
}

cu_result cuCtxGetCurrent(cu_context *context)
{
    BEGIN(cuCtxGetCurrent);
    *context = current();
    return CU_OK;
}

cu_result cuCtxGetDevice(cu_device *device)
{
    BEGIN(cuCtxGetDevice);
    if (current() == NULL)
        return INVALID_CONTEXT;
    *device = current()->device;
    return CU_OK;
}

cu_result cuCtxPushCurrent_v2(cu_context context)
{
    BEGIN(cuCtxPushCurrent_v2);
    if (stack_depth == STACK_DEPTH)
        return INVALID_VALUE;
    stack[stack_depth++] = context;
    return CU_OK;
}

cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    BEGIN(cuCtxPopCurrent_v2);
    if (stack_depth == 0)
        return INVALID_CONTEXT;
    *context = stack[--stack_depth];
    return CU_OK;
}

cu_result cuThreadExchangeStreamCaptureMode(int *mode)
{
    int old = capture_mode;

    BEGIN(cuThreadExchangeStreamCaptureMode);
    capture_mode = *mode;
    *mode = old;
    return CU_OK;
}

/* --- memory -------------------------------------------------------------------------------- */

cu_result cuMemGetInfo_v2(size_t *available, size_t *all)
{
    BEGIN_IN_CONTEXT(cuMemGetInfo_v2);
    *available = device_bytes - host_memory_used(current()->device);
    *all = device_bytes;
    return CU_OK;
}

cu_result cuMemAlloc_v2(cu_address *address, size_t bytes)
{
    struct gpu_memory memory;

    BEGIN_IN_CONTEXT(cuMemAlloc_v2);
    if (bytes > device_bytes || host_memory_map(current()->device, bytes + MISALIGNMENT, 1,
                                                device_bytes, &memory) != TCPX_SUCCESS)
        return CU_OUT_OF_MEMORY;
    add(&balance.memory, 1);
    *address = memory.address + MISALIGNMENT;
    return CU_OK;
}

cu_result cuMemFree_v2(cu_address address)
{
    struct gpu_pointer pointer;

    BEGIN_IN_CONTEXT(cuMemFree_v2);
    if (host_classify(address, 1, &pointer) != TCPX_SUCCESS || pointer.kind != GPU_POINTER_DEVICE ||
        pointer.base + MISALIGNMENT != address)
        return INVALID_VALUE;
    host_memory_unmap(pointer.base);
    add(&balance.memory, -1);
    return CU_OK;
}

static struct registration *find_registration(void *pages)
{
    for (size_t i = 0; i < sizeof registrations / sizeof *registrations; i++)
        if (registrations[i].pages == pages)
            return &registrations[i];
    return NULL;
}

cu_result cuMemHostRegister_v2(void *pages, size_t bytes, unsigned flags)
{
    BEGIN_IN_CONTEXT(cuMemHostRegister_v2);
    LOCKED(lock);
    struct registration *free_one = find_registration(NULL);

    if (flags != (CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_DEVICEMAP))
        return INVALID_VALUE;
    if (free_one == NULL ||
        host_memory_register(current()->device, pages, bytes, &free_one->alias) != TCPX_SUCCESS)
        return CU_OUT_OF_MEMORY;
    free_one->pages = pages;
    balance.registered++;
    return CU_OK;
}

cu_result cuMemHostUnregister(void *pages)
{
    BEGIN_IN_CONTEXT(cuMemHostUnregister);
    LOCKED(lock);
    struct registration *registration = find_registration(pages);

    if (registration == NULL)
        return INVALID_VALUE;
    host_memory_unmap(registration->alias);
    registration->pages = NULL;
    balance.registered--;
    return CU_OK;
}

cu_result cuMemHostGetDevicePointer_v2(cu_address *address, void *pages, unsigned flags)
{
    BEGIN_IN_CONTEXT(cuMemHostGetDevicePointer_v2);
    LOCKED(lock);
    struct registration *registration = find_registration(pages);

    if (registration == NULL || flags != 0)
        return INVALID_VALUE;
    *address = registration->alias;
    return CU_OK;
}

/* As the real driver does, leaves the range alone for memory that it does not know. */
static void describe(cu_address address, struct fakecuda_mapping *mapping)
{
    struct gpu_pointer pointer;

    for (int i = 0; i < mapping_count; i++)
        if (address >= mappings[i].start && address < mappings[i].end) {
            *mapping = mappings[i];
            return;
        }
    *mapping = (struct fakecuda_mapping){.device = -2};
    if (host_classify(address, 1, &pointer) != TCPX_SUCCESS || pointer.kind == GPU_POINTER_HOST)
        return;
    if (pointer.kind == GPU_POINTER_DEVICE) {
        pointer.base += MISALIGNMENT;
        pointer.bytes -= MISALIGNMENT;
    }
    *mapping = (struct fakecuda_mapping){
        .start = pointer.base & ~(uint64_t)0x1fffff,
        .end = (pointer.base + pointer.bytes + 0x1fffff) & ~(uint64_t)0x1fffff,
        .range_start = pointer.base,
        .range_bytes = pointer.bytes,
        .memory_type = pointer.kind == GPU_POINTER_DEVICE ? CU_MEMORY_DEVICE : CU_MEMORY_HOST,
        .device = pointer.device,
    };
}

static void *host_pointer_of(cu_address address)
{
    struct gpu_pointer pointer;

    return host_classify(address, 1, &pointer) == TCPX_SUCCESS && pointer.kind == GPU_POINTER_PINNED
               ? pointer.host
               : NULL;
}

cu_result cuPointerGetAttributes(unsigned count, int *names, void **values, cu_address address)
{
    enum { WORD = sizeof(uint64_t) };
    void *host = host_pointer_of(address);
    struct fakecuda_mapping mapping;

    BEGIN(cuPointerGetAttributes);
    describe(address, &mapping);
    const uint64_t start = mapping.memory_type != 0 ? mapping.start : 0;
    const uint64_t bytes = mapping.memory_type != 0 ? mapping.end - mapping.start : 0;
    const struct {
        int name;
        size_t bytes;
        const void *value;
    } attributes_of[] = {
        {CU_POINTER_MEMORY_TYPE, sizeof(unsigned), &mapping.memory_type},
        {CU_POINTER_HOST, sizeof host, &host},
        {CU_POINTER_IS_MANAGED, sizeof(unsigned), &mapping.managed},
        {CU_POINTER_DEVICE_ORDINAL, sizeof(int), &mapping.device},
        {CU_POINTER_RANGE_START, mapping.range_bytes != 0 ? WORD : 0, &mapping.range_start},
        {CU_POINTER_RANGE_SIZE, mapping.range_bytes != 0 ? WORD : 0, &mapping.range_bytes},
        {CU_POINTER_MAPPING_BASE, WORD, &start},
        {CU_POINTER_MAPPING_SIZE, WORD, &bytes},
    };
    enum { KNOWN = sizeof attributes_of / sizeof *attributes_of };

    for (unsigned i = 0, k; i < count; i++) {
        for (k = 0; k < KNOWN && attributes_of[k].name != names[i]; k++)
            ;
        if (k == KNOWN)
            return INVALID_VALUE;
        memcpy(values[i], attributes_of[k].value, attributes_of[k].bytes);
    }
    return CU_OK;
}

cu_result cuMemGetHandleForAddressRange(void *handle, cu_address address, size_t bytes, int type,
                                        unsigned long long flags)
{
    struct gpu_pointer pointer;
    int fd;

    BEGIN_IN_CONTEXT(cuMemGetHandleForAddressRange);
    if (flags != 0) /* as on a platform without the PCIe flag */
        return CU_NOT_SUPPORTED;
    if (type != CU_HANDLE_DMABUF || address % 4096 != 0 || bytes % 4096 != 0 ||
        host_classify(address, bytes, &pointer) != TCPX_SUCCESS ||
        pointer.kind != GPU_POINTER_DEVICE)
        return INVALID_VALUE;
    fd = memfd_create("fakecuda dma-buf", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return CU_OUT_OF_MEMORY;
    *(int *)handle = fd;
    return CU_OK;
}

cu_result cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    BEGIN_IN_CONTEXT(cuFlushGPUDirectRDMAWrites);
    return target == CU_FLUSH_TARGET_CONTEXT && scope == CU_FLUSH_TO_OWNER ? CU_OK : INVALID_VALUE;
}

/* --- streams and events -------------------------------------------------------------------- */

static int start_stream(struct gpu_stream **stream)
{
    return host_stream_start(NULL, number_of("FAKECUDA_DELAY_US", 0), stream);
}

static struct gpu_stream *queue_of(cu_stream stream)
{
    if (stream != NULL)
        return stream->stream;
    LOCKED(lock);
    if (current()->default_stream == NULL &&
        start_stream(&current()->default_stream) != TCPX_SUCCESS)
        abort();
    return current()->default_stream;
}

static cu_result from_result(int result)
{
    return result == TCPX_SUCCESS            ? CU_OK
           : result == TCPX_INVALID_ARGUMENT ? INVALID_VALUE
                                             : ILLEGAL_ADDRESS;
}

cu_result cuStreamCreate(cu_stream *stream, unsigned flags)
{
    cu_stream fresh;

    BEGIN_IN_CONTEXT(cuStreamCreate);
    if (flags != CU_STREAM_NONBLOCKING)
        return INVALID_VALUE;
    fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL || start_stream(&fresh->stream) != TCPX_SUCCESS) {
        free(fresh);
        return CU_OUT_OF_MEMORY;
    }
    keep(&fresh->object, &balance.streams);
    *stream = fresh;
    return CU_OK;
}

cu_result cuStreamDestroy_v2(cu_stream stream)
{
    BEGIN_IN_CONTEXT(cuStreamDestroy_v2);
    host_stream_destroy(stream->stream);
    drop(&stream->object, &balance.streams);
    return CU_OK;
}

cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags)
{
    BEGIN_IN_CONTEXT(cuStreamWaitEvent);
    return flags == 0 ? from_result(host_stream_wait(queue_of(stream), event->event))
                      : INVALID_VALUE;
}

cu_result cuStreamIsCapturing(cu_stream stream, int *status)
{
    BEGIN_IN_CONTEXT(cuStreamIsCapturing);
    *status = stream != NULL ? stream->capturing : CU_CAPTURE_NONE;
    return CU_OK;
}

cu_result cuEventCreate(cu_event *event, unsigned flags)
{
    cu_event fresh;

    BEGIN_IN_CONTEXT(cuEventCreate);
    if (flags != CU_EVENT_NO_TIMING)
        return INVALID_VALUE;
    fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL || host_event_create(NULL, &fresh->event) != TCPX_SUCCESS) {
        free(fresh);
        return CU_OUT_OF_MEMORY;
    }
    keep(&fresh->object, &balance.events);
    *event = fresh;
    return CU_OK;
}

cu_result cuEventDestroy_v2(cu_event event)
{
    BEGIN_IN_CONTEXT(cuEventDestroy_v2);
    host_event_destroy(event->event);
    drop(&event->object, &balance.events);
    return CU_OK;
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    BEGIN_IN_CONTEXT(cuEventRecord);
    return from_result(host_event_record(event->event, queue_of(stream)));
}

cu_result cuEventQuery(cu_event event)
{
    bool done;

    BEGIN_IN_CONTEXT(cuEventQuery);
    TRY(from_result(host_event_query(event->event, &done)));
    return done ? CU_OK : CU_NOT_READY;
}

/* --- work ---------------------------------------------------------------------------------- */

/*
 * With CUDA_DEVICE_MAX_CONNECTIONS=1 all work for the multiprocessors of a device passes through
 * one channel, in the order of the calls: work whose stream is not ready for it holds up all that
 * was queued later, on any stream. As with the real driver (an H200, driver 580), that is not only
 * kernels: sets, copies inside the GPU and small plain copies to it take this way, too. Copies to
 * the host, large ones to the device and those of two rows go through a copy engine and do not.
 */
static pthread_mutex_t channel_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_event *channel_ends[DEVICES]; /* passed when the latest work there has begun */

/* With the lock: what is submitted to the queue next begins when all before it in the channel has.
 */
static int pass_channel(struct gpu_stream *queue, struct gpu_event **end)
{
    struct gpu_event *begun;
    int result = host_event_create(NULL, &begun);

    if (result != TCPX_SUCCESS)
        return result;
    if (*end != NULL)
        result = host_stream_wait(queue, *end);
    if (result == TCPX_SUCCESS)
        result = host_event_record(begun, queue);
    if (result != TCPX_SUCCESS) {
        host_event_destroy(begun);
        return result;
    }
    if (*end != NULL)
        host_event_destroy(*end);
    *end = begun;
    return TCPX_SUCCESS;
}

static cu_result submit(const struct host_operation *operation, cu_stream stream)
{
    return from_result(host_stream_submit(queue_of(stream), operation));
}

static cu_result enter_channel(cu_stream stream)
{
    struct gpu_stream *queue = queue_of(stream);

    if (number_of("CUDA_DEVICE_MAX_CONNECTIONS", 0) != 1)
        return CU_OK;
    LOCKED(channel_lock);
    return from_result(pass_channel(queue, &channel_ends[current()->device]));
}

/* Rows that lie side by side at both ends are one copy. */
static cu_result copy_rows(enum host_operation_kind kind, uint64_t to, uint64_t from,
                           const struct cu_rows *wanted, cu_stream stream)
{
    bool is_one = wanted->from_pitch == wanted->row_bytes && wanted->to_pitch == wanted->row_bytes;
    size_t all = wanted->rows * wanted->row_bytes;
    bool by_copy_engine =
        kind == HOST_COPY_TO_HOST ||
        (kind == HOST_COPY_TO_DEVICE && (wanted->rows > 1 || all >= LEAST_BY_COPY_ENGINE));
    cu_result error = by_copy_engine ? CU_OK : enter_channel(stream);

    for (size_t row = 0; row < (is_one ? 1 : wanted->rows) && error == CU_OK; row++)
        error =
            submit(&(struct host_operation){.kind = kind,
                                            .memory = {.to = to + row * wanted->to_pitch,
                                                       .from = from + row * wanted->from_pitch,
                                                       .bytes = is_one ? all : wanted->row_bytes}},
                   stream);
    return error;
}

static cu_result plain_copy(enum host_operation_kind kind, uint64_t to, uint64_t from, size_t bytes,
                            cu_stream stream)
{
    return copy_rows(kind, to, from, &(struct cu_rows){.rows = 1, .row_bytes = bytes}, stream);
}

cu_result cuMemcpyHtoDAsync_v2(cu_address to, const void *from, size_t bytes, cu_stream stream)
{
    BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync_v2);
    return plain_copy(HOST_COPY_TO_DEVICE, to, (uintptr_t)from, bytes, stream);
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_address from, size_t bytes, cu_stream stream)
{
    BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync_v2);
    return plain_copy(HOST_COPY_TO_HOST, (uintptr_t)to, from, bytes, stream);
}

cu_result cuMemcpyDtoDAsync_v2(cu_address to, cu_address from, size_t bytes, cu_stream stream)
{
    BEGIN_IN_CONTEXT(cuMemcpyDtoDAsync_v2);
    return plain_copy(HOST_COPY_ON_DEVICE, to, from, bytes, stream);
}

cu_result cuMemcpy2DAsync_v2(const struct cu_rows *wanted, cu_stream stream)
{
    int from_host = wanted->from_kind == CU_MEMORY_HOST;
    int to_host = wanted->to_kind == CU_MEMORY_HOST;

    BEGIN_IN_CONTEXT(cuMemcpy2DAsync_v2);
    if (wanted->from_pitch < wanted->row_bytes || wanted->to_pitch < wanted->row_bytes ||
        wanted->row_bytes == 0 || wanted->rows == 0 || (from_host && to_host) ||
        (!from_host && wanted->from_kind != CU_MEMORY_DEVICE) ||
        (!to_host && wanted->to_kind != CU_MEMORY_DEVICE) || wanted->from_x + wanted->from_y != 0 ||
        wanted->to_x + wanted->to_y != 0)
        return INVALID_VALUE;
    return copy_rows(from_host ? HOST_COPY_TO_DEVICE
                     : to_host ? HOST_COPY_TO_HOST
                               : HOST_COPY_ON_DEVICE,
                     to_host ? (uintptr_t)wanted->to_host : wanted->to_device,
                     from_host ? (uintptr_t)wanted->from_host : wanted->from_device, wanted,
                     stream);
}

cu_result cuMemsetD8Async(cu_address at, unsigned char value, size_t bytes, cu_stream stream)
{
    BEGIN_IN_CONTEXT(cuMemsetD8Async);
    TRY(enter_channel(stream));
    return submit(&(struct host_operation){.kind = HOST_SET,
                                           .memory = {.to = at, .bytes = bytes, .value = value}},
                  stream);
}

cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned count, int *options,
                             void **values)
{
    cu_result error = begin("cuModuleLoadDataEx");

    if (error != CU_OK) {
        for (unsigned i = 0; i < count; i++)
            if (options[i] == CU_JIT_ERROR_LOG)
                memcpy(values[i], "ptxas says no", sizeof "ptxas says no");
        return error;
    }
    if (current() == NULL)
        return INVALID_CONTEXT;
    if (strstr(image, "\n.target sm_75\n") == NULL)
        return INVALID_VALUE;
    *module = calloc(1, sizeof **module);
    if (*module == NULL)
        return CU_OUT_OF_MEMORY;
    (*module)->image = image;
    add(&balance.modules, 1);
    return CU_OK;
}

cu_result cuModuleUnload(cu_module module)
{
    BEGIN_IN_CONTEXT(cuModuleUnload);
    free(module);
    add(&balance.modules, -1);
    return CU_OK;
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name)
{
    char entry[80];

    BEGIN_IN_CONTEXT(cuModuleGetFunction);
    snprintf(entry, sizeof entry, ".visible .entry %s(", name);
    for (int i = 0; i < FUNCTIONS; i++) {
        const char *known =
            functions[i].name != NULL ? functions[i].name : kernel_twins[functions[i].kernel].name;

        if (strcmp(name, known) == 0 && strstr(module->image, entry) != NULL) {
            *function = &functions[i];
            return CU_OK;
        }
    }
    return NOT_FOUND;
}

/* A kernel that spins: a thread of its own looks at the words, its stream waits for `over`. */
struct spinning {
    struct fakecuda_spin words;
    struct gpu_event *begins;
    struct gpu_event *over;
};

/* False: the memory is gone. */
static bool write_word(cu_address at)
{
    _Atomic uint32_t *word;

    host_memory_hold();
    word = host_memory_resolve(at, sizeof *word);
    if (word != NULL)
        atomic_store_explicit(word, 1, memory_order_release);
    host_memory_release();
    return word != NULL;
}

/* Memory that was freed under the spin ends it. */
static bool is_let_go(cu_address until)
{
    const _Atomic uint32_t *word;
    bool is_set;

    host_memory_hold();
    word = host_memory_resolve(until, sizeof *word);
    is_set = word == NULL || atomic_load_explicit(word, memory_order_acquire) != 0;
    host_memory_release();
    return is_set;
}

static void *spin_thread(void *argument)
{
    enum { LOOK_AGAIN_US = 200 };
    struct spinning *spinning = argument;
    uint64_t deadline;
    bool begun = false;

    while (host_event_query(spinning->begins, &begun) == TCPX_SUCCESS && !begun)
        usleep(LOOK_AGAIN_US);
    deadline = deadline_after_ms(spinning->words.most_ns / 1000000);
    if (begun && write_word(spinning->words.begun))
        while (!is_let_go(spinning->words.until) && !deadline_passed(deadline))
            usleep(LOOK_AGAIN_US);
    write_word(spinning->words.ended);
    host_event_reach(spinning->over);
    host_event_destroy(spinning->over);
    host_event_destroy(spinning->begins);
    free(spinning);
    return NULL;
}

static cu_result launch_spin(const struct fakecuda_spin *words, cu_stream stream)
{
    struct spinning *spinning = calloc(1, sizeof *spinning);
    pthread_t thread;

    if (spinning == NULL || host_event_create(NULL, &spinning->begins) != TCPX_SUCCESS ||
        host_event_create(NULL, &spinning->over) != TCPX_SUCCESS)
        abort();
    spinning->words = *words;
    host_event_hold(spinning->over);
    if (host_event_record(spinning->begins, queue_of(stream)) != TCPX_SUCCESS ||
        host_stream_wait(queue_of(stream), spinning->over) != TCPX_SUCCESS ||
        pthread_create(&thread, NULL, spin_thread, spinning) != 0)
        abort();
    pthread_detach(thread);
    return CU_OK;
}

cu_result cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared_bytes, cu_stream stream, void **arguments, void **extra)
{
    BEGIN_IN_CONTEXT(cuLaunchKernel);
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != KERNEL_THREADS || block_y != 1 ||
        block_z != 1 || shared_bytes != 0 || extra != NULL)
        return INVALID_VALUE;
    TRY(enter_channel(stream));
    if (function->spins)
        return launch_spin(arguments[0], stream);
    if (function->kernel == GPU_KERNELS) /* it does nothing */
        return CU_OK;
    return submit(&(struct host_operation){.kind = HOST_LAUNCH,
                                           .argument = arguments[0],
                                           .kernel = function->kernel},
                  stream);
}
