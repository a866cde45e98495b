/* What is read of each call (source.py, arguments.py), on Python's stable ABI: the place that makes it, and its
   arguments. Objects of torch are asked for their attributes, as Python does; no header of torch is needed. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { REVISION = 3 }; /* as in simcoll/core/native.py */

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

/* --- Reader: the arguments of the usual forms of calls ------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyObject *plain, *parameter, *strided, *reduce_ops;
} Reader;

static PyObject *name_shape, *name_dtype, *name_device, *name_layout, *name_stride, *name_is_contiguous;
static PyObject *name_async, *name_reduce_op, *name_op, *name_value, *name_root_rank, *name_root;

static int is_list(PyObject *value) { return PyList_Check(value) || PyTuple_Check(value); }

/* Adds an item that is the function's own to a list. */
static int append_own(PyObject *list, PyObject *item) {
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Adds the tensors of an argument to ``found``: one, a list, or lists in a list. 1 where something else is there. */
static int tensors_in(const Reader *reader, PyObject *value, PyObject *found, int depth) {
    if ((PyObject *)Py_TYPE(value) == reader->plain || (PyObject *)Py_TYPE(value) == reader->parameter)
        return PyList_Append(found, value);
    if (!is_list(value) || depth > 2)
        return 1;
    Py_ssize_t count = PySequence_Size(value);
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *item = PySequence_GetItem(value, place);
        int outcome = item == NULL ? -1 : tensors_in(reader, item, found, depth + 1);
        Py_XDECREF(item);
        if (outcome != 0)
            return outcome;
    }
    return 0;
}

/* Adds to a key what tells a tensor's calls apart; 1 for a tensor that is not strided. */
static int add_tensor(const Reader *reader, PyObject *key, PyObject *tensor) {
    if (append_own(key, PyObject_GetAttr(tensor, name_shape)) < 0 ||
        append_own(key, PyObject_GetAttr(tensor, name_dtype)) < 0 ||
        append_own(key, PyObject_GetAttr(tensor, name_device)) < 0)
        return -1;
    PyObject *layout = PyObject_GetAttr(tensor, name_layout);
    Py_XDECREF(layout); // torch keeps its layouts
    if (layout != reader->strided)
        return layout == NULL ? -1 : 1;
    PyObject *dense = PyObject_CallMethodObjArgs(tensor, name_is_contiguous, NULL);
    Py_XDECREF(dense);
    if (dense == NULL || dense == Py_True)
        return dense == NULL ? -1 : PyList_Append(key, Py_None);
    return append_own(key, PyObject_CallMethodObjArgs(tensor, name_stride, NULL));
}

/* The name of the reduce op of some options, as a new reference; NULL where it has no known number. */
static PyObject *reduce_op_of(const Reader *reader, PyObject *options) {
    PyObject *op = PyObject_GetAttr(options, name_reduce_op), *kind, *number, *name = NULL;
    if (op == NULL)
        return NULL;
    kind = PyObject_GetAttr(op, name_op);
    Py_DECREF(op);
    if (kind == NULL)
        return NULL;
    number = PyObject_GetAttr(kind, name_value);
    Py_DECREF(kind);
    if (number == NULL)
        return NULL;
    name = PyDict_GetItemWithError(reader->reduce_ops, number);
    Py_DECREF(number);
    Py_XINCREF(name);
    return name;
}

/* Fills what belongs to a call; 0 if it has the usual form, else 1, or -1 with an exception. ``reduce_op`` is to be given
   back in every case. */
static int fill(const Reader *reader, PyObject *name, PyObject *roles, int reduces, int rooted, PyObject *arguments,
                PyObject *tensors, PyObject *integers, PyObject *key, PyObject **reduce_op, int *asynchronous) {
    Py_ssize_t count = PyTuple_Size(roles);
    if (PyTuple_Size(arguments) != count + 1)
        return 1;
    PyObject *options = PyTuple_GetItem(arguments, count), *flag = PyObject_GetAttr(options, name_async);
    if (flag == NULL)
        return 1;
    *asynchronous = flag == Py_True;
    Py_DECREF(flag);
    if (flag != Py_True && flag != Py_False)
        return 1;
    if (reduces && (*reduce_op = reduce_op_of(reader, options)) == NULL)
        return 1;
    if (PyList_Append(key, name) < 0 || PyList_Append(key, *reduce_op == NULL ? Py_None : *reduce_op) < 0)
        return -1;
    if (rooted) {
        PyObject *root = PyObject_GetAttr(options, name_root_rank);
        int failed = root == NULL || PyDict_SetItem(integers, name_root, root) < 0 ||
                     append_own(key, PyTuple_Pack(2, name_root, root)) < 0;
        Py_XDECREF(root);
        if (failed)
            return -1;
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *role = PyTuple_GetItem(roles, place), *found = PyList_New(0);
        int outcome = found == NULL || PyDict_SetItem(tensors, role, found) < 0 || PyList_Append(key, role) < 0 ? -1 : 0;
        Py_XDECREF(found); // the dictionary keeps it
        if (outcome == 0)
            outcome = tensors_in(reader, PyTuple_GetItem(arguments, place), found, 0);
        for (Py_ssize_t number = 0; outcome == 0 && number < PyList_Size(found); number++)
            outcome = add_tensor(reader, key, PyList_GetItem(found, number));
        if (outcome != 0)
            return outcome;
    }
    return 0;
}

/* read(method, roles, reduces, rooted, arguments): the tensors by role, the reduce op, the integers, whether the call is
   asynchronous, and its key, where the arguments are one for each role and the options behind them; else None. */
static PyObject *reader_read(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    if (count != 5 || !PyTuple_Check(given[1])) {
        PyErr_SetString(PyExc_TypeError, "read() takes a name, roles, two truth values and arguments");
        return NULL;
    }
    if (!PyTuple_Check(given[4]))
        Py_RETURN_NONE;
    PyObject *tensors = PyDict_New(), *integers = PyDict_New(), *key = PyList_New(0), *reduce_op = NULL, *found = NULL;
    int asynchronous = 0, outcome = -1;
    if (tensors != NULL && integers != NULL && key != NULL)
        outcome = fill((Reader *)self, given[0], given[1], given[2] == Py_True, given[3] == Py_True, given[4], tensors,
                       integers, key, &reduce_op, &asynchronous);
    PyObject *whole = outcome == 0 ? PyList_AsTuple(key) : NULL;
    if (whole != NULL)
        found = PyTuple_Pack(5, tensors, reduce_op == NULL ? Py_None : reduce_op, integers,
                             asynchronous ? Py_True : Py_False, whole);
    Py_XDECREF(whole);
    Py_XDECREF(tensors);
    Py_XDECREF(integers);
    Py_XDECREF(key);
    Py_XDECREF(reduce_op);
    if (found != NULL)
        return found;
    // Python reads it, and raises what is to be raised.
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* Reader(plain, parameter, strided, reduce_ops): the types of tensors, the usual layout, names of reduce ops by number. */
static PyObject *reader_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *plain, *parameter, *strided, *reduce_ops;
    if (!PyArg_ParseTuple(arguments, "OOOO!:Reader", &plain, &parameter, &strided, &PyDict_Type, &reduce_ops))
        return NULL;
    Reader *reader = (Reader *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (reader == NULL)
        return NULL;
    Py_INCREF(reader->plain = plain);
    Py_INCREF(reader->parameter = parameter);
    Py_INCREF(reader->strided = strided);
    Py_INCREF(reader->reduce_ops = reduce_ops);
    return (PyObject *)reader;
}

static void reader_free(PyObject *self) {
    Reader *reader = (Reader *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(reader->plain);
    Py_XDECREF(reader->parameter);
    Py_XDECREF(reader->strided);
    Py_XDECREF(reader->reduce_ops);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef reader_methods[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_parts[] = {
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_free},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

static PyType_Spec reader_spec = {"simcoll.recorder._calls.Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT, reader_parts};

static int make_names(void) {
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_shape, "shape"},       {&name_dtype, "dtype"},          {&name_device, "device"},
        {&name_layout, "layout"},     {&name_stride, "stride"},        {&name_is_contiguous, "is_contiguous"},
        {&name_async, "asyncOp"},     {&name_reduce_op, "reduceOp"},   {&name_op, "op"},
        {&name_value, "value"},       {&name_root_rank, "rootRank"},   {&name_root, "root"},
    };
    for (size_t place = 0; place < sizeof names / sizeof *names; place++)
        if ((*names[place].name = PyUnicode_InternFromString(names[place].text)) == NULL)
            return -1;
    return 0;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_calls", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__calls(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *chains = PyType_FromSpec(&chains_spec), *reader = PyType_FromSpec(&reader_spec);
    // The types stay for the rest of the process, as the names do.
    if (module != NULL && chains != NULL && reader != NULL && find_frames() == 0 && make_names() == 0 &&
        PyModule_AddIntConstant(module, "REVISION", REVISION) == 0 &&
        PyObject_SetAttrString(module, "Chains", chains) == 0 && PyObject_SetAttrString(module, "Reader", reader) == 0)
        return module;
    Py_XDECREF(module);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "this Python's frames are unknown");
    return NULL;
}
