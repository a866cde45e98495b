/* What is read of each call (source.py, arguments.py), on Python's stable ABI: the place that makes it, and its
   arguments. Objects of torch are asked for their attributes, as Python does; no header of torch is needed. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* --- Chains: the places that make calls, by their frames --------------------------------------------------------- */

/* A frame of the chains that were seen: the code that ran, at which instruction, called from which node (0: none).
   ``site`` is the place of a chain that needs no frames beyond this one, ``ended`` that of a chain that has no more. */
typedef struct {
    PyObject *code, *site, *ended;
    uint32_t inner;
    int instruction;
} Node;

/* ``table`` has the numbers of nodes by their hash, 0 where it is empty, and at least two places a node. */
typedef struct {
    PyObject_HEAD
    Node *nodes;
    uint32_t *table;
    uint32_t count, room, mask;
} Chains;

static PyTypeObject *frame_type;
static PyObject *back_of, *instruction_of;
static descrgetfunc get_back, get_instruction;

static uint32_t place_of(const Chains *chains, uint32_t inner, PyObject *code, int instruction) {
    uint64_t hash = ((uint64_t)(uintptr_t)code >> 4) * 0x9E3779B97F4A7C15ULL;
    hash ^= ((uint64_t)inner << 32 | (uint32_t)instruction) * 0xC2B2AE3D27D4EB4FULL;
    return (uint32_t)(hash >> 32 ^ hash >> 7) & chains->mask;
}

/* The place in the table of a node, or of where it would be. */
static uint32_t find(const Chains *chains, uint32_t inner, PyObject *code, int instruction) {
    uint32_t place = place_of(chains, inner, code, instruction);
    for (;; place = (place + 1) & chains->mask) {
        const Node *node = chains->nodes + chains->table[place];
        if (chains->table[place] == 0 ||
            (node->code == code && node->inner == inner && node->instruction == instruction))
            return place;
    }
}

static int make_room(Chains *chains, uint32_t room) {
    Node *nodes = PyMem_Realloc(chains->nodes, room * sizeof *nodes);
    if (nodes == NULL)
        return -1;
    chains->nodes = nodes;
    uint32_t *table = PyMem_Calloc(2 * (size_t)room, sizeof *table);
    if (table == NULL)
        return -1;
    PyMem_Free(chains->table);
    chains->table = table;
    chains->room = room;
    chains->mask = 2 * room - 1;
    for (uint32_t number = 1; number < chains->count; number++) {
        const Node *node = nodes + number;
        table[find(chains, node->inner, node->code, node->instruction)] = number;
    }
    return 0;
}

/* The instruction at which a frame stands; -1 with an exception. */
static int instruction_at(PyObject *frame) {
    PyObject *number = get_instruction(instruction_of, frame, (PyObject *)frame_type);
    if (number == NULL)
        return -1;
    long found = PyLong_AsLong(number);
    Py_DECREF(number);
    return (int)found;
}

/* find(frame=None): the place of a frame's chain, None where it was not seen before. Without a frame the chain begins at
   the caller of the function that asks. */
static PyObject *chains_find(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    Chains *chains = (Chains *)self;
    PyObject *frame = count > 0 ? arguments[0] : (PyObject *)PyEval_GetFrame();
    if (frame == NULL || !Py_IS_TYPE(frame, frame_type)) {
        PyErr_SetString(PyExc_TypeError, "find() needs a frame");
        return NULL;
    }
    if (count > 0)
        Py_INCREF(frame);
    else if ((frame = get_back(back_of, frame, (PyObject *)frame_type)) == NULL)
        return NULL;
    PyObject *found = NULL;
    uint32_t inner = 0;
    while (frame != Py_None) {
        int instruction = instruction_at(frame);
        if (instruction == -1 && PyErr_Occurred()) {
            Py_DECREF(frame);
            return NULL;
        }
        // The frame keeps its code.
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        Py_DECREF(code);
        inner = chains->table[find(chains, inner, code, instruction)];
        if (inner == 0 || (found = chains->nodes[inner].site) != NULL)
            break;
        PyObject *outer = get_back(back_of, frame, (PyObject *)frame_type);
        Py_DECREF(frame);
        if (outer == NULL)
            return NULL;
        frame = outer;
        if (frame == Py_None)
            found = chains->nodes[inner].ended;
    }
    found = found == NULL ? Py_None : found;
    Py_INCREF(found);
    Py_DECREF(frame);
    return found;
}

/* add(frames, site, ended): have the chain of these frames, innermost first, found as ``site``. */
static PyObject *chains_add(PyObject *self, PyObject *arguments) {
    Chains *chains = (Chains *)self;
    PyObject *frames, *site;
    int ended;
    if (!PyArg_ParseTuple(arguments, "O!Op:add", &PyList_Type, &frames, &site, &ended))
        return NULL;
    uint32_t inner = 0;
    for (Py_ssize_t place = 0; place < PyList_Size(frames); place++) {
        PyObject *frame = PyList_GetItem(frames, place);
        if (frame == NULL || !Py_IS_TYPE(frame, frame_type)) {
            PyErr_SetString(PyExc_TypeError, "add() needs frames");
            return NULL;
        }
        int instruction = instruction_at(frame);
        if (instruction == -1 && PyErr_Occurred())
            return NULL;
        if (chains->count == chains->room && make_room(chains, 2 * chains->room) < 0)
            return PyErr_NoMemory();
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        uint32_t where = find(chains, inner, code, instruction);
        if (chains->table[where] == 0) {
            chains->nodes[chains->count] = (Node){code, NULL, NULL, inner, instruction};
            chains->table[where] = chains->count++;
        } else {
            Py_DECREF(code);
        }
        inner = chains->table[where];
    }
    if (inner == 0)
        Py_RETURN_NONE;
    PyObject **kept = ended ? &chains->nodes[inner].ended : &chains->nodes[inner].site, *before = *kept;
    Py_INCREF(site);
    *kept = site;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *chains_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(keywords)) {
    Chains *chains = (Chains *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (chains == NULL)
        return NULL;
    chains->count = 1;
    if (make_room(chains, 512) < 0) {
        Py_DECREF(chains);
        return PyErr_NoMemory();
    }
    return (PyObject *)chains;
}

static void chains_free(PyObject *self) {
    Chains *chains = (Chains *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (uint32_t number = 1; number < chains->count; number++) {
        Py_XDECREF(chains->nodes[number].code);
        Py_XDECREF(chains->nodes[number].site);
        Py_XDECREF(chains->nodes[number].ended);
    }
    PyMem_Free(chains->nodes);
    PyMem_Free(chains->table);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef chains_methods[] = {
    {"find", (PyCFunction)(void (*)(void))chains_find, METH_FASTCALL, NULL},
    {"add", chains_add, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot chains_parts[] = {
    {Py_tp_new, chains_new},
    {Py_tp_dealloc, chains_free},
    {Py_tp_methods, chains_methods},
    {0, NULL},
};

static PyType_Spec chains_spec = {"simcoll.recorder._calls.Chains", sizeof(Chains), 0, Py_TPFLAGS_DEFAULT, chains_parts};

static int find_getter(const char *name, PyObject **descriptor, descrgetfunc *getter) {
    *descriptor = PyObject_GetAttrString((PyObject *)frame_type, name);
    if (*descriptor == NULL)
        return -1;
    *getter = (descrgetfunc)PyType_GetSlot(Py_TYPE(*descriptor), Py_tp_descr_get);
    return *getter == NULL ? -1 : 0;
}

static int find_frames(void) {
    PyObject *types = PyImport_ImportModule("types");
    if (types == NULL)
        return -1;
    frame_type = (PyTypeObject *)PyObject_GetAttrString(types, "FrameType");
    Py_DECREF(types);
    if (frame_type == NULL || find_getter("f_back", &back_of, &get_back) < 0)
        return -1;
    return find_getter("f_lasti", &instruction_of, &get_instruction);
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_calls", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__calls(void) {
    PyObject *module = PyModule_Create(&definition), *chains = PyType_FromSpec(&chains_spec);
    if (module == NULL || chains == NULL || find_frames() < 0 || PyModule_AddObject(module, "Chains", chains) < 0) {
        Py_XDECREF(module);
        Py_XDECREF(chains);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ImportError, "this Python's frames are unknown");
        return NULL;
    }
    return module;
}
