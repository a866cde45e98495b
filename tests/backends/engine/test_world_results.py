"""The table generates these: every spelling, dtype, reduce op and form, on simulated ranks and on real Gloo.

The oracle is the spec's ``result``. One set of Gloo processes per world size runs all cases; a case that Gloo's overlay
says it refuses must be refused, and one that it does not must give the oracle's numbers.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcoll.backends.gloo import DTYPES, GLOO
from simcoll.backends.simulated import simulate
from simcoll.spec.call import Buffer, Call
from simcoll.spec.checksum import word
from simcoll.spec.collectives import COLLECTIVES, METHODS
from simcoll.spec.semantics import REDUCE_OPS, Array
from simcoll.spec.table import Kind
from tests.support.seeds import nightly

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

WORLD_SIZES = (2, 3, 4)
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "complex64": 1e-6}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """One way to shape a collective: the shapes of a rank's inputs and outputs, and what goes with them."""

    label: str
    inputs: Callable[[int, int], list[Shape]]
    outputs: Callable[[int, int], list[Shape]]
    root: Callable[[int], int] | None = None
    input_splits: Callable[[int, int], tuple[int, ...]] | None = None
    output_splits: Callable[[int, int], tuple[int, ...]] | None = None
    # Not tried on Gloo: it ends the process, or refuses the root alone, whose group is out of step from then on.
    dangerous: bool = False


@dataclass(frozen=True)
class Case:
    """A form in a spelling, with a dtype and a reduce op."""

    spelling: str
    form: Form
    dtype: str
    reduce_op: str | None

    def __str__(self) -> str:
        return f"{self.spelling} {self.form.label} {self.dtype} {self.reduce_op or ''}".strip()

    def call(self, rank: int, size: int) -> Call:
        spec, method = METHODS[self.spelling]
        form = self.form
        return Call(
            spec.name,
            self.spelling,
            tuple(Buffer(shape, self.dtype) for shape in form.inputs(rank, size)),
            tuple(Buffer(shape, self.dtype) for shape in form.outputs(rank, size)),
            reduce_op=self.reduce_op,
            root=None if form.root is None else form.root(size),
            input_splits=None if form.input_splits is None else form.input_splits(rank, size),
            output_splits=None if form.output_splits is None else form.output_splits(rank, size),
            coalesced=method.coalesced,
        )

    def arrays(self, rank: int, size: int) -> list[Array]:
        """This rank's inputs: small numbers, so that every dtype holds sums and products exactly."""
        return [values(shape, self.dtype, rank, place) for place, shape in enumerate(self.form.inputs(rank, size))]


def values(shape: Shape, dtype: str, rank: int, place: int) -> Array:
    numbers = (np.arange(math.prod(shape)) * 3 + rank * 5 + place) % 4
    if dtype == "bool":
        numbers = numbers % 2
    if dtype.startswith("complex"):
        return (numbers + 1j * ((numbers + rank) % 4)).astype(dtype).reshape(shape)
    return numbers.astype("float32" if dtype == "bfloat16" else dtype).reshape(shape)


def same(*shapes: Shape) -> Callable[[int, int], list[Shape]]:
    return lambda rank, size: list(shapes)


def listed(*shapes: Shape) -> Callable[[int, int], list[Shape]]:
    return lambda rank, size: list(shapes) * size


def rows(shape: Shape) -> Callable[[int, int], list[Shape]]:
    return lambda rank, size: [(shape[0] * size, *shape[1:])]


def stacked(shape: Shape) -> Callable[[int, int], list[Shape]]:
    return lambda rank, size: [(size, *shape)]


def at_root(root: Callable[[int], int], shapes: Callable[[int, int], list[Shape]]) -> Callable[[int, int], list[Shape]]:
    return lambda rank, size: shapes(rank, size) if rank == root(size) else []


def first(size: int) -> int:
    return 0


def last(size: int) -> int:
    return size - 1


def own_rows(rank: int, size: int) -> list[Shape]:
    return [(rank, 2)]


def everyones_rows(rank: int, size: int) -> list[Shape]:
    return [(peer, 2) for peer in range(size)]


def sent(rank: int, size: int) -> tuple[int, ...]:
    return tuple((rank + 2 * peer) % 3 for peer in range(size))


def received(rank: int, size: int) -> tuple[int, ...]:
    return tuple((peer + 2 * rank) % 3 for peer in range(size))


SHAPES = ((3,), (2, 3), (), (0,), (2, 0), (1, 2))
WHOLE = ((3,), (2, 3), (0,), (0, 2), (2, 0))
IN_PLACE = [Form(str(shape), same(shape), same(shape)) for shape in SHAPES]
LISTS = [Form(f"list {shape}", same(shape), listed(shape)) for shape in SHAPES]
ROWS = [Form(f"rows {shape}", same(shape), rows(shape)) for shape in WHOLE]
STACKED = [Form(f"stacked {shape}", same(shape), stacked(shape)) for shape in ((3,), (2, 3))]
UNEVEN = Form("uneven", own_rows, everyones_rows)
UNEVEN_AT_ROOT = replace(UNEVEN, dangerous=True)


def turned(form: Form) -> Form:
    """The same shapes the other way round: what gathers, scatters."""
    return replace(form, inputs=form.outputs, outputs=form.inputs)


def rooted(forms: Sequence[Form]) -> list[Form]:
    return [
        replace(form, label=f"{form.label} root {root.__name__}", root=root) for form in forms for root in (first, last)
    ]


def gathering(forms: Sequence[Form]) -> list[Form]:
    return [replace(form, outputs=at_root(form.root, form.outputs)) for form in rooted(forms) if form.root]


ALL_TO_ALL = [
    *(Form(f"parts {shape}", rows(shape), rows(shape)) for shape in WHOLE),
    Form(
        "splits",
        lambda rank, size: [(sum(sent(rank, size)), 2)],
        lambda rank, size: [(sum(received(rank, size)), 2)],
        input_splits=sent,
        output_splits=received,
    ),
    Form(
        "one split",
        lambda rank, size: [(size,)],
        lambda rank, size: [(size,)],
        output_splits=lambda rank, size: (1,) * size,
    ),
    Form(
        "no rows",
        same((0, 3)),
        same((0, 3)),
        input_splits=lambda rank, size: (0,) * size,
        output_splits=lambda rank, size: (0,) * size,
    ),
]
ALL_TO_ALL_LISTS = [
    *(Form(f"list {shape}", listed(shape), listed(shape)) for shape in SHAPES),
    Form("uneven", lambda rank, size: [(rank + 1,)] * size, lambda rank, size: [(peer + 1,) for peer in range(size)]),
]
INTO_COALESCED = [
    Form("rows", same((3,), (2, 2)), lambda rank, size: [(3 * size,), (2 * size, 2)]),
    Form("one", same((3,)), rows((3,))),
    Form("empty", same((3,), (0,)), lambda rank, size: [(3 * size,), (0,)]),
]
SCALARS = [Form("stacked ()", same(()), stacked(()), dangerous=True)]

FORMS: dict[str, list[Form]] = {
    "allreduce": IN_PLACE,
    "allreduce_coalesced": [*IN_PLACE, Form("two", same((3,), (2, 2)), same((3,), (2, 2)))],
    "broadcast": rooted(IN_PLACE),
    "reduce": rooted(IN_PLACE),
    "allgather": [*LISTS, UNEVEN],
    "_allgather_base": [*ROWS, *STACKED, *SCALARS],
    "all_gather_single": [*ROWS, *STACKED, *SCALARS],
    "allgather_coalesced": [
        Form("two", same((3,), (2, 2)), listed((3,), (2, 2))),
        Form("one", same((3,)), listed((3,))),
    ],
    "allgather_into_tensor_coalesced": INTO_COALESCED,
    "all_gather_single_coalesced": INTO_COALESCED,
    "gather": gathering([*LISTS, UNEVEN_AT_ROOT]),
    "gather_single": gathering(ROWS),
    "gather_into_tensor": gathering(ROWS),
    "scatter": [turned(form) for form in gathering([*LISTS, UNEVEN_AT_ROOT])],
    "reduce_scatter": [turned(form) for form in (*LISTS, UNEVEN)],
    "_reduce_scatter_base": [turned(form) for form in (*ROWS, *STACKED, *SCALARS)],
    "reduce_scatter_single": [turned(form) for form in (*ROWS, *STACKED, *SCALARS)],
    "reduce_scatter_tensor_coalesced": [turned(form) for form in INTO_COALESCED],
    "reduce_scatter_single_coalesced": [turned(form) for form in INTO_COALESCED],
    "alltoall": ALL_TO_ALL_LISTS,
    "alltoall_base": ALL_TO_ALL,
    "all_to_all_single": ALL_TO_ALL,
    "barrier": [Form("", same(), same())],
    "monitored_barrier": [Form("", same(), same())],
}


def cases(spelling: str) -> Iterator[Case]:
    spec = METHODS[spelling][0]
    dtypes = sorted(DTYPES | {"int16"}) if spec.measured else ["float32"]
    for form in FORMS[spelling]:
        for dtype in dtypes:
            # Shapes and dtypes are independent of the op: only one form is tried with all of them.
            ops = REDUCE_OPS if form is FORMS[spelling][0] else ("sum", "avg")
            for reduce_op in ops if "reduce_op" in spec.agree else (None,):
                yield Case(spelling, form, dtype, reduce_op)


def expected(case: Case, size: int) -> list[list[Array | None]]:
    spec = METHODS[case.spelling][0]
    return spec.result(
        [case.call(rank, size) for rank in range(size)], [case.arrays(rank, size) for rank in range(size)]
    )


def refusals(case: Case, size: int) -> list[str | None]:
    return [GLOO.refusal(case.call(rank, size), rank, size) for rank in range(size)]


def meaningful(case: Case, size: int) -> bool:
    from simcoll.backends.engine.world import SIMULATED

    return SIMULATED.refusal(case.call(0, size), 0, size) is None


def runs_on_gloo(case: Case, size: int) -> bool:
    """Where only some ranks are refused the others wait, which is not for this test."""
    reasons = refusals(case, size)
    return not case.form.dangerous and (None not in reasons or not any(reasons))


def assert_equal(case: Case, rank: int, got: Sequence[Array], wanted: Sequence[Array | None]) -> None:
    assert len(got) == len(wanted), f"{case}: rank {rank}"
    for place, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        if right is None:
            continue
        tolerance = TOLERANCE.get(case.dtype, 1e-12) if case.reduce_op == "avg" else 0.0
        close = np.allclose(mine, right, rtol=tolerance, atol=0) if tolerance else np.array_equal(mine, right)
        assert close, f"{case}: rank {rank} output {place}: got {mine}, the spec says {right}"
        assert mine.shape == right.shape, f"{case}: rank {rank} output {place}"


# Simulated ranks.


@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spelling", FORMS)
def test_simulated_ranks_compute_the_result(spelling: str, size: int) -> None:
    todo = [case for case in cases(spelling) if case.dtype != "bfloat16" and meaningful(case, size)]

    def program(comm: Any) -> list[list[Array]]:
        done = []
        for case in todo:
            call = case.call(comm.rank, size)
            inputs = case.arrays(comm.rank, size)
            in_place = METHODS[spelling][1].buffers == ("inout",)
            outputs = inputs if in_place else [np.zeros(b.shape, case.dtype) for b in call.outputs]
            comm.call(
                spelling,
                inputs,
                outputs,
                reduce_op=call.reduce_op,
                root=call.root,
                input_splits=call.input_splits,
                output_splits=call.output_splits,
            )
            done.append(outputs)
        return done

    outcome = simulate(program, size)
    assert not outcome.exceptions
    assert not outcome.findings
    for place, case in enumerate(todo):
        for rank, wanted in enumerate(expected(case, size)):
            assert_equal(case, rank, outcome.results[rank][place], wanted)


@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spelling", FORMS)
def test_words_of_agreeing_calls_add_up_to_zero(spelling: str, size: int) -> None:
    for case in cases(spelling):
        total = sum(word(case.call(rank, size), rank, size) for rank in range(size))
        assert total % 2**64 == 0, str(case)
        assert METHODS[spelling][0].fault(case.call(0, size), 0, size) is None, str(case)


def test_every_collective_of_the_table_has_forms() -> None:
    collective = {name for name, (spec, _) in METHODS.items() if spec.kind is not Kind.POINT_TO_POINT}
    assert collective == set(FORMS)


# Real Gloo.


def tensor(array: Array, dtype: str) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).clone().to(getattr(torch, dtype))


def numpy_of(value: Any) -> Array:
    array: Array = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    return array


def options(kind: str, call: Call) -> Any:
    found = getattr(dist, kind, None) or getattr(torch._C._distributed_c10d, kind)
    opts = found()
    if call.reduce_op is not None:
        op = dist.ReduceOp
        name = call.reduce_op.upper()
        opts.reduceOp = op.PREMUL_SUM(2.0) if name == "PREMUL_SUM" and hasattr(op, "PREMUL_SUM") else getattr(op, name)
    if call.root is not None:
        opts.rootRank = call.root
    return opts


def launch(group: Any, call: Call, inputs: list[Any], outputs: list[Any]) -> None:
    """Make the c10d call that ``call`` describes, and wait for it."""
    method = getattr(group, call.spelling)
    name = call.spelling
    if name.startswith("allreduce"):
        kind = "AllreduceCoalescedOptions" if call.coalesced else "AllreduceOptions"
        work = method(inputs, options(kind, call))
    elif name in ("broadcast", "reduce"):
        work = method(inputs, options(f"{name.capitalize()}Options", call))
    elif name == "allgather":
        work = method([outputs], inputs)
    elif name == "allgather_coalesced":
        count = len(inputs)
        work = method([outputs[at : at + count] for at in range(0, len(outputs), count)], inputs)
    elif name in ("_allgather_base", "all_gather_single"):
        work = method(outputs[0], inputs[0])
    elif name == "gather":
        work = method([outputs] if outputs else [], inputs, options("GatherOptions", call))
    elif name in ("gather_single", "gather_into_tensor"):
        # torch's own function gives a tensor without elements where nothing is gathered.
        whole = outputs[0] if outputs else torch.empty(0, dtype=inputs[0].dtype)
        work = method(whole, inputs[0], options("GatherOptions", call))
    elif name == "scatter":
        work = method(outputs, [inputs] if inputs else [], options("ScatterOptions", call))
    elif name == "reduce_scatter":
        work = method(outputs, [inputs], options("ReduceScatterOptions", call))
    elif name in ("_reduce_scatter_base", "reduce_scatter_single"):
        work = method(outputs[0], inputs[0], options("ReduceScatterOptions", call))
    elif name.startswith("reduce_scatter"):
        work = method(outputs, inputs, options("ReduceScatterOptions", call))
    elif name == "alltoall":
        work = method(outputs, inputs)
    elif name in ("alltoall_base", "all_to_all_single"):
        work = method(outputs[0], inputs[0], list(call.output_splits or ()), list(call.input_splits or ()))
    elif name == "monitored_barrier":
        method()
        return
    else:
        work = method(outputs, inputs) if inputs else method()
    work.wait()


def on_gloo(case: Case, rank: int, size: int) -> list[Array] | str:
    """This rank's outputs, or the text of the exception that refused the call."""
    call = case.call(rank, size)
    inputs = [tensor(array, case.dtype) for array in case.arrays(rank, size)]
    in_place = METHODS[case.spelling][1].buffers == ("inout",)
    outputs = inputs if in_place else [torch.zeros(b.shape, dtype=getattr(torch, case.dtype)) for b in call.outputs]
    try:
        launch(dist.group.WORLD, call, inputs, outputs)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return [numpy_of(value) for value in outputs]


def available(spelling: str) -> bool:
    return hasattr(torch._C._distributed_c10d.ProcessGroup, spelling)


def todo_on_gloo(size: int) -> list[tuple[str, int]]:
    """The cases by spelling and place; forms hold functions, which do not travel between processes."""
    return [
        (spelling, place)
        for spelling in FORMS
        if available(spelling)
        for place, case in enumerate(cases(spelling))
        if runs_on_gloo(case, size)
    ]


def gloo_rank(rank: int, size: int, store: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    known = {spelling: list(cases(spelling)) for spelling in FORMS}
    for spelling, place in todo_on_gloo(size):
        pipe.send((spelling, place, on_gloo(known[spelling][place], rank, size)))
    pipe.send(None)
    dist.destroy_process_group()


Results = dict[tuple[str, int, int], "list[Array] | str"]


def run_gloo(size: int, folder: Path) -> Results:
    """Every case that Gloo can be asked, on real ranks: results by spelling, place and rank."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    ranks = [
        context.Process(target=gloo_rank, args=(rank, size, folder / "store", pipes[rank][1]), daemon=True)
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    for _, write in pipes:
        write.close()
    results: Results = {}
    # The ranks run in step, so reading them in turn blocks none for long.
    reading = dict(enumerate(read for read, _ in pipes))
    while reading:
        for rank in list(reading):
            message = None
            with contextlib.suppress(EOFError):
                message = reading[rank].recv()
            if message is None:
                del reading[rank]
            else:
                results[message[0], message[1], rank] = message[2]
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * size, f"after {list(results)[-1:]}"
    return results


@pytest.fixture(scope="module")
def gloo_results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    known: dict[int, Results] = {}

    def of(size: int) -> Results:
        if size not in known:
            known[size] = run_gloo(size, tmp_path_factory.mktemp(f"gloo{size}"))
        return known[size]

    return of


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("size", [pytest.param(size, marks=nightly(size != 3)) for size in WORLD_SIZES])
@pytest.mark.parametrize("spelling", [spelling for spelling in FORMS if available(spelling)])
def test_gloo_computes_the_result(spelling: str, size: int, gloo_results: Callable[[int], Results]) -> None:
    results = gloo_results(size)
    done = 0
    for place, case in enumerate(cases(spelling)):
        if (spelling, place, 0) not in results:
            continue
        done += 1
        reasons = refusals(case, size)
        wanted = None if any(reasons) else expected(case, size)
        for rank in range(size):
            got = results[spelling, place, rank]
            if wanted is None:
                assert isinstance(got, str), f"{case}: rank {rank}: expected a refusal ({reasons[rank]}), got {got}"
            else:
                assert not isinstance(got, str), f"{case}: rank {rank}: {got}"
                assert_equal(case, rank, got, wanted[rank])
    assert done


def test_the_table_is_what_is_tested() -> None:
    assert {METHODS[spelling][0].name for spelling in FORMS} == {
        spec.name for spec in COLLECTIVES.values() if spec.kind is not Kind.POINT_TO_POINT
    }
