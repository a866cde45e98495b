"""The quick way writes what the whole way writes, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, NoReturn

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.backends.gloo import GLOO  # noqa: E402
from simcoll.blackbox import BlackBoxWriter, read_black_box  # noqa: E402
from simcoll.core.rank_local import RankLocal  # noqa: E402
from simcoll.core.record import Group, Record, State  # noqa: E402
from simcoll.recorder.arguments import USUAL_FORMS, arguments  # noqa: E402
from simcoll.recorder.quick import Conditions, OpenCall, Quick, Works  # noqa: E402
from simcoll.recorder.recorder import GroupLog, Recorder, Written  # noqa: E402
from simcoll.recorder.source import current_source, forget_chains  # noqa: E402
from simcoll.values.choice import Choice  # noqa: E402
from simcoll.wrapper.async_checks import Flights  # noqa: E402
from simcoll.wrapper.quick_work import QuickWork  # noqa: E402
from tests.support.asked import Asked  # noqa: E402
from tests.support.native import parts  # noqa: E402

WORLD = Group("0", "default_pg", (0, 1))


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    with parts("compiled"):
        yield


def summed(*shape: int, asynchronous: bool = False) -> tuple[Any, ...]:
    options = dist.AllreduceOptions()
    options.asyncOp = asynchronous
    return [torch.zeros(*shape)], options


class Calls:
    """A group whose all-reduces may go either way."""

    def __init__(
        self,
        folder: Path,
        recorder: Recorder | None = None,
        *,
        choice: Choice | None = None,
        add: Callable[[tuple[Written, int]], None] | None = None,
        limit: timedelta | None = None,
    ) -> None:
        self.box = folder / "rank00000.simcoll"
        self.log = GroupLog(recorder or Recorder(folder, "record", 0, 2), WORLD, 0, {"cpu": GLOO}, choice)
        self.busy: list[object] = []
        self.open: list[object] = []
        self.active: RankLocal[Any] = RankLocal(lambda: self)
        self.flights = Flights()
        assert self.flights.quick is not None
        works = Works(QuickWork, limit=limit)
        conditions = Conditions(self.flights.quick, works, (self.busy, {}), (self.open,), self.active, self, True, add)
        quick = self.log.quick(conditions)
        assert quick is not None
        self.quick: Quick = quick

    def whole(self, args: tuple[Any, ...]) -> None:
        read = arguments("allreduce", args, {})
        entry = self.log.begin(read, current_source(), started=True, awaited=read.synchronous)
        if self.log.values is not None:
            entry.values = self.log.values.begin(entry.call, entry.sequence, args[0], args[0])
        entry.finished()

    def short(self, args: tuple[Any, ...]) -> Written | None:
        written = self.quick.begin(USUAL_FORMS["allreduce"], args)
        assert written is None or isinstance(written, tuple)
        return written

    def opened(self, args: tuple[Any, ...]) -> OpenCall:
        while isinstance(call := self.quick.begin(USUAL_FORMS["allreduce"], args), tuple):
            # What the wrapper finds out at the first call of a place.
            call[5].named_later = False
        assert call is not None
        return call

    def records(self) -> list[Record]:
        box = read_black_box(self.box)
        return [box.record(index) for index in range(len(box.slots))]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


def test_both_ways_leave_the_same_record(calls: Calls) -> None:
    for way in (calls.whole, calls.short):
        written = way(summed(2, 3))
    assert written is not None
    calls.log.entry(written).finished()
    first, second = calls.records()
    assert (second.sequence, second.source.function) == (2, "short")
    assert first.source.callers == second.source.callers
    assert second.started_ns == second.scheduled_ns <= second.finished_ns
    for name in ("group", "call", "state", "asynchronous"):
        assert getattr(first, name) == getattr(second, name), name
    assert len(set(read_black_box(calls.box).slots["flags"])) == 1


def test_an_asynchronous_call_is_written_with_its_tensors(calls: Calls) -> None:
    calls.open.append("another call")
    for way in (calls.whole, calls.short):
        args = summed(2, asynchronous=True)
        written = way(args)
    assert written is not None
    prepared, sequence, _, _, tensors, place = written
    assert (prepared.call.op, sequence, place.by_torch) == ("all_reduce", 2, False)
    assert tensors is not None
    assert [tensor is args[0][0] for tensor in tensors["inout"]] == [True]
    first, second = calls.records()
    assert first.asynchronous == second.asynchronous == calls.log.entry(written).asynchronous is True
    assert len(set(read_black_box(calls.box).slots["flags"])) == 1


def test_a_known_call_asks_its_tensors_nothing(calls: Calls) -> None:
    args, later = summed(2, 3), summed(2, 3, asynchronous=True)
    for made in (args, later):
        calls.whole(made)
    with Asked() as asked:
        assert calls.short(args) is not None
        call = calls.opened(later)
        assert call.is_open
    assert asked.count == 0


def test_an_open_call_has_the_memory_of_its_tensors(calls: Calls) -> None:
    tensors = [torch.zeros(9, dtype=torch.int64)[4:6], torch.zeros(3, 3)[1:], torch.zeros(2, dtype=torch.int8)]
    tensors[1].add_(1)
    for tensor in tensors:
        args = [tensor], summed(1, asynchronous=True)[1]
        calls.whole(args)
        call = calls.opened(args)
        assert call.memory == [(tensor.data_ptr(), tensor.nbytes, tensor._version)]
        call.ended()


class Backend:
    """The method of a backend and the Work that it returns, of which one may raise; and the pipeline that is told."""

    def __init__(self, launch: Exception | None = None, wait: Exception | None = None) -> None:
        self.errors = {"launch": launch, "wait": wait}
        self.did: list[str] = []
        self.told: list[tuple[int, Exception, bool]] = []

    def method(self, *args: object) -> Any:
        return self.does("launch")

    def wait(self, *limit: timedelta) -> Any:
        return self.does("wait")

    def does(self, name: str) -> Any:
        self.did.append(name)
        if (error := self.errors[name]) is not None:
            raise error
        return self

    def failed(self, written: Written, error: Exception, waited: bool) -> NoReturn:
        self.told.append((written[1], error, waited))
        raise error

    def at_once(self, written: Written, method: Callable[..., Any], args: Any) -> Any:
        return "the pipeline's"

    def wait_on(self, written: Written, inner: object) -> Any:
        self.did.append("wait on")
        return inner


def test_a_synchronous_call_is_carried_out(calls: Calls) -> None:
    backend, form = Backend(), USUAL_FORMS["allreduce"]
    run: Any = calls.quick.run
    assert run(form, summed(1), backend.method, backend) is calls.quick
    assert backend.did == []
    calls.whole(summed(1))
    waits = calls.flights.waits
    assert run(form, summed(1), backend.method, backend) is backend
    assert backend.did == ["launch", "wait"]
    assert calls.flights.waits == waits + 1
    assert [record.state for record in calls.records()] == [State.COMPLETED] * 2
    calls.open.append("another call")
    calls.whole(summed(1, asynchronous=True))
    assert run(form, summed(1, asynchronous=True), backend.method, backend) == "the pipeline's"


@pytest.mark.parametrize("place", ["launch", "wait"])
def test_an_error_of_the_backend_is_told_and_raised(place: str, calls: Calls) -> None:
    error = RuntimeError("connection closed")
    backend = Backend(**{place: error})
    run: Any = calls.quick.run
    calls.whole(summed(1))
    with pytest.raises(RuntimeError, match="connection closed") as raised:
        run(USUAL_FORMS["allreduce"], summed(1), backend.method, backend)
    assert raised.value is error
    assert backend.told == [(2, error, place == "wait")]
    assert calls.records()[-1].state is State.STARTED


def test_a_wait_without_a_limit_is_not_repeated(tmp_path: Path) -> None:
    calls, error = Calls(tmp_path, add=lambda made: None), RuntimeError("the connection was lost")
    backend = Backend(wait=error)
    run: Any = calls.quick.run
    calls.whole(summed(1))
    with pytest.raises(RuntimeError, match="lost"):
        run(USUAL_FORMS["allreduce"], summed(1), backend.method, backend)
    assert backend.did == ["launch", "wait"]
    assert backend.told == [(2, error, True)]


def test_a_call_that_is_compared_is_handed_on_before_the_wait(tmp_path: Path) -> None:
    added: list[tuple[Written, int]] = []
    calls = Calls(tmp_path, add=added.append, limit=timedelta(seconds=1))
    run: Any = calls.quick.run
    calls.whole(summed(1))
    for backend, did in (
        (Backend(), ["launch", "wait"]),
        # The first wait is for a moment alone.
        (Backend(wait=RuntimeError("timed out")), ["launch", "wait", "wait on"]),
    ):
        assert run(USUAL_FORMS["allreduce"], summed(1), backend.method, backend) is backend
        assert backend.did == did
        assert backend.told == []
    assert [(written[1], maker) for written, maker in added] == [(2, get_ident()), (3, get_ident())]
    error = Backend(launch=ValueError("refused"))
    with pytest.raises(ValueError, match="refused"):
        run(USUAL_FORMS["allreduce"], summed(1), error.method, error)
    assert len(added) == 2


def test_what_interrupts_a_call_is_raised_and_not_noted(calls: Calls) -> None:
    backend = Backend(wait=KeyboardInterrupt())  # type: ignore[arg-type]
    run: Any = calls.quick.run
    calls.whole(summed(1))
    with pytest.raises(KeyboardInterrupt):
        run(USUAL_FORMS["allreduce"], summed(1), backend.method, backend)
    assert backend.told == []


def test_calls_of_one_form_and_other_options_are_told_apart(calls: Calls) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
    for args in (summed(2), ([torch.zeros(2)], options), ([torch.zeros(2), torch.zeros(2)], summed(1)[1])):
        calls.whole(args)
        for _ in range(2):
            written = calls.short(args)
            assert written is not None
            assert written[0].call == arguments("allreduce", args, {}).call()


def test_the_ways_share_the_numbers_of_calls(calls: Calls) -> None:
    calls.whole(summed(1))
    for _ in range(3):
        assert calls.short(summed(1)) is not None
        calls.whole(summed(1))
    assert [record.sequence for record in calls.records()] == list(range(1, 8))
    assert calls.log.place == (7, 0)


def test_calls_whose_values_are_not_checked_go_the_quick_way(tmp_path: Path) -> None:
    calls = Calls(tmp_path, choice=Choice("sample"))
    quick = set()
    for number in range(1, 201):
        if calls.short(summed(1)) is not None:
            quick.add(number)
        else:
            calls.whole(summed(1))
    events = [event for event in read_black_box(calls.box).events if event.kind == "values"]
    checked = {int(str(event.data["sequence"])) for event in events}
    assert checked
    assert not checked & quick
    # Those that go the whole way are taken, or the first in a while.
    assert len(quick) > 200 - len(checked) - 200 // 16


def test_no_call_goes_the_quick_way_where_all_values_are_checked(tmp_path: Path) -> None:
    calls = Calls(tmp_path, choice=Choice("all"))
    for _ in range(3):
        assert calls.short(summed(1)) is None
        calls.whole(summed(1))


def test_each_line_has_its_own_callers(calls: Calls) -> None:
    def made_by_one() -> None:
        assert calls.short(summed(1)) is not None

    def made_by_two() -> None:
        assert calls.short(summed(1)) is not None

    calls.whole(summed(1))
    for _ in range(2):
        made_by_one()
        made_by_two()
    functions = [record.source.callers[0].function for record in calls.records()[1:]]
    assert functions == ["made_by_one", "made_by_two"] * 2
    forget_chains()
    made_by_two()
    assert calls.records()[-1].source == calls.records()[2].source


def raised(calls: Calls) -> Written | None:
    try:
        raise IndexError("out of range")
    except IndexError:
        return calls.short(summed(1))


def while_another_writes(calls: Calls) -> Written | None:
    with calls.log.lock:
        return calls.short(summed(1))


def while_another_is_open(calls: Calls) -> Written | None:
    calls.open.append("another call")
    return calls.short(summed(1))


def while_busy(calls: Calls) -> Written | None:
    calls.busy.append("a call is open")
    return calls.short(summed(1))


def in_another_session(calls: Calls) -> Written | None:
    calls.active.set(None)
    return calls.short(summed(1))


REFUSED: dict[str, Callable[[Calls], Written | None]] = {
    "while another is open": while_another_is_open,
    "never made": lambda calls: calls.short(summed(2)),
    "no options": lambda calls: calls.short(([torch.zeros(1)],)),
    "sparse": lambda calls: calls.short(([torch.zeros(1).to_sparse()], dist.AllreduceOptions())),
    "handling an exception": raised,
    "while another thread writes": while_another_writes,
    "while more is to be noted": while_busy,
    "in another session": in_another_session,
}


@pytest.mark.parametrize("case", REFUSED)
def test_every_other_call_is_left_alone(case: str, calls: Calls) -> None:
    calls.whole(summed(1))
    calls.whole(summed(1, asynchronous=True))
    assert calls.log.place == (2, 0)
    assert REFUSED[case](calls) is None
    assert len(calls.records()) == 2
    assert calls.log.place == (2, 0)


def test_a_call_whose_own_memory_is_at_fault_always_goes_the_whole_way(calls: Calls) -> None:
    apart = [torch.zeros(2, 2)[:, 0]], summed(1)[1]
    for args in (apart, summed(2)):
        calls.whole(args)
    assert calls.short(apart) is None
    assert calls.short(summed(2)) is not None


def test_no_more_calls_are_open_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile: list[Callable[[], object]] = []

    def write(self: BlackBoxWriter, *given: Any) -> int:
        if meanwhile:
            # As another thread may.
            meanwhile.pop()()
        return self._ring.write(*given)

    box = BlackBoxWriter(tmp_path / "rank00000.simcoll", rank=0, world_size=2, mode="record")
    monkeypatch.setattr(box, "write", partial(write, box))
    calls = Calls(tmp_path, Recorder.into(box, 0))

    def opened() -> Written | OpenCall | None:
        return calls.quick.begin(USUAL_FORMS["allreduce"], summed(1, asynchronous=True))

    calls.whole(summed(1, asynchronous=True))
    held: list[object] = []
    for number in range(300):
        if number == 256:
            meanwhile.append(lambda: held.append(opened()))
        call = opened()
        if isinstance(call, tuple):
            call[5].named_later = False
        held.append(call)
    assert len(calls.flights.quick or ()) == 256
    assert not meanwhile
    held.clear()
    del call
    assert not calls.flights.quick
