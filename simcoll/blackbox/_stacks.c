/* Keeps a process alive when faulthandler faults while it writes down the stacks of all threads (stacks.py).

   faulthandler reads the frames of threads without the GIL. A thread that runs Python meanwhile, or ends, as each callback
   on a thread of C++ does, gives their memory back, and the next read ends the process
   (https://github.com/python/cpython/issues/116008). It only reads and writes to a file: so its handler can be left at
   any place. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

enum { SIGNALS = 65 };

static const int faults[] = {SIGSEGV, SIGBUS};
enum { FAULTS = sizeof faults / sizeof *faults };

static void (*inner[SIGNALS])(int);
static volatile int descriptors[SIGNALS];
static char line[128];
static size_t length;

static atomic_flag reading = ATOMIC_FLAG_INIT;
static pthread_t reader;
static sigjmp_buf leave;
static struct sigaction before[FAULTS];
static volatile sig_atomic_t failed;

static void faulted(int fault) {
    if (pthread_equal(pthread_self(), reader))
        siglongjmp(leave, 1);
    // Another thread's own: it faults again, as it would have without this handler.
    for (int number = 0; number < FAULTS; number++)
        if (faults[number] == fault)
            sigaction(fault, &before[number], NULL);
}

static void guarded(int signal) {
    int error = errno;
    if (atomic_flag_test_and_set(&reading))
        return;
    if (!failed) {
        struct sigaction ours = {.sa_handler = faulted, .sa_flags = SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        reader = pthread_self();
        for (int number = 0; number < FAULTS; number++)
            sigaction(faults[number], &ours, &before[number]);
        if (sigsetjmp(leave, 1) == 0)
            inner[signal](signal);
        else
            failed = 1; // faulthandler takes itself for busy from now on, and writes nothing
        for (int number = 0; number < FAULTS; number++)
            sigaction(faults[number], &before[number], NULL);
    }
    // Where the line cannot be written, there is nobody to tell.
    ssize_t written = failed ? write(descriptors[signal], line, length) : 0;
    (void)written;
    atomic_flag_clear(&reading);
    errno = error;
}

/* guard(signal, descriptor, line): have faults in the signal's handler, which is one in C, end only the handler: then, and
   each time after that, the line is all that is written. */
static PyObject *guard(PyObject *Py_UNUSED(module), PyObject *arguments) {
    int signal, descriptor;
    const char *text;
    struct sigaction now;
    if (!PyArg_ParseTuple(arguments, "iis:guard", &signal, &descriptor, &text))
        return NULL;
    if (signal <= 0 || signal >= SIGNALS || strlen(text) > sizeof line || sigaction(signal, NULL, &now) < 0 ||
        now.sa_flags & SA_SIGINFO || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) {
        PyErr_SetString(PyExc_ValueError, "guard() takes a signal with a handler, and a short line");
        return NULL;
    }
    length = strlen(text);
    memcpy(line, text, length);
    descriptors[signal] = descriptor;
    if (now.sa_handler != guarded) {
        inner[signal] = now.sa_handler;
        now.sa_handler = guarded;
        sigaction(signal, &now, NULL);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"guard", guard, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_stacks", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stacks(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "REVISION", REVISION) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
