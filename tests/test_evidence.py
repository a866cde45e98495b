"""Which black boxes of a folder belong together, and what the launcher's account says."""

import json
import signal

import pytest

from simcoll.blackbox import BlackBoxWriter
from simcoll.evidence import Launch, LaunchedRank, files_of, gather, outcome_of, read_launch
from simcoll.verifier.trace import RankExit


def box(path, rank=0, world_size=2):
    BlackBoxWriter(path, rank=rank, world_size=world_size, mode="detail", records=16).close()
    return path


def test_one_box_a_rank_in_order(tmp_path):
    for rank in (1, 0):
        box(tmp_path / f"rank{rank:05d}.simcoll", rank)
    evidence = gather(files_of(tmp_path))
    assert [trace.rank for trace in evidence.traces] == [0, 1]
    assert (evidence.outcome, evidence.notes, evidence.unreadable) == (None, (), ())


def test_the_last_attempt_counts(tmp_path, monkeypatch):
    box(tmp_path / "rank00000.simcoll")
    box(tmp_path / "rank00001.simcoll", 1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    box(tmp_path / "rank00000.attempt1.simcoll")
    evidence = gather(files_of(tmp_path))
    assert [(trace.rank, trace.attempt) for trace in evidence.traces] == [(0, 1)]
    assert evidence.notes == ("2 black boxes of other runs or earlier attempts were left out",)


def test_boxes_of_other_runs_are_left_out(tmp_path):
    box(tmp_path / "rank00003.simcoll", 3, world_size=4)
    box(tmp_path / "rank00000.simcoll")
    assert [trace.world_size for trace in gather(files_of(tmp_path)).traces] == [2]


def test_older_boxes_do_not_count(tmp_path):
    path = box(tmp_path / "rank00000.simcoll")
    created = gather([path]).traces[0].created_ns
    assert gather([path], since_ns=created + 1).traces == ()


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_used(tmp_path):
    box(tmp_path / "rank00000.simcoll")
    (tmp_path / "rank00001.simcoll").write_text("{}")
    evidence = gather(files_of(tmp_path))
    assert len(evidence.traces) == 1
    assert "rank00001.simcoll: found" in evidence.unreadable[0]


def test_the_end_of_a_rank_that_was_stopped_is_not_its_own():
    ranks = (LaunchedRank(0, 1, 5), LaunchedRank(1, -signal.SIGKILL, 7, stopped=True), LaunchedRank(2, None))
    outcome = outcome_of([Launch(ranks)])
    assert outcome.ranks == {0: RankExit(1, 5), 1: RankExit(-signal.SIGKILL, 7, stopped=True), 2: RankExit(None)}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ranks": [{}]}', '{"ranks": [{"rank": "0"}]}', "[" * 9000])
def test_an_account_that_is_not_one_is_empty(tmp_path, text):
    path = tmp_path / "launch.json"
    path.write_text(text)
    assert read_launch(path) == Launch()


def test_an_account_is_read(tmp_path):
    rank = {"rank": 1, "exit_code": -9, "ended_ns": 4, "stopped": False}
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({"ranks": [rank], "error": None, "interrupted": "SIGINT"}))
    assert read_launch(path) == Launch((LaunchedRank(1, -9, 4),), None, "SIGINT")
