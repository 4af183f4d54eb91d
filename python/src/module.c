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

int module_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type)
{
    if (*type == NULL)
        *type = PyType_FromSpec(spec);
    return *type != NULL ? PyModule_AddObjectRef(module, name, *type) : -1;
}

static int load_types(PyObject *module)
{
    static int (*const loads[])(PyObject *) = {session_load,   transfer_load, listener_load,
                                               window_load,    remote_load,   parts_load,
                                               gpu_memory_load};
    int result = 0;

    for (size_t i = 0; i < sizeof loads / sizeof *loads && result == 0; i++)
        result = loads[i](module);
    return result;
}

/* There is one library in a process, so that all modules, of further imports, share the types. */
static int module_execute(PyObject *module)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "tcpx works in the main interpreter only: this is a subinterpreter");
        return -1;
    }
    if (patience_load() != 0 || errors_load() != 0 || load_types(module) != 0)
        return -1;
    return PyModule_AddStringConstant(module, "version", tcpx_version());
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_execute}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "tcpx._tcpx",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__tcpx(void)
{
    return PyModuleDef_Init(&definition);
}
