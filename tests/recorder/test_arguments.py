"""Every form in which a c10d method takes its arguments is read into the same call; equal keys mean equal calls."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import ProcessGroup  # noqa: E402

from simcoll.recorder.arguments import USUAL_FORMS, arguments, compiled_reader, new_reader  # noqa: E402
from simcoll.recorder.option_fields import option_fields  # noqa: E402
from simcoll.spec.call import ANY_SOURCE, Buffer, Call  # noqa: E402
from simcoll.spec.collectives import METHODS  # noqa: E402
from simcoll.wrapper.process_group import RecordedProcessGroup  # noqa: E402
from tests.support.native import KINDS, parts  # noqa: E402


@pytest.fixture(autouse=True, scope="module", params=KINDS)
def _reader_of_this_test(request: pytest.FixtureRequest) -> Iterator[None]:
    with parts(request.param):
        compiled_reader.cache_clear()
        yield
    compiled_reader.cache_clear()


TWO, FOUR = Buffer((2,), "float32"), Buffer((4,), "float32")
FIVE_SECONDS = timedelta(seconds=5)
MAX = dist.ReduceOp.MAX


def z(*shape: int) -> Any:
    return torch.zeros(shape)


def options(kind: str, **values: object) -> Any:
    made = getattr(torch._C._distributed_c10d, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def read(name: str, *args: object, **kwargs: object) -> Call:
    return arguments(name, args, kwargs).call()


REDUCED = Call("all_reduce", "allreduce", (TWO,), (TWO,), "max")
FROM_ROOT = Call("broadcast", "broadcast", (TWO,), (TWO,), root=1)
TO_ROOT = Call("reduce", "reduce", (TWO,), (TWO,), "max", root=1)
GATHERED = Call("all_gather", "allgather", (TWO,), (TWO, TWO))
GATHERED_AT_ROOT = Call("gather", "gather", (TWO,), (TWO, TWO), root=1)
SCATTERED = Call("scatter", "scatter", (TWO, TWO), (TWO,), root=1)
REDUCE_SCATTERED = Call("reduce_scatter", "reduce_scatter", (TWO, TWO), (TWO,), "max")
SPLIT = Call("all_to_all", "alltoall_base", (FOUR,), (FOUR,), output_splits=(3, 1), input_splits=(2, 2))
UNSPLIT = Call("all_to_all", "alltoall_base", (FOUR,), (FOUR,), output_splits=(), input_splits=())
SENT = Call("send", "send", (TWO,), peer=1, tag=7)
RECEIVED = Call("recv", "recv", (), (TWO,), peer=1, tag=7)
FROM_ANYONE = Call("recv", "recv_anysource", (), (TWO,), peer=ANY_SOURCE, tag=7)

FORMS: list[tuple[Call, Callable[[], Call]]] = [
    (REDUCED, lambda: read("allreduce", [z(2)], options("AllreduceOptions", reduceOp=MAX))),
    (REDUCED, lambda: read("allreduce", [z(2)], opts=options("AllreduceOptions", reduceOp=MAX))),
    (REDUCED, lambda: read("allreduce", [z(2)], MAX)),
    (REDUCED, lambda: read("allreduce", [z(2)], MAX, FIVE_SECONDS)),
    (REDUCED, lambda: read("allreduce", [z(2)], op=MAX, timeout=FIVE_SECONDS)),
    (REDUCED, lambda: read("allreduce", z(2), MAX, None)),
    (REDUCED, lambda: read("allreduce", tensor=z(2), op=dist.ReduceOp(MAX))),
    (REDUCED, lambda: read("allreduce", tensors=(z(2),), op=MAX)),
    (REDUCED, lambda: read("allreduce", {0: z(2)}.values(), MAX)),
    (REDUCED, lambda: read("allreduce", {z(2)}, MAX)),
    (Call("all_reduce", "allreduce", (TWO,), (TWO,), "sum"), lambda: read("allreduce", [z(2)])),
    (
        Call("all_reduce", "allreduce_coalesced", (TWO, FOUR), (TWO, FOUR), "max", coalesced=True),
        lambda: read("allreduce_coalesced", [z(2), z(4)], options("AllreduceCoalescedOptions", reduceOp=MAX)),
    ),
    (FROM_ROOT, lambda: read("broadcast", [z(2)], options("BroadcastOptions", rootRank=1))),
    (FROM_ROOT, lambda: read("broadcast", z(2), 1)),
    (FROM_ROOT, lambda: read("broadcast", z(2), 1, FIVE_SECONDS)),
    (FROM_ROOT, lambda: read("broadcast", tensor=z(2), root=1, timeout=None)),
    (FROM_ROOT, lambda: read("broadcast", z(2), np.int64(1))),
    (FROM_ROOT, lambda: read("broadcast", z(2), True)),
    (FROM_ROOT, lambda: read("broadcast", z(2), root=torch.tensor(1))),
    (Call("broadcast", "broadcast", (TWO,), (TWO,), root=0), lambda: read("broadcast", [z(2)])),
    (TO_ROOT, lambda: read("reduce", [z(2)], options("ReduceOptions", rootRank=1, reduceOp=MAX))),
    (TO_ROOT, lambda: read("reduce", z(2), 1, MAX)),
    (TO_ROOT, lambda: read("reduce", z(2), 1, MAX, FIVE_SECONDS)),
    (TO_ROOT, lambda: read("reduce", tensor=z(2), op=MAX, root=1)),
    (GATHERED, lambda: read("allgather", [[z(2), z(2)]], [z(2)], options("AllgatherOptions"))),
    (GATHERED, lambda: read("allgather", [z(2), z(2)], z(2), FIVE_SECONDS)),
    (GATHERED, lambda: read("allgather", output_tensors=[[z(2), z(2)]], input_tensors=[z(2)])),
    (GATHERED, lambda: read("allgather", input_tensor=z(2), output_tensors=(z(2), z(2)))),
    (GATHERED, lambda: read("allgather", deque([z(2), z(2)]), torch.nn.ParameterList([z(2)])[0])),
    (GATHERED, lambda: read("allgather", [torch.nn.ParameterList([z(2), z(2)])], [z(2)])),
    (Call("all_gather", "_allgather_base", (TWO,), (FOUR,)), lambda: read("_allgather_base", z(4), z(2))),
    (
        Call("all_gather", "all_gather_single", (TWO,), (FOUR,)),
        lambda: read("all_gather_single", output=z(4), input=z(2), opts=options("AllgatherOptions")),
    ),
    (
        Call("all_gather", "allgather_coalesced", (TWO, FOUR), (TWO, FOUR, TWO, FOUR), coalesced=True),
        lambda: read("allgather_coalesced", [[z(2), z(4)], [z(2), z(4)]], [z(2), z(4)]),
    ),
    (
        Call("all_gather", "allgather_into_tensor_coalesced", (TWO,), (FOUR,), coalesced=True),
        lambda: read("allgather_into_tensor_coalesced", inputs=[z(2)], outputs=[z(4)]),
    ),
    (GATHERED_AT_ROOT, lambda: read("gather", [[z(2), z(2)]], [z(2)], options("GatherOptions", rootRank=1))),
    (GATHERED_AT_ROOT, lambda: read("gather", [z(2), z(2)], z(2), 1, FIVE_SECONDS)),
    (GATHERED_AT_ROOT, lambda: read("gather", [z(2), z(2)], input_tensor=z(2), root=1)),
    (
        Call("gather", "gather", (TWO,), (), root=1),
        lambda: read("gather", [], [z(2)], options("GatherOptions", rootRank=1)),
    ),
    (SCATTERED, lambda: read("scatter", [z(2)], [[z(2), z(2)]], options("ScatterOptions", rootRank=1))),
    (SCATTERED, lambda: read("scatter", z(2), [z(2), z(2)], 1)),
    (SCATTERED, lambda: read("scatter", output_tensor=z(2), input_tensors=[z(2), z(2)], root=1)),
    (Call("scatter", "scatter", (), (TWO,), root=0), lambda: read("scatter", [z(2)], [])),
    (
        REDUCE_SCATTERED,
        lambda: read("reduce_scatter", [z(2)], [[z(2), z(2)]], options("ReduceScatterOptions", reduceOp=MAX)),
    ),
    (REDUCE_SCATTERED, lambda: read("reduce_scatter", z(2), [z(2), z(2)], MAX, FIVE_SECONDS)),
    (REDUCE_SCATTERED, lambda: read("reduce_scatter", output=z(2), input=[z(2), z(2)], op=MAX)),
    (
        Call("reduce_scatter", "_reduce_scatter_base", (FOUR,), (TWO,), "sum"),
        lambda: read("_reduce_scatter_base", outputTensor=z(2), inputTensor=z(4)),
    ),
    (
        Call("reduce_scatter", "reduce_scatter_tensor_coalesced", (FOUR,), (TWO,), "sum", coalesced=True),
        lambda: read("reduce_scatter_tensor_coalesced", [z(2)], [z(4)], options("ReduceScatterOptions")),
    ),
    (Call("all_to_all", "alltoall", (TWO, FOUR), (FOUR, TWO)), lambda: read("alltoall", [z(4), z(2)], [z(2), z(4)])),
    (SPLIT, lambda: read("alltoall_base", z(4), z(4), [3, 1], [2, 2], options("AllToAllOptions"))),
    (SPLIT, lambda: read("alltoall_base", z(4), z(4), (3, 1), (2, 2), FIVE_SECONDS)),
    (SPLIT, lambda: read("alltoall_base", z(4), z(4), input_split_sizes=[2, 2], output_split_sizes=[3, 1])),
    (SPLIT, lambda: read("alltoall_base", z(4), z(4), [3, 1], input_split_sizes=[2, 2])),
    (SPLIT, lambda: read("alltoall_base", z(4), z(4), np.array([3, 1]), torch.tensor([2, 2]))),
    (
        SPLIT,
        lambda: read("alltoall_base", output=z(4), input=z(4), output_split_sizes=[3, 1], input_split_sizes=[2, 2]),
    ),
    (UNSPLIT, lambda: read("alltoall_base", z(4), z(4), [], [])),
    (Call("barrier", "barrier"), lambda: read("barrier")),
    (Call("barrier", "barrier"), lambda: read("barrier", options("BarrierOptions", device_ids=[3]))),
    (Call("barrier", "barrier"), lambda: read("barrier", timeout=FIVE_SECONDS)),
    (Call("monitored_barrier", "monitored_barrier"), lambda: read("monitored_barrier", FIVE_SECONDS, True)),
    (
        Call("monitored_barrier", "monitored_barrier"),
        lambda: read("monitored_barrier", timeout=None, wait_all_ranks=False),
    ),
    (SENT, lambda: read("send", [z(2)], 1, 7)),
    (SENT, lambda: read("send", [z(2)], tag=7, dstRank=1)),
    (SENT, lambda: read("send", [z(2)], np.int32(1), np.int32(7))),
    (RECEIVED, lambda: read("recv", [z(2)], 1, 7)),
    (RECEIVED, lambda: read("recv", [z(2)], srcRank=1, tag=7)),
    (FROM_ANYONE, lambda: read("recv_anysource", [z(2)], 7)),
]


@pytest.mark.parametrize(("call", "form"), FORMS, ids=lambda value: value.spelling if isinstance(value, Call) else "")
def test_every_form_of_the_arguments_is_the_same_call(call: Call, form: Callable[[], Call]) -> None:
    assert form() == call


def test_every_method_of_the_table_that_this_torch_has_is_recorded() -> None:
    offered = {name for name in METHODS if hasattr(ProcessGroup, name)}
    assert len(offered) >= 20
    assert offered <= set(vars(RecordedProcessGroup))


def test_nothing_that_a_group_offers_is_missing_from_the_table() -> None:
    """What returns a Work is a call; a method that torch adds must not pass by unrecorded."""
    working = {name for name in dir(ProcessGroup) if "Work" in (getattr(ProcessGroup, name).__doc__ or "")}
    no_calls = {"_end_coalescing", "_wait_for_pending_works", "_register_on_completion_hook", "reconfigure"}
    assert {name for name in working if not name.startswith("__")} - no_calls <= set(METHODS)


def test_timeouts_and_what_is_asynchronous_are_told() -> None:
    slow = arguments("allreduce", ([z(1)], options("AllreduceOptions", timeout=FIVE_SECONDS, asyncOp=False)), {})
    assert (slow.timeout, slow.asynchronous) == (FIVE_SECONDS, False)
    plain = arguments("allreduce", ([z(1)], dist.AllreduceOptions()), {})
    assert (plain.timeout, plain.asynchronous) == (None, True)
    assert arguments("barrier", (), {"timeout": FIVE_SECONDS}).timeout == FIVE_SECONDS
    assert arguments("monitored_barrier", (timedelta(0),), {}).timeout == timedelta(0)


@pytest.mark.parametrize("value", ["text", 3, None, [None], {"a": 1}, [["text"]]])
def test_what_are_no_tensors_is_left_to_torch(value: object) -> None:
    with pytest.raises(TypeError):
        arguments("allreduce", (value,), {})


def test_generators_are_not_used_up() -> None:
    tensors = (z(2) for _ in range(3))
    with pytest.raises(TypeError):
        arguments("allreduce", (tensors,), {})
    assert len(list(tensors)) == 3


def test_reduce_ops_have_one_name_each() -> None:
    names = {read("allreduce", [z(1)], op).reduce_op for op in dist.ReduceOp.RedOpType.__members__.values()}
    assert {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"} <= names
    premultiplied = torch._C._distributed_c10d._make_nccl_premul_sum(2.0)
    assert read("allreduce", [z(1)], premultiplied).reduce_op == "premul_sum"


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (lambda: z(2, 3), None),
        (lambda: z(3, 2).t(), (1, 0)),
        (lambda: z(2, 3, 4, 5).to(memory_format=torch.channels_last), (0, 2, 3, 1)),
        (lambda: z(2, 1, 4, 5).to(memory_format=torch.channels_last), None),
        (lambda: z(4, 4)[:, :2], None),
        (lambda: z(4, 4)[:, :2].t(), None),
        (lambda: z(4)[::2], None),
        (lambda: z(1).expand(3), None),
        (lambda: z(3, 1, 2).permute(2, 1, 0), (1, 0)),
        (lambda: z(0, 3).t(), None),
        (lambda: torch.tensor(1.0), None),
        (lambda: torch.eye(3).to_sparse(), None),
    ],
)
def test_memory_order_is_that_of_dense_tensors(tensor: Callable[[], Any], order: tuple[int, ...] | None) -> None:
    [buffer] = read("broadcast", [tensor()]).inputs
    assert buffer.order == order
    assert buffer.shape == tuple(tensor().shape)


DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64)


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    made = torch.zeros(shape, dtype=draw(st.sampled_from(DTYPES)))
    made = made.permute(draw(st.permutations(range(len(shape)))))
    return made[..., ::2] if shape and draw(st.booleans()) else made


@st.composite
def any_arguments(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from(["allreduce", "broadcast", "send", "alltoall_base", "allgather"]))
    given = draw(st.lists(tensors(), min_size=1, max_size=2))
    op = draw(st.sampled_from([dist.ReduceOp.SUM, dist.ReduceOp.MIN]))
    number, other = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    rest: dict[str, tuple[object, ...]] = {
        "allreduce": (given, op),
        "broadcast": (given[:1], number),
        "send": (given[:1], number, other),
        "alltoall_base": (given[0], given[-1], [number], [other]),
        "allgather": (given, given[0]),
    }
    return arguments(name, rest[name], {})


@given(st.lists(any_arguments(), min_size=2, max_size=6))
def test_equal_keys_mean_equal_calls(made: list[Any]) -> None:
    for one, other in itertools.combinations(made, 2):
        same = one.call() == other.call()
        if one.key == other.key:
            assert same
        if same:
            gaps = any(
                tensor.layout is torch.strided and not tensor.is_contiguous()
                for found in (one, other)
                for role in found.tensors.values()
                for tensor in role
            )
            assert gaps or one.key == other.key


def usual() -> list[tuple[str, tuple[Any, ...]]]:
    """Calls as torch.distributed makes them."""
    image, weight = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.nn.Parameter(z(2))
    summed = options("AllreduceOptions", reduceOp=MAX, asyncOp=True)
    return [
        ("allreduce", ([z(2)], summed)),
        ("allreduce", ([image], options("AllreduceOptions", asyncOp=False))),
        ("allreduce", ([z(4, 4)[:, 1]], summed)),
        ("allreduce", ([z()], summed)),
        ("allreduce_coalesced", ([z(2), weight], options("AllreduceCoalescedOptions", reduceOp=MAX))),
        ("broadcast", ([weight], options("BroadcastOptions", rootRank=1))),
        ("reduce", ([z(2)], options("ReduceOptions", rootRank=1, reduceOp=MAX))),
        ("allgather", ([[z(2), z(2)]], [z(2)], options("AllgatherOptions"))),
        ("_allgather_base", (z(4), z(2), options("AllgatherOptions", asyncOp=True))),
        ("gather", ([], [z(2)], options("GatherOptions", rootRank=1))),
        ("scatter", ([z(2)], [[z(2), z(2)]], options("ScatterOptions", rootRank=1))),
        ("reduce_scatter", ([z(2)], [[z(2), z(2)]], options("ReduceScatterOptions", reduceOp=MAX))),
        ("_reduce_scatter_base", (z(2), z(4), options("ReduceScatterOptions", asyncOp=False))),
        ("alltoall", ([z(4), z(2)], [z(2), z(4)], options("AllToAllOptions"))),
        ("barrier", (options("BarrierOptions"),)),
    ]


@pytest.mark.parametrize("fields", [option_fields(), {}], ids=["looked at", "asked for"])
def test_usual_calls_are_read_by_the_compiled_reader_as_python_reads_them(fields: dict[type, int]) -> None:
    with parts("compiled"):
        reader = new_reader(fields)
    assert reader is not None
    read = [arguments(name, args, {}, reader.read(*USUAL_FORMS[name], args)) for name, args in usual()]
    assert all(found.known_key for found in read)
    for found, (name, args) in zip(read, usual(), strict=True):
        plain = arguments(name, args, {})
        assert found.key == plain.key
        assert (found.call(), found.asynchronous, found.synchronous) == (
            plain.call(),
            plain.asynchronous,
            plain.synchronous,
        )
        assert found.options is not None
        assert list(found.tensors) == list(plain.tensors)


def test_the_compiled_reader_leaves_other_calls_to_python() -> None:
    with parts("compiled"):
        reader = new_reader(option_fields())
    assert reader is not None
    opts = options("AllreduceOptions")
    for args in (
        ([z(2)],),
        ([z(2)], MAX),
        ([z(2).to_sparse()], opts),
        (["x"], opts),
        ([[[[z(2)]]]], opts),
        [[z(2)], opts],
    ):
        assert reader.read("allreduce", ("inout",), True, False, args) is None
