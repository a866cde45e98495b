"""``check`` mode on real ranks: what is found, when it is raised, and that nothing else is disturbed."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from simcoll.errors import CollectiveMismatchError, ConfigurationError
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.postmortem import judge

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.proof.checker import calls_between_rounds  # noqa: E402
from tests.support.calls import ones  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def meet(rank: int, size: int, name: str) -> None:
    """All ranks past this point, without a collective."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name} {rank}", "")
    store.wait([f"{name} {other}" for other in range(size)])


def until_raised(call: Any, calls: int = 100_000) -> CollectiveMismatchError:
    """Make a call again and again until a mismatch is raised."""
    for _ in range(calls):
        try:
            call()
            time.sleep(0.001)
        except CollectiveMismatchError as error:
            return error
    raise AssertionError(f"{calls} calls, and no mismatch was raised")


def verdict(ranks: Any, size: int) -> Report:
    """What the post-mortem says of the same job."""
    return judge([ranks.box(rank) for rank in range(size)])


def test_a_mismatch_among_a_thousand_calls_is_raised_on_every_rank_and_named(ranks: Any) -> None:
    def step(rank: int, turn: int) -> None:
        odd = rank == 1 and turn == 500
        dist.all_reduce(ones(4), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)

    def program(rank: int) -> object:
        for turn in range(1, 1001):
            try:
                step(rank, turn)
            except CollectiveMismatchError as error:
                return turn, error
        return None

    for turn, error in ranks(program, 3, mode="check"):
        [finding] = error.findings
        assert (finding.code, finding.sequence, finding.culprits) == ("SC104", 500, (1,))
        assert {side.sources[0].source.function for side in finding.sides} == {"step"}
        assert "found in the background" in str(error)
        # One round late, or a few where a rank is.
        assert 500 < turn <= 1000
    [found] = verdict(ranks, 3).findings
    assert (found.code, found.sequence, found.culprits) == ("SC104", 500, (1,))


def test_calls_that_agree_are_proved_in_rounds_of_k_and_at_the_end(ranks: Any) -> None:
    def program(rank: int) -> object:
        from simcoll.proof.checker import Rounds

        settled: list[int | None] = []
        original = Rounds.meet

        def meet(self: Any, calls: Any) -> int | None:
            settled.append(original(self, calls))
            return settled[-1]

        Rounds.meet = meet  # type: ignore[method-assign]
        for _ in range(50):
            dist.all_reduce(ones(2))
        dist.destroy_process_group()
        return sum(count or 0 for count in settled), [thread.name for thread in threading.enumerate()]

    for settled, threads in ranks(program, 3, mode="check", SIMCOLL_CHECK_EVERY="8"):
        assert settled == 50
        assert not [name for name in threads if name.endswith("-check")]


def test_fewer_than_k_calls_are_proved_at_the_end_of_the_group(ranks: Any) -> None:
    def program(rank: int) -> object:
        dist.all_reduce(ones(2), dist.ReduceOp.MIN if rank else dist.ReduceOp.SUM)
        return ranks.error_of(dist.destroy_process_group)

    for error in ranks(program, mode="check"):
        assert type(error) is CollectiveMismatchError
        assert [finding.sequence for finding in error.findings] == [1]


def test_what_is_found_when_the_program_has_ended_is_said(ranks: Any) -> None:
    def program(rank: int) -> None:
        dist.all_reduce(ones(2), dist.ReduceOp.MIN if rank else dist.ReduceOp.SUM)

    for ended in ranks.run(program, mode="check"):
        assert ended.exit_code == 0
        assert "simcoll: found when the program had ended: Detected mismatch between collectives" in ended.output


def test_a_hang_after_a_mismatch_is_ended_by_its_explanation(ranks: Any) -> None:
    """Rank 0 broadcasts where the other reduces, and both then wait for a call that never comes."""

    def program(rank: int) -> object:
        dist.all_reduce(ones(2))
        error = until_raised(lambda: dist.all_reduce(ones(2)) if rank else dist.broadcast(ones(2), src=1))
        return error.findings[0].code, error.findings[0].sequence

    # The timeout of the call is more than a test may take.
    assert ranks(program, mode="check", timeout=600) == [("SC101", 2)] * 2


def test_a_mismatch_before_a_rank_that_stops_calling_is_found(ranks: Any) -> None:
    """The ranks are apart by one call when they pause: what they have in common is proved nevertheless."""

    def program(rank: int) -> object:
        works = [dist.all_reduce(ones(2), async_op=True) for _ in range(3)]
        works.append(dist.all_reduce(ones(2), dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM, async_op=True))
        works += [dist.all_reduce(ones(2), async_op=True) for _ in range(3 - (rank == 2))]
        error = until_raised(lambda: [work.wait() for work in works])
        return error.findings[0].code, error.findings[0].sequence, error.findings[0].culprits

    assert ranks(program, 3, mode="check") == [("SC104", 4, (2,))] * 3


def test_asynchronous_calls_are_launched_at_once_and_raise_when_waited_for(ranks: Any) -> None:
    def program(rank: int) -> object:
        works = [dist.all_reduce(ones(2), async_op=True) for _ in range(10)]
        wrong = dist.all_reduce(ones(2), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM, async_op=True)
        while not all(work.is_completed() for work in [*works, wrong]):
            time.sleep(0.01)
        return until_raised(wrong.wait).findings[0].sequence

    assert ranks(program, mode="check") == [11, 11]


def test_two_groups_in_opposite_orders_and_a_third_that_is_wrong(ranks: Any) -> None:
    def program(rank: int) -> object:
        groups = [dist.new_group(), dist.new_group()]
        third = dist.new_group()
        works = []
        for _ in range(40):
            works += [dist.all_reduce(ones(1), group=group, async_op=True) for group in groups[:: 1 - 2 * rank]]
        dist.all_reduce(ones(1), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM, group=third)
        meet(rank, 2, "all made")
        error = until_raised(lambda: [work.wait() for work in works])
        return error.findings[0].group.name, error.findings[0].sequence

    [first, second] = ranks(program, mode="check", SIMCOLL_CHECK_EVERY="8")
    assert first == second
    assert first[1] == 1


def test_threads_on_groups_of_their_own_hear_of_their_own_mismatch(ranks: Any) -> None:
    def program(rank: int) -> object:
        groups = [dist.new_group() for _ in range(3)]
        told: list[Any] = [None] * 3

        def work(place: int) -> None:
            for step in range(200):
                odd = place == 1 and step == 100 and rank == 0
                op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
                told[place] = ranks.error_of(lambda op=op: dist.all_reduce(ones(1), op, group=groups[place]))
                if told[place] is not None:
                    return

        threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
        for thread in threads if rank else threads[::-1]:
            thread.start()
        for thread in threads:
            thread.join()
        return [None if error is None else (type(error), error.findings[0].sequence) for error in told]

    expected = [None, (CollectiveMismatchError, 101), None]
    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="16") == [expected, expected]


def test_what_differs_without_harm_is_tolerated_and_hides_nothing(ranks: Any) -> None:
    def program(rank: int) -> object:
        for _ in range(100):
            dist.broadcast(ones(6) if rank else ones(2, 3), src=0)
        dist.all_reduce(ones(1), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
        return until_raised(lambda: dist.broadcast(ones(6) if rank else ones(2, 3), src=0)).findings[0].sequence

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="16") == [101, 101]


def test_a_call_that_one_rank_alone_is_refused_takes_no_place(ranks: Any) -> None:
    def program(rank: int) -> object:
        refused = None
        if rank == 0:
            refused = ranks.error_of(lambda: dist.group.WORLD.allreduce([ones(2, 2).to_sparse_csr()]).wait())
        for _ in range(20):
            dist.all_reduce(ones(1))
        dist.destroy_process_group()
        return refused is None

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="4") == [False, True]


def test_a_rank_may_come_late_and_another_leave_early(ranks: Any) -> None:
    def program(rank: int) -> object:
        # A broadcast needs no answer: the ranks drift apart.
        for _ in range(100):
            dist.broadcast(ones(1), src=0)
            if rank == 1:
                time.sleep(0.02)
        if rank == 2:
            dist.barrier()
        return None if rank == 2 else dist.barrier()

    assert ranks(program, 3, mode="check", SIMCOLL_CHECK_EVERY="8") == [None] * 3


def test_a_killed_rank_ends_the_check_and_nothing_else(ranks: Any) -> None:
    def program(rank: int) -> object:
        pair = dist.new_group([0, 2])
        for _ in range(20):
            dist.all_reduce(ones(1))
        meet(rank, 3, "before")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = ones(1)
        for _ in range(20):
            dist.all_reduce(total := ones(1), group=pair)
        lost = ranks.error_of(dist.barrier)
        return total.item(), type(lost)

    ended = ranks.run(program, 3, mode="check", SIMCOLL_CHECK_EVERY="8")
    assert [rank.exit_code for rank in ended] == [0, -signal.SIGKILL, 0]
    assert [rank.answer for rank in ended] == [(2.0, RuntimeError), None, (2.0, RuntimeError)]
    assert "simcoll" not in ended[0].output


def test_a_forked_child_leaves_the_check_alone(ranks: Any) -> None:
    import atexit

    def program(rank: int) -> object:
        for _ in range(20):
            dist.all_reduce(ones(1))
        pid = os.fork()
        if pid == 0:
            atexit._run_exitfuncs()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        dist.all_reduce(ones(1), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
        return status, until_raised(lambda: dist.all_reduce(ones(1))).findings[0].sequence

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="8") == [(0, 21)] * 2


def test_a_group_that_is_made_again_begins_anew(ranks: Any) -> None:
    def program(rank: int) -> object:
        for life in range(3):
            group = dist.new_group()
            for _ in range(10 + life):
                dist.all_reduce(ones(1), group=group)
            dist.destroy_process_group(group)
        return True

    assert ranks(program, mode="check", SIMCOLL_CHECK_EVERY="4") == [True, True]


def test_a_group_without_a_peer_for_long_waits_without_harm(ranks: Any) -> None:
    """Rank 1 makes no call in the group: rank 0 is not kept from ending it."""

    def program(rank: int) -> object:
        group = dist.new_group()
        if rank == 0:
            dist.broadcast(ones(1), src=0, group=group, async_op=True)
        meet(rank, 2, "made")
        dist.destroy_process_group(group)
        return "ended"

    # The timeout of its call is more than a test may take.
    assert ranks(program, mode="check", timeout=600) == ["ended"] * 2


@pytest.mark.parametrize("text", ["0", "-1", "many", "1e3", "99999999"])
def test_a_number_of_calls_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SIMCOLL_CHECK_EVERY", text)
    with pytest.raises(ConfigurationError, match="SIMCOLL_CHECK_EVERY="):
        calls_between_rounds()


def test_the_default_is_64_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMCOLL_CHECK_EVERY", raising=False)
    assert calls_between_rounds() == 64
