/* A sum of words over sockets, as far as it goes in a moment (allreduce.py), and a word at its place (checksum.py), on
   Python's stable ABI.

   This is the way on which nothing happens: whatever else is met is left to the twin in Python, which goes on where this
   one stands. So errors, waits that last, signals and links that are closed meanwhile are its matter alone. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#if PY_BIG_ENDIAN
#error "words are sent as little-endian numbers"
#endif

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

enum { GIVE, COMBINE, TAKE };
enum { MOMENT_MS = 10 };

/* As allreduce.py packs them. */
typedef struct {
    int32_t action, descriptor;
} Step;

typedef struct {
    uint64_t position, word;
} Message;

_Static_assert(sizeof(Step) == 8 && sizeof(Message) == 16, "the layout of allreduce.py");

/* A sum under way: ``done`` of its steps were made; of the message of the next one ``had`` bytes were received, or the
   socket has refused it with ``error``. */
typedef struct {
    uint64_t position, total;
    int least, done, had, error;
    unsigned char piece[sizeof(Message)];
} Sum;

/* The error that a socket gave; an interrupt is none, as Python asks again. */
static int error_given(void) { return errno == EINTR ? 0 : errno; }

/* Gives a peer the total so far; true if that went well. */
static int give(Sum *sum, int descriptor) {
    Message message = {sum->position, sum->total};
    if (send(descriptor, &message, sizeof message, MSG_NOSIGNAL) >= 0)
        return 1;
    sum->error = error_given();
    return 0;
}

/* True if something has come within a moment. */
static int comes(int descriptor) {
    struct pollfd asked = {descriptor, POLLIN, 0};
    return poll(&asked, 1, MOMENT_MS) > 0;
}

/* Receives the whole of a peer's message; true if it came. */
static int receive(Sum *sum, int descriptor) {
    while (sum->had < (int)sizeof sum->piece) {
        ssize_t size = recv(descriptor, sum->piece + sum->had, sizeof sum->piece - (size_t)sum->had, 0);
        if (size > 0) {
            sum->had += (int)size;
        } else if (size == 0) {
            return 0;
        } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
            sum->error = error_given();
            return 0;
        } else if (!comes(descriptor)) {
            return 0;
        }
    }
    return 1;
}

/* Receives the word of a peer; true if it came. A message that is none stays where it was received. */
static int take(Sum *sum, const Step *step) {
    Message message;
    if (!receive(sum, step->descriptor))
        return 0;
    memcpy(&message, sum->piece, sizeof message);
    if (message.position != sum->position)
        return 0;
    sum->had = 0;
    if (step->action == TAKE)
        sum->total = message.word;
    else if (sum->least)
        sum->total = message.word < sum->total ? message.word : sum->total;
    else
        sum->total += message.word;
    return 1;
}

/* exchange(steps, position, word, least): the sum at a position of a channel, or the least word; a tuple where Python has
   to go on: the steps that were made, the total so far, what was received of the next message, and the error number (0:
   none) with which a socket has refused it. */
static PyObject *exchange(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count) {
    if (count != 4 || !PyBytes_Check(given[0])) {
        PyErr_SetString(PyExc_TypeError, "exchange() takes steps, a position, a word, and whether the least is wanted");
        return NULL;
    }
    const Step *steps = (const Step *)PyBytes_AsString(given[0]);
    int wanted = (int)(PyBytes_Size(given[0]) / (Py_ssize_t)sizeof *steps);
    Sum sum = {PyLong_AsUnsignedLongLongMask(given[1]), PyLong_AsUnsignedLongLongMask(given[2]), given[3] == Py_True, 0, 0, 0,
               {0}};
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    while (sum.done < wanted) {
        const Step *step = steps + sum.done;
        if (!(step->action == GIVE ? give(&sum, step->descriptor) : take(&sum, step)))
            break;
        sum.done++;
    }
    Py_END_ALLOW_THREADS
    if (sum.done == wanted)
        return PyLong_FromUnsignedLongLong(sum.total);
    return Py_BuildValue("iKy#i", sum.done, (unsigned long long)sum.total, sum.piece, (Py_ssize_t)sum.had, sum.error);
}

static uint64_t mixed(uint64_t value) {
    value += 0x9E3779B97F4A7C15;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
    value = (value ^ value >> 27) * 0x94D049BB133111EB;
    return value ^ value >> 31;
}

/* positioned(word, sequence): the word of a call at its place in the group. */
static PyObject *positioned(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "positioned() takes a word and a sequence number");
        return NULL;
    }
    uint64_t word = PyLong_AsUnsignedLongLongMask(given[0]), sequence = PyLong_AsUnsignedLongLongMask(given[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLongLong(word * (mixed(sequence * 0x2545F4914F6CDD1D) | 1));
}

static PyMethodDef methods[] = {
    {"exchange", (PyCFunction)(void (*)(void))exchange, METH_FASTCALL, NULL},
    {"positioned", (PyCFunction)(void (*)(void))positioned, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_words", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__words(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "REVISION", REVISION) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
