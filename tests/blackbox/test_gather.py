"""Which black boxes of a folder belong together."""

import json

from simcoll.blackbox import BlackBoxWriter, UnreadableError
from simcoll.blackbox.format import ABOUT_OFFSET, COUNTERS, COUNTERS_OFFSET
from simcoll.blackbox.gather import RunRecords, files_of, gather


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


def test_runs_of_one_id_in_folders_of_their_own_are_not_mixed(tmp_path):
    for folder, ranks in (("first", (0, 1, 2)), ("second", (0, 2))):
        (tmp_path / folder).mkdir()
        for rank in ranks:
            box(tmp_path / folder / f"rank{rank:05d}.simcoll", rank, world_size=3)
    evidence = gather([tmp_path])
    assert [trace.path for trace in evidence.traces] == [
        str(tmp_path / "second" / f"rank{rank:05d}.simcoll") for rank in (0, 2)
    ]
    assert evidence.notes == ("3 black boxes of other runs or earlier attempts were left out",)
    assert evidence.folders == (tmp_path, tmp_path / "second")
    both = gather([tmp_path / "first", tmp_path / "second"])
    assert f"{tmp_path / 'first'}: holds another run, which is not judged here: give it alone" in both.notes
    assert [trace.path for trace in both.traces] == [trace.path for trace in evidence.traces]


def test_a_box_with_a_damaged_description_is_of_the_run_beside_it_and_defines_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    for rank in (0, 1, 2):
        box(tmp_path / f"rank{rank:05d}.simcoll", rank, world_size=3)
    newest = tmp_path / "rank00002.simcoll"
    data = bytearray(newest.read_bytes())
    data[ABOUT_OFFSET : ABOUT_OFFSET + 8] = b"\xff" * 8
    data[COUNTERS_OFFSET : COUNTERS_OFFSET + COUNTERS.size] = b"\xff" * COUNTERS.size
    newest.write_bytes(data)
    evidence = gather([tmp_path])
    assert [trace.rank for trace in evidence.traces] == [0, 1, 2]
    assert evidence.notes == ()
    assert len(evidence.traces[2].problems) == 1
    assert "entries were not written" not in evidence.traces[2].problems[0]


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


def test_a_folder_that_goes_away_while_it_is_looked_at_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("simcoll.blackbox.gather.os.path.isdir", lambda path: True)
    evidence = gather([tmp_path / "gone"])
    assert (evidence.traces, evidence.unreadable) == ((), ())


def test_of_many_files_that_cannot_be_read_the_first_are_named(tmp_path):
    for number in range(30):
        (tmp_path / f"rank{number:05d}.simcoll").write_bytes(b"x")
    unreadable = gather([tmp_path]).unreadable
    assert len(unreadable) == 21
    assert "rank00019.simcoll" in unreadable[19]
    assert unreadable[20] == "10 more files cannot be read"


def dump(path, rank=0):
    """A Flight Recorder dump, as JSON, of one call."""
    entry = {
        "pg_id": 0,
        "pg_name": "0",
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "record_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "is_p2p": False,
        "frames": [],
    }
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "2.10", "pg_config": groups, "entries": [entry]}))
    return path


def test_dumps_are_told_by_what_is_in_them(tmp_path):
    for rank in (1, 0):
        dump(tmp_path / f"nccl_trace_rank_{rank}")
    (tmp_path / "rank0.log").write_text("starting\n")
    (tmp_path / "events.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / ".hidden").write_text("{}")
    (tmp_path / "launch.json").write_text('{"ranks": [], "version": 1}')
    evidence = gather([tmp_path])
    assert [trace.rank for trace in evidence.traces] == [0, 1]
    assert evidence.notes == (f"{tmp_path}: 2 other files were passed over",)
    assert evidence.unreadable == ()


def test_each_host_may_have_a_folder(tmp_path):
    dump(tmp_path / "host1" / "trace_rank_1")
    dump(tmp_path / "host0" / "trace_rank_0")
    dump(tmp_path / "host0" / "deeper" / "trace_rank_7")
    (tmp_path / "README").write_text("of this job")
    evidence = gather([tmp_path])
    assert [trace.rank for trace in evidence.traces] == [0, 1]
    assert evidence.notes == (f"{tmp_path}: 1 other file was passed over",)


def test_black_boxes_of_hosts_in_folders(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"host{rank}").mkdir()
        box(tmp_path / f"host{rank}" / f"rank{rank:05d}.simcoll", rank)
    assert [trace.rank for trace in gather([tmp_path]).traces] == [0, 1]


def test_accounts_are_looked_for_where_the_records_of_the_run_lie(tmp_path):
    for folder in ("earlier", "host0", "host1"):
        (tmp_path / folder).mkdir()
    box(tmp_path / "earlier" / "rank00000.simcoll", world_size=3)
    hosts = [tmp_path / f"host{rank}" for rank in (0, 1)]
    paths = [box(host / f"rank{rank:05d}.simcoll", rank) for rank, host in enumerate(hosts)]
    assert gather([tmp_path]).folders == (tmp_path, *hosts)
    assert gather([hosts[0], paths[1]]).folders == (hosts[0],)
    assert gather(paths).folders == ()


def test_a_given_folder_of_another_run_has_no_say(tmp_path):
    """As ``simcoll verify simcoll-out/*`` gives them."""
    earlier, later, unrecorded = (tmp_path / name for name in ("earlier", "later", "unrecorded"))
    for folder in (earlier, later, unrecorded):
        folder.mkdir()
    box(earlier / "rank00000.simcoll")
    box(later / "rank00000.simcoll")
    (unrecorded / "launch.json").write_text('{"ranks": []}')
    assert gather([earlier, later, unrecorded]).folders == (later, unrecorded)


def test_dumps_of_another_run_are_left_out_beside_black_boxes(tmp_path):
    first = box(tmp_path / "rank00000.simcoll")
    other = dump(tmp_path / "trace_rank_1")
    assert [trace.mode for trace in gather([tmp_path]).traces] == ["detail"]
    evidence = gather([first, other])
    assert [trace.mode for trace in evidence.traces] == ["detail"]
    assert evidence.notes == ("1 Flight Recorder dump of another run was left out",)


def test_a_file_given_twice_counts_once(tmp_path):
    path = box(tmp_path / "rank00000.simcoll")
    assert gather([path, tmp_path, path]).notes == ()


def test_a_black_box_by_another_name(tmp_path):
    box(tmp_path / "rank00000.simcoll").rename(tmp_path / "saved.bin")
    assert [trace.rank for trace in gather([tmp_path / "saved.bin"]).traces] == [0]
    assert [trace.rank for trace in gather([tmp_path]).traces] == [0]


def test_dumps_that_cannot_be_put_together(tmp_path, monkeypatch):
    def refuse(dumps):
        raise UnreadableError(f"{dumps[0].path}: whose is it?")

    monkeypatch.setattr("simcoll.blackbox.gather.traces_of", refuse)
    path = dump(tmp_path / "trace")
    assert gather([path]) == RunRecords((), None, (), (f"{path}: whose is it?",))


def test_what_is_no_dump_is_refused_when_it_is_named(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("starting\n")
    assert "expected a black box" in gather([path]).unreadable[0]
