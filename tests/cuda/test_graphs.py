"""CUDA graphs without a GPU: a double of ``torch.cuda.CUDAGraph`` holds calls, and gives them to Gloo when replayed.

What this shows is which calls are written down, when, and that ranks are compared; nothing of it is a result of CUDA.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from simcoll.blackbox.format import CAPTURED, HANDED_ON, REPLAYED
from simcoll.errors import CollectiveMismatchError

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.cuda import graphs as cuda_graphs  # noqa: E402
from simcoll.cuda.graphs import capture_of, ignore_graphs, open_captures, watch_graphs  # noqa: E402
from simcoll.wrapper import process_group  # noqa: E402
from simcoll.wrapper.pipeline import Pipeline  # noqa: E402
from tests.support.calls import ones, summed  # noqa: E402


class Graph:
    """The double: what is launched while it captures is held, and launched by each replay."""

    capturing: Graph | None = None

    def __init__(self) -> None:
        self.held: list[Callable[[], Any]] = []
        self.launched: list[Any] = []

    def capture_begin(self) -> None:
        """Hold what is launched from now on."""
        Graph.capturing = self

    def capture_end(self) -> None:
        """Hold no more."""
        Graph.capturing = None

    def replay(self) -> str:
        """Launch what was held, in order, and do not wait for it."""
        self.launched += [launch() for launch in self.held]
        return "replayed"

    def wait(self) -> None:
        """As a stream is waited for."""
        for work in self.launched:
            work.wait()

    def reset(self) -> None:
        """Forget what was held."""
        self.held = []


@contextmanager
def captured(graph: Graph) -> Iterator[Graph]:
    """As ``torch.cuda.graph``."""
    graph.capture_begin()
    try:
        yield graph
    finally:
        graph.capture_end()


_capture = Pipeline.capture


def _hold(pipeline: Pipeline, found: Any, launch: Any, calls: Any) -> Any:
    return _capture(pipeline, found, lambda: Graph.capturing.held.append(launch), calls)


def doubled() -> None:
    """Have the double stand for torch's class in this process, which ends with the test."""
    ignore_graphs()
    watch_graphs(Graph)
    process_group.capture_of = lambda found, devices: open_captures[-1]  # type: ignore[assignment]
    Pipeline.capture = _hold  # type: ignore[method-assign, assignment]
    cuda_graphs.torch = SimpleNamespace(  # type: ignore[assignment]
        cuda=SimpleNamespace(is_current_stream_capturing=lambda: Graph.capturing is not None)
    )


def flags(box: Any, rows: Any = None) -> list[int]:
    """The bits that tell of graphs, of each record."""
    return [int(flag) & (CAPTURED | REPLAYED) for flag in (box.slots if rows is None else rows)["flags"]]


MODES = pytest.mark.parametrize("mode", ["record", "check", "detail"])


@pytest.mark.slow
@pytest.mark.gloo
@MODES
def test_what_is_captured_runs_and_counts_when_it_is_replayed(ranks: Any, mode: str) -> None:
    def program(rank: int) -> object:
        doubled()
        tensor, other = ones(3), ones(2)
        summed()
        with captured(Graph()) as graph:
            dist.all_reduce(tensor)
            dist.broadcast(other, 1)
        before = tensor.tolist()
        answers = []
        for _ in range(3):
            answers.append(graph.replay())
            graph.wait()
        summed()
        return before, tensor.tolist(), answers

    assert ranks(program, mode=mode) == [([1.0] * 3, [8.0] * 3, ["replayed"] * 3)] * 2
    box = ranks.box(0)
    assert flags(box) == [0, *[REPLAYED] * 6, 0]
    assert flags(box, box.captured) == [CAPTURED] * 2
    assert [record.call.op for record in ranks.records(0)] == [
        "all_reduce",
        *["all_reduce", "broadcast"] * 3,
        "all_reduce",
    ]
    assert box.slots["sequence"].tolist() == list(range(1, 9))
    assert box.captured["sequence"].tolist() == [1, 1]
    assert len({record.source.line for record in ranks.records(0)[1:7:2]}) == 1
    noted = [event for event in box.events if "graph" in event.data]
    events = [(event.kind, event.data["calls"], event.data.get("count")) for event in noted]
    assert events == [("captured", 2, None), ("replayed", 2, 1), ("replayed", 2, 2)]
    assert all(int(flag) & HANDED_ON for flag in box.slots["flags"][1:7])


@pytest.mark.slow
@pytest.mark.gloo
def test_a_rank_that_replays_once_less_is_found_before_the_launch(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        tensor = ones(4)
        with captured(Graph()) as graph:
            dist.all_reduce(tensor)
            dist.all_gather([ones(4), ones(4)], tensor)
        graph.replay()
        graph.wait()
        return str(ranks.error_of(graph.replay if rank == 0 else lambda: dist.barrier())), summed()

    for text, after in ranks(program):
        assert "OpType=ALLREDUCE" in text
        assert "OpType=BARRIER" in text
        assert "SequenceNumber=3," in text
        assert after == 2.0


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("second", ["longer", "shorter", "other", "size"])
def test_graphs_that_differ_are_found_at_the_call_that_differs(ranks: Any, second: str) -> None:
    def program(rank: int) -> object:
        doubled()
        graphs = []
        for differs in (False, rank == 1):
            with captured(Graph()) as graph:
                dist.all_reduce(ones(4))
                if not (differs and second == "shorter"):
                    dist.all_reduce(ones(5 if differs and second == "size" else 4), op=dist.ReduceOp.MAX)
                if differs and second == "other":
                    dist.broadcast(ones(4), 0)
                else:
                    dist.all_reduce(ones(4), op=dist.ReduceOp.MIN)
                if differs and second == "longer":
                    dist.broadcast(ones(4), 0)
            graphs.append(graph)
        graphs[0].replay()
        graphs[0].wait()
        error = ranks.error_of(graphs[1].replay)
        if second == "longer" and rank == 0:
            error = ranks.error_of(lambda: dist.barrier())
        # What the shorter graph has launched by then has no other side.
        return type(error), str(error), *([] if second == "longer" else [summed(), summed()])

    place = {"longer": 7, "shorter": 5, "other": 6, "size": 5}[second]
    for kind, text, *sums in ranks(program):
        assert kind is CollectiveMismatchError
        assert f"SequenceNumber={place}," in text
        assert sums == ([] if second == "longer" else [2.0, 2.0])


@pytest.mark.slow
@pytest.mark.gloo
def test_ranks_that_replay_and_ranks_that_call_agree(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        tensors = ones(2), ones(3)
        with captured(Graph()) as graph:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if rank == 0:
            graph.replay()
            graph.wait()
        else:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()  # type: ignore[union-attr]
        return [tensor.tolist() for tensor in tensors], summed()

    assert ranks(program) == [([[2.0] * 2, [2.0] * 3], 2.0)] * 2


@pytest.mark.slow
@pytest.mark.gloo
def test_a_graph_of_several_groups_is_proved_in_each(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        tensors = ones(1), ones(1)
        # The groups in another order on each rank, as streams beside each other allow.
        with captured(Graph()) as graph:
            for which in ((0, 1), (1, 0))[rank]:
                dist.all_reduce(tensors[which], group=pairs[which])
        graph.held = []
        return [graph.replay(), graph.replay()], summed()

    assert ranks(program) == [(["replayed"] * 2, 2.0)] * 2


@pytest.mark.slow
@pytest.mark.gloo
def test_check_names_the_rank_that_replays_once_less(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        with captured(Graph()) as graph:
            dist.all_reduce(ones(4))
        graph.held = []
        for _ in range(3 - rank):
            graph.replay()
        dist.broadcast(ones(1), 0)
        return str(ranks.error_of(dist.destroy_process_group))

    for text in ranks(program, mode="check"):
        assert "OpType=ALLREDUCE" in text
        assert "OpType=BROADCAST" in text


@pytest.mark.slow
@pytest.mark.gloo
def test_graphs_of_groups_that_are_gone_and_graphs_that_are_reset_are_left_alone(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        pair = dist.new_group([0, 1])
        with captured(Graph()) as gone:
            dist.all_reduce(ones(1), group=pair)
        with captured(Graph()) as reset:
            dist.all_reduce(ones(1))
        with captured(Graph()) as empty:
            pass
        reset.reset()
        gone.held = []
        dist.destroy_process_group(pair)
        del pair
        gc.collect()
        return [gone.replay(), reset.replay(), empty.replay(), hasattr(empty, "_simcoll_calls")]

    assert ranks(program) == [["replayed", "replayed", "replayed", False]] * 2
    assert not ranks.records(0)


@pytest.mark.slow
@pytest.mark.gloo
def test_a_graph_keeps_no_tensor(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        tensor = ones(8)
        known = weakref.ref(tensor)
        with captured(Graph()) as graph:
            dist.all_reduce(tensor)
        graph.held = []
        del tensor
        gc.collect()
        return known() is None

    assert ranks(program) == [True, True]


@pytest.mark.slow
@pytest.mark.gloo
def test_a_graph_in_a_graph_is_part_of_it(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        with captured(Graph()) as inner:
            dist.all_reduce(ones(1))
        with captured(Graph()) as outer:
            inner.held = []
            inner.replay()
        outer.replay()
        return None

    ranks(program)
    assert [record.call.op for record in ranks.records(0)] == ["all_reduce"]


@pytest.mark.slow
@pytest.mark.gloo
def test_a_capture_waits_for_the_launch_of_calls_before_it(ranks: Any) -> None:
    def program(rank: int) -> object:
        doubled()
        work = dist.all_reduce(ones(1), async_op=True)
        with captured(Graph()):
            launched = work._launched  # type: ignore[union-attr]
        work.wait()  # type: ignore[union-attr]
        return launched

    assert ranks(program) == [True, True]


@pytest.fixture
def watched() -> Iterator[type[Graph]]:
    """The double with simcoll's methods."""
    ignore_graphs()
    watch_graphs(Graph)
    yield Graph
    ignore_graphs()
    open_captures.clear()


def test_a_capture_that_fails_leaves_nothing_open(watched: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Graph):
        def capture_begin(self) -> None:
            super().capture_begin()
            raise RuntimeError("no capture")

    with pytest.raises(RuntimeError, match="no capture"):
        Failing().capture_begin()
    graph = Graph()
    graph.capture_begin()
    assert len(open_captures) == 2
    graph.capture_end()
    assert len(open_captures) == 1


def _arguments(*devices: str) -> Any:
    return SimpleNamespace(tensors={"inout": [SimpleNamespace(device=torch.device(one)) for one in devices]})


def test_only_calls_of_a_stream_that_is_captured_are_captured(
    watched: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing = True
    monkeypatch.setattr(cuda_graphs, "_is_capturing", lambda device: capturing)
    graph = Graph()
    graph.capture_begin()
    group = [torch.device("cpu"), torch.device("cuda")]
    assert capture_of(_arguments("cuda:0"), group) is open_captures[0]
    assert capture_of(_arguments(), group) is open_captures[0]
    assert capture_of(_arguments("cpu"), group) is None
    assert capture_of(_arguments(), group[:1]) is None
    capturing = False
    assert capture_of(_arguments("cuda:0"), group) is None


def test_the_class_of_torch_is_left_as_it_was() -> None:
    from torch.cuda.graphs import CUDAGraph

    ignore_graphs()
    before = {name: getattr(CUDAGraph, name) for name in ("capture_begin", "capture_end", "replay", "reset")}
    watch_graphs()
    watch_graphs()
    assert all(getattr(CUDAGraph, name).__wrapped__ is method for name, method in before.items())
    ignore_graphs()
    assert {name: getattr(CUDAGraph, name) for name in before} == before
