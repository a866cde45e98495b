/* The ring of a black box (ring.py), on Python's stable ABI.

   Each function runs from its first store to its last with the GIL held and without calling Python, so that no other
   thread or signal handler comes in between. Stores that a reader must see in order, from another process and after a
   kill at any moment, have a fence between them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#if PY_BIG_ENDIAN
#error "a black box is little-endian"
#endif

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

#define IN_ORDER() atomic_thread_fence(memory_order_release)

enum { SCHEDULED, STARTED, COMPLETED };
enum { ASYNCHRONOUS = 1, ON_DEVICE = 16 };

typedef struct {
    uint64_t index;
    uint32_t group, sequence, p2p_sequence, signature, source;
    uint8_t state, flags;
    uint16_t seal;
    uint64_t scheduled_ns, started_ns, finished_ns;
    uint32_t check, wait_us;
} Slot;

typedef struct {
    uint32_t dropped, dropped_p2p;
    uint64_t dropped_records;
} Row;

_Static_assert(sizeof(Slot) == 64 && sizeof(Row) == 16, "the layout of format.py");

typedef struct {
    PyObject_HEAD
    PyObject *owner;
    Row *rows;
    Slot *slots;
    uint64_t row_count, count, next;
    int64_t ahead_ns;
    int open;
} Ring;

/* The time of simcoll/core/clock.py. */
static uint64_t now_ns(const Ring *ring) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + (uint64_t)ring->ahead_ns;
}

static uint16_t seal(const Slot *slot, uint32_t signature) {
    uint64_t total = slot->group * 0x9E3779B97F4BULL + slot->sequence * 0xC2B2AE3D27D5ULL +
                     slot->p2p_sequence * 0x165667B19E37ULL + signature * 0xD6E8FEB86659ULL +
                     slot->source * 0xA0761D6478BDULL;
    uint16_t bits = (uint16_t)(total >> 32);
    return bits ? bits : 1;
}

/* Returns 0, or -1 with an exception, if there are not as many integers as wanted, or only some of the last. */
static int integers(const char *name, PyObject *const *arguments, Py_ssize_t count, int least, int most, int64_t *found) {
    if (count < least || count > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes %d to %d arguments, got %zd", name, least, most, count);
        return -1;
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        found[place] = (int64_t)PyLong_AsUnsignedLongLongMask(arguments[place]);
        if (found[place] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* The slot of a ticket; NULL where none was given, the ring has passed it, or nothing is written any more. */
static Slot *slot_of(Ring *ring, int64_t ticket) {
    if (!ring->open || ticket < 0 || (uint64_t)ticket + ring->count < ring->next)
        return NULL;
    return ring->slots + (uint64_t)ticket % ring->count;
}

static void advance(const Ring *ring, Slot *slot, uint8_t state) {
    uint64_t now = now_ns(ring);
    if (state == STARTED)
        slot->started_ns = now;
    else
        slot->finished_ns = now;
    IN_ORDER();
    slot->state = state;
}

/* Keeps in the table of groups the numbers of a call that is about to be overwritten. */
static void drop(Ring *ring, const Slot *old) {
    if (old->group >= ring->row_count)
        return;
    Row *row = ring->rows + old->group;
    if (old->p2p_sequence)
        row->dropped_p2p = old->p2p_sequence;
    else
        row->dropped = old->sequence;
    row->dropped_records++;
}

static PyObject *ring_write(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    Ring *ring = (Ring *)self;
    int64_t given[7];
    if (integers("write", arguments, count, 7, 7, given) < 0)
        return NULL;
    if (!ring->open)
        return PyLong_FromLong(-1);
    uint64_t ticket = ring->next, now = now_ns(ring);
    Slot *slot = ring->slots + ticket % ring->count;
    if (ticket >= ring->count)
        drop(ring, slot);
    slot->index = ticket + 1;
    IN_ORDER();
    slot->group = (uint32_t)given[0];
    slot->sequence = (uint32_t)given[1];
    slot->signature = (uint32_t)given[2];
    slot->source = (uint32_t)given[3];
    slot->p2p_sequence = (uint32_t)given[4];
    slot->state = (uint8_t)given[5];
    slot->flags = (uint8_t)given[6];
    slot->seal = seal(slot, slot->signature);
    slot->scheduled_ns = now;
    slot->started_ns = slot->state == STARTED ? now : 0;
    slot->finished_ns = 0;
    slot->wait_us = 0;
    IN_ORDER();
    slot->check = (uint32_t)(ticket + 1);
    ring->next = ticket + 1;
    return PyLong_FromUnsignedLongLong(ticket);
}

static PyObject *ring_advance(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    int64_t given[2] = {-1, COMPLETED};
    if (integers("advance", arguments, count, 1, 2, given) < 0)
        return NULL;
    Slot *slot = slot_of((Ring *)self, given[0]);
    if (slot != NULL)
        advance((Ring *)self, slot, (uint8_t)given[1]);
    Py_RETURN_NONE;
}

static PyObject *ring_mark(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    int64_t given[2];
    if (integers("mark", arguments, count, 2, 2, given) < 0)
        return NULL;
    Slot *slot = slot_of((Ring *)self, given[0]);
    if (slot != NULL)
        slot->flags |= (uint8_t)given[1];
    Py_RETURN_NONE;
}

static PyObject *ring_waits(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    int64_t given[2];
    if (integers("waits", arguments, count, 2, 2, given) < 0)
        return NULL;
    Slot *slot = slot_of((Ring *)self, given[0]);
    if (slot != NULL) {
        if (slot->flags & ASYNCHRONOUS && slot->wait_us == 0) {
            int64_t after = ((int64_t)now_ns((Ring *)self) - (int64_t)slot->scheduled_ns) / 1000;
            slot->wait_us = (uint32_t)(after < 1 ? 1 : after > UINT32_MAX ? UINT32_MAX : after);
        }
        slot->flags |= (uint8_t)given[1];
    }
    Py_RETURN_NONE;
}

static PyObject *ring_ran_on_device(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    int64_t given[3] = {-1, 0, 0};
    if (integers("ran_on_device", arguments, count, 2, 3, given) < 0)
        return NULL;
    Slot *slot = slot_of((Ring *)self, given[0]);
    if (slot != NULL && slot->state <= STARTED) {
        int64_t made = (int64_t)slot->scheduled_ns, late = made > given[1] ? made - given[1] : 0;
        slot->started_ns = (uint64_t)(given[1] + late);
        slot->finished_ns = given[2] ? (uint64_t)(given[2] + late) : 0;
        slot->flags |= ON_DEVICE;
        IN_ORDER();
        slot->state = given[2] ? COMPLETED : STARTED;
    }
    Py_RETURN_NONE;
}

static PyObject *ring_ended_on_device(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    int64_t ticket;
    if (integers("ended_on_device", arguments, count, 1, 1, &ticket) < 0)
        return NULL;
    Slot *slot = slot_of((Ring *)self, ticket);
    if (slot != NULL && slot->state <= STARTED)
        advance((Ring *)self, slot, COMPLETED);
    Py_RETURN_NONE;
}

static PyObject *ring_resign(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    int64_t given[2];
    if (integers("resign", arguments, count, 2, 2, given) < 0)
        return NULL;
    Slot *slot = slot_of((Ring *)self, given[0]);
    if (slot != NULL) {
        slot->signature = (uint32_t)given[1];
        slot->seal = seal(slot, slot->signature);
    }
    Py_RETURN_NONE;
}

static PyObject *ring_close(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    ((Ring *)self)->open = 0;
    Py_RETURN_NONE;
}

static PyObject *ring_next(PyObject *self, void *Py_UNUSED(nothing)) {
    return PyLong_FromUnsignedLongLong(((Ring *)self)->next);
}

/* Ring(owner, address, groups, group_rows, ring, slots, ahead_ns): ``owner`` keeps the memory at ``address`` mapped;
   the ring's time is so far ahead of the monotonic clock. */
static PyObject *ring_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *owner;
    unsigned long long address, groups, rows, start, count;
    long long ahead;
    if (!PyArg_ParseTuple(arguments, "OKKKKKL:Ring", &owner, &address, &groups, &rows, &start, &count, &ahead))
        return NULL;
    if (count == 0) {
        PyErr_SetString(PyExc_ValueError, "a ring has at least one slot");
        return NULL;
    }
    Ring *ring = (Ring *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (ring == NULL)
        return NULL;
    Py_INCREF(owner);
    ring->owner = owner;
    ring->rows = (Row *)(uintptr_t)(address + groups);
    ring->slots = (Slot *)(uintptr_t)(address + start);
    ring->row_count = rows;
    ring->count = count;
    ring->ahead_ns = (int64_t)ahead;
    ring->open = 1;
    return (PyObject *)ring;
}

static void ring_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Ring *)self)->owner);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))ring_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FAST(write),
    FAST(advance),
    FAST(mark),
    FAST(waits),
    FAST(ran_on_device),
    FAST(ended_on_device),
    FAST(resign),
    {"close", ring_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {{"next", ring_next, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot parts[] = {
    {Py_tp_new, ring_new},
    {Py_tp_dealloc, ring_free},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"simcoll.blackbox._ring.Ring", sizeof(Ring), 0, Py_TPFLAGS_DEFAULT, parts};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ring", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ring(void) {
    PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&spec);
    // The type stays for the rest of the process.
    if (module != NULL && type != NULL && PyModule_AddIntConstant(module, "REVISION", REVISION) == 0 &&
        PyObject_SetAttrString(module, "Ring", type) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
