"""Sends and receives in ``check`` mode on real ranks: what is found and who is told, and what is let be."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from simcoll.errors import CollectiveMismatchError
from simcoll.verifier.postmortem import judge

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.recorder.pending_errors import PENDING_ERRORS  # noqa: E402
from tests.support.calls import ones  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def told(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The codes and sentences of the findings that a call raises."""
    try:
        call()
    except CollectiveMismatchError as error:
        return [(finding.code, finding.message) for finding in error.findings]
    return []


def pass_on(rank: int, sent: Any, received: Any, tag: int = 0, group: Any = None) -> None:
    """One message from rank 0 to rank 1."""
    if rank == 0:
        dist.send(sent, 1, tag=tag, group=group)
    elif rank == 1:
        dist.recv(received, 0, tag=tag, group=group)


def until_told(call: Callable[[], object]) -> list[tuple[str, str]]:
    """Make a call again and again until it raises."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := told(call):
            return found
        time.sleep(0.002)
    raise AssertionError("no mismatch was raised")


MISMATCHES = {
    "too large": (ones(8), ones(10), "SC301"),
    "nothing to send": (ones(0), ones(4), "SC301"),
    "another dtype": (ones(8), torch.zeros(8, dtype=torch.int32), "SC302"),
    "half": (ones(8).bfloat16(), ones(8).half(), "SC302"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_both_ends_are_told_of_the_first_message_that_differs(ranks: Any, name: str) -> None:
    sent, received, code = MISMATCHES[name]

    def program(rank: int) -> object:
        def step(turn: int) -> None:
            odd = turn == 150
            pass_on(rank, sent if odd else ones(turn % 3), received if odd else ones(turn % 3), tag=turn % 2)

        for turn in range(400):
            if found := told(functools.partial(step, turn)):
                return turn, found
        return 400, told(dist.destroy_process_group)

    for turn, [(found, text)] in ranks(program, mode="check", SIMCOLL_CHECK_EVERY="16"):
        assert (found, text[:13]) == (code, "rank 0 sends ")
        assert turn >= 150
    findings = judge([ranks.box(rank) for rank in (0, 1)]).findings
    assert [finding.code for finding in findings] == [code]


def test_it_is_raised_at_the_next_call_of_the_main_thread(ranks: Any) -> None:
    def program(rank: int) -> object:
        pass_on(rank, ones(3), ones(4))
        return until_told(lambda: dist.all_reduce(ones(1), async_op=True))

    for [(code, text)] in ranks(program, mode="check"):
        assert (code, text) == ("SC301", "rank 0 sends 3 elements to rank 1, which receives into 4 elements")


def test_the_end_of_the_group_tells_of_what_came_last(ranks: Any) -> None:
    def program(rank: int) -> object:
        pass_on(rank, ones(3), ones(4))
        return told(dist.destroy_process_group)

    assert [found[0][0] for found in ranks(program, mode="check")] == ["SC301"] * 2


def test_a_collective_that_waits_for_ranks_does_not_hold_up_messages(ranks: Any) -> None:
    def program(rank: int) -> object:
        if rank == 0:
            dist.broadcast(ones(1), src=0, async_op=True)
        pass_on(rank, ones(3), ones(4))
        return [code for code, _ in until_told(PENDING_ERRORS.raise_due)]

    assert ranks(program, mode="check") == [["SC301"]] * 2


def test_ends_that_are_far_apart_are_compared_at_equal_counts(ranks: Any) -> None:
    def program(rank: int) -> object:
        if rank == 0:
            works = [dist.isend(ones(1 + turn % 5), 1) for turn in range(300)]
            works.append(dist.isend(ones(7), 1))
            for work in works[:-1]:
                work.wait()
            return until_told(PENDING_ERRORS.raise_due)
        for turn in range(300):
            dist.recv(ones(1 + turn % 5), 0)
            if turn % 50 == 0:
                time.sleep(0.05)
        dist.recv(ones(8), 0)
        return until_told(lambda: dist.barrier(async_op=True))

    assert [found[0][0] for found in ranks(program, mode="check", SIMCOLL_CHECK_EVERY="8")] == ["SC301"] * 2


def test_receives_from_any_source_join_the_lane_of_their_sender(ranks: Any) -> None:
    def program(rank: int) -> object:
        if rank == 0:
            works = [dist.irecv(ones(5), tag=7) for _ in range(60)]
        else:
            works = [dist.isend(ones(4 if (rank, turn) == (2, 20) else 5), 0, tag=7) for turn in range(30)]
        found = []
        for work in works:
            if error := told(work.wait):
                # Raised in place of the wait.
                found += error
                work.wait()
        if rank != 1 and not found:
            found += until_told(PENDING_ERRORS.raise_due)
        return found + told(dist.destroy_process_group)

    first, other, odd = ranks(program, 3, mode="check", SIMCOLL_CHECK_EVERY="8")
    text = "rank 2 sends 4 elements to rank 0, which receives into 5 elements"
    assert (first, other, odd) == ([("SC301", text)], [], [("SC301", text)])


def test_what_differs_without_harm_is_told_once_and_hides_nothing(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(rank: int) -> object:
        from simcoll.proof.p2p_channel import P2PChannel

        accepted = []
        original = P2PChannel.accept

        def accept(self: P2PChannel, end: int, alike: Any) -> bool:
            accepted.append(end)
            return original(self, end, alike)

        monkeypatch.setattr(P2PChannel, "accept", accept)
        for turn in range(200):
            raw = ones(2 + turn % 2).view(torch.uint8)
            pass_on(rank, raw, ones(2 + turn % 2))
            pass_on(rank, torch.zeros(0), torch.zeros(0, dtype=torch.int32))
        pass_on(rank, ones(2), ones(9), tag=1)
        found = told(dist.destroy_process_group)
        return [code for code, _ in found], 1 <= len(accepted) <= 2

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="16") == [(["SC301"], True)] * 2


def test_a_lane_of_both_kinds_of_receive_is_left_to_the_post_mortem(ranks: Any) -> None:
    def program(rank: int) -> object:
        if rank == 0:
            for turn in range(60):
                dist.send(ones(1 + turn % 2), 1, tag=3)
        else:
            for turn in range(60):
                source = None if turn % 4 > 1 else 0
                assert dist.recv(ones(1 + turn % 2), source, tag=3) == 0
        return told(dist.destroy_process_group)

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="8") == [[], []]


def test_a_message_that_is_refused_takes_no_place(ranks: Any) -> None:
    def program(rank: int) -> object:
        refused = 0
        for turn in range(40):
            if rank == 0:
                refused += ranks.error_of(lambda: dist.send(ones(4, 4).t()[1:3], 1)) is not None
            pass_on(rank, ones(3 + turn % 4), ones(3 + turn % 4))
        return refused, told(dist.destroy_process_group)

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="8") == [(40, []), (0, [])]


def test_threads_groups_and_tags_each_have_their_own_order(ranks: Any) -> None:
    def program(rank: int) -> object:
        groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group([1, 0])]
        errors: list[Any] = []

        def exchange(tag: int) -> None:
            group = groups[tag % 3]
            for step in range(40):
                size = 1 + (step * tag) % 7
                incoming = torch.zeros(size)
                works = [dist.irecv(incoming, 1 - rank, group=group, tag=tag)]
                works.append(dist.isend(torch.full((size,), float(step)), 1 - rank, group=group, tag=tag))
                operations = [dist.P2POp(dist.isend, ones(size), 1 - rank, group=group, tag=tag + 100)]
                operations.append(dist.P2POp(dist.irecv, torch.zeros(size), 1 - rank, group=group, tag=tag + 100))
                works += dist.batch_isend_irecv(operations[:: 1 - 2 * rank])
                for work in works:
                    work.wait()
                if incoming.tolist() != [step] * size:
                    errors.append((tag, step))

        def guarded(tag: int) -> None:
            if (error := ranks.error_of(lambda: exchange(tag))) is not None:
                errors.append(str(error))

        threads = [threading.Thread(target=guarded, args=(tag,)) for tag in range(1, 6)]
        for thread in threads[:: 1 - 2 * rank]:
            thread.start()
        for thread in threads:
            thread.join()
        return errors, told(dist.destroy_process_group)

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="8") == [([], [])] * 2


def test_a_group_that_is_made_again_begins_anew(ranks: Any) -> None:
    def program(rank: int) -> object:
        for life in range(3):
            pair = dist.new_group([0, 1])
            for turn in range(20):
                pass_on(rank, ones(1 + life * turn), ones(1 + life * turn), group=pair)
            # Nobody takes it: it is not the next life's first.
            lost = dist.isend(ones(50 + life), 1, group=pair) if rank == 0 else None
            dist.destroy_process_group(pair)
            del lost
        return told(dist.destroy_process_group)

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="8") == [[], []]


def test_open_receives_keep_nobody_from_ending(ranks: Any) -> None:
    def program(rank: int) -> object:
        pass_on(rank, ones(2), ones(2))
        stop = dist.irecv(ones(1), 0, tag=99) if rank == 1 else None
        found = told(dist.destroy_process_group)
        del stop
        return found

    # The timeout of the receive is more than a test may take.
    assert ranks(program, mode="check", timeout=600) == [[], []]


def test_messages_that_time_out_end_the_comparison_of_their_group(ranks: Any) -> None:
    def program(rank: int) -> object:
        probe = dist.new_group([0, 1], timeout=timedelta(seconds=1))
        lost = ranks.error_of(lambda: dist.recv(ones(1), 1, group=probe)) if rank == 0 else None
        dist.barrier()
        if rank == 1:
            lost = ranks.error_of(lambda: dist.send(ones(5), 0, group=probe))
        return type(lost), told(dist.destroy_process_group)

    assert [found for _, found in ranks(program, mode="check")] == [[], []]
