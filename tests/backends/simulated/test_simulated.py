"""Simulated ranks: the same every time, proved like real ones, and never left hanging."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simcoll.backends.engine.parking import StuckError
from simcoll.backends.engine.tickets import PeerFailedError, RefusedCallError, RefusedPeerError
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.core.record import State
from simcoll.errors import CollectiveMismatchError, ConfigurationError
from simcoll.verifier.findings.finding import Verdict


def test_a_mismatch_is_raised_on_every_rank_and_reported_once() -> None:
    def program(comm: Comm) -> None:
        comm.barrier()
        comm.all_reduce(np.ones(3), op="max" if comm.rank == 2 else "sum")

    outcome = simulate(program, 4)
    assert [(finding.code, finding.culprits, finding.sequence) for finding in outcome.findings] == [("SC104", (2,), 2)]
    assert sorted(outcome.exceptions) == [0, 1, 2, 3]
    for error in outcome.exceptions.values():
        assert isinstance(error, CollectiveMismatchError)
        assert [finding.code for finding in error.findings] == ["SC104"]
    assert [record.state for record in outcome.records(0)] == [State.COMPLETED, State.REJECTED]
    first, finding = str(outcome).splitlines()
    assert first == "findings: 1 collective on 4 ranks agree"
    assert finding.startswith("SC104 error: rank 2 ")


def test_the_group_goes_on_after_a_mismatch_that_is_caught() -> None:
    def program(comm: Comm) -> float:
        with pytest.raises(CollectiveMismatchError):
            comm.all_reduce(np.ones(2 + comm.rank))
        total = np.ones(1)
        comm.all_reduce(total)
        return float(total[0])

    assert simulate(program, 3).results == {0: 3.0, 1: 3.0, 2: 3.0}


def test_records_name_the_users_line() -> None:
    outcome = simulate(lambda comm: comm.barrier(), 2)
    source = outcome.records(1)[0].source
    assert (source.file, source.code) == (__file__, "outcome = simulate(lambda comm: comm.barrier(), 2)")
    assert [record.sequence for record in outcome.records(1)] == [1]


def test_spellings_of_one_collective_meet() -> None:
    def program(comm: Comm) -> list[float]:
        mine, got = np.full(2, float(comm.rank)), np.zeros(4)
        if comm.rank:
            comm.all_gather_into_tensor(got, mine)
        else:
            comm.all_gather([got[:2], got[2:]], mine)
        return got.tolist()

    assert simulate(program, 2).results == {0: [0, 0, 1, 1], 1: [0, 0, 1, 1]}


def test_ranks_that_wait_for_nobody_are_told_so() -> None:
    outcome = simulate(lambda comm: comm.barrier() if comm.rank else None, 3)
    assert sorted(outcome.exceptions) == [1, 2]
    assert str(outcome.exceptions[1]) == "rank 1 waits in barrier (collective 1) for rank 0, which never comes"


def test_a_rank_that_gave_up_waiting_does_not_count_as_there() -> None:
    def program(comm: Comm) -> str:
        if comm.rank == 0:
            with pytest.raises(StuckError):
                comm.barrier()
            return "went on"
        with pytest.raises(StuckError):
            comm.recv(np.ones(1), 0)
        with pytest.raises(StuckError):
            comm.barrier()
        return "stuck"

    assert simulate(program, 2).results == {0: "went on", 1: "stuck"}


def test_a_failing_rank_is_reported_with_its_own_exception() -> None:
    def program(comm: Comm) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("mine")
        comm.barrier()

    outcome = simulate(program, 2)
    assert isinstance(outcome.exceptions[1], ZeroDivisionError)
    assert isinstance(outcome.exceptions[0], PeerFailedError)
    assert outcome.exceptions[0].__cause__ is outcome.exceptions[1]
    assert [(finding.code, finding.culprits) for finding in outcome.findings] == [("SC701", (1,))]


def test_a_call_that_makes_no_sense_on_any_rank_is_refused() -> None:
    outcome = simulate(lambda comm: comm.all_to_all_single(np.zeros(2), np.zeros(2), [2, 2], [2, 2]), 2)
    assert [finding.code for finding in outcome.findings] == ["SC601"]
    assert isinstance(outcome.exceptions[0], RefusedCallError)
    assert "input splits [2, 2] do not add up to the 2 rows of the input" in str(outcome.exceptions[0])
    assert isinstance(simulate(lambda comm: comm.all_reduce(np.ones(2), "bor"), 2).exceptions[1], RefusedCallError)


def test_a_call_that_makes_no_sense_on_one_rank_ends_the_others_too() -> None:
    def program(comm: Comm) -> None:
        outputs = [np.zeros(1)] * (1 if comm.rank == 1 else 3)
        comm.all_gather(outputs, np.zeros(1))

    outcome = simulate(program, 3)
    assert sorted(outcome.exceptions) == [0, 1, 2]
    assert isinstance(outcome.exceptions[1], (RefusedCallError, CollectiveMismatchError))
    assert isinstance(outcome.exceptions[0], (RefusedPeerError, CollectiveMismatchError))


def test_messages_are_matched_by_sender_and_tag_in_order() -> None:
    def program(comm: Comm) -> list[float]:
        if comm.rank == 0:
            for value, tag in ((1.0, 5), (2.0, 7), (3.0, 5)):
                comm.send(np.full(1, value), 2, tag)
        if comm.rank == 1:
            comm.send(np.full(1, 9.0), 2, 5)
        if comm.rank < 2:
            return []
        got = np.zeros(1)
        values = []
        for peer, tag in ((0, 7), (1, 5), (0, 5), (0, 5)):
            assert comm.recv(got, peer, tag) == peer
            values.append(float(got[0]))
        return values

    outcome = simulate(program, 3, sends="buffered")
    assert outcome.results[2] == [2.0, 9.0, 1.0, 3.0]
    assert [record.p2p_sequence for record in outcome.records(2)] == [1, 2, 3, 4]


def test_a_receive_from_any_source_says_from_whom() -> None:
    def program(comm: Comm) -> int | None:
        if comm.rank == 2:
            comm.send(np.ones(2), 0)
        return comm.recv(np.zeros(2)) if comm.rank == 0 else None

    assert simulate(program, 3).results[0] == 2


def test_a_buffered_send_is_a_copy() -> None:
    def program(comm: Comm) -> float:
        value = np.ones(1)
        if comm.rank == 0:
            comm.send(value, 1)
            value[0] = 5
            comm.barrier()
        else:
            comm.barrier()
            comm.recv(value, 0)
        return float(value[0])

    assert simulate(program, 2, sends="buffered").results == {0: 5.0, 1: 1.0}


def test_a_message_that_does_not_fit_is_named() -> None:
    outcome = simulate(lambda comm: comm.recv(np.zeros(2), 0) if comm.rank else comm.send(np.ones(3), 1), 2)
    assert [(finding.code, finding.ranks) for finding in outcome.findings] == [("SC301", (0, 1))]
    assert all(isinstance(error, CollectiveMismatchError) for error in outcome.exceptions.values())
    assert "rank 0 sends 3 elements to rank 1, which receives into 2 elements" in str(outcome.exceptions[1])


def test_a_receive_that_nobody_serves_is_named() -> None:
    outcome = simulate(lambda comm: comm.recv(np.zeros(2), 0, 3) if comm.rank else None, 2)
    assert str(outcome.exceptions[1]) == "rank 1 waits for a message from rank 0 with tag 3"


def test_a_peer_outside_the_group_is_refused() -> None:
    outcome = simulate(lambda comm: comm.send(np.zeros(2), 2), 2)
    assert "peer 2 is not a rank of a group of 2" in str(outcome.exceptions[0])
    assert outcome.records(0)[0].state is State.REJECTED


def test_a_message_to_oneself_and_a_negative_tag_are_refused_as_gloo_and_c10d_refuse_them() -> None:
    outcome = simulate(lambda comm: comm.isend(np.ones(1), comm.rank), 2)
    assert isinstance(outcome.exceptions[0], ValueError)
    assert [one.code for one in outcome.findings] == ["SC601"]
    refused = simulate(lambda comm: comm.send(np.ones(1), 1 - comm.rank, tag=-5), 2)
    assert "tag -5 is negative" in str(refused.exceptions[0])
    assert [one.code for one in refused.findings] == ["SC601"]


def test_ranks_that_share_a_communicator_are_told_so() -> None:
    shared: list[Comm] = []

    def program(comm: Comm) -> None:
        shared.append(comm)
        comm.barrier()
        shared[-1].barrier()

    outcome = simulate(program, 3, timeout=20.0)
    assert "communicator or group of rank" in str(outcome.exceptions[0])


def test_a_rank_that_asks_for_ever_for_a_message_is_found() -> None:
    def program(comm: Comm) -> None:
        request = comm.irecv(np.ones(1), (comm.rank + 1) % comm.size)
        while not request.is_completed():
            pass

    assert [one.code for one in simulate(program, 3).findings] == ["SC201"]


def test_ranks_that_had_to_be_ended_have_not_ended_well() -> None:
    def program(comm: Comm) -> None:
        request = comm.barrier(async_op=True) if comm.rank else None
        while request is not None and not request.is_completed():
            pass

    assert simulate(program, 2).report.verdict is not Verdict.OK


def arrivals(seed: int) -> list[int]:
    order: list[int] = []

    def program(comm: Comm) -> None:
        for _ in range(3):
            order.append(comm.rank)
            comm.barrier()

    assert simulate(program, 4, seed=seed).ok
    return order


def test_the_interleaving_is_the_same_every_time_and_comes_from_the_seed() -> None:
    assert arrivals(0) == arrivals(0)
    assert arrivals(7) == arrivals(7)
    assert len({tuple(arrivals(seed)) for seed in range(8)}) > 1


def test_a_world_has_a_rank() -> None:
    with pytest.raises(ConfigurationError, match="got 0"):
        simulate(lambda comm: None, 0)


@pytest.mark.slow
def test_simulating_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, numpy; from simcoll import simulate;"
        "simulate(lambda comm: comm.all_reduce(numpy.ones(2)), 2);"
        "import simcoll.backends.gloo; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
