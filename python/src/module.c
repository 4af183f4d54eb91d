/* The module tcpx._tcpx: what the package tcpx shows, and nothing that a program names itself. */
#include "python/src/module.h"

#include "python/src/connect.h"
#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/gpu_memory.h"
#include "python/src/listener.h"
#include "python/src/parts.h"
#include "python/src/patience.h"
#include "python/src/remote.h"
#include "python/src/window.h"

PyMODINIT_FUNC PyInit__tcpx(void);

static bool is_exiting;

int module_refuse_at_exit(void)
{
    if (!is_exiting)
        return 0;
    errors_usage("the interpreter is exiting");
    return -1;
}

/* Sessions first: their transfers use windows. */
static PyObject *close_all(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    is_exiting = true;
    listeners_close_all();
    sessions_close_all();
    windows_close_all();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"connect", WITH_KEYWORDS(connect_session), METH_VARARGS | METH_KEYWORDS, DOC_CONNECT},
    {"listen", WITH_KEYWORDS(listener_listen), METH_VARARGS | METH_KEYWORDS, DOC_LISTEN},
    {"gpus", gpu_list, METH_NOARGS, DOC_GPUS},
    {"_close_all", close_all, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

/* One phase and no state of its own: there is one library in a process, and one module. */
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "tcpx._tcpx",
    .m_size = -1,
    .m_methods = methods,
};

static int load_all(PyObject *module)
{
    static int (*const loads[])(PyObject *) = {session_load,   transfer_load, listener_load,
                                               window_load,    remote_load,   parts_load,
                                               gpu_memory_load};
    int result = errors_load();

    for (size_t i = 0; i < sizeof loads / sizeof *loads && result == 0; i++)
        result = loads[i](module);
    if (result == 0)
        result = PyModule_AddStringConstant(module, "version", tcpx_version());
    if (result == 0)
        result = PyModule_AddIntConstant(module, "NOTE_BYTES", TCPX_NOTE_BYTES);
    return result;
}

PyMODINIT_FUNC PyInit__tcpx(void)
{
    PyObject *module;

    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "tcpx works in the main interpreter only: this is a subinterpreter");
        return NULL;
    }
    module = PyModule_Create(&definition);
    if (module == NULL || load_all(module) == 0) {
        patience_load();
        return module;
    }
    Py_DECREF(module);
    return NULL;
}
