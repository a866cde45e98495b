"""Two ends of a lane that come to their messages at any time: what agrees is settled, what differs is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcoll.backends.base import OF_THE_GROUP, OF_THE_PAIR
from simcoll.blackbox.box import NoBox
from simcoll.core.record import Group, Source
from simcoll.errors import CollectiveMismatchError
from simcoll.proof.p2p_channel import Count, P2PChannel, Posted
from simcoll.recorder.recorder import Entry, Prepared, Use
from simcoll.spec.call import ANY_SOURCE, Buffer, Call
from simcoll.spec.checksum import message_digest

torch = pytest.importorskip("torch")
from torch.distributed import HashStore  # noqa: E402

from simcoll.proof import p2p_check  # noqa: E402
from simcoll.proof.p2p_check import DigestExchange  # noqa: E402
from simcoll.proof.store import PolledStore, StoreConnection  # noqa: E402
from simcoll.recorder.pending_errors import PENDING_ERRORS  # noqa: E402

WORLD = Group("0", "default_pg", (0, 1))
USE = Use(writes=False, sends=False, copies=False, tells=False, on_cpu=True)
LOG: Any = SimpleNamespace(group=WORLD, box=NoBox())


def posted(
    op: str,
    peer: int,
    size: int,
    dtype: str = "float32",
    tag: int = 0,
    took: int | None = None,
    channel: int | None = None,
) -> Posted:
    buffers = (Buffer((size,), dtype),)
    if op == "send":
        call = Call("send", "send", inputs=buffers, peer=peer, tag=tag)
    else:
        call = Call("recv", "recv", outputs=buffers, peer=peer, tag=tag)
    prepared = Prepared(call, 0, 0, 0, message_digest(call), 0, USE)
    entry = Entry(LOG, prepared, 1, Source("train.py", size, "step"), False, 0, taken_from=took)
    return Posted(entry, 0, tag if channel is None else channel, launched=True)


def news(lane: P2PChannel) -> Count:
    count = lane.news()
    assert count is not None
    return count


def test_ends_agree_at_equal_counts_whoever_is_ahead() -> None:
    ahead, behind = P2PChannel(), P2PChannel()
    for size in (1, 2, 3):
        ahead.add(posted("send", 1, size))
    behind.add(posted("recv", 0, 1))
    assert behind.agrees(news(ahead))
    assert ahead.agrees(news(behind))
    assert (ahead.settled, ahead.open, behind.settled, behind.open) == (1, 2, 0, 1)
    for size in (2, 3):
        behind.add(posted("recv", 0, size))
    assert behind.caught_up()
    assert (behind.settled, behind.open) == (3, 0)
    assert ahead.agrees(news(behind))
    assert ahead.open == 0
    assert ahead.news() is None


def test_what_the_other_end_knows_to_agree_is_forgotten() -> None:
    lane = P2PChannel()
    for size in (1, 2, 3):
        lane.add(posted("send", 1, size))
    assert lane.agrees(Count(0, 2, 5, 0))
    assert (lane.settled, lane.open) == (2, 1)
    assert [one.entry.call.inputs[0].shape for one in lane.part(1, 3)] == [(3,)]


def test_an_end_that_differs_is_noticed_and_one_of_another_epoch_is_not_compared() -> None:
    lane = P2PChannel()
    lane.add(posted("send", 1, 1))
    assert lane.agrees(Count(1, 0, 1, 7))
    assert not lane.agrees(Count(0, 0, 1, 7))


def test_words_that_count_as_one_do_so_with_all_that_did_before() -> None:
    words = [message_digest(posted("send", 1, size).entry.call) for size in (1, 2, 3)]
    lanes = [P2PChannel(), P2PChannel()]
    for place, lane in enumerate(lanes):
        assert lane.accept(0, [(words[0], words[1])])
        assert lane.accept(0, [(words[1], words[2])])
        assert not lane.accept(0, [(words[0], words[2])])
        lane.add(posted("send", 1, 1 + 2 * place))
    assert lanes[0].agrees(news(lanes[1]))
    assert lanes[0].open == 0


def end(store: Any, rank: int) -> DigestExchange:
    return DigestExchange(WORLD, rank, PolledStore(StoreConnection(store)), {"cpu"})


def told() -> list[CollectiveMismatchError]:
    return PENDING_ERRORS.rest()


def run(orders: list[list[Posted]], steps: list[tuple[int, int]]) -> list[CollectiveMismatchError]:
    """Let two ranks make their messages, so many at a step, meet after each, and end."""
    store = HashStore()
    ends = [end(store, rank) for rank in (0, 1)]
    left = [list(order) for order in orders]
    going = [True, True]

    def meet(rank: int, made: list[Posted]) -> None:
        if going[rank]:
            going[rank] = ends[rank].meet(made) is not None

    for rank, count in steps:
        made, left[rank] = left[rank][:count], left[rank][count:]
        meet(rank, made)
    for rank in (0, 1):
        ends[rank].finish()
        meet(rank, left[rank])
    for turn in range(200):
        if all(one.pause is None or not on for one, on in zip(ends, going, strict=True)):
            break
        meet(turn % 2, [])
    assert all(one.pause is None for one, on in zip(ends, going, strict=True) if on), (
        "they wait for each other for ever"
    )
    return told()


MESSAGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30)
STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 7)), max_size=12)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@QUICK
@given(MESSAGES, STEPS, st.integers(0, 5), st.booleans())
def test_ranks_that_agree_are_never_accused(
    messages: list[tuple[int, int]], steps: list[tuple[int, int]], more: int, raw: bool
) -> None:
    """Both send each other the same, apart by any number; bytes may stand for numbers, and ends may be missing."""
    sent = [posted("send", 1, size, tag=tag) for tag, size in messages]
    wanted = [
        posted("recv", 0, 4 * size if raw and size == 3 else size, "uint8" if raw and size == 3 else "float32", tag)
        for tag, size in messages
    ]
    back = [posted("recv", 1, size, tag=tag) for tag, size in messages]
    replies = [posted("send", 0, size, tag=tag) for tag, size in messages[: len(messages) - more]]
    mine = [one for pair in zip(sent, back, strict=True) for one in pair]
    assert run([mine, wanted + replies], steps) == []


@pytest.mark.slow
@QUICK
@given(MESSAGES, STEPS, st.data())
def test_the_first_message_that_differs_is_found_by_both_ends(
    messages: list[tuple[int, int]], steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    messages = [*messages, (0, 1)]
    odd = data.draw(st.integers(0, len(messages) - 1))
    sent = [posted("send", 1, size, tag=tag) for tag, size in messages]
    wanted = [posted("recv", 0, size + 5 * (place == odd), tag=tag) for place, (tag, size) in enumerate(messages)]
    errors = run([sent, wanted], steps)
    assert {error.findings[0].code for error in errors} == {"SC301"}
    assert len(errors) == 2
    size = messages[odd][1]
    assert all(f"receives into {size + 5} elements" in str(error) for error in errors)


def test_receives_from_any_source_stand_in_the_order_in_which_they_were_made() -> None:
    receives = [posted("recv", ANY_SOURCE, size, took=0 if size != 2 else None) for size in (1, 2, 3)]
    sends = [posted("send", 1, size) for size in (1, 3, 2)]
    store = HashStore()
    ends = [end(store, 0), end(store, 1)]
    assert (ends[1].meet(receives), ends[0].meet(sends)) == (3, 3)
    # Whose message the second took is not known: the third may not be compared yet.
    assert (ends[0].meet([]), ends[1].meet([])) == (0, 0)
    receives[1].entry.received_from(0)
    assert ends[1].meet([]) == 0
    assert ends[0].meet([]) is None
    assert ends[1].meet([]) is None
    assert len(told()) == 2


def test_what_is_not_launched_yet_holds_up_what_comes_behind_it_and_what_is_refused_is_left_out() -> None:
    store = HashStore()
    one = end(store, 0)
    messages = [posted("send", 1, size) for size in (1, 2, 3)]
    messages[0].launched, messages[1].launched = False, None
    assert one.meet(messages) == 1
    messages[1].launched = True
    assert one.meet(messages[1:]) == 2
    other = end(store, 1)
    assert other.meet([posted("recv", 0, 2), posted("recv", 0, 3)]) == 2
    assert one.meet([]) == 0
    assert (one.pause, other.pause) == (None, None)


def test_an_end_that_gets_no_answer_asks_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    one, other = end(store, 0), end(store, 1)
    assert other.meet([posted("recv", 0, 2)]) == 1
    assert one.meet([posted("send", 1, 3)]) == 1
    pauses = [one.pause]
    monkeypatch.setattr(p2p_check.time, "monotonic", lambda: float("inf"))
    assert one.meet([]) == 0
    assert [*pauses, one.pause] == [p2p_check._BUSY_SECONDS, None]
    assert PENDING_ERRORS.awaited(0) is None


def test_a_group_whose_message_failed_is_compared_no_more() -> None:
    one = end(HashStore(), 0)
    one.give_up()
    with pytest.raises(RuntimeError, match="a message failed"):
        one.meet([posted("send", 1, 1)])


def test_without_tags_the_order_alone_tells_which_send_meets_which_receive() -> None:
    sent = [posted("send", 1, size, tag=size, channel=OF_THE_GROUP) for size in (1, 2, 3)]
    same = [posted("recv", 0, size, tag=9 - size, channel=OF_THE_GROUP) for size in (1, 2, 3)]
    other = [posted("recv", 0, size, tag=size, channel=OF_THE_GROUP) for size in (2, 1, 3)]
    assert run([sent, same], [(0, 2), (1, 1)]) == []
    errors = run([sent, other], [(0, 2), (1, 1)])
    assert [error.findings[0].code for error in errors] == ["SC301", "SC301"]
    assert "sends 1 element to rank 1, which receives into 2 elements" in errors[0].findings[0].message


def test_a_communicator_of_two_ranks_has_an_order_of_its_own() -> None:
    sent = [posted("send", 1, 1, channel=OF_THE_PAIR), posted("send", 1, 2, channel=OF_THE_GROUP)]
    received = [posted("recv", 0, 2, channel=OF_THE_GROUP), posted("recv", 0, 1, channel=OF_THE_PAIR)]
    assert run([sent, received], [(0, 1), (1, 1)]) == []


def test_who_knows_already_is_not_told_again() -> None:
    sent, received = posted("send", 1, 1, channel=OF_THE_GROUP), posted("recv", 0, 2, channel=OF_THE_GROUP)
    received.reported = True
    assert len(run([[sent], [received]], [(0, 1), (1, 1)])) == 1
