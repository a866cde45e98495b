/* Reads a black box that is like those read before it (reader.py), on Python's stable ABI.

   Nothing is believed here that reader.py would not believe: what is equal, byte for byte, to a part that it has found
   sound is what that part states, and every other part is checked as it checks it. Of a file that is not like any before
   nothing is told, and reader.py reads it. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#if PY_BIG_ENDIAN
#error "a black box is little-endian"
#endif

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

/* The layout of format.py. */
enum { PAGE = 4096, COUNTERS = 128, ABOUT = 160, ABOUT_LIMIT = PAGE - ABOUT };
enum { SLOT_COUNT = 20, RING = 40, TABLE = 48, RANK = 56, WORLD = 60, PID = 64, WALL = 72, MONOTONIC = 80 };
enum { ABOUT_SIZE = 96, MARKS = 104, MARK_COUNT = 112, HEADER_CRC = 116, MARK = 8 };
enum { SLOT = 64, CALL = 32, FLAGS = 29, SCHEDULED = 32, FINISHED = 48, CHECK = 56, CHECK_SIZE = 4, WAIT_US = 60 };
enum { ENTRY = 20, ENTRY_SIZE = 4, ENTRY_CRC = 8, ENTRY_INDEX = 12, ENTRY_KIND = 16 };
enum { GROUP = 1, SIGNATURE, SOURCE, EVENT };

static const int64_t TABLE_SPAN = (32 << 20) + (256 << 10);
enum { PIECE = 64 << 10, CHUNK = 1024 };

/* What other files have in common (KnownEntries in table.py): dicts, the type of events, the source behind all others,
   and a list of the table that was read last, what its entries state, None for an event, and its groups, calls and lines
   as tuples. */
typedef struct {
    PyObject *shapes, *courses, *pieces, *makings, *event, *unknown, *last;
} Known;

/* SlotTimes of core/trace.py. */
typedef struct {
    uint64_t first, last, waited;
} Times;

enum { ASYNCHRONOUS = 1 };

static uint32_t crc_table[256];

static void fill_crc_table(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[value] = crc;
    }
}

static uint32_t crc32(const uint8_t *data, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t at = 0; at < size; at++)
        crc = crc >> 8 ^ crc_table[(crc ^ data[at]) & 0xFF];
    return ~crc;
}

static uint32_t u32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static uint64_t u64(const uint8_t *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

/* As written_until in core/io.py. */
static int64_t written_until(int fd, int64_t start, int64_t end) {
#ifdef SEEK_HOLE
    int64_t hole = lseek(fd, start, SEEK_HOLE);
    if (hole < 0 || hole >= end)
        return end;
    int64_t data = lseek(fd, hole, SEEK_DATA);
    if (data < 0)
        return errno == ENXIO ? hole : end;
    return data < end ? end : hole;
#else
    (void)fd, (void)start;
    return end;
#endif
}

/* Reads so many bytes without the GIL; returns how many there were, or -1. */
static int64_t read_at(int fd, void *data, int64_t size, int64_t start) {
    int64_t found;
    Py_BEGIN_ALLOW_THREADS
    found = pread(fd, data, (size_t)size, (off_t)start);
    Py_END_ALLOW_THREADS
    return found;
}

static int is_blank(const uint8_t *data, int64_t size) {
    return size == 0 || (data[0] == 0 && memcmp(data, data + 1, (size_t)size - 1) == 0);
}

/* As _goes_on in ring_reader.py. */
static int goes_on(int fd, int64_t start, int64_t count, int64_t slots) {
#ifdef SEEK_HOLE
    int64_t data = lseek(fd, start + count * SLOT, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
        return 0;
    if (data >= 0)
        count = (data - start) / SLOT;
#endif
    for (uint8_t slot[SLOT]; count < slots; count += CHUNK) {
        int64_t found = read_at(fd, slot, SLOT, start + count * SLOT);
        if (found > 0 && !is_blank(slot, found))
            return 1;
    }
    return 0;
}

/* The part of the ring that was ever written, in a new bytearray (_written in ring_reader.py); NULL where it was cut. */
static PyObject *ring_of(int fd, const uint8_t *page) {
    int64_t start = (int64_t)u64(page + RING), slots = u32(page + SLOT_COUNT);
    int64_t count = (written_until(fd, start, start + slots * SLOT) - start + SLOT - 1) / SLOT, done = 0;
    int ends = count < slots;
    PyObject *ring = count > 0 ? PyByteArray_FromStringAndSize(NULL, ends ? (Py_ssize_t)(count * SLOT) : 0) : NULL;
    while (ring != NULL && done < count) {
        // More at a time the more there is: a file system that knows of no holes gives zeros up to the end.
        int64_t more = ends ? count : done > CHUNK ? done : CHUNK;
        more = more < count - done ? more : count - done;
        if (!ends && PyByteArray_Resize(ring, (Py_ssize_t)((done + more) * SLOT)) < 0)
            goto cut;
        uint8_t *data = (uint8_t *)PyByteArray_AsString(ring) + done * SLOT;
        // Of a ring that was written over no course is known.
        if (read_at(fd, data, more * SLOT, start + done * SLOT) != more * SLOT || (done == 0 && u64(data) != 1))
            goto cut;
        done += more;
        if (!ends && is_blank(data, more * SLOT) && !goes_on(fd, start, done, slots))
            break;
    }
    // File systems tell of holes by other pages, or not at all: without slots behind the last that has an index.
    const char *data = ring == NULL ? NULL : PyByteArray_AsString(ring);
    while (done > 0 && u64((const uint8_t *)data + (done - 1) * SLOT) == 0)
        done--;
    if (ring != NULL && (done == 0 || PyByteArray_Resize(ring, (Py_ssize_t)(done * SLOT)) < 0))
        goto cut;
    return ring;
cut:
    Py_DECREF(ring);
    return NULL;
}

/* So many bytes of a file, or fewer where it ends before; NULL where there are none. */
static PyObject *bytes_at(int fd, int64_t start, int64_t size) {
    PyObject *read = size > 0 ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (read == NULL)
        return NULL;
    int64_t found = read_at(fd, PyBytes_AsString(read), size, start);
    if (found == size)
        return read;
    PyObject *part = found > 0 ? PyBytes_FromStringAndSize(PyBytes_AsString(read), (Py_ssize_t)found) : NULL;
    Py_DECREF(read);
    return part;
}

/* The table of entries, as far as one piece holds it (_read_table in reader.py); NULL where there is none, or more. */
static PyObject *table_of(int fd, const uint8_t *page) {
    int64_t start = (int64_t)u64(page + TABLE), size = written_until(fd, start, start + TABLE_SPAN) - start;
    if (size <= PIECE)
        return bytes_at(fd, start, size);
    PyObject *table = bytes_at(fd, start, 2 * PIECE);
    Py_ssize_t found = table == NULL ? 0 : PyBytes_Size(table);
    if (found <= PIECE || is_blank((const uint8_t *)PyBytes_AsString(table) + PIECE, found - PIECE))
        return table;
    Py_DECREF(table);
    return NULL;
}

/* The shape of a header page, by all of it in which ranks do not differ (header.py); NULL where it is not known. */
static PyObject *shape_of(const Known *known, const uint8_t *page) {
    uint32_t about = u32(page + ABOUT_SIZE);
    if (about > ABOUT_LIMIT || u32(page + RANK) >= u32(page + WORLD) ||
        crc32(page, HEADER_CRC) != u32(page + HEADER_CRC))
        return NULL;
    PyObject *key = PyBytes_FromStringAndSize((const char *)page, (Py_ssize_t)(ABOUT + about));
    if (key == NULL)
        return NULL;
    char *alike = PyBytes_AsString(key);
    memset(alike + RANK, 0, 4);
    memset(alike + PID, 0, 4);
    memset(alike + WALL, 0, 16);
    memset(alike + HEADER_CRC, 0, 4);
    memset(alike + COUNTERS, 0, 32);
    PyObject *shape = PyDict_GetItemWithError(known->shapes, key);
    Py_XINCREF(shape);
    Py_DECREF(key);
    return shape;
}

/* The bytes of an attribute of a course, as many as there are slots; NULL where it has none. */
static const uint8_t *column(PyObject *course, const char *name, Py_ssize_t size) {
    PyObject *value = PyObject_GetAttrString(course, name);
    const char *data = NULL;
    if (value != NULL && PyBytes_Check(value) && PyBytes_Size(value) == size)
        data = PyBytes_AsString(value);
    // The course, which nobody changes, keeps it.
    Py_XDECREF(value);
    return (const uint8_t *)data;
}

static int64_t number(PyObject *course, const char *name) {
    PyObject *value = PyObject_GetAttrString(course, name);
    int64_t found = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return found;
}

/* Whether 32 bytes are equal: sooner than by a call for each slot. */
static int same_call(const uint8_t *one, const uint8_t *other) {
    return u64(one) == u64(other) && u64(one + 8) == u64(other + 8) && u64(one + 16) == u64(other + 16) &&
           u64(one + 24) == u64(other + 24);
}

/* Takes a call's times in, as slot_times in core/trace.py. */
static void take_times(Times *times, const uint8_t *slot) {
    uint64_t made = u64(slot + SCHEDULED), ended = u64(slot + FINISHED), later = made > ended ? made : ended;
    uint64_t wait_us = u32(slot + WAIT_US), inside = ended - made;
    if (slot[FLAGS] & ASYNCHRONOUS)
        inside = wait_us > 0 ? inside - wait_us * 1000 : 0;
    if (made > 0 && made < times->first)
        times->first = made;
    times->last = later > times->last ? later : times->last;
    times->waited += (int64_t)inside > 0 ? inside : 0;
}

/* Whether slots are those of a course whose oldest record was not overwritten, but for the times. */
static int is_course(PyObject *course, const uint8_t *data, Py_ssize_t count, int64_t capacity, Times *times) {
    const uint8_t *fixed = column(course, "fixed", count * CALL), *check = column(course, "check", count * CHECK_SIZE);
    const uint8_t *ended = column(course, "ended", count);
    int64_t newest = number(course, "newest");
    if (fixed == NULL || check == NULL || ended == NULL || newest < 1 || newest > count ||
        number(course, "capacity") != capacity)
        return 0;
    *times = (Times){UINT64_MAX, 0, 0};
    for (Py_ssize_t at = 0; at < count; at++) {
        const uint8_t *slot = data + at * SLOT;
        if (!same_call(slot, fixed + at * CALL) || u32(slot + CHECK) != u32(check + at * CHECK_SIZE) ||
            (u64(slot + FINISHED) != 0) != ended[at])
            return 0;
        if (at < newest)
            take_times(times, slot);
    }
    return 1;
}

/* The course of a ring; NULL where none is known. */
static PyObject *course_of(const Known *known, PyObject *ring, int64_t capacity, Times *times) {
    Py_ssize_t count = PyByteArray_Size(ring) / SLOT;
    const char *first = PyByteArray_AsString(ring), *last = first + (count - 1) * SLOT;
    PyObject *outline = Py_BuildValue("(ny#y#)", count, first, (Py_ssize_t)CALL, last, (Py_ssize_t)CALL);
    PyObject *course = outline == NULL ? NULL : PyDict_GetItemWithError(known->courses, outline);
    Py_XDECREF(outline);
    if (course == NULL || !is_course(course, (const uint8_t *)first, count, capacity, times))
        return NULL;
    Py_INCREF(course);
    return course;
}

/* Whether what stands before `end` begins so; it is then passed over. */
static int passes(const char **at, const char *end, const char *text) {
    size_t size = strlen(text);
    if ((size_t)(end - *at) < size || memcmp(*at, text, size))
        return 0;
    *at += size;
    return 1;
}

static int set(PyObject *event, const char *name, PyObject *value) {
    PyObject *field = PyUnicode_InternFromString(name);
    int failed = field == NULL || PyObject_GenericSetAttr(event, field, value) < 0;
    Py_XDECREF(field);
    return failed;
}

/* The event of an entry, of a kind that ranks record alike but for the time (_made_alike in table.py); NULL where its
   data is not known. */
static PyObject *event_of(const Known *known, const char *at, const char *end) {
    static const char *const kinds[] = {"creating", "created", "exit"};
    if (!passes(&at, end, "{\"kind\":\""))
        return NULL;
    const char *kind = NULL;
    for (int one = 0; one < 3 && kind == NULL; one++) {
        const char *behind = at;
        if (passes(&behind, end, kinds[one]) && passes(&behind, end, "\",\"time_ns\":"))
            kind = kinds[one], at = behind;
    }
    if (kind == NULL)
        return NULL;
    uint64_t time = 0;
    int digits = 0;
    for (; at < end && *at >= '0' && *at <= '9' && digits < 20; at++, digits++)
        time = 10 * time + (uint64_t)(*at - '0');
    if (digits < 1 || digits > 19 || !passes(&at, end, ",\"data\":") || end - at < 3 || *at != '{' || end[-1] != '}' ||
        end[-2] != '}')
        return NULL;
    PyObject *key = PyBytes_FromStringAndSize(at, end - 1 - at);
    PyObject *data = key == NULL ? NULL : PyDict_GetItemWithError(known->makings, key);
    Py_XDECREF(key);
    if (data == NULL)
        return NULL;
    // Its own __init__ goes around its own __setattr__, which lets nobody change it; so does this.
    PyObject *name = PyUnicode_InternFromString(kind), *since = PyLong_FromUnsignedLongLong(time);
    PyObject *nothing = PyTuple_New(0), *event = NULL;
    if (name != NULL && since != NULL && nothing != NULL)
        event = PyType_GenericNew((PyTypeObject *)known->event, nothing, NULL);
    if (event != NULL && (set(event, "kind", name) || set(event, "time_ns", since) || set(event, "data", data)))
        Py_CLEAR(event);
    Py_XDECREF(name);
    Py_XDECREF(since);
    Py_XDECREF(nothing);
    return event;
}

/* Puts what a known entry states with those of its kind, in which it has to be the next. */
static int keep_known(PyObject *entry, PyObject **lists) {
    long kind = PyLong_AsLong(PyTuple_GetItem(entry, 0));
    Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GetItem(entry, 1));
    if (kind < GROUP || kind > SOURCE || index != PyList_Size(lists[kind - GROUP]))
        return 0;
    return PyList_Append(lists[kind - GROUP], PyTuple_GetItem(entry, 2)) == 0;
}

/* An event of its kind's next index, put with the others; 0 where the entry is none, or damaged. */
static int keep_event(const Known *known, const char *entry, Py_ssize_t payload, Py_ssize_t padding, PyObject *events) {
    const uint8_t *data = (const uint8_t *)entry;
    if (!is_blank(data + ENTRY + payload, padding) || u32(data + ENTRY_KIND) != EVENT ||
        (Py_ssize_t)u32(data + ENTRY_INDEX) != PyList_Size(events) ||
        crc32(data + ENTRY_INDEX, (size_t)payload + 8) != u32(data + ENTRY_CRC))
        return 0;
    PyObject *event = event_of(known, entry + ENTRY, entry + ENTRY + payload);
    int kept = event != NULL && PyList_Append(events, event) == 0;
    Py_XDECREF(event);
    return kept;
}

/* The size of the entry that begins here, with what pads it up to the next; 0 where it is cut, or none begins here. */
static Py_ssize_t span_of(const char *entry, Py_ssize_t left) {
    if (left < ENTRY || memcmp(entry, "SCe\n", 4))
        return 0;
    uint32_t payload = u32((const uint8_t *)entry + ENTRY_SIZE);
    if (payload > (uint64_t)left - ENTRY)
        return 0;
    Py_ssize_t span = ENTRY + (Py_ssize_t)payload + (Py_ssize_t)(-payload & 3);
    return span < left ? span : left;
}

static Py_ssize_t without_zeros(PyObject *table) {
    Py_ssize_t size = PyBytes_Size(table);
    const char *data = PyBytes_AsString(table);
    while (size > 0 && data[size - 1] == 0)
        size--;
    return size;
}

/* Takes in the entries of a table, all of them sound and in order; 0 where one is not, or is not known. An entry that is
   equal to the one of its number in the table that was read last is what that is. */
static int take_entries(const Known *known, PyObject *table, PyObject **lists) {
    PyObject *earlier = PyList_GetItem(known->last, 0), *stated = PyList_GetItem(known->last, 1), *found = PyList_New(0);
    const char *data = PyBytes_AsString(table), *before = PyBytes_AsString(earlier);
    Py_ssize_t size = without_zeros(table), left = without_zeros(earlier), many = PyList_Size(stated), span = 0;
    int sound = found != NULL;
    for (Py_ssize_t at = 0, number = 0; sound && at < size; at += span, number++) {
        Py_ssize_t same = number < many ? span_of(before, left) : 0;
        span = span_of(data + at, size - at);
        PyObject *entry = same && same == span ? PyList_GetItem(stated, number) : NULL;
        if (entry == Py_None || (entry != NULL && memcmp(data + at, before, (size_t)span)))
            entry = NULL;
        before += same, left -= same;
        if (entry == NULL && span) {
            PyObject *piece = PyBytes_FromStringAndSize(data + at + 4, span - 4);
            if (piece == NULL) {
                sound = 0;
                break;
            }
            entry = PyDict_GetItemWithError(known->pieces, piece);
            Py_DECREF(piece);
        }
        Py_ssize_t payload = span ? (Py_ssize_t)u32((const uint8_t *)data + at + ENTRY_SIZE) : 0;
        sound = span && (entry != NULL ? keep_known(entry, lists)
                                       : keep_event(known, data + at, payload, span - ENTRY - payload, lists[3]));
        sound = sound && PyList_Append(found, entry == NULL ? Py_None : entry) == 0;
    }
    if (sound) {
        Py_INCREF(table);
        sound = PyList_SetItem(known->last, 0, table) == 0;
        Py_INCREF(found);
        sound = PyList_SetItem(known->last, 1, found) == 0 && sound;
    }
    Py_XDECREF(found);
    return sound;
}

/* Puts a tuple that has the very values of a list in its place. */
static void share(PyObject **list, PyObject *earlier) {
    Py_ssize_t count = PyList_Size(*list);
    if (PyTuple_Size(earlier) != count)
        return;
    for (Py_ssize_t at = 0; at < count; at++)
        if (PyTuple_GetItem(earlier, at) != PyList_GetItem(*list, at))
            return;
    Py_DECREF(*list);
    Py_INCREF(earlier);
    *list = earlier;
}

/* What an open file holds; NULL, perhaps with an exception, where it is not like the others. */
static PyObject *found_in(const Known *known, int fd) {
    uint8_t page[PAGE];
    Times times;
    PyObject *shape = read_at(fd, page, PAGE, 0) == PAGE ? shape_of(known, page) : NULL;
    PyObject *ring = shape == NULL ? NULL : ring_of(fd, page);
    PyObject *course = ring == NULL ? NULL : course_of(known, ring, u32(page + SLOT_COUNT), &times);
    PyObject *table = course == NULL ? NULL : table_of(fd, page);
    PyObject *lists[4] = {NULL, NULL, NULL, NULL}, *marks = NULL, *found = NULL;
    if (table == NULL)
        goto end;
    for (int kind = 0; kind < 4; kind++)
        if ((lists[kind] = PyList_New(0)) == NULL)
            goto end;
    if (!take_entries(known, table, lists) || PyList_Append(lists[SOURCE - GROUP], known->unknown) < 0)
        goto end;
    for (int kind = 0; kind < 3; kind++)
        share(&lists[kind], PyList_GetItem(known->last, 2 + kind));
    const uint8_t *counters = page + COUNTERS;
    uint64_t steps = u64(counters + 24);
    if (steps && u32(page + MARK_COUNT)) {
        marks = bytes_at(fd, (int64_t)u64(page + MARKS), (int64_t)u32(page + MARK_COUNT) * MARK);
        if (marks == NULL)
            goto end;
    }
    found = Py_BuildValue("(OIIKKKKKKOOOOOOO(KKK))", shape, u32(page + RANK), u32(page + PID), u64(page + WALL),
                          u64(page + MONOTONIC), u64(counters), u64(counters + 8), u64(counters + 16), steps, ring,
                          course, lists[0], lists[1], lists[2], lists[3], marks == NULL ? Py_None : marks, times.first,
                          times.last, times.waited);
end:
    for (int kind = 0; kind < 4; kind++)
        Py_XDECREF(lists[kind]);
    Py_XDECREF(marks);
    Py_XDECREF(table);
    Py_XDECREF(course);
    Py_XDECREF(ring);
    Py_XDECREF(shape);
    return found;
}

/* read(path, known): what reader.py makes a black box of; None where it is to read the file. */
static PyObject *read_alike(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *name;
    Known known;
    if (!PyArg_ParseTuple(arguments, "U(OOOOOOO):read", &name, &known.shapes, &known.courses, &known.pieces,
                          &known.makings, &known.event, &known.unknown, &known.last))
        return NULL;
    PyObject *encoded = PyUnicode_EncodeFSDefault(name);
    if (encoded == NULL)
        return NULL;
    const char *path = PyBytes_AsString(encoded);
    int fd = -1;
    if ((size_t)PyBytes_Size(encoded) != strlen(path)) {
        Py_DECREF(encoded);
        Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    Py_END_ALLOW_THREADS
    Py_DECREF(encoded);
    if (fd < 0)
        Py_RETURN_NONE;
    PyObject *found = found_in(&known, fd);
    close(fd);
    if (found != NULL || PyErr_Occurred())
        return found;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"read", read_alike, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_reader", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reader(void) {
    PyObject *module = PyModule_Create(&definition);
    fill_crc_table();
    if (module != NULL && PyModule_AddIntConstant(module, "REVISION", REVISION) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
