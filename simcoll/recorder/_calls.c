/* What is read of each call (source.py, arguments.py), on Python's stable ABI: the place that makes it, and its
   arguments; and the way of a usual call up to its launch, of a synchronous one to its end, in one step (quick.py).
   Objects of torch are asked for their attributes, as Python does, but for fields of options and of tensors whose places
   were found by trying (option_fields.py, tensor_fields.py); no header of torch is needed. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

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

enum { MOST_DIMENSIONS = 5, FORMS = 256, FIELDS = 13, MOST_OPS = 16 };

/* The form of a plain tensor of the CPU: its dtype, dimensions, sizes and strides as they lie in it, and as attributes
   (``order``: its strides, None where it is contiguous). No two have one ``number``, which is never 0. */
typedef struct {
    uint64_t number, dtype, dimensions, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    PyObject *shape, *type, *device, *order;
} Form;

/* The places of the fields of tensors, as tensor_fields.py has them. */
typedef struct {
    int64_t impl, dimensions, strides, offset, elements, dtype, keys, storage, data, counter, version, plain, inference;
} Fields;

_Static_assert(sizeof(Fields) == FIELDS * sizeof(int64_t), "one number after the other");

/* ``fields`` has the places of fields in the options of each type, as option_fields.py packs them. ``known`` says that
   those of tensors are; the forms that were seen lie at the places of their hashes. ``names`` are those of reduce ops by
   number, ``last_type`` the options that were read last, and ``last_fields`` their places. */
typedef struct {
    PyObject_HEAD
    PyObject *plain, *parameter, *strided, *reduce_ops, *fields;
    Fields places;
    int known;
    uint64_t forms_made;
    Form *forms;
    PyObject *names[MOST_OPS], *last_type;
    long last_fields;
} Reader;

static PyTypeObject *reader_type;
static PyObject *name_shape, *name_dtype, *name_device, *name_layout, *name_stride, *name_is_contiguous;
static PyObject *name_async, *name_reduce_op, *name_op, *name_value, *name_root_rank, *name_root;
static PyObject *name_data_ptr, *name_version;

static int is_list(PyObject *value) { return PyList_Check(value) || PyTuple_Check(value); }

/* Adds an item that is the function's own to a list. */
static int append_own(PyObject *list, PyObject *item) {
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

static uint64_t word_at(const char *start, int64_t place) {
    uint64_t word;
    memcpy(&word, start + place, sizeof word);
    return word;
}

/* True while the fields of tensors may be looked at: nobody pretends that tensors lie elsewhere. */
static int may_look(const Reader *reader) {
    if (!reader->known)
        return 0;
    PyObject *device = PyObject_GetAttr(reader->plain, name_device);
    Py_XDECREF(device); // the type keeps it
    if (device == NULL)
        PyErr_Clear();
    return device != NULL && Py_IS_TYPE(device, &PyGetSetDescr_Type);
}

/* The TensorImpl of a tensor whose fields may be looked at; NULL for one that is not plain, or not on the CPU. */
static const char *impl_of(const Reader *reader, PyObject *tensor) {
    const Fields *at = &reader->places;
    const char *impl = (const char *)(uintptr_t)word_at((const char *)tensor, at->impl);
    if (impl == NULL)
        return NULL;
    uint64_t keys = word_at(impl, at->keys);
    return keys == (uint64_t)at->plain || keys == (uint64_t)at->inference ? impl : NULL;
}

static void drop_form(Form *form) {
    Py_XDECREF(form->shape);
    Py_XDECREF(form->type);
    Py_XDECREF(form->device);
    Py_XDECREF(form->order);
}

/* Asks a tensor for the attributes of its form; 0 if they were all told, and are what lies in memory. */
static int ask_form(const Reader *reader, PyObject *tensor, Form *form) {
    PyObject *layout = PyObject_GetAttr(tensor, name_layout);
    Py_XDECREF(layout); // torch keeps its layouts
    PyObject *dense = layout == reader->strided ? PyObject_CallMethodObjArgs(tensor, name_is_contiguous, NULL) : NULL;
    Py_XDECREF(dense); // a truth value
    if (dense == NULL)
        return -1;
    form->shape = PyObject_GetAttr(tensor, name_shape);
    form->type = PyObject_GetAttr(tensor, name_dtype);
    form->device = PyObject_GetAttr(tensor, name_device);
    form->order = dense == Py_True ? Py_None : PyObject_CallMethodObjArgs(tensor, name_stride, NULL);
    if (form->order == Py_None)
        Py_INCREF(Py_None);
    if (form->shape == NULL || form->type == NULL || form->device == NULL || form->order == NULL ||
        PyTuple_Size(form->shape) != (Py_ssize_t)form->dimensions)
        return -1;
    for (uint64_t place = 0; place < form->dimensions; place++)
        if (PyLong_AsUnsignedLongLong(PyTuple_GetItem(form->shape, (Py_ssize_t)place)) != form->sizes[place])
            return -1;
    return PyErr_Occurred() ? -1 : 0;
}

/* The form of a tensor; NULL, without an exception, where its attributes are to be asked for. */
static const Form *form_of(Reader *reader, PyObject *tensor) {
    const Fields *at = &reader->places;
    const char *impl = impl_of(reader, tensor);
    uint16_t dtype;
    Form form = {0};
    if (impl == NULL || (form.dimensions = word_at(impl, at->dimensions)) > MOST_DIMENSIONS)
        return NULL;
    size_t size = form.dimensions * sizeof(uint64_t);
    memcpy(&dtype, impl + at->dtype, sizeof dtype);
    memcpy(form.sizes, impl + at->dimensions + sizeof(uint64_t), size);
    memcpy(form.strides, impl + at->strides, size);
    form.dtype = dtype;
    uint64_t hash = dtype + 1;
    for (uint64_t place = 0; place < form.dimensions; place++)
        hash = (hash ^ form.sizes[place] ^ form.strides[place] << 32) * 0x9E3779B97F4A7C15ULL ^ hash >> 29;
    Form *found = reader->forms + (hash >> 32) % FORMS;
    if (found->number && found->dtype == form.dtype && found->dimensions == form.dimensions &&
        memcmp(found->sizes, form.sizes, size) == 0 && memcmp(found->strides, form.strides, size) == 0)
        return found;
    if (ask_form(reader, tensor, &form) != 0) {
        PyErr_Clear();
        drop_form(&form);
        return NULL;
    }
    Form before = *found;
    form.number = ++reader->forms_made;
    *found = form;
    drop_form(&before);
    return found;
}

/* Adds to a key what tells a tensor's calls apart; 1 for a tensor that is not strided. */
static int add_tensor(Reader *reader, PyObject *key, PyObject *tensor, int looks) {
    const Form *form = looks ? form_of(reader, tensor) : NULL;
    if (form != NULL)
        return PyList_Append(key, form->shape) < 0 || PyList_Append(key, form->type) < 0 ||
                       PyList_Append(key, form->device) < 0 || PyList_Append(key, form->order) < 0
                   ? -1
                   : 0;
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

/* A tensor of a call that is open: ``size`` bytes from ``start`` on (0: it has no memory). A version beyond ``version``
   plus ``limit`` (-1: nobody looks) shows that the program has written to it. */
typedef struct {
    PyObject *tensor;
    uint64_t start, size;
    int64_t version, limit;
    int writes, role;
} Held;

enum { MOST_HELD = 16 };

/* The tensors of a call in the order of its arguments; beyond ``MOST_HELD`` only their number. */
typedef struct {
    int count;
    Held held[MOST_HELD];
} Gathered;

static void gather(Gathered *gathered, PyObject *tensor, int role) {
    if (gathered->count < MOST_HELD) {
        Py_INCREF(tensor);
        gathered->held[gathered->count] = (Held){tensor, 0, 0, 0, -1, 0, role};
    }
    gathered->count++;
}

static void drop_gathered(Gathered *gathered) {
    for (int place = 0; place < gathered->count && place < MOST_HELD; place++)
        Py_DECREF(gathered->held[place].tensor);
    gathered->count = 0;
}

enum { MOST_SIGNED = 12 };

/* What tells a call apart, short: its method and options, then the roles and forms of its tensors. ``count`` numbers, -1
   for a call of which not all is known. */
typedef struct {
    int count;
    uint64_t numbers[MOST_SIGNED];
} Sign;

static void add_number(Sign *sign, uint64_t number) {
    if (sign->count >= 0)
        sign->count = sign->count == MOST_SIGNED ? -1 : sign->count + 1;
    if (sign->count > 0)
        sign->numbers[sign->count - 1] = number;
}

/* What is wanted of the tensors of a call: each part may be NULL. ``looks`` says that their fields may be looked at. */
typedef struct {
    PyObject *key, *found;
    Gathered *gathered;
    Sign *sign;
    int looks, role;
} Wanted;

/* Reads the tensors of an argument: one, a list, or lists in a list. 1 where something else is there. */
static int add_tensors(Reader *reader, PyObject *value, const Wanted *wanted, int depth) {
    if ((PyObject *)Py_TYPE(value) == reader->plain || (PyObject *)Py_TYPE(value) == reader->parameter) {
        if (wanted->gathered != NULL)
            gather(wanted->gathered, value, wanted->role);
        if (wanted->found != NULL && PyList_Append(wanted->found, value) < 0)
            return -1;
        if (wanted->sign != NULL) {
            const Form *form = form_of(reader, value);
            if (form == NULL)
                return 1;
            add_number(wanted->sign, form->number << 2 | (uint64_t)wanted->role);
        }
        return wanted->key == NULL ? 0 : add_tensor(reader, wanted->key, value, wanted->looks);
    }
    if (!is_list(value) || depth > 2)
        return 1;
    Py_ssize_t count = PySequence_Size(value);
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *item = PySequence_GetItem(value, place);
        int outcome = item == NULL ? -1 : add_tensors(reader, item, wanted, depth + 1);
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

/* The number of a reduce op; -1 with an exception. */
static long reduce_op_number(PyObject *options) {
    PyObject *op = PyObject_GetAttr(options, name_reduce_op), *kind, *number;
    if (op == NULL)
        return -1;
    kind = PyObject_GetAttr(op, name_op);
    Py_DECREF(op);
    if (kind == NULL)
        return -1;
    number = PyObject_GetAttr(kind, name_value);
    Py_DECREF(kind);
    long found = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    return found;
}

/* Asks the options for their attributes; fails with -1. */
static int ask_options(PyObject *options, int reduces, int rooted, Options *said, long *op) {
    PyObject *flag = PyObject_GetAttr(options, name_async);
    Py_XDECREF(flag); // one of the two truth values, which stay
    if (flag != Py_True && flag != Py_False)
        return -1;
    said->asynchronous = flag == Py_True;
    if (reduces && (*op = reduce_op_number(options)) == -1)
        return -1;
    return rooted && (said->root = PyObject_GetAttr(options, name_root_rank)) == NULL ? -1 : 0;
}

/* Reads the options' fields where they lie; fails with -1. ``fields`` are the packed places. */
static int look_at_options(PyObject *options, long fields, int reduces, int rooted, Options *said, long *op) {
    const uint8_t *start = *(const uint8_t *const *)((const char *)options + sizeof(PyObject));
    int64_t root;
    said->asynchronous = start[fields & 0xFF] != 0;
    if (reduces)
        *op = start[fields >> 8 & 0xFF];
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

/* The packed places of the fields in these options; -1 where they have to be asked. */
static long fields_of(Reader *reader, PyObject *options) {
    PyObject *type = (PyObject *)Py_TYPE(options);
    if (type == reader->last_type)
        return reader->last_fields;
    PyObject *places = PyDict_GetItemWithError(reader->fields, type);
    if (places == NULL)
        return -1;
    reader->last_type = type; // the dictionary keeps it
    return reader->last_fields = PyLong_AsLong(places);
}

/* Reads the options of a call, which stand behind its tensors; 0 if they have the usual form. */
static int read_options(Reader *reader, const Usual *usual, PyObject *arguments, Options *said) {
    Py_ssize_t count = PyTuple_Size(usual->roles);
    if (PyTuple_Size(arguments) != count + 1)
        return 1;
    PyObject *options = PyTuple_GetItem(arguments, count);
    long fields = fields_of(reader, options), op = -1;
    int failed = fields < 0 ? ask_options(options, usual->reduces, usual->rooted, said, &op)
                            : look_at_options(options, fields, usual->reduces, usual->rooted, said, &op);
    if (failed || !usual->reduces)
        return failed;
    said->reduce_op = op >= 0 && op < MOST_OPS ? reader->names[op] : NULL;
    Py_XINCREF(said->reduce_op);
    return said->reduce_op == NULL;
}

/* Puts the tensors of a call into a dictionary, a list for each role; 0 if the call has the usual form. */
static int sort_tensors(Reader *reader, const Usual *usual, PyObject *arguments, PyObject *tensors) {
    for (Py_ssize_t place = 0; place < PyTuple_Size(usual->roles); place++) {
        PyObject *found = PyList_New(0);
        Wanted wanted = {NULL, found, NULL, NULL, 0, (int)place};
        int outcome = found == NULL ? -1 : PyDict_SetItem(tensors, PyTuple_GetItem(usual->roles, place), found);
        if (outcome == 0)
            outcome = add_tensors(reader, PyTuple_GetItem(arguments, place), &wanted, 0);
        Py_XDECREF(found); // the dictionary keeps it
        if (outcome != 0)
            return outcome;
    }
    return 0;
}

/* Reads the key of a call whose options were read, a new list; and its tensors, if ``gathered`` is given. 0 if the call
   has the usual form, else 1, or -1 with an exception. The key is to be given back in every case. */
static int read_call(Reader *reader, const Usual *usual, PyObject *arguments, const Options *said, int looks,
                     PyObject **key, Gathered *gathered) {
    if ((*key = PyList_New(0)) == NULL || PyList_Append(*key, usual->name) < 0 ||
        PyList_Append(*key, said->reduce_op == NULL ? Py_None : said->reduce_op) < 0 ||
        (usual->rooted && append_own(*key, PyTuple_Pack(2, name_root, said->root)) < 0))
        return -1;
    for (Py_ssize_t place = 0; place < PyTuple_Size(usual->roles); place++) {
        Wanted wanted = {*key, NULL, gathered, NULL, looks, (int)place};
        int outcome = PyList_Append(*key, PyTuple_GetItem(usual->roles, place));
        if (outcome == 0)
            outcome = add_tensors(reader, PyTuple_GetItem(arguments, place), &wanted, 0);
        if (outcome != 0)
            return outcome;
    }
    return 0;
}

/* Signs a call whose options were read, and gathers its tensors, if ``gathered`` is given; 0 if all of it is known. */
static int sign_call(Reader *reader, const Usual *usual, PyObject *arguments, const Options *said, Sign *sign,
                     Gathered *gathered) {
    // Names and reduce ops are kept for good.
    add_number(sign, (uint64_t)(uintptr_t)usual->name);
    add_number(sign, (uint64_t)(uintptr_t)said->reduce_op);
    if (usual->rooted)
        add_number(sign, PyLong_AsUnsignedLongLongMask(said->root));
    for (Py_ssize_t place = 0; place < PyTuple_Size(usual->roles); place++) {
        Wanted wanted = {NULL, NULL, gathered, sign, 1, (int)place};
        int outcome = add_tensors(reader, PyTuple_GetItem(arguments, place), &wanted, 0);
        if (outcome != 0)
            return outcome;
    }
    return sign->count < 0;
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
        read_call((Reader *)self, &usual, given[4], &said, may_look((Reader *)self), &key, NULL) == 0 &&
        sort_tensors((Reader *)self, &usual, given[4], tensors) == 0 &&
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

/* Takes the places of tensors' fields from a tuple; None where they are not known. */
static int take_places(Reader *reader, PyObject *given) {
    int64_t numbers[FIELDS];
    if (given == Py_None)
        return 0;
    if (!PyTuple_Check(given) || PyTuple_Size(given) != FIELDS) {
        PyErr_SetString(PyExc_TypeError, "the fields of tensors are a tuple of numbers");
        return -1;
    }
    for (Py_ssize_t place = 0; place < FIELDS; place++)
        numbers[place] = (int64_t)PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(given, place));
    memcpy(&reader->places, numbers, sizeof numbers);
    reader->known = 1;
    return PyErr_Occurred() ? -1 : 0;
}

/* Takes the names of reduce ops by number, which the dictionary keeps; fails with -1. */
static int take_names(Reader *reader) {
    for (long op = 0; op < MOST_OPS; op++) {
        PyObject *number = PyLong_FromLong(op);
        if (number == NULL)
            return -1;
        reader->names[op] = PyDict_GetItemWithError(reader->reduce_ops, number);
        Py_DECREF(number);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Reader(plain, parameter, strided, reduce_ops, fields, places): the types of tensors, the usual layout, names of reduce
   ops by number, places of fields by type of options, and those of tensors. */
static PyObject *reader_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *plain, *parameter, *strided, *reduce_ops, *fields, *places;
    if (!PyArg_ParseTuple(arguments, "OOOO!O!O:Reader", &plain, &parameter, &strided, &PyDict_Type, &reduce_ops,
                          &PyDict_Type, &fields, &places))
        return NULL;
    Reader *reader = (Reader *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (reader == NULL)
        return NULL;
    Py_INCREF(reader->plain = plain);
    Py_INCREF(reader->parameter = parameter);
    Py_INCREF(reader->strided = strided);
    Py_INCREF(reader->reduce_ops = reduce_ops);
    Py_INCREF(reader->fields = fields);
    if ((reader->forms = PyMem_Calloc(FORMS, sizeof *reader->forms)) == NULL || take_places(reader, places) < 0 ||
        take_names(reader) < 0) {
        Py_DECREF(reader);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return (PyObject *)reader;
}

static void reader_free(PyObject *self) {
    Reader *reader = (Reader *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (Form *form = reader->forms; form != NULL && form < reader->forms + FORMS; form++)
        drop_form(form);
    PyMem_Free(reader->forms);
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

/* --- OpenCalls: asynchronous calls that went the quick way and were not waited for (async_checks.py) ---------------- */

enum { RECENT = 16 };

/* A call of a group that was made lately, by its sign: its key, and what is known of it. */
typedef struct {
    PyObject *key, *call;
    Sign sign;
} Recent;

typedef struct {
    PyObject_HEAD
    PyObject *reader, *chains, *look, *lines, *learn, *known, *log, *locked, *write, *waits, *advance, *group, *state,
        *awaited, *asynchronous, *join, *quiet, *idle, *active, *session, *calls, *work, *plain_work, *limit, *watch, *add;
    int carries;
    Recent *recent;
} Quick;

/* OPEN calls are watched here, NOTED ones by Python, by their ``flight``. */
enum { OPEN, NOTED, AWAITED };

/* ``key`` tells the shapes that the tensors had, ``since`` the number of waits so far. ``where`` is its place among the
   open calls (-1: none), ``arriving`` says that the versions of results show a write when its end was seen. */
typedef struct {
    PyObject_HEAD
    PyObject *quick, *prepared, *sequence, *source, *ticket, *place, *roles, *key, *since, *inner, *flight, *references;
    Held *held;
    int count, where, unwaited, state, tells, arriving;
} OpenCall;

enum { MOST_OPEN = 256 };

/* The OPEN calls of a process, which they leave before they are freed. ``owner`` has all others, by ``storages``, and
   ``orphans``, whose Works were dropped, at which it looks now and then (``looked_ns``). */
typedef struct {
    PyObject_HEAD
    PyObject *owner, *due, *storages, *orphans;
    OpenCall *calls[MOST_OPEN];
    int count;
    uint64_t changes, looked_ns;
} OpenCalls;

#define LOOK_AFTER_NS 50000000u

static PyTypeObject *calls_type, *call_type, *quick_type;
static PyObject *no_tensors;
static PyObject *name_look_after, *name_waits, *name_changed, *name_arrived, *name_dropped, *name_by_torch, *name_later, *name_wait,
    *name_completed, *name_call;

/* The collector has cleared a call, or it was not written down yet. */
static int is_gone(const OpenCall *call) {
    if (call->quick != NULL && ((Quick *)call->quick)->calls != NULL && call->ticket != NULL)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "the call is gone");
    return 1;
}

static OpenCalls *calls_of(const OpenCall *call) { return (OpenCalls *)((Quick *)call->quick)->calls; }

static void enter(OpenCalls *calls, OpenCall *call) {
    call->where = calls->count;
    calls->calls[calls->count++] = call;
    calls->changes++;
}

static void leave(OpenCall *call) {
    if (call->where < 0)
        return;
    OpenCalls *calls = calls_of(call);
    OpenCall *last = calls->calls[--calls->count];
    calls->calls[call->where] = last;
    last->where = call->where;
    call->where = -1;
    calls->changes++;
}

static void drop_held(OpenCall *call) {
    Held *held = call->held;
    int count = call->count;
    call->held = NULL;
    call->count = 0;
    for (int place = 0; place < count; place++)
        Py_DECREF(held[place].tensor);
    PyMem_Free(held);
}

/* The version of a tensor; -1 where it has none. */
static int64_t version_of(const Reader *reader, PyObject *tensor) {
    const char *impl = reader->known ? impl_of(reader, tensor) : NULL;
    if (impl != NULL) {
        const char *counter = (const char *)(uintptr_t)word_at(impl, reader->places.counter);
        uint32_t found;
        if (counter == NULL)
            return -1;
        memcpy(&found, counter + reader->places.version, sizeof found);
        return found;
    }
    PyObject *number = PyObject_GetAttr(tensor, name_version);
    int64_t version = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    if (version == -1)
        PyErr_Clear();
    return version;
}

/* The address of a tensor's first byte, of which it has ``size``; 0 where it has none. */
static uint64_t address_of(const Reader *reader, PyObject *tensor, uint64_t size) {
    const Fields *at = &reader->places;
    const char *impl = reader->known ? impl_of(reader, tensor) : NULL;
    const char *storage = impl == NULL ? NULL : (const char *)(uintptr_t)word_at(impl, at->storage);
    uint64_t data = storage == NULL ? 0 : word_at(storage, at->data), elements = data ? word_at(impl, at->elements) : 0;
    if (elements)
        return data + word_at(impl, at->offset) * (size / elements);
    PyObject *number = PyObject_CallMethodObjArgs(tensor, name_data_ptr, NULL);
    uint64_t address = number == NULL ? 0 : PyLong_AsUnsignedLongLong(number);
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return address;
}

/* True if the program has written to what is looked at of a call, as far as versions show. Whatever runs meanwhile may let
   go of the tensors. */
static int has_changed(const OpenCall *call) {
    for (int place = 0; place < call->count; place++) {
        Held held = call->held[place];
        if (held.limit < 0)
            continue;
        Py_INCREF(held.tensor);
        int64_t now = version_of((Reader *)((Quick *)call->quick)->reader, held.tensor);
        Py_DECREF(held.tensor);
        if (now > held.version + held.limit)
            return 1;
    }
    return 0;
}

/* A wait for a call begins: the first since others were made, whose buffers are looked at. */
static int look_before_wait(OpenCalls *calls) {
    for (int place = 0; place < calls->count; place++) {
        OpenCall *call = calls->calls[place];
        if (!call->unwaited)
            continue;
        uint64_t before = calls->changes;
        PyObject *told = NULL;
        call->unwaited = 0;
        Py_INCREF(call);
        int changed = has_changed(call);
        if (changed)
            told = PyObject_CallMethodObjArgs(calls->owner, name_changed, call, NULL);
        Py_DECREF(call);
        Py_XDECREF(told);
        if (changed && told == NULL)
            return -1;
        if (calls->changes != before)
            place = -1;
    }
    return 0;
}

/* Has the owner look at the calls whose Works were dropped, if there are any and it is time. */
static void look_after(OpenCalls *calls) {
    if (calls->orphans == NULL || PyObject_IsTrue(calls->orphans) != 1)
        return;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    uint64_t now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    if (now - calls->looked_ns < LOOK_AFTER_NS)
        return;
    calls->looked_ns = now;
    PyObject *looked = PyObject_CallMethodObjArgs(calls->owner, name_look_after, NULL);
    if (looked == NULL)
        PyErr_WriteUnraisable(calls->owner);
    Py_XDECREF(looked);
}

/* True if a call uses memory of an open one, and one of the two writes to it. */
static int meets(const OpenCalls *calls, const Gathered *gathered) {
    for (int other = 0; other < calls->count; other++)
        for (int place = 0; place < calls->calls[other]->count; place++) {
            const Held *its = calls->calls[other]->held + place;
            for (const Held *mine = gathered->held; mine < gathered->held + gathered->count; mine++)
                if (mine->start < its->start + its->size && its->start < mine->start + mine->size &&
                    (mine->writes || its->writes))
                    return 1;
        }
    return 0;
}

static PyObject *calls_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *owner, *due, *storages, *orphans;
    if (!PyArg_ParseTuple(arguments, "OOOO:OpenCalls", &owner, &due, &storages, &orphans))
        return NULL;
    OpenCalls *calls = (OpenCalls *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (calls == NULL)
        return NULL;
    Py_INCREF(calls->owner = owner);
    Py_INCREF(calls->due = due);
    Py_INCREF(calls->storages = storages);
    Py_INCREF(calls->orphans = orphans);
    return (PyObject *)calls;
}

static int calls_traverse(PyObject *self, visitproc visit, void *arg) {
    OpenCalls *calls = (OpenCalls *)self;
    Py_VISIT(calls->owner);
    Py_VISIT(calls->due);
    Py_VISIT(calls->storages);
    Py_VISIT(calls->orphans);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int calls_clear(PyObject *self) {
    OpenCalls *calls = (OpenCalls *)self;
    Py_CLEAR(calls->owner);
    Py_CLEAR(calls->due);
    Py_CLEAR(calls->storages);
    Py_CLEAR(calls->orphans);
    return 0;
}

/* Each open call holds its quick way, and that the open calls: none is left. */
static void calls_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    calls_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static Py_ssize_t calls_length(PyObject *self) { return ((OpenCalls *)self)->count; }

/* all(): the open calls. */
static PyObject *calls_all(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    OpenCalls *calls = (OpenCalls *)self;
    PyObject *found = PyList_New(0);
    for (int place = 0; found != NULL && place < calls->count; place++)
        if (calls->calls[place]->state == OPEN && PyList_Append(found, (PyObject *)calls->calls[place]) < 0)
            Py_CLEAR(found);
    return found;
}

/* forget(): watch none of them any more. */
static PyObject *calls_forget(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    OpenCalls *calls = (OpenCalls *)self;
    while (calls->count > 0) {
        calls->calls[0]->state = AWAITED;
        leave(calls->calls[0]);
    }
    Py_RETURN_NONE;
}

static PyMethodDef calls_methods[] = {
    {"all", calls_all, METH_NOARGS, NULL},
    {"forget", calls_forget, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot calls_parts[] = {
    {Py_tp_new, calls_new},       {Py_tp_dealloc, calls_free},   {Py_tp_traverse, calls_traverse},
    {Py_tp_clear, calls_clear},   {Py_tp_methods, calls_methods}, {Py_sq_length, calls_length},
    {0, NULL},
};

static PyType_Spec calls_spec = {"simcoll.recorder._calls.OpenCalls", sizeof(OpenCalls), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_parts};

/* --- OpenCall: one of them ---------------------------------------------------------------------------------------- */

static OpenCall *new_call(void) {
    OpenCall *call = (OpenCall *)((allocfunc)PyType_GetSlot(call_type, Py_tp_alloc))(call_type, 0);
    if (call != NULL) {
        call->where = -1;
        call->state = AWAITED;
    }
    return call;
}

static int call_traverse(PyObject *self, visitproc visit, void *arg) {
    OpenCall *call = (OpenCall *)self;
    for (PyObject **part = &call->quick; part <= &call->flight; part++)
        Py_VISIT(*part);
    for (int place = 0; place < call->count; place++)
        Py_VISIT(call->held[place].tensor);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int call_clear(PyObject *self) {
    OpenCall *call = (OpenCall *)self;
    leave(call);
    drop_held(call);
    for (PyObject **part = &call->quick; part <= &call->flight; part++)
        Py_CLEAR(*part);
    return 0;
}

/* True if nobody has waited for a call, and nobody else will tell that its Work is gone. */
static int is_dropped(const OpenCall *call) {
    return call->state == OPEN ? call->where >= 0 : call->state == NOTED && call->flight != NULL;
}

/* Tells the owner that the Work of a call is gone. */
static void tell_dropped(OpenCall *call) {
    PyObject *type, *error, *traceback, *owner = calls_of(call)->owner;
    leave(call);
    call->state = AWAITED;
    if (owner == NULL)
        return;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *told = PyObject_CallMethodObjArgs(owner, name_dropped, call, NULL);
    if (told == NULL)
        PyErr_WriteUnraisable(owner);
    Py_XDECREF(told);
    PyErr_Restore(type, error, traceback);
}

/* What the collector calls, before it clears a cycle. */
static void call_finalize(PyObject *self) {
    if (is_dropped((OpenCall *)self))
        tell_dropped((OpenCall *)self);
}

static void call_free(PyObject *self) {
    OpenCall *call = (OpenCall *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    int dropped = is_dropped(call);
    leave(call);
    if (call->references != NULL)
        PyObject_ClearWeakRefs(self);
    // Nobody may be given what is being freed: another object gets all that it has.
    OpenCall *heir = dropped ? new_call() : NULL;
    if (heir != NULL) {
        for (PyObject **part = &call->quick, **its = &heir->quick; part <= &call->flight; part++, its++) {
            *its = *part;
            *part = NULL;
        }
        heir->held = call->held;
        heir->count = call->count;
        call->held = NULL;
        call->count = 0;
        tell_dropped(heir);
        Py_DECREF(heir);
    } else if (dropped) {
        PyErr_Clear();
    }
    call_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Gives a call to the backend, which may raise; the Work that the program gets, None where Python has to make it. */
static PyObject *launch(const Quick *quick, OpenCall *call, PyObject *method, PyObject *arguments) {
    PyObject *inner = PyObject_CallObject(method, arguments);
    if (inner == NULL || inner == Py_None)
        return inner;
    call->inner = inner;
    if (call->state != OPEN || (PyObject *)Py_TYPE(inner) != quick->plain_work)
        Py_RETURN_NONE;
    PyObject *work = PyObject_CallNoArgs(quick->work);
    if (work != NULL && PyObject_SetAttr(work, name_call, (PyObject *)call) < 0)
        Py_CLEAR(work);
    return work;
}

/* has_ended(): true if the backend says that the call has ended; asking is no waiting. */
static PyObject *call_has_ended(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    PyObject *inner = ((OpenCall *)self)->inner;
    if (inner == NULL)
        Py_RETURN_FALSE;
    return PyObject_CallMethodObjArgs(inner, name_completed, NULL);
}

/* noted(flight): Python watches it from here on. */
static PyObject *call_noted(PyObject *self, PyObject *flight) {
    OpenCall *call = (OpenCall *)self;
    PyObject *before = call->flight;
    leave(call);
    call->state = NOTED;
    Py_INCREF(call->flight = flight);
    Py_XDECREF(before);
    drop_held(call);
    Py_RETURN_NONE;
}

/* ended(): nobody watches it any more, and nobody is to be told that its Work is gone. */
static PyObject *call_ended(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    OpenCall *call = (OpenCall *)self;
    leave(call);
    call->state = AWAITED;
    call->arriving = 0;
    drop_held(call);
    Py_CLEAR(call->flight);
    Py_RETURN_NONE;
}

/* The number of waits so far, and one more where one has ended; -1 with an exception. */
static int64_t count_waits(const OpenCalls *calls, int more) {
    PyObject *number = PyObject_GetAttr(calls->owner, name_waits);
    int64_t waits = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    if (waits < 0 || !more)
        return waits;
    number = PyLong_FromLongLong(waits + 1);
    int failed = number == NULL || PyObject_SetAttr(calls->owner, name_waits, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : waits + 1;
}

/* True if the end of a wait shows writes to results: the call was open when the wait began. -1 with an exception. */
static int will_arrive(const OpenCall *call) {
    int counts = 0;
    for (int place = 0; place < call->count; place++)
        counts |= call->held[place].limit > 0;
    if (!counts || count_waits(calls_of(call), 0) == PyLong_AsLongLong(call->since))
        return PyErr_Occurred() ? -1 : counts;
    if (!call->tells)
        return 0;
    PyObject *ended = PyObject_CallMethodObjArgs(call->inner, name_completed, NULL);
    if (ended == NULL)
        PyErr_Clear();
    Py_XDECREF(ended);
    return ended == Py_False;
}

/* Notes that a wait begins; 1 if Python has to carry the wait out, of which nothing was noted. */
static int begin_wait(OpenCall *call, const Quick *quick) {
    OpenCalls *calls = (OpenCalls *)quick->calls;
    if (call->state == NOTED || call->inner == NULL || calls->owner == NULL)
        return 1;
    int due = PyObject_IsTrue(calls->due), others = due == 0 && call->state == OPEN ? PyObject_IsTrue(calls->storages) : 0;
    if (due != 0 || others != 0)
        return due < 0 || others < 0 ? -1 : 1;
    if (call->state == OPEN) {
        call->unwaited = 0;
        if (look_before_wait(calls) < 0)
            return -1;
        if (call->state == NOTED || has_changed(call))
            return 1;
    }
    PyObject *noted = PyObject_CallFunctionObjArgs(quick->waits, call->ticket, quick->awaited, NULL);
    if (noted == NULL)
        return -1;
    Py_DECREF(noted);
    if (call->state == OPEN) {
        if ((call->arriving = will_arrive(call)) < 0)
            return -1;
        leave(call);
        call->state = AWAITED;
        if (!call->arriving)
            drop_held(call);
    }
    return 0;
}

/* Notes that a wait has ended well; fails with -1. */
static int end_wait(OpenCall *call, const Quick *quick) {
    OpenCalls *calls = (OpenCalls *)quick->calls;
    if (call->arriving) {
        PyObject *told = has_changed(call) ? PyObject_CallMethodObjArgs(calls->owner, name_arrived, call, NULL) : Py_None;
        call->arriving = 0;
        drop_held(call);
        if (told == NULL)
            return -1;
        if (told != Py_None)
            Py_DECREF(told);
    }
    PyObject *noted = PyObject_CallFunctionObjArgs(quick->advance, call->ticket, NULL);
    if (noted == NULL || count_waits(calls, 1) < 0) {
        Py_XDECREF(noted);
        return -1;
    }
    Py_DECREF(noted);
    return 0;
}

/* wait(): wait as the backend's Work does, as long as its first wait may take, and note that; None where Python has to do
   it. Raises what the backend raises. */
static PyObject *call_wait(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    OpenCall *call = (OpenCall *)self;
    if (is_gone(call))
        return NULL;
    Quick *quick = (Quick *)call->quick;
    int left = begin_wait(call, quick);
    if (left < 0)
        return NULL;
    if (left)
        Py_RETURN_NONE;
    PyObject *limit = quick->limit == Py_None ? NULL : quick->limit;
    PyObject *done = PyObject_CallMethodObjArgs(call->inner, name_wait, limit, NULL);
    if (done != NULL && end_wait(call, quick) < 0)
        Py_CLEAR(done);
    return done;
}

/* The tensors by role. */
static PyObject *call_tensors(PyObject *self, void *Py_UNUSED(nothing)) {
    OpenCall *call = (OpenCall *)self;
    PyObject *tensors = is_gone(call) ? NULL : PyDict_New();
    for (Py_ssize_t role = 0; tensors != NULL && role < PyTuple_Size(call->roles); role++) {
        PyObject *found = PyList_New(0);
        int failed = found == NULL || PyDict_SetItem(tensors, PyTuple_GetItem(call->roles, role), found) < 0;
        for (int place = 0; !failed && place < call->count; place++)
            if (call->held[place].role == role)
                failed = PyList_Append(found, call->held[place].tensor) < 0;
        Py_XDECREF(found);
        if (failed)
            Py_CLEAR(tensors);
    }
    return tensors;
}

/* The address, the size and the version that each tensor had, in the order of the key. */
static PyObject *call_memory(PyObject *self, void *Py_UNUSED(nothing)) {
    OpenCall *call = (OpenCall *)self;
    PyObject *found = PyList_New(0);
    for (int place = 0; found != NULL && place < call->count; place++) {
        const Held *held = call->held + place;
        if (append_own(found, Py_BuildValue("KKL", (unsigned long long)held->start, (unsigned long long)held->size,
                                            (long long)held->version)) < 0)
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *call_log(PyObject *self, void *Py_UNUSED(nothing)) {
    if (is_gone((OpenCall *)self))
        return NULL;
    PyObject *log = ((Quick *)((OpenCall *)self)->quick)->log;
    Py_INCREF(log);
    return log;
}

/* What begin() returns for an asynchronous call that nobody watches, without its tensors. */
static PyObject *call_written(PyObject *self, void *Py_UNUSED(nothing)) {
    OpenCall *call = (OpenCall *)self;
    if (is_gone(call))
        return NULL;
    return PyTuple_Pack(6, call->prepared, call->sequence, call->source, call->ticket, no_tensors, call->place);
}

static PyObject *call_owner(PyObject *self, void *Py_UNUSED(nothing)) {
    if (is_gone((OpenCall *)self))
        return NULL;
    PyObject *owner = calls_of((OpenCall *)self)->owner;
    Py_XINCREF(owner);
    return owner != NULL ? owner : PyErr_Format(PyExc_RuntimeError, "the call is gone");
}

static PyObject *call_is_open(PyObject *self, void *Py_UNUSED(nothing)) {
    return PyBool_FromLong(((OpenCall *)self)->state == OPEN);
}

static PyMethodDef call_methods[] = {
    {"has_ended", call_has_ended, METH_NOARGS, NULL},
    {"noted", call_noted, METH_O, NULL},
    {"ended", call_ended, METH_NOARGS, NULL},
    {"wait", call_wait, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef call_members[] = {
    {"prepared", T_OBJECT_EX, offsetof(OpenCall, prepared), READONLY, NULL},
    {"place", T_OBJECT_EX, offsetof(OpenCall, place), READONLY, NULL},
    {"key", T_OBJECT_EX, offsetof(OpenCall, key), READONLY, NULL},
    {"since", T_OBJECT_EX, offsetof(OpenCall, since), READONLY, NULL},
    {"inner", T_OBJECT, offsetof(OpenCall, inner), READONLY, NULL},
    {"flight", T_OBJECT, offsetof(OpenCall, flight), READONLY, NULL},
    {"unwaited", T_INT, offsetof(OpenCall, unwaited), READONLY, NULL},
    {"arriving", T_INT, offsetof(OpenCall, arriving), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(OpenCall, references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef call_attributes[] = {
    {"tensors", call_tensors, NULL, NULL, NULL},
    {"memory", call_memory, NULL, NULL, NULL},
    {"log", call_log, NULL, NULL, NULL},
    {"written", call_written, NULL, NULL, NULL},
    {"owner", call_owner, NULL, NULL, NULL},
    {"is_open", call_is_open, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot call_parts[] = {
    {Py_tp_dealloc, call_free},   {Py_tp_traverse, call_traverse}, {Py_tp_clear, call_clear},
    {Py_tp_finalize, call_finalize}, {Py_tp_methods, call_methods},   {Py_tp_members, call_members},
    {Py_tp_getset, call_attributes}, {0, NULL},
};

static PyType_Spec call_spec = {"simcoll.recorder._calls.OpenCall", sizeof(OpenCall), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, call_parts};

/* --- Quick: a usual call from its arguments to its slot, in one step (quick.py) ------------------------------------ */

static PyObject *name_process, *name_sequence, *name_chosen, *no_message;
static PyObject *name_parts, *name_recorder, *name_received, *name_failed, *name_refused, *name_go_on, *name_at_once,
    *name_wait_on;

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

/* What is known of a call's memory (quick.py): numbers of 64 bits, of which the first has these bits; then for each tensor
   its size, the versions that the call adds to it, at most (-1: nobody looks), and whether the call writes to it. */
enum { TELLS = 1, BRINGS = 2 };

static int64_t number_in(const char *plan, int place) {
    int64_t number;
    memcpy(&number, plan + 8 * place, sizeof number);
    return number;
}

/* Notes where the tensors of a call lie, and their versions where the call is ``asynchronous``. True if that is all that is
   to be known of its memory. */
static int note_memory(const Reader *reader, PyObject *plan, Gathered *gathered, int asynchronous) {
    if (plan == Py_None || gathered->count > MOST_HELD || PyBytes_Size(plan) != 8 + 24 * (Py_ssize_t)gathered->count) {
        PyErr_Clear();
        return 0;
    }
    const char *numbers = PyBytes_AsString(plan);
    for (int place = 0; place < gathered->count; place++) {
        Held *held = gathered->held + place;
        held->size = (uint64_t)number_in(numbers, 1 + 3 * place);
        if (held->size == 0)
            continue;
        if ((held->start = address_of(reader, held->tensor, held->size)) == 0)
            return 0;
        held->writes = number_in(numbers, 3 + 3 * place) != 0;
        int64_t limit = number_in(numbers, 2 + 3 * place);
        if (asynchronous && limit >= 0 && (held->version = version_of(reader, held->tensor)) >= 0)
            held->limit = limit;
    }
    return 1;
}

/* True if the program gets the Work of a call of this place, and what it does with its results is known. */
static int is_watched(PyObject *place, PyObject *plan) {
    PyObject *answer = PyObject_GetAttr(place, name_by_torch);
    Py_XDECREF(answer); // the place keeps it
    if (answer == Py_False && number_in(PyBytes_AsString(plan), 0) & BRINGS) {
        answer = PyObject_GetAttr(place, name_later);
        Py_XDECREF(answer);
        return answer != NULL && answer != Py_None;
    }
    return answer == Py_False;
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

/* Gives a call its place in the group and a slot: its number and its ticket; fails with -1, where it is not to be written
   here, too. */
static int write_call(const Quick *quick, PyObject *call, PyObject *line, PyObject *flags, PyObject **sequence,
                      PyObject **ticket) {
    // From here to the slot nothing runs that could let another thread in.
    PyObject *locked = PyObject_CallNoArgs(quick->locked);
    Py_XDECREF(locked);
    if (locked != Py_False)
        return -1;
    PyObject *last = PyObject_GetAttr(quick->log, name_sequence);
    long long number = last == NULL ? -1 : PyLong_AsLongLong(last) + 1;
    if (last != NULL && !PyErr_Occurred() && number < chosen_next(quick))
        *sequence = PyLong_FromLongLong(number);
    Py_XDECREF(last);
    if (*sequence != NULL && !PyErr_Occurred() && PyObject_SetAttr(quick->log, name_sequence, *sequence) == 0)
        *ticket = PyObject_CallFunctionObjArgs(quick->write, quick->group, *sequence, PyTuple_GetItem(call, 1),
                                               PyTuple_GetItem(line, 1), no_message, quick->state, flags, NULL);
    return *ticket == NULL ? -1 : 0;
}

/* What has been found out about a call that is about to be written down. */
typedef struct {
    const Usual *usual;
    PyObject *arguments, *key, *call, *place, *line;
    Gathered *gathered;
    int asynchronous;
} Found;

/* Writes down an asynchronous call, and watches it. */
static PyObject *write_open(const Quick *quick, const Found *found) {
    OpenCalls *calls = (OpenCalls *)quick->calls;
    Gathered *gathered = found->gathered;
    OpenCall *call = new_call();
    // Full: other threads may have come meanwhile, as they may until the call is written; so it takes its place first.
    if (call == NULL || calls->count >= MOST_OPEN) {
        Py_XDECREF(call);
        return NULL;
    }
    Py_INCREF(call->quick = (PyObject *)quick);
    Py_INCREF(call->prepared = PyTuple_GetItem(found->call, 0));
    Py_INCREF(call->source = PyTuple_GetItem(found->line, 0));
    Py_INCREF(call->place = found->place);
    Py_INCREF(call->roles = found->usual->roles);
    Py_INCREF(call->key = found->key);
    enter(calls, call);
    size_t size = (size_t)gathered->count * sizeof *call->held;
    call->held = PyMem_Malloc(size);
    call->since = PyObject_GetAttr(calls->owner, name_waits);
    if (call->held == NULL || call->since == NULL ||
        write_call(quick, found->call, found->line, quick->asynchronous, &call->sequence, &call->ticket) < 0) {
        Py_DECREF(call);
        return NULL;
    }
    memcpy(call->held, gathered->held, size);
    call->count = gathered->count;
    gathered->count = 0;
    call->tells = (number_in(PyBytes_AsString(PyTuple_GetItem(found->call, 2)), 0) & TELLS) != 0;
    call->unwaited = 1;
    call->state = OPEN;
    return (PyObject *)call;
}

/* Writes down a call that nobody watches here: what begin() returns for it. */
static PyObject *write_plain(const Quick *quick, const Found *found) {
    PyObject *tensors = Py_None, *sequence = NULL, *ticket = NULL, *written = NULL;
    Py_INCREF(tensors);
    if (found->asynchronous) {
        Py_DECREF(tensors);
        if ((tensors = PyDict_New()) == NULL ||
            sort_tensors((Reader *)quick->reader, found->usual, found->arguments, tensors) != 0) {
            Py_XDECREF(tensors);
            return NULL;
        }
    }
    if (write_call(quick, found->call, found->line, found->asynchronous ? quick->asynchronous : quick->awaited, &sequence,
                   &ticket) == 0)
        written = PyTuple_Pack(6, PyTuple_GetItem(found->call, 0), sequence, PyTuple_GetItem(found->line, 0), ticket,
                               tensors, found->place);
    if (written != NULL && quick->join != Py_None) {
        PyObject *joined = PyObject_CallFunctionObjArgs(quick->join, written, NULL);
        if (joined == NULL)
            Py_CLEAR(written);
        Py_XDECREF(joined);
    }
    if (written != NULL && found->gathered != NULL && look_before_wait((OpenCalls *)quick->calls) < 0)
        PyErr_WriteUnraisable((PyObject *)quick);
    Py_XDECREF(tensors);
    Py_XDECREF(sequence);
    Py_XDECREF(ticket);
    return written;
}

/* Writes down a call that was found; NULL if it is not to be written here. */
static PyObject *write_found(const Quick *quick, Found *found) {
    if (found->gathered == NULL)
        return write_plain(quick, found);
    PyObject *plan = PyTuple_GetItem(found->call, 2);
    int alone = note_memory((Reader *)quick->reader, plan, found->gathered, found->asynchronous) &&
                !meets((OpenCalls *)quick->calls, found->gathered);
    if (found->asynchronous && alone && is_watched(found->place, plan))
        return write_open(quick, found);
    if (found->asynchronous) {
        PyErr_Clear();
        found->gathered = NULL;
    }
    return found->asynchronous || alone ? write_plain(quick, found) : NULL;
}

static Recent *recent_of(const Quick *quick, const Sign *sign) {
    uint64_t hash = 0;
    for (int place = 0; place < sign->count; place++)
        hash = (hash ^ sign->numbers[place]) * 0x9E3779B97F4A7C15ULL ^ hash >> 31;
    return quick->recent + (hash >> 32) % RECENT;
}

static void remember(Recent *recent, const Sign *sign, PyObject *key, PyObject *call) {
    Recent before = *recent;
    Py_INCREF(key);
    Py_INCREF(call);
    recent->sign = *sign;
    recent->key = key;
    recent->call = call;
    Py_XDECREF(before.key);
    Py_XDECREF(before.call);
}

/* Finds the key and what is known of a call whose options were read, and gathers its tensors if that is wanted. 0 if the
   call is known. */
static int find_call(const Quick *quick, const Options *said, Found *found) {
    Reader *reader = (Reader *)quick->reader;
    Sign sign = {0};
    int looks = may_look(reader);
    Recent *recent = NULL;
    if (looks && sign_call(reader, found->usual, found->arguments, said, &sign, found->gathered) == 0) {
        recent = recent_of(quick, &sign);
        if (recent->key != NULL && recent->sign.count == sign.count &&
            memcmp(recent->sign.numbers, sign.numbers, (size_t)sign.count * sizeof *sign.numbers) == 0) {
            Py_INCREF(found->key = recent->key);
            Py_INCREF(found->call = recent->call);
            return 0;
        }
    }
    PyErr_Clear(); // what could not be signed is read anew
    if (found->gathered != NULL)
        drop_gathered(found->gathered);
    PyObject *key = NULL;
    if (read_call(reader, found->usual, found->arguments, said, looks, &key, found->gathered) == 0 &&
        (found->key = PyList_AsTuple(key)) != NULL)
        found->call = PyDict_GetItemWithError(quick->known, found->key);
    Py_XDECREF(key);
    Py_XINCREF(found->call);
    if (found->call != NULL && recent != NULL)
        remember(recent, &sign, found->key, found->call);
    return found->call == NULL;
}

/* Writes down a call whose options were read; NULL if it is not known, or not to be written here. */
static PyObject *write_known(const Quick *quick, const Options *said, Found *found) {
    PyObject *written = NULL;
    if (find_call(quick, said, found) == 0 && (found->place = place_here(quick)) != NULL)
        found->line = line_of(quick, found->place);
    if (found->line != NULL && found->line != Py_None)
        written = write_found(quick, found);
    Py_XDECREF(found->key);
    Py_XDECREF(found->call);
    Py_XDECREF(found->place);
    Py_XDECREF(found->line);
    return written;
}

/* Writes down a call of the method of this form; NULL, without an exception, if nothing was written. */
static PyObject *begin(const Quick *quick, PyObject *method, PyObject *arguments) {
    PyObject *written = NULL;
    Usual usual = {PyTuple_GetItem(method, 0), PyTuple_GetItem(method, 1), PyTuple_GetItem(method, 2) == Py_True,
                   PyTuple_GetItem(method, 3) == Py_True};
    Options said = {0, NULL, NULL};
    Gathered gathered;
    gathered.count = 0;
    OpenCalls *calls = (OpenCalls *)quick->calls;
    look_after(calls);
    if (is_free(quick) == 1 && read_options((Reader *)quick->reader, &usual, arguments, &said) == 0) {
        int idle = are_empty(quick->idle);
        int gathers = said.asynchronous ? idle == 1 && calls->count < MOST_OPEN : calls->count > 0;
        Found found = {&usual, arguments, NULL, NULL, NULL, NULL, gathers ? &gathered : NULL, said.asynchronous};
        if (idle >= 0 && (said.asynchronous ? quick->asynchronous != Py_None : idle))
            written = write_known(quick, &said, &found);
    }
    drop_gathered(&gathered);
    drop_options(&said);
    // Python goes the whole way, and raises what is to be raised.
    if (written == NULL)
        PyErr_Clear();
    return written;
}

static int is_form(PyObject *method, PyObject *arguments) {
    if (PyTuple_Check(method) && PyTuple_Size(method) == 4 && PyTuple_Check(arguments))
        return 1;
    PyErr_SetString(PyExc_TypeError, "a call is what is known of a method, and arguments");
    return 0;
}

/* begin(usual, arguments): write down a call that was made here before; None if nothing was written. */
static PyObject *quick_begin(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    if (count != 2 || !is_form(given[0], given[1]))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "begin() takes 2 arguments, got %zd", count);
    PyObject *written = begin((Quick *)self, given[0], given[1]);
    if (written == NULL)
        Py_RETURN_NONE;
    return written;
}

/* Counts a call that brings the rank what others do not get; fails with -1. */
static int count_part(const Quick *quick, PyObject *prepared) {
    PyObject *parts = PyObject_GetAttr(prepared, name_parts);
    Py_XDECREF(parts); // a truth value
    if (parts == NULL || parts == Py_False)
        return parts == NULL ? -1 : 0;
    PyObject *recorder = PyObject_GetAttr(quick->log, name_recorder), *number = NULL;
    if (recorder != NULL && (number = PyObject_GetAttr(recorder, name_received)) != NULL) {
        long long received = PyLong_AsLongLong(number);
        Py_DECREF(number);
        number = PyErr_Occurred() ? NULL : PyLong_FromLongLong(received + 1);
    }
    int failed = number == NULL || PyObject_SetAttr(recorder, name_received, number) < 0;
    Py_XDECREF(number);
    Py_XDECREF(recorder);
    return failed ? -1 : 0;
}

/* Has a call compared in the background; fails with -1. */
static int add_made(const Quick *quick, PyObject *written) {
    PyObject *maker = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *made = maker == NULL ? NULL : PyTuple_Pack(2, written, maker);
    PyObject *added = made == NULL ? NULL : PyObject_CallFunctionObjArgs(quick->add, made, NULL);
    Py_XDECREF(maker);
    Py_XDECREF(made);
    Py_XDECREF(added);
    return added == NULL ? -1 : 0;
}

/* Has a method of the pipeline note an error of the backend, and raise it; NULL. */
static PyObject *tell_error(PyObject *pipeline, PyObject *method, PyObject *call, PyObject *waited) {
    PyObject *type, *error, *traceback, *told;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    told = PyObject_CallMethodObjArgs(pipeline, method, call, error, waited, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    if (told != NULL)
        PyErr_SetString(PyExc_RuntimeError, "an error of the backend was lost");
    Py_XDECREF(told);
    return NULL;
}

/* Launches an asynchronous call that was written down; the Work that the program gets. ``pipeline`` notes an error of the
   backend, and raises it; where the Work cannot be the quick one, it makes it. */
static PyObject *launch_open(const Quick *quick, PyObject *call, PyObject *method, PyObject *arguments, PyObject *pipeline) {
    if (count_part(quick, ((OpenCall *)call)->prepared) < 0)
        return NULL;
    PyObject *work = launch(quick, (OpenCall *)call, method, arguments), *written;
    if (work == NULL)
        return tell_error(pipeline, name_refused, call, NULL);
    if (quick->add != Py_None) {
        written = call_written(call, NULL);
        if (written == NULL || add_made(quick, written) < 0)
            Py_CLEAR(work);
        Py_XDECREF(written);
    }
    if (work == Py_None) {
        Py_DECREF(work);
        work = PyObject_CallMethodObjArgs(pipeline, name_go_on, call, NULL);
    }
    return work;
}

/* Launches a synchronous call that was written down, and waits for it; the backend's Work. ``pipeline`` notes an error
   of the backend, and raises it. Where calls are compared, it is also the one that waits on after the first moment. */
static PyObject *carry_out(const Quick *quick, PyObject *written, PyObject *method, PyObject *arguments,
                           PyObject *pipeline) {
    if (count_part(quick, PyTuple_GetItem(written, 0)) < 0)
        return NULL;
    PyObject *inner = PyObject_CallObject(method, arguments), *done = inner;
    if (inner != NULL && quick->add != Py_None) {
        int others = add_made(quick, written) < 0 ? -1 : PyObject_IsTrue(((OpenCalls *)quick->calls)->due);
        PyObject *limit = quick->limit == Py_None ? NULL : quick->limit;
        int goes_on = others > 0 || inner == Py_None;
        done = NULL;
        if (others == 0 && !goes_on) {
            done = PyObject_CallMethodObjArgs(inner, name_wait, limit, NULL);
            // A backend whose moment is over is waited for again; one without a limit has said what went wrong.
            goes_on = done == NULL && limit != NULL && PyErr_ExceptionMatches(PyExc_Exception);
        }
        if (others < 0) {
            Py_DECREF(inner);
            return NULL;
        }
        if (goes_on) {
            PyErr_Clear();
            done = PyObject_CallMethodObjArgs(pipeline, name_wait_on, written, inner, NULL);
            Py_DECREF(inner);
            return done;
        }
        Py_XDECREF(done);
    } else if (inner != NULL && inner != Py_None &&
               (done = PyObject_CallMethodObjArgs(inner, name_wait, NULL)) != NULL) {
        Py_DECREF(done);
    }
    if (done == NULL) {
        PyObject *waited = inner == NULL ? Py_False : Py_True;
        Py_XDECREF(inner);
        return tell_error(pipeline, name_failed, written, waited);
    }
    PyObject *noted = PyObject_CallFunctionObjArgs(quick->advance, PyTuple_GetItem(written, 3), NULL);
    Py_XDECREF(noted);
    if (noted == NULL || count_waits((OpenCalls *)quick->calls, 1) < 0)
        Py_CLEAR(inner);
    return inner;
}

/* run(usual, arguments, method, pipeline): write down a call that was made here before, and carry it out, or have the
   pipeline do so; this quick way itself if nothing was written. */
static PyObject *quick_run(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    const Quick *quick = (Quick *)self;
    if (count != 4 || !is_form(given[0], given[1]))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "run() takes 4 arguments, got %zd", count);
    PyObject *written = begin(quick, given[0], given[1]), *work;
    if (written == NULL) {
        Py_INCREF(self);
        return self;
    }
    if (!PyTuple_Check(written))
        work = launch_open(quick, written, given[2], given[1], given[3]);
    else if (quick->carries && PyTuple_GetItem(written, 4) == Py_None)
        work = carry_out(quick, written, given[2], given[1], given[3]);
    else
        work = PyObject_CallMethodObjArgs(given[3], name_at_once, written, given[2], given[1], NULL);
    Py_DECREF(written);
    return work;
}

/* Quick(...): quick.py says what each argument is. */
static PyObject *quick_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    Quick given = {0};
    if (!PyArg_ParseTuple(arguments, "O!O!OO!OO!OOOOOOOOOOO!O!OOO!OOOOOp:Quick", reader_type, &given.reader, chains_type,
                          &given.chains, &given.look, &PyDict_Type, &given.lines, &given.learn, &PyDict_Type, &given.known,
                          &given.log, &given.locked, &given.write, &given.waits, &given.advance, &given.group, &given.state,
                          &given.awaited, &given.asynchronous, &given.join, &PyTuple_Type, &given.quiet, &PyTuple_Type,
                          &given.idle, &given.active, &given.session, calls_type, &given.calls, &given.work,
                          &given.plain_work, &given.limit, &given.watch, &given.add, &given.carries))
        return NULL;
    Quick *quick = (Quick *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (quick == NULL)
        return NULL;
    PyObject **parts = &given.reader, **kept = &quick->reader;
    for (; parts <= &given.add; parts++, kept++)
        Py_INCREF(*kept = *parts);
    quick->carries = given.carries;
    if ((quick->recent = PyMem_Calloc(RECENT, sizeof *quick->recent)) == NULL) {
        Py_DECREF(quick);
        return PyErr_NoMemory();
    }
    return (PyObject *)quick;
}

static int quick_traverse(PyObject *self, visitproc visit, void *arg) {
    Quick *quick = (Quick *)self;
    for (PyObject **part = &quick->reader; part <= &quick->add; part++)
        Py_VISIT(*part);
    for (Recent *one = quick->recent; one != NULL && one < quick->recent + RECENT; one++) {
        Py_VISIT(one->key);
        Py_VISIT(one->call);
    }
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int quick_clear(PyObject *self) {
    Quick *quick = (Quick *)self;
    for (PyObject **part = &quick->reader; part <= &quick->add; part++)
        Py_CLEAR(*part);
    for (Recent *one = quick->recent; one != NULL && one < quick->recent + RECENT; one++) {
        Py_CLEAR(one->key);
        Py_CLEAR(one->call);
    }
    return 0;
}

static void quick_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    quick_clear(self);
    PyMem_Free(((Quick *)self)->recent);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef quick_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))quick_begin, METH_FASTCALL, NULL},
    {"run", (PyCFunction)(void (*)(void))quick_run, METH_FASTCALL, NULL},
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
        {&name_process, "process"},   {&name_sequence, "collectives"},
        {&name_data_ptr, "data_ptr"}, {&name_version, "_version"},    {&name_waits, "waits"},
        {&name_changed, "changed"},   {&name_arrived, "arrived"},     {&name_dropped, "dropped"},
        {&name_by_torch, "by_torch"}, {&name_later, "named_later"},   {&name_wait, "wait"},
        {&name_completed, "is_completed"}, {&name_call, "call"},         {&name_chosen, "chosen"}, {&name_look_after, "look_after"},
        {&name_parts, "parts"},       {&name_recorder, "recorder"},   {&name_received, "parts_received"},
        {&name_failed, "failed"},     {&name_refused, "refused"},     {&name_go_on, "go_on"},
        {&name_at_once, "at_once"},   {&name_wait_on, "wait_on"},
    };
    for (size_t place = 0; place < sizeof names / sizeof *names; place++)
        if ((*names[place].name = PyUnicode_InternFromString(names[place].text)) == NULL)
            return -1;
    return (no_message = PyLong_FromLong(0)) == NULL || (no_tensors = PyDict_New()) == NULL ? -1 : 0;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_calls", NULL, -1, NULL, NULL, NULL, NULL, NULL};

/* The types stay for the rest of the process, as the names do. */
static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **kept) {
    *kept = (PyTypeObject *)PyType_FromSpec(spec);
    return *kept == NULL ? -1 : PyObject_SetAttrString(module, name, (PyObject *)*kept);
}

PyMODINIT_FUNC PyInit__calls(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && find_frames() == 0 && make_names() == 0 &&
        PyModule_AddIntConstant(module, "REVISION", REVISION) == 0 &&
        add_type(module, "Chains", &chains_spec, &chains_type) == 0 &&
        add_type(module, "Reader", &reader_spec, &reader_type) == 0 &&
        add_type(module, "OpenCalls", &calls_spec, &calls_type) == 0 &&
        add_type(module, "OpenCall", &call_spec, &call_type) == 0 &&
        add_type(module, "Quick", &quick_spec, &quick_type) == 0)
        return module;
    Py_XDECREF(module);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "this Python's frames are unknown");
    return NULL;
}
