/* The times of one rank in the order of operations of another (rank_program.py, `_Order`), on Python's stable ABI.

   The arrays are numpy's and are given by their addresses, as the stable ABI of Python 3.10 has no buffers. Whatever it
   compares and chooses is what the twin in Python does: the times are equal to the last bit. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

/* As in trace.py and record.py; what a part is given says them, so that they stand in one place. */
typedef struct {
    int64_t asynchronous, awaited, handed_on, on_device, completed;
} Bits;

/* `_Compiled` in rank_program.py, a number or an address each. */
typedef struct {
    /* The records of a rank: where the first is, how far apart they are, and where in each its fields are. */
    const uint8_t *slots;
    int64_t stride, count, state, flags, scheduled, started, finished, waited;
    Bits bits;
    /* The order: which calls block, before which call the wait for each of the others stands, which waits were seen; the
       places of its operations among all calls and then all waits (NULL: no waits), which of them may stand where they do
       whatever their times, and at equal times. */
    const uint8_t *blocks;
    const int64_t *before;
    const uint8_t *seen;
    int64_t waits;
    const int64_t *places;
    const uint8_t *fixed, *in_turn;
    /* For a while: when each call and wait began, and let the rank go on, and the latest begin of a call so far. */
    int64_t *begun, *over, *latest;
    /* What is found; `timed` is 1 if any call has a time. */
    double *gaps;
    int64_t timed;
} Followed;

static const int64_t LATEST = ((int64_t)1 << 62) - 1; /* as in rank_program.py */

static const double SECOND = 1e9;

static int64_t most(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t time_at(const uint8_t *field) {
    uint64_t found;
    memcpy(&found, field, sizeof found);
    return found > (uint64_t)LATEST ? LATEST : (int64_t)found;
}

static int64_t began(const Followed *of, const uint8_t *slot) {
    return time_at(slot + (slot[of->flags] & of->bits.on_device ? of->started : of->scheduled));
}

/* Whether the wait for call `i` stands before the call that the order says; `until` is the time it has to come after. */
static int stands(const Followed *of, int64_t i, int64_t before, int64_t until) {
    if (before <= i + 1)
        return before == i + 1 && (before >= of->count || of->latest[before] >= until);
    return of->latest[before - 1] < until && (before == of->count || of->latest[before] >= until);
}

/* As `_waits`, of one call that does not block; 0 where the wait is another one than the order's, or is not told. */
static int wait_for(const Followed *of, const uint8_t *slot, int64_t i, int64_t wait, int64_t ended) {
    const Bits *bits = &of->bits;
    int64_t flags = slot[of->flags], place = of->count + wait, before = of->before[wait], begun = 0;
    uint32_t waited;
    memcpy(&waited, slot + of->waited, sizeof waited);
    int known = ended > 0 && slot[of->state] == bits->completed;
    int written = known && waited > 0 && !(flags & bits->on_device);
    if (!written && !(known && (flags & (bits->awaited | bits->handed_on)) == bits->awaited))
        return 0;
    if (written)
        begun = of->begun[i] + (int64_t)waited * 1000;
    if (!stands(of, i, before, written ? begun : ended))
        return 0;
    if (!written && before < of->count)
        begun = of->begun[before];
    of->begun[place] = begun;
    of->over[place] = written ? most(begun, ended) : begun;
    return (begun > 0) == (of->seen[wait] != 0);
}

static int calls_follow(Followed *of) {
    int64_t latest = 0, wait = 0;
    of->timed = 0;
    for (int64_t i = 0; i < of->count; i++) {
        of->begun[i] = began(of, of->slots + i * of->stride);
        of->latest[i] = latest = most(latest, of->begun[i]);
    }
    of->timed = latest > 0;
    for (int64_t i = 0; i < of->count; i++) {
        const uint8_t *slot = of->slots + i * of->stride;
        int64_t ended = time_at(slot + of->finished), later = i + 1 < of->count ? of->begun[i + 1] : INT64_MAX;
        int blocks = !(slot[of->flags] & of->bits.asynchronous) && (ended == 0 || later >= ended);
        if (blocks != (of->blocks[i] != 0))
            return 0;
        of->over[i] = blocks ? most(of->begun[i], ended) : of->begun[i];
        if (!blocks && !wait_for(of, slot, i, wait++, ended))
            return 0;
    }
    return 1;
}

/* As `_Order.apply` and `_gaps`. */
static int gaps_follow(Followed *of) {
    int64_t free = 0, last = 0;
    for (int64_t number = 0; number < of->count + of->waits; number++) {
        int64_t place = of->places == NULL ? number : of->places[number], begun = of->begun[place];
        if (number == 0)
            free = begun;
        else if (of->places != NULL && !of->fixed[number - 1] && begun <= last &&
                 !(begun == last && of->in_turn[number - 1]))
            return 0;
        of->gaps[number] = begun > 0 && free > 0 && begun > free ? (double)(begun - free) / SECOND : 0.0;
        free = number == 0 ? of->over[place] : most(free, of->over[place]);
        last = begun;
    }
    return 1;
}

/* follow(address of a `Followed`): True if the rank's operations are in this order, and its gaps are found. */
static PyObject *follow(PyObject *module, PyObject *address) {
    Followed *of = (Followed *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(calls_follow(of) && gaps_follow(of));
}

static PyMethodDef methods[] = {{"follow", follow, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_program", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__program(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "REVISION", REVISION) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
