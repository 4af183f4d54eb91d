/* Loading libcuda.so.1, and texts for its errors. */
#include "gpu/cuda_driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct cuda_driver cuda;

static const char library_name[] = "libcuda.so.1";

/* Takes what the library has; writes the names of what it lacks to `missing`. */
static void find_entry_points(struct cuda_driver *driver, void *library, char *missing, size_t room)
{
    size_t used = 0;
    void *address;

    missing[0] = '\0';
#define OPTIONAL(entry, arguments)                                                                 \
    address = dlsym(library, #entry);                                                              \
    memcpy(&driver->entry, &address, sizeof address);
#define NEEDED(entry, arguments)                                                                   \
    OPTIONAL(entry, arguments)                                                                     \
    if (address == NULL && used < room)                                                            \
        used +=                                                                                    \
            (size_t)snprintf(missing + used, room - used, "%s%s", used != 0 ? ", " : "", #entry);
    CUDA_ENTRY_POINTS(NEEDED, OPTIONAL)
}

int cuda_driver_load(void)
{
    static bool loaded;
    struct cuda_driver driver;
    char missing[512];
    void *library;

    if (loaded)
        return TCPX_SUCCESS;
    library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return error_set(TCPX_SYSTEM_ERROR, "the CUDA driver cannot be loaded: %s", dlerror());
    find_entry_points(&driver, library, missing, sizeof missing);
    if (missing[0] != '\0') {
        dlclose(library);
        return error_set(TCPX_SYSTEM_ERROR, "the CUDA driver is too old: %s lacks %s", library_name,
                         missing);
    }
    cuda = driver;
    loaded = true;
    return TCPX_SUCCESS;
}

void cuda_keep_error(cu_result error, const char *format, ...)
{
    const char *name = NULL;
    const char *meaning = NULL;
    char what[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (cuda.cuGetErrorName(error, &name) != CU_OK || name == NULL)
        error_keep("%s: CUDA error %d", what, error);
    else if (cuda.cuGetErrorString(error, &meaning) != CU_OK || meaning == NULL)
        error_keep("%s: %s", what, name);
    else
        error_keep("%s: %s (%s)", what, name, meaning);
}
