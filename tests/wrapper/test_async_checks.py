"""Calls in flight: what is noted of writes and overlaps while nobody has waited, and what is let pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.backends.gloo import GLOO  # noqa: E402
from simcoll.backends.nccl import NCCL  # noqa: E402
from simcoll.blackbox import read_black_box  # noqa: E402
from simcoll.blackbox.format import HANDED_ON, LET_GO  # noqa: E402
from simcoll.core.record import Group, Source  # noqa: E402
from simcoll.recorder.arguments import USUAL_FORMS, arguments  # noqa: E402
from simcoll.recorder.recorder import Entry, GroupLog, Recorder  # noqa: E402
from simcoll.recorder.source import current_site, forget_chains  # noqa: E402
from simcoll.wrapper.async_checks import Flight, Flights  # noqa: E402
from simcoll.wrapper.pipeline import RecordedPipeline  # noqa: E402


class Work:
    """A call that the backend has not ended until it is told."""

    ended = False

    def has_ended(self) -> bool:
        return self.ended


class Program:
    """One rank that makes calls; every work that it is given is kept."""

    def __init__(self, folder: Path, backend: Any = GLOO) -> None:
        self.flights = Flights()
        self.folder = folder
        self.recorder = Recorder(folder, "record", 0, 2)
        self.log = self.group("0", backend)
        self.works: list[Work] = []

    def group(self, name: str, backend: Any = GLOO) -> GroupLog:
        backends = {} if backend is None else {"cpu": backend}
        return GroupLog(self.recorder, Group(name, "", (0, 1)), 0, backends)

    def call(self, method: str, *args: Any, log: GroupLog | None = None, parts: bool = False, **kwargs: Any) -> Flight:
        found = arguments(method, args, kwargs)
        entry = (log or self.log).begin(found, Source("train.py", len(self.works) + 1, "step"))
        flight = self.flights.open(entry, found.tensors, current_site(), parts=parts)
        assert flight is not None
        self.works.append(Work())
        flight.follow(self.works[-1])
        return flight

    def sync(self, method: str, *args: Any) -> Entry:
        found = arguments(method, args, {})
        entry = self.log.begin(found, Source("train.py", 99, "step"))
        self.flights.pass_by(entry, found.tensors)
        return entry

    def noted(self, kind: str) -> list[dict[str, Any]]:
        events = read_black_box(self.folder / "rank00000.simcoll").events
        return [event.data for event in events if event.kind == kind]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_a_write_before_the_wait_is_noted_with_both_lines(program: Program) -> None:
    x = torch.ones(4)
    flight = program.call("allreduce", [x])
    x.add_(1)
    flight.awaited()
    [changed] = program.noted("changed")
    assert (changed["op"], changed["known"], changed["source"][1]) == ("all_reduce", False, 1)
    assert changed["noticed"][0] == __file__


def test_a_write_between_two_sends_of_one_buffer_is_noted(program: Program) -> None:
    x = torch.ones(4)
    first = program.call("send", [x], 1, 0)
    x.add_(1)
    second = program.call("send", [x], 1, 1)
    first.awaited()
    second.awaited()
    assert [changed["source"][1] for changed in program.noted("changed")] == [1]


def test_a_write_by_another_call_is_no_write_of_the_program(program: Program) -> None:
    x = torch.ones(4)
    first = program.call("send", [x], 1, 0)
    program.call("all_gather_single", x, torch.ones(2))
    x.add_(1)
    first.awaited()
    assert program.noted("changed") == []


def test_a_write_before_the_launch_is_known_to_do_harm(program: Program) -> None:
    x = torch.ones(4)
    launch = program.call("allreduce", [x]).launching(lambda: "launched")
    x.zero_()
    assert launch() == "launched"
    assert [changed["known"] for changed in program.noted("changed")] == [True]


def test_a_wait_for_something_else_may_imply_the_end(program: Program) -> None:
    x = torch.ones(4)
    flight = program.call("allreduce", [x])
    program.works[-1].ended = True
    program.flights.waits += 1
    x.add_(1)
    flight.awaited()
    assert program.noted("changed") == []


@pytest.mark.parametrize("waits", ["for another", "in a call"])
def test_a_write_before_the_first_wait_is_noted_whatever_is_waited_for(program: Program, waits: str) -> None:
    box, x = torch.ones(4), torch.ones(4)
    received = program.call("recv", [box], 1, 0)
    sent = program.call("send", [x], 1, 0)
    box.zero_()
    if waits == "for another":
        sent.awaited()
    else:
        program.sync("allreduce", [torch.ones(2)])
    program.flights.waits += 1
    box.zero_()
    received.awaited()
    received.arrived()
    assert [changed["source"][1] for changed in program.noted("changed")] == [1]


def test_a_call_that_still_runs_is_open_whatever_else_was_waited_for(program: Program) -> None:
    x = torch.ones(4)
    flight = program.call("allreduce", [x])
    program.flights.waits += 1
    x.add_(1)
    flight.awaited()
    assert len(program.noted("changed")) == 1


def test_a_message_that_was_answered_is_taken_as_sent(program: Program) -> None:
    """The Work of a send on Gloo never says by itself that it has ended."""
    x = torch.ones(4)
    flight = program.call("send", [x], 1, 0)
    program.flights.waits += 1
    x.add_(1)
    flight.awaited()
    assert program.noted("changed") == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("write", ["slice", "base", "numpy"])
def test_a_write_to_a_slice_that_is_sent_is_noted(program: Program, write: str, dtype: Any) -> None:
    flat = torch.ones(27, dtype=dtype)
    flight = program.call("send", [flat[3:16]], 1, 0, parts=True)
    if write == "numpy":
        flat.view(torch.uint8).numpy()[:] = 0
    else:
        (flat if write == "base" else flat[3:16]).zero_()
    flight.awaited()
    assert [changed["known"] for changed in program.noted("changed")] == [False]


def test_a_slice_whose_memory_is_gone_shows_nothing(program: Program) -> None:
    flat = torch.ones(1 << 20)
    flight = program.call("send", [flat[3:-1]], 1, 0, parts=True)
    flat.untyped_storage().resize_(0)
    flight.awaited()
    assert program.noted("changed") == []


def test_a_write_beside_a_slice_that_is_sent_is_none(program: Program) -> None:
    flat = torch.ones(27)
    flight = program.call("send", [flat[3:16]], 1, 0, parts=True)
    flat[:3].zero_()
    flat[16:].zero_()
    flight.awaited()
    assert program.noted("changed") == []


def test_a_slice_in_which_the_result_arrives_is_judged_before_the_launch_alone(program: Program) -> None:
    flat = torch.ones(16)
    right = program.call("allreduce", [flat[:8]], parts=True).launching(flat[:8].zero_)
    wrong = program.call("allreduce", [flat[8:]], parts=True)
    launch = wrong.launching(lambda: None)
    right()
    flat[8:].zero_()
    wrong.awaited()
    assert program.noted("changed") == []
    wrong = program.call("allreduce", [flat[8:]], parts=True)
    launch = wrong.launching(lambda: None)
    flat.fill_(3)
    launch()
    assert [changed["known"] for changed in program.noted("changed")] == [True]


def test_slices_that_share_a_buffer_with_a_receive_are_judged_by_their_own_bytes(program: Program) -> None:
    flat = torch.ones(16)
    sent = program.call("send", [flat[:8]], 1, 0, parts=True)
    received = program.call("recv", [flat[8:]], 1, 0, parts=True)
    flat[8:].fill_(2)
    received.awaited()
    sent.awaited()
    assert program.noted("changed") == []


def broadcast_from(root: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = root
    return options


RESULTS = {
    "recv": (lambda x: ([x], 1, 0), 0),
    "broadcast": (lambda x: ([x], broadcast_from(1)), 0),
    "all_gather_single": (lambda x: (x, torch.ones(2)), 2),
    "reduce_scatter_single": (lambda x: (x, torch.ones(8)), 1),
}
"""Calls of a group of two whose result arrives in a tensor, and the versions that Gloo adds to it."""


@pytest.mark.parametrize("method", RESULTS)
@pytest.mark.parametrize("written", [False, True])
def test_a_write_to_what_receives_is_told_from_the_calls_own(program: Program, method: str, written: bool) -> None:
    given, own = RESULTS[method]
    x = torch.ones(4)
    flight = program.call(method, *given(x))
    if written:
        x.zero_()
    flight.awaited()
    for _ in range(own):
        x.add_(1)
    flight.arrived()
    assert [changed["known"] for changed in program.noted("changed")] == [False] * written


def test_a_tensor_that_stands_in_a_list_twice_gets_two_results(program: Program) -> None:
    x, padding = torch.ones(2), torch.ones(2)
    flight = program.call("allgather", [[x, padding, padding]], [torch.ones(2)])
    flight.awaited()
    padding.add_(1).add_(1)
    flight.arrived()
    assert program.noted("changed") == []


def test_calls_that_nobody_waits_for_are_forgotten_when_they_end(program: Program) -> None:
    for _ in range(3):
        program.call("allreduce", [torch.ones(2)]).end()
    assert program.flights._unwaited == {}


def test_a_write_before_the_launch_to_what_only_receives_is_not_known_to_do_harm(program: Program) -> None:
    x = torch.ones(4)
    launch = program.call("recv", [x], 1, 0).launching(lambda: None)
    x.zero_()
    launch()
    assert [changed["known"] for changed in program.noted("changed")] == [False]


def test_a_write_after_the_end_was_seen_is_none(program: Program) -> None:
    x = torch.ones(4)
    flight = program.call("all_gather_single", x, torch.ones(2))
    flight.looked_at()
    x.add_(1).add_(1)
    flight.arrived()
    x.zero_()
    flight.arrived()
    assert program.noted("changed") == []


@pytest.mark.parametrize("method", ["broadcast", "all_gather_single"])
def test_what_a_backend_of_unknown_counts_writes_is_no_write(tmp_path: Path, method: str) -> None:
    x = torch.ones(4)
    given, _ = RESULTS[method]
    program = Program(tmp_path, NCCL)
    flight = program.call(method, *given(x))
    for _ in range(8):
        x.add_(1)
    flight.awaited()
    flight.arrived()
    assert program.noted("changed") == []


def test_a_view_shares_its_counter_and_is_not_judged_by_it(program: Program) -> None:
    flat = torch.ones(8)
    flight = program.call("allreduce", [flat[:4]])
    flat[4:].add_(1)
    flight.awaited()
    assert program.noted("changed") == []


def test_inference_tensors_have_no_counter(program: Program) -> None:
    with torch.inference_mode():
        x = torch.ones(4)
        program.call("allreduce", [x]).awaited()
    assert program.noted("changed") == []


def test_two_writers_of_one_byte_are_noted(program: Program) -> None:
    flat = torch.ones(10)
    program.call("allreduce", [flat[:6]])
    program.call("allreduce", [flat[5:]])
    [overlap] = program.noted("overlap")
    assert (overlap["both_write"], overlap["running"], overlap["source"][1]) == (True, True, 2)
    assert (overlap["other"]["op"], overlap["other"]["source"][1]) == ("all_reduce", 1)


def test_a_synchronous_call_meets_those_in_flight(program: Program) -> None:
    x = torch.ones(10)
    program.call("send", [x], 1, 0)
    program.sync("allreduce", [x])
    [overlap] = program.noted("overlap")
    assert (overlap["both_write"], overlap["running"]) == (False, False)


@pytest.mark.parametrize(
    "pair",
    [
        lambda x: (("allreduce", [x[:5]]), ("allreduce", [x[5:]])),
        lambda x: (("send", [x], 1, 0), ("send", [x], 1, 1)),
        lambda x: (("send", [x.view(5, 2)[:, 0]], 1, 0), ("recv", [x.view(5, 2)[:, 1]], 1, 0)),
        lambda x: (("allreduce", [x]), ("allreduce", [x.clone()])),
        lambda x: (("allreduce", [x[:0]]), ("allreduce", [x])),
    ],
    ids=["disjoint parts", "readers", "interleaved columns", "other memory", "nothing"],
)
def test_what_does_not_overlap_is_silent(program: Program, pair: Any) -> None:
    x = torch.ones(10)
    for method, *args in pair(x):
        found = arguments(method, args, {})
        program.flights.open(program.log.begin(found, Source("train.py", 1, "step")), found.tensors, current_site())
    assert program.noted("overlap") == []


def test_what_was_waited_for_overlaps_nothing(program: Program) -> None:
    x = torch.ones(4)
    program.call("allreduce", [x]).awaited()
    program.call("allreduce", [x]).end()
    program.call("allreduce", [x])
    assert program.noted("overlap") == []


def test_a_backend_that_runs_in_order_may_use_memory_again(tmp_path: Path) -> None:
    program = Program(tmp_path, backend=None)
    x = torch.ones(4)
    program.call("allreduce", [x])
    program.call("allreduce", [x])
    assert program.noted("overlap") == []
    program.call("allreduce", [x], log=program.group("1", None))
    assert len(program.noted("overlap")) == 2


def test_a_loop_is_noted_a_few_times(program: Program) -> None:
    x = torch.ones(4)
    for _ in range(100):
        flight = program.call("allreduce", [x])
        flight.entry.source = Source("train.py", 7, "step")
        x.add_(1)
        flight.launching(lambda: None)()
        flight.end()
    assert [changed["count"] for changed in program.noted("changed")] == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("held", [True, False])
def test_a_result_that_went_with_its_work_needs_no_wait(program: Program, held: bool) -> None:
    x = torch.ones(4)
    # Lists of lists: a place of the program is looked at once, and must not name what holds the result.
    backend, own = [[x]], [[x]] if held else []
    flight = program.call("allreduce", [x])
    del x
    flight.dropped()
    backend.clear()
    program.flights.look_after(last=True)
    flags = read_black_box(program.folder / "rank00000.simcoll").slots["flags"]
    assert int(flags[0]) == (LET_GO if own else LET_GO | HANDED_ON)


def test_callers_of_one_helper_are_told_apart_where_no_more_places_are_kept(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: list[Any] = []

    def drops() -> None:
        x = torch.ones(4)
        backend.append(x)
        program.call("allreduce", [x]).dropped()

    def reads_later() -> float:
        x = torch.ones(4)
        backend.append(x)
        program.call("allreduce", [x]).dropped()
        return float(x[0])

    forget_chains()
    monkeypatch.setattr("simcoll.recorder.source._CHAINS", 0)
    for make in (reads_later, drops, reads_later):
        make()
    backend.clear()
    program.flights.look_after(last=True)
    flags = read_black_box(program.folder / "rank00000.simcoll").slots["flags"]
    assert [int(flag) for flag in flags] == [LET_GO, LET_GO | HANDED_ON, LET_GO]


def test_a_result_is_read_later_by_the_list_or_the_object_that_holds_it(program: Program) -> None:
    def listed(backend: list[Any]) -> float:
        held = [torch.ones(4)]
        for x in held:
            backend.append(x)
            program.call("allreduce", [x]).dropped()
        return sum(float(y[0]) for y in held)

    def cleared(backend: list[Any]) -> None:
        held = [torch.ones(4)]
        for x in held:
            backend.append(x)
            program.call("allreduce", [x]).dropped()
        held.clear()

    def attribute(backend: list[Any]) -> float:
        held = SimpleNamespace(x=torch.ones(4))
        backend.append(held.x)
        program.call("allreduce", [held.x]).dropped()
        return float(held.x[0])

    def another(backend: list[Any]) -> int:
        held = SimpleNamespace(x=torch.ones(4), y=0)
        backend.append(held.x)
        program.call("allreduce", [held.x]).dropped()
        return int(held.y)

    for make in (listed, cleared, attribute, another):
        backend: list[Any] = []
        make(backend)
        backend.clear()
    program.flights.look_after(last=True)
    flags = read_black_box(program.folder / "rank00000.simcoll").slots["flags"]
    assert [int(flag) for flag in flags] == [LET_GO, LET_GO | HANDED_ON, LET_GO, LET_GO | HANDED_ON]


def test_waiting_for_the_device_is_waiting(program: Program) -> None:
    x = torch.ones(4)
    program.call("allreduce", [x])
    program.flights.device_synchronized()
    flags = read_black_box(program.folder / "rank00000.simcoll").slots["flags"]
    # What runs on the host's cores does not wait with the device.
    assert int(flags[0]) == 0


def test_a_work_that_raises_when_it_is_asked_counts_as_ended(program: Program) -> None:
    x = torch.ones(4)
    flight = program.call("allreduce", [x])

    class Broken:
        def has_ended(self) -> bool:
            raise RuntimeError("connection closed")

    work = Broken()
    flight.follow(work)
    program.flights.waits += 1
    assert not flight.open


def test_a_forked_child_has_nothing_in_flight(program: Program) -> None:
    program.call("allreduce", [torch.ones(4)])
    program.flights.forked()
    program.sync("allreduce", [torch.ones(4)])
    assert program.noted("overlap") == []


def test_a_tensor_that_cannot_say_where_it_lies_is_not_watched(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("no storage")

    monkeypatch.setattr("simcoll.wrapper.call_memory.has_memory", refuse)
    found = arguments("allreduce", ([torch.ones(4)],), {})
    entry = program.log.begin(found, Source("train.py", 1, "step"))
    assert program.flights.open(entry, found.tensors, current_site()) is None


def test_a_call_that_the_backend_refused_uses_no_memory(program: Program) -> None:
    pipeline, x = RecordedPipeline(program.log), torch.ones(4)

    def refuse() -> None:
        raise RuntimeError("not supported")

    with pytest.raises(RuntimeError, match="not supported"):
        pipeline.run(arguments("recv", ([x], 1, 0), {}), refuse)
    pipeline.run(arguments("allreduce", ([x],), {}), lambda: None)
    assert program.noted("overlap") == []


def test_a_call_that_was_made_before_is_written_down_as_the_first_was(program: Program) -> None:
    options = dist.AllreduceOptions()
    options.asyncOp = False
    args = [torch.ones(4)], options
    pipeline, form = RecordedPipeline(program.log), USUAL_FORMS["allreduce"]
    if (quick := pipeline.quick(None, None)) is None:
        pytest.skip("the compiled parts are not built for this Python: python setup.py build_ext --inplace")

    def refuse(*_: object) -> None:
        raise RuntimeError("not supported")

    assert quick.begin(form, args) is None
    assert program.log.place == (0, 0)
    pipeline.run(arguments("allreduce", args, {}), lambda: None)
    written = quick.begin(form, args)
    assert written is not None
    assert pipeline.at_once(written, lambda *_: None, args) is None
    again = quick.begin(form, args)
    assert again is not None
    with pytest.raises(RuntimeError, match="not supported"):
        pipeline.at_once(again, refuse, args)
    assert program.log.place == (3, 0)
    assert len(program.noted("rejected")) == 1
