/* The best path of two sequences within a band (alignment.py, `_banded`), on Python's stable ABI.

   The arrays are numpy's and are given by their addresses, as the stable ABI of Python 3.10 has no buffers. Every sum,
   comparison and choice is that of the twin in Python: the paths are the same, also where several cost the same. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { REVISION = 9 }; /* as in simcoll/core/native.py */

enum { DIAGONAL, VERTICAL, HORIZONTAL, MOVES = 3, OPENS_VERTICAL = 4, OPENS_HORIZONTAL = 8 }; /* as in alignment.py */

#define FAR ((int64_t)1 << 56) /* as in alignment.py */

_Static_assert(sizeof(void *) == sizeof(int64_t), "addresses are given as numbers of 64 bits");

/* `_Banding` in alignment.py, a number or an address each. `costs` has a row for each call that the reference may make
   and a column for each of the other; `here` and `there` are the rows and columns of the sequences, which are `n` and
   `m` calls long. `best`, `vertical` (one more than the band is wide) and `steps` (n + 1 rows) are written on. */
typedef struct {
    const int64_t *costs, *here, *there;
    int64_t columns, n, m, band, open, extend, tail;
    int64_t *best, *vertical;
    uint8_t *steps;
    /* What is found. */
    int64_t *partner;
    int64_t reached, cost;
} Band;

typedef struct {
    int64_t cost, i, j;
} End;

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* The first row: calls of the other sequence that come before the reference's. */
static void begin(Band *band) {
    int64_t width = 2 * band->band + 1;
    for (int64_t column = 0; column <= width; column++) {
        int64_t skipped = column - band->band;
        band->vertical[column] = FAR;
        band->best[column] = skipped < 0 || column == width ? FAR : skipped * band->extend + (skipped ? band->open : 0);
    }
    for (int64_t column = 0; column < width; column++)
        band->steps[column] = HORIZONTAL | (column == band->band + 1 ? OPENS_HORIZONTAL : 0);
}

/* Row i from the one before, in place: a cell is read before it is written, and the one behind it is of that row. */
static void next(Band *band, int64_t i) {
    int64_t width = 2 * band->band + 1, opens = band->open + band->extend, ahead = FAR, before = FAR;
    const int64_t *costs = band->costs + band->here[i - 1] * band->columns;
    uint8_t *steps = band->steps + i * width;
    for (int64_t column = 0; column < width; column++) {
        int64_t j = i - band->band + column, last = column == width - 1;
        int64_t diagonal = band->best[column] + (j >= 1 && j <= band->m ? costs[band->there[j - 1]] : FAR);
        int64_t above = last ? FAR : band->best[column + 1] + opens;
        int64_t extended = (last ? FAR : band->vertical[column + 1]) + band->extend;
        int64_t vertical = least(above, extended), reached = least(diagonal, vertical);
        /* The least of what those before have reached, and the calls in between. */
        int64_t horizontal = column ? least(before + opens, ahead + band->extend) : FAR;
        int64_t best = least(reached, horizontal);
        int step = diagonal <= best ? DIAGONAL : vertical <= best ? VERTICAL : HORIZONTAL;
        step |= above <= extended ? OPENS_VERTICAL : 0;
        step |= column && horizontal == before + opens ? OPENS_HORIZONTAL : 0;
        steps[column] = (uint8_t)step;
        band->best[column] = best;
        band->vertical[column] = vertical;
        before = reached;
        ahead = horizontal;
    }
}

/* The cheapest end, of those the farthest, of those the first. */
static void consider(End *found, int64_t cost, int64_t i, int64_t j) {
    if (cost < found->cost || (cost == found->cost && i + j > found->i + found->j))
        *found = (End){cost, i, j};
}

/* Returns 0 where a path leaves the band, which none does. */
static int trace_back(Band *band, int64_t i, int64_t j) {
    int64_t width = 2 * band->band + 1;
    int move = -1;
    for (int64_t place = 0; place < band->m; place++)
        band->partner[place] = place < j ? -1 : band->n + place - j;
    band->reached = i;
    while (i > 0 || j > 0) {
        int64_t column = j - i + band->band;
        if (i < 0 || j < 0 || column < 0 || column >= width)
            return 0;
        int step = band->steps[i * width + column], here = move < 0 ? step & MOVES : move;
        if (here == DIAGONAL) {
            if (i == 0 || j == 0)
                return 0;
            band->partner[--j] = --i;
            move = -1;
        } else if (here == VERTICAL) {
            i--;
            move = step & OPENS_VERTICAL ? -1 : VERTICAL;
        } else {
            j--;
            move = step & OPENS_HORIZONTAL ? -1 : HORIZONTAL;
        }
    }
    return 1;
}

static int path(Band *band) {
    int64_t width = 2 * band->band + 1;
    End found = {INT64_MAX, -1, 0};
    begin(band);
    for (int64_t i = 0; i <= band->n; i++) {
        if (i)
            next(band, i);
        int64_t last = band->m - i + band->band;
        if (last >= 0 && last < width)
            consider(&found, band->best[last] + (band->n - i) * band->tail, i, band->m);
    }
    for (int64_t column = 0; column < width; column++) {
        int64_t j = band->n - band->band + column;
        if (j >= 0 && j <= band->m)
            consider(&found, band->best[column] + (band->m - j) * band->tail, band->n, j);
    }
    band->cost = found.cost;
    return found.i >= 0 && trace_back(band, found.i, found.j);
}

/* run(address of a band): the best path in it. */
static PyObject *run(PyObject *module, PyObject *address) {
    Band *band = (Band *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    int sound = 0;
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    sound = path(band);
    Py_END_ALLOW_THREADS
    if (!sound) {
        PyErr_SetString(PyExc_ValueError, "a path leaves its band");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"run", run, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_bands", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__bands(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "REVISION", REVISION) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
