/* What is read of each call (source.py, arguments.py), on Python's stable ABI: the place that makes it, and its
   arguments; and the way of a usual call up to its launch in one step (quick.py). Objects of torch are asked for their
   attributes, as Python does, but for fields of options whose place was found by trying (option_fields.py); no header of
   torch is needed. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>

enum { REVISION = 5 }; /* as in simcoll/core/native.py */

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

static PyTypeObject *frame_type, *chains_type;
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

/* The place of the chain of a frame, whose reference is taken; NULL where it was not seen before, or with an exception.
   The chains keep the place. */
static PyObject *seen(const Chains *chains, PyObject *frame) {
    PyObject *found = NULL;
    uint32_t inner = 0;
    while (frame != Py_None) {
        int instruction = instruction_at(frame);
        if (instruction == -1 && PyErr_Occurred())
            break;
        // The frame keeps its code.
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        Py_DECREF(code);
        inner = chains->table[find(chains, inner, code, instruction)];
        if (inner == 0 || (found = chains->nodes[inner].site) != NULL)
            break;
        PyObject *outer = get_back(back_of, frame, (PyObject *)frame_type);
        if (outer == NULL)
            break;
        Py_DECREF(frame);
        frame = outer;
        if (frame == Py_None)
            found = chains->nodes[inner].ended;
    }
    Py_DECREF(frame);
    return found;
}

/* find(frame=None): the place of a frame's chain, None where it was not seen before. Without a frame the chain begins at
   the caller of the function that asks. */
static PyObject *chains_find(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    PyObject *frame = count > 0 ? arguments[0] : (PyObject *)PyEval_GetFrame();
    if (frame == NULL || !Py_IS_TYPE(frame, frame_type)) {
        PyErr_SetString(PyExc_TypeError, "find() needs a frame");
        return NULL;
    }
    if (count > 0)
        Py_INCREF(frame);
    else if ((frame = get_back(back_of, frame, (PyObject *)frame_type)) == NULL)
        return NULL;
    PyObject *found = seen((Chains *)self, frame);
    if (found == NULL && PyErr_Occurred())
        return NULL;
    found = found == NULL ? Py_None : found;
    Py_INCREF(found);
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

static void let_go(Chains *chains) {
    for (uint32_t number = 1; number < chains->count; number++) {
        Py_XDECREF(chains->nodes[number].code);
        Py_XDECREF(chains->nodes[number].site);
        Py_XDECREF(chains->nodes[number].ended);
    }
    PyMem_Free(chains->nodes);
    PyMem_Free(chains->table);
}

static int begin_empty(Chains *chains) {
    chains->nodes = NULL;
    chains->table = NULL;
    chains->count = 1;
    return make_room(chains, 512);
}

/* clear(): forget all chains. */
static PyObject *chains_clear(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    Chains *chains = (Chains *)self, before = *chains;
    if (begin_empty(chains) < 0) {
        PyMem_Free(chains->nodes);
        *chains = before;
        return PyErr_NoMemory();
    }
    let_go(&before);
    Py_RETURN_NONE;
}

static PyObject *chains_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(keywords)) {
    Chains *chains = (Chains *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (chains != NULL && begin_empty(chains) < 0) {
        Py_DECREF(chains);
        return PyErr_NoMemory();
    }
    return (PyObject *)chains;
}

static void chains_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    let_go((Chains *)self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef chains_methods[] = {
    {"find", (PyCFunction)(void (*)(void))chains_find, METH_FASTCALL, NULL},
    {"add", chains_add, METH_VARARGS, NULL},
    {"clear", chains_clear, METH_NOARGS, NULL},
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

/* ``fields`` has the places of fields in the options of each type, as option_fields.py packs them. */
typedef struct {
    PyObject_HEAD
    PyObject *plain, *parameter, *strided, *reduce_ops, *fields;
} Reader;

static PyTypeObject *reader_type;
static PyObject *name_shape, *name_dtype, *name_device, *name_layout, *name_stride, *name_is_contiguous;
static PyObject *name_async, *name_reduce_op, *name_op, *name_value, *name_root_rank, *name_root;

static int is_list(PyObject *value) { return PyList_Check(value) || PyTuple_Check(value); }

/* Adds an item that is the function's own to a list. */
static int append_own(PyObject *list, PyObject *item) {
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
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

/* Adds the tensors of an argument to a key, and to ``found`` if that is given: one, a list, or lists in a list. 1 where
   something else is there. */
static int add_tensors(const Reader *reader, PyObject *value, PyObject *key, PyObject *found, int depth) {
    if ((PyObject *)Py_TYPE(value) == reader->plain || (PyObject *)Py_TYPE(value) == reader->parameter)
        return found != NULL && PyList_Append(found, value) < 0 ? -1 : add_tensor(reader, key, value);
    if (!is_list(value) || depth > 2)
        return 1;
    Py_ssize_t count = PySequence_Size(value);
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *item = PySequence_GetItem(value, place);
        int outcome = item == NULL ? -1 : add_tensors(reader, item, key, found, depth + 1);
        Py_XDECREF(item);
        if (outcome != 0)
            return outcome;
    }
    return 0;
}

/* What a call's options say. ``root`` and ``reduce_op`` (a name) are references, NULL where nobody asked. */
typedef struct {
    int asynchronous;
    PyObject *reduce_op, *root;
} Options;

static void drop_options(Options *options) {
    Py_CLEAR(options->reduce_op);
    Py_CLEAR(options->root);
}

/* The number of a reduce op, as a new reference. */
static PyObject *reduce_op_number(PyObject *options) {
    PyObject *op = PyObject_GetAttr(options, name_reduce_op), *kind, *number;
    if (op == NULL)
        return NULL;
    kind = PyObject_GetAttr(op, name_op);
    Py_DECREF(op);
    if (kind == NULL)
        return NULL;
    number = PyObject_GetAttr(kind, name_value);
    Py_DECREF(kind);
    return number;
}

/* Asks the options for their attributes; fails with -1. */
static int ask_options(PyObject *options, int reduces, int rooted, Options *said, PyObject **number) {
    PyObject *flag = PyObject_GetAttr(options, name_async);
    Py_XDECREF(flag); // one of the two truth values, which stay
    if (flag != Py_True && flag != Py_False)
        return -1;
    said->asynchronous = flag == Py_True;
    if (reduces && (*number = reduce_op_number(options)) == NULL)
        return -1;
    return rooted && (said->root = PyObject_GetAttr(options, name_root_rank)) == NULL ? -1 : 0;
}

/* Reads the options' fields where they lie; fails with -1. ``fields`` are the packed places. */
static int look_at_options(PyObject *options, long fields, int reduces, int rooted, Options *said, PyObject **number) {
    const uint8_t *start = *(const uint8_t *const *)((const char *)options + sizeof(PyObject));
    int64_t root;
    said->asynchronous = start[fields & 0xFF] != 0;
    if (reduces && (*number = PyLong_FromLong(start[fields >> 8 & 0xFF])) == NULL)
        return -1;
    if (!rooted)
        return 0;
    memcpy(&root, start + (fields >> 16 & 0xFF), sizeof root);
    return (said->root = PyLong_FromLongLong(root)) == NULL ? -1 : 0;
}

/* What has to be known of a c10d method: its name, its roles, and the fields that are read of its options. */
typedef struct {
    PyObject *name, *roles;
    int reduces, rooted;
} Usual;

/* Reads the options of a call, which stand behind its tensors; 0 if they have the usual form. */
static int read_options(const Reader *reader, const Usual *usual, PyObject *arguments, Options *said) {
    Py_ssize_t count = PyTuple_Size(usual->roles);
    if (PyTuple_Size(arguments) != count + 1)
        return 1;
    PyObject *options = PyTuple_GetItem(arguments, count), *number = NULL;
    PyObject *places = PyDict_GetItemWithError(reader->fields, (PyObject *)Py_TYPE(options));
    long fields = places == NULL ? -1 : PyLong_AsLong(places);
    int failed = fields < 0 ? ask_options(options, usual->reduces, usual->rooted, said, &number)
                            : look_at_options(options, fields, usual->reduces, usual->rooted, said, &number);
    if (!failed && usual->reduces) {
        said->reduce_op = PyDict_GetItemWithError(reader->reduce_ops, number);
        Py_XINCREF(said->reduce_op);
        failed = said->reduce_op == NULL;
    }
    Py_XDECREF(number);
    return failed;
}

/* Reads the key of a call whose options were read, a new list; and its tensors by role, if ``tensors`` is given. 0 if
   the call has the usual form, else 1, or -1 with an exception. The key is to be given back in every case. */
static int read_call(const Reader *reader, const Usual *usual, PyObject *arguments, const Options *said, PyObject **key,
                     PyObject *tensors) {
    if ((*key = PyList_New(0)) == NULL || PyList_Append(*key, usual->name) < 0 ||
        PyList_Append(*key, said->reduce_op == NULL ? Py_None : said->reduce_op) < 0 ||
        (usual->rooted && append_own(*key, PyTuple_Pack(2, name_root, said->root)) < 0))
        return -1;
    for (Py_ssize_t place = 0; place < PyTuple_Size(usual->roles); place++) {
        PyObject *role = PyTuple_GetItem(usual->roles, place), *found = tensors == NULL ? NULL : PyList_New(0);
        int outcome = PyList_Append(*key, role);
        if (tensors != NULL && (found == NULL || PyDict_SetItem(tensors, role, found) < 0))
            outcome = -1;
        Py_XDECREF(found); // the dictionary keeps it
        if (outcome == 0)
            outcome = add_tensors(reader, PyTuple_GetItem(arguments, place), *key, found, 0);
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
    Usual usual = {given[0], given[1], given[2] == Py_True, given[3] == Py_True};
    Options said = {0, NULL, NULL};
    PyObject *tensors = PyDict_New(), *integers = PyDict_New(), *key = NULL, *whole = NULL, *found = NULL;
    if (tensors != NULL && integers != NULL && read_options((Reader *)self, &usual, given[4], &said) == 0 &&
        read_call((Reader *)self, &usual, given[4], &said, &key, tensors) == 0 &&
        (said.root == NULL || PyDict_SetItem(integers, name_root, said.root) == 0))
        whole = PyList_AsTuple(key);
    if (whole != NULL)
        found = PyTuple_Pack(5, tensors, said.reduce_op == NULL ? Py_None : said.reduce_op, integers,
                             said.asynchronous ? Py_True : Py_False, whole);
    Py_XDECREF(whole);
    Py_XDECREF(tensors);
    Py_XDECREF(integers);
    Py_XDECREF(key);
    drop_options(&said);
    if (found != NULL)
        return found;
    // Python reads it, and raises what is to be raised.
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* Reader(plain, parameter, strided, reduce_ops, fields): the types of tensors, the usual layout, names of reduce ops by
   number, places of fields by type of options. */
static PyObject *reader_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *plain, *parameter, *strided, *reduce_ops, *fields;
    if (!PyArg_ParseTuple(arguments, "OOOO!O!:Reader", &plain, &parameter, &strided, &PyDict_Type, &reduce_ops,
                          &PyDict_Type, &fields))
        return NULL;
    Reader *reader = (Reader *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (reader == NULL)
        return NULL;
    Py_INCREF(reader->plain = plain);
    Py_INCREF(reader->parameter = parameter);
    Py_INCREF(reader->strided = strided);
    Py_INCREF(reader->reduce_ops = reduce_ops);
    Py_INCREF(reader->fields = fields);
    return (PyObject *)reader;
}

static void reader_free(PyObject *self) {
    Reader *reader = (Reader *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(reader->plain);
    Py_XDECREF(reader->parameter);
    Py_XDECREF(reader->strided);
    Py_XDECREF(reader->reduce_ops);
    Py_XDECREF(reader->fields);
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

/* --- Quick: a usual call from its arguments to its slot, in one step (quick.py) ------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyObject *reader, *chains, *look, *lines, *learn, *known, *log, *lock, *write, *group, *state, *awaited, *asynchronous,
        *join, *quiet, *idle, *active, *session, *watch;
} Quick;

static PyObject *name_process, *name_sequence, *name_locked, *name_chosen, *no_message;

/* True if all of some containers are empty; -1 with an exception. */
static int are_empty(PyObject *containers) {
    for (Py_ssize_t place = 0; place < PyTuple_Size(containers); place++) {
        int busy = PyObject_IsTrue(PyTuple_GetItem(containers, place));
        if (busy != 0)
            return busy < 0 ? -1 : 0;
    }
    return 1;
}

/* True while nothing keeps calls from going the quick way; -1 with an exception. */
static int is_free(const Quick *quick) {
    int quiet = are_empty(quick->quiet);
    if (quiet != 1)
        return quiet;
    PyObject *type, *error, *traceback;
    PyErr_GetExcInfo(&type, &error, &traceback);
    int handles = error != NULL && error != Py_None;
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    if (handles || quick->active == Py_None)
        return !handles;
    PyObject *session = PyObject_GetAttr(quick->active, name_process);
    Py_XDECREF(session); // whose object it is, is all that matters
    return session == NULL ? -1 : session == quick->session;
}

/* The place from which the asking function was called, as a new reference. */
static PyObject *place_here(const Quick *quick) {
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    if (frame == NULL)
        return NULL;
    Py_INCREF(frame);
    PyObject *place = seen((Chains *)quick->chains, frame);
    Py_XINCREF(place);
    if (place == NULL && !PyErr_Occurred())
        place = PyObject_CallFunctionObjArgs(quick->look, PyEval_GetFrame(), NULL);
    return place;
}

/* The line of a place and its number, as a pair; None for a place without a known line. */
static PyObject *line_of(const Quick *quick, PyObject *place) {
    PyObject *line = PyDict_GetItemWithError(quick->lines, place);
    Py_XINCREF(line);
    if (line == NULL && !PyErr_Occurred())
        line = PyObject_CallFunctionObjArgs(quick->learn, place, NULL);
    return line;
}

/* The number of the next call whose values may be checked; none where there is no watch. -1 with an exception. */
static long long chosen_next(const Quick *quick) {
    if (quick->watch == Py_None)
        return LLONG_MAX;
    PyObject *number = PyObject_GetAttr(quick->watch, name_chosen);
    long long chosen = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    return chosen;
}

/* Gives a call its place in the group and a slot: what begin() returns, NULL if it is not to be written here.
   ``tensors`` are those of an asynchronous call, None for any other. */
static PyObject *write_call(const Quick *quick, PyObject *call, PyObject *tensors, PyObject *place, PyObject *line) {
    // From here to the slot nothing runs that could let another thread in.
    PyObject *locked = PyObject_CallMethodObjArgs(quick->lock, name_locked, NULL);
    Py_XDECREF(locked);
    if (locked != Py_False)
        return NULL;
    PyObject *last = PyObject_GetAttr(quick->log, name_sequence), *sequence = NULL, *ticket = NULL, *written = NULL;
    long long number = last == NULL ? -1 : PyLong_AsLongLong(last) + 1;
    if (last != NULL && !PyErr_Occurred() && number < chosen_next(quick))
        sequence = PyLong_FromLongLong(number);
    if (sequence != NULL && !PyErr_Occurred() && PyObject_SetAttr(quick->log, name_sequence, sequence) == 0)
        ticket = PyObject_CallFunctionObjArgs(quick->write, quick->group, sequence, PyTuple_GetItem(call, 1),
                                              PyTuple_GetItem(line, 1), no_message, quick->state,
                                              tensors == Py_None ? quick->awaited : quick->asynchronous, NULL);
    if (ticket != NULL)
        written = PyTuple_Pack(6, PyTuple_GetItem(call, 0), sequence, PyTuple_GetItem(line, 0), ticket, tensors, place);
    if (written != NULL && quick->join != Py_None) {
        PyObject *joined = PyObject_CallFunctionObjArgs(quick->join, written, NULL);
        if (joined == NULL)
            Py_CLEAR(written);
        Py_XDECREF(joined);
    }
    Py_XDECREF(last);
    Py_XDECREF(sequence);
    Py_XDECREF(ticket);
    return written;
}

/* Writes down the call of a key, a list; NULL if it is not known, or not to be written here. */
static PyObject *write_known(const Quick *quick, PyObject *key, PyObject *tensors) {
    PyObject *whole = PyList_AsTuple(key), *call = NULL, *place = NULL, *line = NULL, *written = NULL;
    if (whole != NULL)
        call = PyDict_GetItemWithError(quick->known, whole);
    Py_XINCREF(call);
    if (call != NULL && (place = place_here(quick)) != NULL)
        line = line_of(quick, place);
    if (line != NULL && line != Py_None)
        written = write_call(quick, call, tensors, place, line);
    Py_XDECREF(whole);
    Py_XDECREF(call);
    Py_XDECREF(place);
    Py_XDECREF(line);
    return written;
}

/* begin(usual, arguments): write down a call that was made here before; None if nothing was written. */
static PyObject *quick_begin(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    const Quick *quick = (Quick *)self;
    if (count != 2 || !PyTuple_Check(given[0]) || PyTuple_Size(given[0]) != 4 || !PyTuple_Check(given[1])) {
        PyErr_SetString(PyExc_TypeError, "begin() takes what is known of a method, and arguments");
        return NULL;
    }
    PyObject *method = given[0], *key = NULL, *tensors = NULL, *written = NULL;
    Usual usual = {PyTuple_GetItem(method, 0), PyTuple_GetItem(method, 1), PyTuple_GetItem(method, 2) == Py_True,
                   PyTuple_GetItem(method, 3) == Py_True};
    Options said = {0, NULL, NULL};
    if (is_free(quick) == 1 && read_options((Reader *)quick->reader, &usual, given[1], &said) == 0 &&
        (said.asynchronous ? quick->asynchronous != Py_None && (tensors = PyDict_New()) != NULL
                           : are_empty(quick->idle) == 1) &&
        read_call((Reader *)quick->reader, &usual, given[1], &said, &key, tensors) == 0)
        written = write_known(quick, key, tensors == NULL ? Py_None : tensors);
    Py_XDECREF(key);
    Py_XDECREF(tensors);
    drop_options(&said);
    if (written != NULL)
        return written;
    // Python goes the whole way, and raises what is to be raised.
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* Quick(...): quick.py says what each argument is. */
static PyObject *quick_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    Quick given = {0};
    if (!PyArg_ParseTuple(arguments, "O!O!OO!OO!OOOOOOOOO!O!OOO:Quick", reader_type, &given.reader, chains_type, &given.chains,
                          &given.look, &PyDict_Type, &given.lines, &given.learn, &PyDict_Type, &given.known, &given.log,
                          &given.lock, &given.write, &given.group, &given.state, &given.awaited, &given.asynchronous,
                          &given.join, &PyTuple_Type, &given.quiet, &PyTuple_Type, &given.idle, &given.active, &given.session,
                          &given.watch))
        return NULL;
    Quick *quick = (Quick *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (quick == NULL)
        return NULL;
    PyObject **parts = &given.reader, **kept = &quick->reader;
    for (; parts <= &given.watch; parts++, kept++)
        Py_INCREF(*kept = *parts);
    return (PyObject *)quick;
}

static int quick_traverse(PyObject *self, visitproc visit, void *arg) {
    Quick *quick = (Quick *)self;
    for (PyObject **part = &quick->reader; part <= &quick->watch; part++)
        Py_VISIT(*part);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int quick_clear(PyObject *self) {
    Quick *quick = (Quick *)self;
    for (PyObject **part = &quick->reader; part <= &quick->watch; part++)
        Py_CLEAR(*part);
    return 0;
}

static void quick_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    quick_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef quick_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))quick_begin, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot quick_parts[] = {
    {Py_tp_new, quick_new},         {Py_tp_dealloc, quick_free}, {Py_tp_traverse, quick_traverse},
    {Py_tp_clear, quick_clear},     {Py_tp_methods, quick_methods}, {0, NULL},
};

static PyType_Spec quick_spec = {"simcoll.recorder._calls.Quick", sizeof(Quick), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, quick_parts};

/* --- The module ------------------------------------------------------------------------------------------------------ */

static int make_names(void) {
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_shape, "shape"},       {&name_dtype, "dtype"},         {&name_device, "device"},
        {&name_layout, "layout"},     {&name_stride, "stride"},       {&name_is_contiguous, "is_contiguous"},
        {&name_async, "asyncOp"},     {&name_reduce_op, "reduceOp"},  {&name_op, "op"},
        {&name_value, "value"},       {&name_root_rank, "rootRank"},  {&name_root, "root"},
        {&name_process, "process"},   {&name_locked, "locked"},       {&name_sequence, "collectives"},
        {&name_chosen, "chosen"},
    };
    for (size_t place = 0; place < sizeof names / sizeof *names; place++)
        if ((*names[place].name = PyUnicode_InternFromString(names[place].text)) == NULL)
            return -1;
    return (no_message = PyLong_FromLong(0)) == NULL ? -1 : 0;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_calls", NULL, -1, NULL, NULL, NULL, NULL, NULL};

/* The types stay for the rest of the process, as the names do. */
static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **kept) {
    *kept = (PyTypeObject *)PyType_FromSpec(spec);
    return *kept == NULL ? -1 : PyObject_SetAttrString(module, name, (PyObject *)*kept);
}

PyMODINIT_FUNC PyInit__calls(void) {
    PyObject *module = PyModule_Create(&definition);
    PyTypeObject *quick_type;
    if (module != NULL && find_frames() == 0 && make_names() == 0 &&
        PyModule_AddIntConstant(module, "REVISION", REVISION) == 0 &&
        add_type(module, "Chains", &chains_spec, &chains_type) == 0 &&
        add_type(module, "Reader", &reader_spec, &reader_type) == 0 &&
        add_type(module, "Quick", &quick_spec, &quick_type) == 0)
        return module;
    Py_XDECREF(module);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "this Python's frames are unknown");
    return NULL;
}
