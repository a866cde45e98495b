/* The waves of a replay, rank by rank (replay.py), on Python's stable ABI.

   The arrays are numpy's and are given by their addresses, as the stable ABI of Python 3.10 has no buffers. Every sum,
   comparison and choice is that of the twin in Python, in the same order: the times are equal to the last bit. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

enum { LAUNCH, BLOCK, WAIT }; /* as in rank_program.py */

enum { NOBODY = -1, WAVES_BETWEEN_SIGNALS = 1 << 20 };

/* How ranks in lockstep compute: their courses (1: `gap`, `arrived` and `now` of the state are theirs), and of each
   operation the gap and the arrival of each course. */
typedef struct {
    int64_t width;
    const double *gap;
    double *arrived, *now;
} Course;

/* A collective (CALL in compiled_waves.py), in one place, as millions of them are gone through in no order of memory.
   `head` is the last who came to wait for it. */
typedef struct {
    double last, begin, end, seconds;
    int32_t left, head, stream;
    uint8_t done;
} Call;

_Static_assert(sizeof(Call) == 48, "the layout of compiled_waves.py");

/* What is sorted, by `time`, then by `order`. */
typedef struct {
    double time;
    int64_t order, number;
} Due;

/* `WaveState` in compiled_waves.py, a number or an address each. */
typedef struct {
    /* Of each operation. */
    const uint8_t *kind;
    const int32_t *instance;
    const double *gap;
    double *arrived;
    /* Of each in lockstep. */
    const int64_t *offsets, *size;
    int64_t *at;
    double *now;
    const Course *courses;
    Call *calls;
    /* Of each stream; `seen` is the wave in which it was used last. */
    double *free;
    int64_t *seen;
    /* The queue of links: NULL where there is none. The keys of stream i are those from starts[i] to starts[i + 1]. */
    const int64_t *starts, *keys;
    double *from, *until;
    const double *busy;
    const int64_t *link;
    /* Lists of as many as are in lockstep; `next` is who came before to wait for the same, `since` when one came. */
    int64_t *going, *held, *ready, *woken, *next, *since;
    Due *due;
    int64_t going_count, held_count, wave;
} State;

static int by_time(const void *one, const void *other) {
    const Due *first = one, *second = other;
    if (first->time != second->time)
        return first->time < second->time ? -1 : 1;
    return (first->order > second->order) - (first->order < second->order);
}

/* As LinkQueue._serve_one. */
static double serve(State *state, int64_t key, double begin, double busy) {
    double taken = state->from[key], until = state->until[key];
    double idle = taken - begin > 0.0 ? taken - begin : 0.0;
    double served = until > begin && busy > idle ? until + busy - idle : begin + busy;
    if (served > taken) {
        state->from[key] = begin >= until || begin < taken ? begin : taken;
        state->until[key] = served;
    }
    return served;
}

static double end_on_links(State *state, int64_t one, double begin, double end) {
    int64_t link = state->link[one], stream = state->calls[one].stream;
    double busy = state->busy[one];
    if (link < 0 || busy <= 0.0)
        return end;
    for (int64_t place = state->starts[stream]; place < state->starts[stream + 1]; place++) {
        double served = serve(state, state->keys[place] + 2 * link, begin, busy);
        if (served > end)
            end = served;
    }
    return end;
}

/* When the last has come and the stream is free. */
static double due(const State *state, const Call *call) {
    double free = state->free[call->stream];
    return free > call->last ? free : call->last;
}

static void settle(State *state, int64_t one) {
    Call *call = &state->calls[one];
    call->begin = due(state, call);
    call->end = call->begin + call->seconds;
    if (state->starts != NULL)
        call->end = end_on_links(state, one, call->begin, call->end);
    state->free[call->stream] = call->end;
    call->done = 1;
}

/* As _settle_few: by number where a stream has several of them, or else by their begin where links are shared. */
static void settle_all(State *state, int64_t count) {
    int twice = 0;
    state->wave++;
    for (int64_t place = 0; place < count; place++) {
        int64_t *seen = &state->seen[state->calls[state->ready[place]].stream];
        twice |= *seen == state->wave;
        *seen = state->wave;
    }
    if (twice || (count > 1 && state->starts != NULL)) {
        for (int64_t place = 0; place < count; place++) {
            int64_t one = state->ready[place];
            state->due[place] = twice ? (Due){0.0, one, one} : (Due){due(state, &state->calls[one]), place, one};
        }
        qsort(state->due, (size_t)count, sizeof *state->due, by_time);
        for (int64_t place = 0; place < count; place++)
            state->ready[place] = state->due[place].number;
    }
    for (int64_t place = 0; place < count; place++)
        settle(state, state->ready[place]);
}

/* One comes to its next operation: when, or when the last of those in lockstep does. */
static double come(State *state, int64_t one, int64_t place) {
    const Course *course = &state->courses[one];
    if (course->width == 1)
        return state->now[one] = state->arrived[place] = state->now[one] + state->gap[place];
    int64_t row = (place - state->offsets[one]) * course->width;
    double latest = 0.0;
    for (int64_t column = 0; column < course->width; column++) {
        double now = course->now[column] + course->gap[row + column];
        course->now[column] = course->arrived[row + column] = now;
        if (column == 0 || now > latest)
            latest = now;
    }
    return latest;
}

static void release(State *state, int64_t one, double end) {
    const Course *course = &state->courses[one];
    double *now = course->width == 1 ? &state->now[one] : course->now;
    for (int64_t column = 0; column < course->width; column++)
        if (end > now[column])
            now[column] = end;
    state->at[one]++;
}

static void wait_in(State *state, int64_t one, int64_t since) {
    Call *call = &state->calls[state->instance[state->at[one]]];
    state->since[one] = since;
    state->next[one] = call->head;
    call->head = (int32_t)one;
}

/* Lets those go on who wait for these collectives, behind `further` others, in the order in which they came. */
static void wake(State *state, int64_t further, int64_t count) {
    int64_t found = 0;
    for (int64_t place = 0; place < count; place++) {
        Call *call = &state->calls[state->woken[place]];
        for (int64_t one = call->head; one != NOBODY; one = state->next[one]) {
            release(state, one, call->end);
            state->due[found++] = (Due){0.0, state->since[one], one};
        }
        call->head = NOBODY;
    }
    if (found > 1)
        qsort(state->due, (size_t)found, sizeof *state->due, by_time);
    for (int64_t place = 0; place < found; place++)
        state->going[further + place] = state->due[place].number;
    state->going_count = further + found;
}

/* As one turn of _one_by_one; returns how many have come to wait. */
static int64_t wave(State *state, int64_t serial) {
    int64_t further = 0, ready = 0, woken = 0;
    for (int64_t number = 0; number < state->going_count; number++) {
        int64_t one = state->going[number], place = state->at[one];
        if (place >= state->offsets[one + 1])
            continue;
        int32_t mine = state->instance[place];
        Call *call = &state->calls[mine];
        uint8_t what = state->kind[place];
        double came = come(state, one, place);
        if (what != WAIT) {
            if (came > call->last)
                call->last = came;
            call->left -= (int32_t)state->size[one];
            if (call->left == 0 && !call->done)
                state->ready[ready++] = mine;
        }
        if (what == LAUNCH) {
            state->at[one] = place + 1;
            /* Never more than were looked at. */
            state->going[further++] = one;
            continue;
        }
        wait_in(state, one, ++serial);
        if (call->done)
            state->woken[woken++] = mine;
    }
    if (ready)
        settle_all(state, ready);
    for (int64_t place = 0; place < ready; place++)
        state->woken[woken++] = state->ready[place];
    wake(state, further, woken);
    return serial;
}

/* run(address of a state): waves until none of those who go on can. */
static PyObject *run(PyObject *module, PyObject *address) {
    State *state = (State *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    int64_t serial = 0, waves = 0;
    for (int64_t place = 0; place < state->held_count; place++)
        wait_in(state, state->held[place], ++serial);
    while (state->going_count) {
        serial = wave(state, serial);
        if (++waves % WAVES_BETWEEN_SIGNALS == 0 && PyErr_CheckSignals() < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"run", run, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_replay", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__replay(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "REVISION", REVISION) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
