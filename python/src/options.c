/* The options of sessions, as connect() and listen() take them. */
#include "python/src/options.h"

#include "python/src/errors.h"

/* A path as the system has it. None stays NULL. */
static int copy_path(PyObject *object, char **copy)
{
    PyObject *bytes = NULL;

    if (object == Py_None)
        return 0;
    if (!PyUnicode_FSConverter(object, &bytes))
        return -1;
    *copy = strdup(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    if (*copy == NULL)
        PyErr_NoMemory();
    return *copy != NULL ? 0 : -1;
}

static int take_gpu(PyObject *object, int *gpu)
{
    long number = -1;

    *gpu = -1;
    if (object == Py_None)
        return 0;
    number = PyLong_AsLong(object);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < 0 || number > 65535) {
        errors_usage("gpu=%ld: the number of a GPU, or None for host memory only", number);
        return -1;
    }
    *gpu = (int)number;
    return 0;
}

int options_take(const struct option_objects *objects, struct options *options)
{
    int result = 0;

    *options = (struct options){0};
    tcpx_session_options_init(&options->options);
    if (objects->name != NULL && *objects->name != '\0') {
        options->name = strdup(objects->name);
        result = options->name != NULL ? 0 : -1;
        if (result != 0)
            PyErr_NoMemory();
    }
    if (result == 0)
        result = take_gpu(objects->gpu, &options->options.gpu);
    if (result == 0)
        result = copy_path(objects->secret, &options->secret);
    if (result == 0)
        result = copy_path(objects->plugin, &options->plugin);
    if (result != 0) {
        options_give(options);
        return -1;
    }
    options->options.name = options->name;
    options->options.secret_file = options->secret;
    options->options.plugin_path = options->plugin;
    options->options.windows = objects->windows;
    options->options.channels = objects->channels;
    options->options.no_kernels = objects->no_kernels;
    return 0;
}

void options_give(struct options *options)
{
    free(options->name);
    free(options->secret);
    free(options->plugin);
    *options = (struct options){0};
}
