"""Flight Recorder dumps become traces: every version, every way of writing, NCCL's and Gloo's habits."""

from __future__ import annotations

import os
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.record import State
from simcoll.core.trace import AWAITED
from simcoll.spec.call import Buffer
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.verifier.flight_recorder import UnreadableError, looks_like_dump, read_dump, traces_of
from simcoll.verifier.flight_recorder.dump import UNKNOWN
from simcoll.verifier.flight_recorder.entries import EntryColumns
from simcoll.verifier.flight_recorder.jobs import ranks_of
from simcoll.verifier.flight_recorder.pickle_machine import CutError, ForgottenError, PickleStream, UnsafeDumpError
from simcoll.verifier.flight_recorder.pickle_reader import Follower, read_pickle
from simcoll.verifier.postmortem import judge
from tests.support.flight_dumps import MINOR_VERSIONS, START_NS, USER, WRITERS, document, entry, message, torch_pickle
from tests.support.seeds import drawn


def write(folder, value, name="nccl_trace_rank_0", writer="torch"):
    path = folder / name
    path.write_bytes(WRITERS[writer](value))
    return path


def read(folder, entries, name="nccl_trace_rank_0", writer="torch", **fields):
    return read_dump(write(folder, document(entries, **fields), name, writer))


def trace(folder, entries, **fields):
    return traces_of([read(folder, entries, **fields)])[0]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("minor", MINOR_VERSIONS)
def test_every_version_says_the_same(tmp_path, minor, writer):
    entries = [entry(0), entry(1, "nccl:broadcast"), entry(2, state="started", retired=False)]
    found = trace(tmp_path, entries, minor=minor, writer=writer)
    slots = found.slots
    assert (found.rank, found.world_size, found.problems) == (0, 2, ())
    assert [group.ranks for group in found.groups] == [(0, 1)]
    assert list(slots["sequence"]) == [1, 2, 3]
    assert list(slots["state"]) == [State.COMPLETED, State.COMPLETED, State.STARTED]
    assert list(slots["scheduled_ns"]) == [START_NS, START_NS + 1000, START_NS + 2000]
    assert list(slots["finished_ns"]) == [START_NS + 500, START_NS + 1500, START_NS + 2500]
    assert [found.signatures[index].op for index in slots["signature"]] == ["all_reduce", "broadcast", "all_reduce"]
    assert found.signatures[0].inputs == found.signatures[0].outputs == (Buffer((4, 5), "float32", ""),)
    assert found.unknown == UNKNOWN
    assert not found.dropped
    assert all(slots["flags"] == AWAITED)
    if writer != "json":
        source = found.sources[slots["source"][0]]
        assert (source.file, source.line, source.function) == (USER["filename"], USER["line"], USER["name"])


def rooted(op, rank, root, recorded=4):
    """A gather or scatter as NCCL writes it: the result of a scatter first, and a placeholder on the other ranks."""
    count = recorded if rank == root else 1
    return entry(
        0,
        f"nccl:{op}",
        input_sizes=[[2]],
        output_sizes=[[2] if rank == root else [0]] * count,
        output_dtypes=["Float" if rank == root else "Undefined"] * count,
    )


def judged(folder, entries_by_rank, **fields):
    dumps = [read(folder, entries, f"rank_{rank}", **fields) for rank, entries in enumerate(entries_by_rank)]
    return judge(traces_of(dumps))


@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_gather_and_scatter_of_nccl(tmp_path, op):
    right = judged(tmp_path, [[rooted(op, rank, 1)] for rank in range(4)], ranks=range(4))
    assert (right.findings, right.agreed) == ((), 1)
    two = judged(tmp_path, [[rooted(op, rank, rank % 2)] for rank in range(4)], ranks=range(4))
    assert [finding.code for finding in two.findings] == ["SC105"]


@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_older_versions_record_the_first_tensor_of_a_list(tmp_path, op):
    report = judged(tmp_path, [[rooted(op, rank, 1, recorded=1)] for rank in range(4)], ranks=range(4), minor=2)
    assert (report.findings, report.agreed) == ((), 1)
    assert "first tensor alone" in report.notes[0]
    sizes = [((1,), (1,)), ((5,), (2,)), ((1,), (3,)), ((2,), (9,))]
    calls = [[entry(0, "nccl:all_to_all", input_sizes=[of], output_sizes=[to])] for of, to in sizes]
    assert judged(tmp_path, calls, ranks=range(4), minor=2).findings == ()
    assert [one.code for one in judged(tmp_path, calls, ranks=range(4)).findings] == ["SC106"]


def test_how_far_ranks_queue_ahead_of_the_device_makes_nobody_slow(tmp_path):
    half = 10**9 // 2

    def queued(rank):
        ahead = 10 if rank == 2 else 12
        times = [(START_NS + (n - ahead) * half, START_NS + n * half) for n in range(100)]
        return [entry(n, time_created_ns=a, time_discovered_completed_ns=b) for n, (a, b) in enumerate(times)]

    assert judged(tmp_path, [queued(rank) for rank in range(4)], ranks=range(4)).findings == ()


def gathers(number, sequence):
    """A coalesced group of two collectives."""
    parts = [entry(n, "nccl:_all_gather_base", collective_seq_id=sequence) for n in (number, number + 1)]
    sides = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
    nothing: dict[str, object] = {name: [] for name in sides}
    return [*parts, entry(number + 2, "nccl:coalesced", collective_seq_id=sequence, **nothing)]


@pytest.mark.parametrize(("lost", "agreed"), [*enumerate([3, 2, 2, 1, 1, 1, 1])])
def test_the_first_batch_of_a_ring_that_wrapped_may_lack_its_first_calls(tmp_path, lost, agreed):
    whole = [*gathers(0, 1), *gathers(3, 2), entry(6, collective_seq_id=3)]
    report = judged(tmp_path, [whole, whole[lost:]])
    assert (report.findings, report.agreed) == ((), agreed)


@pytest.mark.parametrize(("stands", "codes"), [(False, []), (True, ["SC110"])])
def test_a_dump_may_be_written_within_a_batch(tmp_path, stands, codes):
    whole = [{**one, "state": "scheduled", "time_discovered_completed_ns": None} for one in gathers(0, 1)]
    begun = {**whole[0], "time_created_ns": START_NS if stands else time.time_ns()}
    assert [finding.code for finding in judged(tmp_path, [whole, [begun]]).findings] == codes


def test_a_newer_version_is_read_with_a_note(tmp_path):
    found = read(tmp_path, [entry()], version="2.12")
    assert len(found.slots) == 1
    assert found.problems == ("the dump has version 2.12; what is newer in it than 2.11 is not read",)
    assert len(read(tmp_path, [entry()], version=None).problems) == 1


@pytest.mark.parametrize("version", ["1.5", "3.0"])
def test_another_format_is_refused_in_one_line(tmp_path, version):
    with pytest.raises(UnreadableError, match=rf"version {version}; versions 2\.0 to 2\.11 are read"):
        read(tmp_path, [entry()], version=version)


def test_a_dump_without_entries_is_a_rank_that_made_no_call(tmp_path):
    value = document([])
    del value["entries"]
    assert len(read_dump(write(tmp_path, value, writer="json")).slots) == 0


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["nccl_trace_rank_3", "nccl_trace_rank_10"], [3, 10]),
        (["rank3.pickle", "rank4.pickle"], [3, 4]),
        (["prefix_3"], [3]),
        (["job17_rank_00003_attempt2.pkl", "job17_rank_00004_attempt2.pkl"], [3, 4]),
        (["host.example_3", "host.example_4"], [3, 4]),
        (["node0_local_rank1_7.json", "node1_local_rank1_8.json"], [7, 8]),
        (["dump3.v2", "dump4.v2"], [3, 4]),
        (["Rank-5", "RANK6"], [5, 6]),
        (["0/dump", "1/dump"], [0, 1]),
        (["a"], [None]),
        (["gloo_0.json", "gloo_1.json", "gloo_0.pickle", "gloo_1.pickle"], [0, 1, 0, 1]),
        (["step100_0", "step100_1", "step200_0", "step200_1"], [0, 1, 0, 1]),
        (["0_at_7", "1_at_7", "0_at_9", "1_at_9"], [0, 1, 0, 1]),
        (["7_at_3", "8_at_3", "8_at_3 copy"], [7, 8, None]),
    ],
)
def test_the_name_tells_the_rank(tmp_path, names, ranks):
    job = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(11)))}}}
    dumps = []
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        dumps.append(read(tmp_path, [entry()], name, **job))
    assert ranks_of(dumps) == ranks


def test_the_dump_itself_may_tell_the_rank(tmp_path):
    assert ranks_of([read(tmp_path, [entry()], "rank_3", rank=5), read(tmp_path, [], "x", global_rank="6")]) == [5, 6]


def test_a_number_that_no_rank_has_is_not_taken_for_one(tmp_path):
    job = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}
    names = ("0_pid4711", "1_pid4712")
    assert ranks_of([read(tmp_path, [entry()], name, **job) for name in names]) == [0, 1]


def test_of_a_pickle_and_json_the_one_with_lines_is_read(tmp_path):
    names = ("gloo_0.json", "gloo_0.pickle", "gloo_1.json", "gloo_1.pickle")
    dumps = []
    for name in names:
        writer = "json" if name.endswith("json") else "torch"
        dumps.append(read(tmp_path, [entry()], name, writer))
    lines = [trace.sources[trace.slots["source"][0]].line for trace in traces_of(dumps)]
    assert lines == [USER["line"]] * 2


def test_without_any_rank_one_line_says_what_to_do(tmp_path):
    with pytest.raises(UnreadableError, match="put the global rank into the file name"):
        traces_of([read(tmp_path, [entry()], "dump")])


def test_a_dump_of_nobody_is_left_out_and_named(tmp_path):
    dumps = [read(tmp_path, [entry()], name) for name in ("rank_0", "copy", "other")]
    (found,) = traces_of(dumps)
    assert found.problems == ("nothing says which rank wrote copy (and 1 more): left out",)


def test_of_two_dumps_of_a_rank_the_later_is_read(tmp_path):
    dumps = [read(tmp_path, [entry(n) for n in range(count)], f"{count}_rank_0") for count in (2, 5, 3)]
    (found,) = traces_of(dumps)
    assert len(found.slots) == 5
    assert found.problems == ("of several dumps the one that tells most is read",)


def test_what_gloo_configures_without_a_name_tells_how_many_ranks_there_are(tmp_path):
    broken = {"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}}
    found = traces_of([read(tmp_path, [entry()], f"rank{rank}", **broken) for rank in range(2)])
    assert [(one.world_size, [group.ranks for group in one.groups]) for one in found] == [(3, [(0, 1, 2)])] * 2


def test_members_are_those_who_know_the_group_where_the_configuration_is_broken(tmp_path):
    broken = {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
    dumps = []
    for rank in range(4):
        own = entry(1, collective_seq_id=1, process_group=(str(1 + rank // 2), "undefined"), pg_id=1)
        dumps.append(read(tmp_path, [entry(0), own], f"rank{rank}", **broken))
    found = traces_of(dumps)
    assert [[group.ranks for group in one.groups] for one in found] == [
        [(0, 1, 2, 3), (0, 1)],
        [(0, 1, 2, 3), (0, 1)],
        [(0, 1, 2, 3), (2, 3)],
        [(0, 1, 2, 3), (2, 3)],
    ]


@pytest.mark.parametrize(
    "ranks", ["__import__('os').system('true')", "[0, 0]", "[0, -1]", "[" * 9, "[1e3]", 7, [0, "1"]]
)
def test_members_that_make_no_sense_are_not_believed(tmp_path, ranks):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    dumps = [read(tmp_path, [entry()], f"rank_{rank}", pg_config=config) for rank in range(2)]
    assert [one.groups[0].ranks for one in traces_of(dumps)] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("name", [name for spec in COLLECTIVES.values() for name in spec.profiling])
def test_every_profiled_name_of_the_table_is_its_row(tmp_path, name):
    found = read(tmp_path, [entry(0, f"nccl:{name}" + (" 0->1" if name == "send" else ""))])
    spec = COLLECTIVES[found.calls[found.slots["signature"][0]].op]
    assert name in spec.profiling
    assert (found.slots["p2p_sequence"][0] > 0) == (spec.kind is Kind.POINT_TO_POINT)


def test_an_op_that_the_table_does_not_know_keeps_its_name(tmp_path):
    assert [call.op for call in read(tmp_path, [entry(0, "nccl:new_window"), entry(1, "odd")]).calls] == [
        "new_window",
        "odd",
    ]


def test_messages_name_their_peer_and_are_numbered_one_by_one(tmp_path):
    entries = [message(0, "nccl:send 0->1", 1), message(1, "nccl:recv 0<-1", 2), message(2, "gloo:recvAnySource", 3)]
    found = read(tmp_path, entries)
    assert [(call.op, call.peer, len(call.inputs), len(call.outputs)) for call in found.calls] == [
        ("send", 1, 1, 0),
        ("recv", 1, 0, 1),
        ("recv", None, 0, 1),
    ]
    assert list(found.slots["p2p_sequence"]) == [1, 2, 3]


def batch(first, sequence, p2p, *names, state="completed"):
    about = {"collective_seq_id": sequence, "p2p_seq_id": p2p}
    parts = [
        message(first + n, name, p2p=p2p, state="scheduled", collective_seq_id=sequence) for n, name in enumerate(names)
    ]
    end = entry(
        first + len(names),
        "nccl:coalesced",
        input_sizes=[],
        output_sizes=[],
        input_dtypes=[],
        output_dtypes=[],
        state=state,
        **about,
    )
    return [*parts, end]


def test_messages_of_a_batch_get_its_state_and_its_number_counts_for_nothing(tmp_path):
    entries = [entry(0), *batch(1, 2, 0, "nccl:send 0->1", "nccl:recv 0<-1"), entry(4, collective_seq_id=3)]
    slots = read(tmp_path, entries).slots
    assert list(slots["p2p_sequence"]) == [0, 1, 2, 0]
    assert list(slots["state"]) == [State.COMPLETED] * 4
    assert list(slots["sequence"][slots["p2p_sequence"] == 0]) == [1, 2]


def test_a_batch_that_counts_as_messages_takes_no_number(tmp_path):
    entries = [*batch(0, 0, 1, "nccl:send 0->1", "nccl:send 0->1"), entry(3, collective_seq_id=1)]
    entries += [*batch(4, 1, 2, "nccl:recv 0<-1"), entry(6, collective_seq_id=2)]
    slots = read(tmp_path, entries).slots
    assert list(slots["p2p_sequence"]) == [1, 2, 0, 3, 0]
    assert list(slots["sequence"][slots["p2p_sequence"] == 0]) == [1, 2]


def test_where_batches_count_and_the_ring_wrapped_the_collectives_are_not_judged(tmp_path):
    entries = [entry(4, collective_seq_id=8), *batch(5, 9, 0, "nccl:send 0->1"), entry(7, collective_seq_id=10)]
    found = read(tmp_path, entries)
    assert not (found.slots["p2p_sequence"] == 0).any()
    assert found.dropped[0] == 0xFFFFFFFF
    assert "are not judged" in found.problems[0]


def test_collectives_of_a_coalesced_group_are_one_call(tmp_path):
    parts = [entry(n, state="scheduled", collective_seq_id=4, input_sizes=[[n]], output_sizes=[[n]]) for n in (0, 1)]
    end = entry(
        2, "nccl:coalesced", collective_seq_id=4, input_sizes=[], output_sizes=[], input_dtypes=[], output_dtypes=[]
    )
    found = read(tmp_path, [*parts, end])
    (slot,) = found.slots
    call = found.calls[slot["signature"]]
    assert (call.op, call.coalesced, [buffer.shape for buffer in call.inputs]) == ("all_reduce", True, [(0,), (1,)])
    assert (slot["sequence"], slot["state"]) == (4, State.COMPLETED)


def test_a_mixed_coalesced_group_is_a_call_of_its_own(tmp_path):
    parts = [entry(0, "nccl:all_reduce", collective_seq_id=1), entry(1, "nccl:broadcast", collective_seq_id=1)]
    found = read(tmp_path, [*parts, entry(2, "nccl:coalesced", collective_seq_id=1)])
    assert found.calls[found.slots["signature"][0]].op == "coalesced: all_reduce, broadcast"


def test_a_ring_that_wrapped_says_what_it_dropped(tmp_path):
    entries = [entry(n) for n in range(100, 110)]
    config = {name: {"name": name, "desc": "", "ranks": "[0, 1]"} for name in ("0", "silent")}
    found = read(tmp_path, entries, pg_config=config)
    assert dict(found.dropped) == {0: 100, 1: 0xFFFFFFFF}
    assert traces_of([found])[0].problems == ()


def test_gloo_says_no_states_and_a_retired_call_has_ended(tmp_path):
    about = {"state": "scheduled", "time_discovered_completed_ns": None}
    entries = [entry(0, "gloo:all_reduce", **about), entry(1, "gloo:all_reduce", retired=False, **about)]
    found = read(tmp_path, entries)
    assert list(found.slots["state"]) == [State.COMPLETED, State.SCHEDULED]
    assert found.unknown == UNKNOWN | {"state", "messages"}
    nccl = read(tmp_path, [entry(0, "nccl:all_reduce", **about)])
    assert list(nccl.slots["state"]) == [State.SCHEDULED]
    assert nccl.unknown == UNKNOWN


@pytest.mark.parametrize("name", ["all_to_all", "scatter"])
def test_flows_are_not_judged_in_a_group_whose_members_are_guessed(tmp_path, name):
    """The dump of the other member is missing: what this one sends it would seem to go nowhere."""
    sizes = {"input_sizes": [[4]], "output_sizes": [[2]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    own = entry(1, f"gloo:{name}", collective_seq_id=1, process_group=("1", "undefined"), pg_id=1, **sizes)
    report = judge([trace(tmp_path, [entry(0, "gloo:barrier"), own])])
    assert report.findings == ()


def test_flows_are_not_judged_where_nobody_states_how_many_ranks_there_are(tmp_path):
    """The configuration is another group's, and the last rank's dump is missing."""
    sizes = {"input_sizes": [[6]], "output_sizes": [[2]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    calls = [entry(0, "gloo:all_to_all", **sizes)]
    dumps = [read(tmp_path, calls, f"rank_{rank}", pg_config=config) for rank in range(2)]
    assert judge(traces_of(dumps)).findings == ()


def test_numbers_that_gloo_leaves_out_are_not_overwritten(tmp_path):
    """``monitored_barrier`` takes a number and leaves no entry."""
    found = read(tmp_path, [entry(0, "gloo:all_reduce", collective_seq_id=2)])
    assert found.dropped == {}
    assert read(tmp_path, [entry(7, "gloo:all_reduce", collective_seq_id=2)]).dropped == {0: 1}


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ([TORCHS := "/x/torch/distributed/distributed_c10d.py", "/x/torch/nn/a.py", "/me/a.py"], 3),
        (["/env/lib/python3.12/site-packages/megatron/p2p.py", "/me/pretrain.py"], 2),
        ([TORCHS, "/env/lib/python3.12/site-packages/megatron/p2p.py", "/usr/lib/python3.12/runpy.py"], 2),
        (["/pytorch/torch/csrc/a.cpp", "??", "<frozen runpy>", "/env/lib/libtorch_cpu.so", "/me/a.py"], 5),
        ([TORCHS], 0),
    ],
)
def test_the_users_own_line_is_found_by_the_shape_of_the_paths(tmp_path, files, line):
    frames = [{"name": "f", "filename": file, "line": place} for place, file in enumerate(files, 1)]
    found = read(tmp_path, [entry(frames=frames)])
    assert found.sources[found.slots["source"][0]].line == line


def test_the_frames_around_the_line_are_its_callers(tmp_path):
    own, helper, package = "/me/train.py", "/me/utils.py", "/env/lib/python3.12/site-packages/fit/loop.py"
    files = [
        TORCHS,
        helper,
        "/env/lib/python3.12/site-packages/torch/x.py",
        package,
        own,
        "/usr/lib/python3.12/runpy.py",
    ]
    frames = [{"name": f"f{place}", "filename": file, "line": place} for place, file in enumerate(files)]
    found = read(tmp_path, [entry(frames=frames), entry(2, frames=frames[:2] + frames[4:])])
    sources = [found.sources[index] for index in found.slots["source"]]
    assert [[frame.file for frame in source.stack] for source in sources] == [[helper, package, own], [helper, own]]


def test_frames_of_a_checkout_of_simcoll_are_not_the_users(tmp_path):
    files = [
        "/src/simcoll/wrapper/process_group.py",
        "/src/verifier/x.py",
        "/src/simcoll/testing/run.py",
        "/me/train.py",
    ]
    frames = [{"name": "f", "filename": file, "line": place} for place, file in enumerate(files, 1)]
    found = read(tmp_path, [entry(frames=frames)])
    assert found.sources[found.slots["source"][0]].file == "/me/train.py"


def without(field, **fields):
    return {name: value for name, value in entry(1, **fields).items() if name != field}


@pytest.mark.parametrize(
    "bad",
    [
        entry(1, input_sizes="no"),
        without("input_sizes"),
        without("output_dtypes"),
        without("process_group"),
        without("collective_seq_id"),
        entry(1, input_dtypes=["Float", "Float"]),
        entry(1, input_dtypes=["Fmoat"], output_dtypes=["Fmoat"]),
        entry(1, input_sizes=[[4, 7]]),
        entry(1, "nccl:broadcast", output_dtypes=["Half"]),
    ],
)
def test_an_entry_that_no_backend_writes_costs_itself_alone(tmp_path, bad):
    found = read(tmp_path, [entry(0), bad, entry(2), entry(3)])
    assert list(found.slots["sequence"]) == [1, 3, 4]
    assert not found.dropped
    assert found.problems == ("entry 1 makes no sense; 1 of 4 entries left out",)
    assert not judged(tmp_path, [[entry(0), bad, entry(2), entry(3)], [entry(place) for place in range(4)]]).findings


def test_a_mismatch_before_an_entry_that_makes_no_sense_is_found(tmp_path):
    others = [entry(0, "nccl:broadcast"), *(entry(place) for place in (1, 2, 3))]
    report = judged(tmp_path, [[entry(0), without("input_sizes"), entry(2), entry(3)], others])
    assert [finding.sequence for finding in report.findings] == [1]


@pytest.mark.parametrize("after", [[], [message(2, "nccl:send 0->1", 1)]])
def test_an_entry_that_may_be_anybodys_call_hides_what_came_before_it(tmp_path, after):
    found = read(tmp_path, [entry(0), without("input_sizes"), *after])
    assert not (found.slots["p2p_sequence"] == 0).any()
    assert found.problems == ("entry 1 makes no sense; the 1 entries before it are left out as well",)


@pytest.mark.parametrize("dtype", ["Float8_e4m3fn", "BFloat16", "UInt7", "QUInt4x2", "Bits16", "Bool", "Float4_e2m1fn"])
def test_a_dtype_that_torch_may_have_is_read(tmp_path, dtype):
    found = read(tmp_path, [entry(0, input_dtypes=[dtype], output_dtypes=[dtype])])
    assert [call.inputs[0].dtype for call in found.calls] == [dtype.lower()]


def test_a_file_that_was_cut_gives_the_entries_that_are_complete(tmp_path):
    for writer in ("torch", "json", "protocol 2", "protocol 4"):
        whole = WRITERS[writer](document([entry(n) for n in range(20)]))
        path = tmp_path / "rank_0"
        path.write_bytes(whole[: len(whole) * 2 // 3])
        found = read_dump(path)
        assert 5 < len(found.slots) < 20, writer
        assert not found.complete
        assert "the file ends before the dump does" in found.problems[0]
        assert found.seen_ns == found.slots["scheduled_ns"][-1]


def test_what_a_dump_is_not(tmp_path):
    for content in (
        b"",
        b"PK\x03\x04",
        b"{}",
        b"[1]",
        b"\x80\x02}.",
        b"\x80\x02K\x01.",
        b'{"version": 1}',
        b"SIMCOLL\0",
    ):
        path = tmp_path / "rank_0"
        path.write_bytes(content)
        with pytest.raises(UnreadableError, match="rank_0"):
            read_dump(path)
    for path in (tmp_path, tmp_path / "missing", tmp_path / ("x" * 300)):
        with pytest.raises(UnreadableError):
            read_dump(path)
    assert not looks_like_dump(b"SIMCOLL\0")


FIELDS = st.fixed_dictionaries(
    {
        "profiling_name": st.sampled_from(["nccl:all_reduce", "nccl:broadcast", "gloo:barrier", "nccl:send 0->1"]),
        "collective_seq_id": st.integers(0, 1 << 33),
        "p2p_seq_id": st.sampled_from([0, 1, 255, 256, 65535, 65536]),
        "record_id": st.integers(0, 70000),
        "time_created_ns": st.one_of(st.none(), st.integers(-5, 1 << 62)),
        "time_discovered_started_ns": st.one_of(st.none(), st.integers(0, 300)),
        "duration_ms": st.one_of(st.none(), st.floats()),
        "input_sizes": st.sampled_from([[[4]], [[4, 300]], [], [[1], [2]]]),
        "state": st.sampled_from(["scheduled", "started", "completed", "lost"]),
        "is_p2p": st.booleans(),
        "odd": st.sampled_from([None, (1, 2, 3), {"record_id": 5}, [[7]]]),
    }
)


@pytest.mark.slow
@settings(max_examples=drawn(150, 3), deadline=None)
@given(st.lists(FIELDS, min_size=3, max_size=12), st.integers(2, 6))
def test_entries_that_are_read_together_are_read_as_one_by_one(kinds, times):
    entries = [entry(0, **fields) for fields in kinds * times]
    data = torch_pickle(document(entries))
    together, alone = _columns(data, 2), _columns(data, 1 << 30)
    assert np.array_equal(together.rows(), alone.rows())
    assert (together.calls, together.sources, together.groups) == (alone.calls, alone.sources, alone.groups)


@pytest.mark.slow
@settings(max_examples=drawn(150, 3), deadline=None)
@given(st.lists(FIELDS, min_size=3, max_size=12), st.integers(2, 6), st.sampled_from([2, 4, 5]))
def test_entries_that_pythons_pickler_wrote_are_read_together_as_one_by_one(kinds, times, protocol):
    entries = [entry(0, **fields) for fields in kinds * times]
    data = pickle.dumps(pickle.loads(torch_pickle(document(entries))), protocol)
    together, alone = _columns(data, 2), _columns(data, 1 << 30)
    assert np.array_equal(together.rows(), alone.rows())
    assert (together.calls, together.sources, together.groups) == (alone.calls, alone.sources, alone.groups)


def rewritten(protocol, count=400):
    """A dump of so many entries as Python's pickler writes it."""
    return pickle.dumps(pickle.loads(torch_pickle(document([entry(number) for number in range(count)]))), protocol)


@pytest.mark.parametrize(("protocol", "most"), [(2, 80), (3, 80), (4, 8), (5, 8)])
def test_entries_that_pythons_pickler_wrote_are_read_together(protocol, most):
    """Each of them memoizes its containers, under the next free number; before protocol 4 it is stated, from 256 on in
    four bytes.
    """
    data = rewritten(protocol)
    alone = []

    class Counting(Follower):
        def take(self, entry, stream):
            alone.append(entry)
            super().take(entry, stream)

    columns = EntryColumns()
    follower = Counting(columns, data)
    read_pickle(PickleStream(data, follower))
    assert columns.count == 400
    assert len(alone) < most


@pytest.mark.parametrize("other", [0, 1, 7, 20, 900, 901, 5000, 1 << 31])
@pytest.mark.parametrize("which", [300, 301, 700])
def test_parts_that_state_another_number_than_the_next_are_read_one_by_one(which, other):
    """What is memoized there may be a key or a text of all entries behind it."""
    data = bytearray(rewritten(2))
    at = data.index(b"r" + which.to_bytes(4, "little")) + 1
    data[at : at + 4] = other.to_bytes(4, "little")
    together, alone = (outcome(bytes(data), before) for before in (2, 1 << 30))
    assert together == alone or together is ForgottenError


def outcome(data, before):
    try:
        found = _columns(data, before)
    except (ForgottenError, UnsafeDumpError, CutError) as error:
        return type(error)
    return found.rows().tobytes(), found.calls, found.sources, found.groups


@pytest.mark.parametrize("protocol", [2, 4])
def test_an_entry_that_refers_to_a_part_of_one_that_was_read_with_others(tmp_path, protocol):
    """A tool may have put one list into several entries: the file is then read entry by entry."""
    entries = pickle.loads(rewritten(4))
    entries["entries"][-1]["input_sizes"] = entries["entries"][-5]["input_sizes"]
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps(entries, protocol))
    data = path.read_bytes()
    with pytest.raises(ForgottenError):
        _columns(data, 2)
    dump = read_dump(path)
    assert len(dump.slots) == 400
    assert not dump.problems


def _columns(data, before):
    columns = EntryColumns()
    stream = PickleStream(data, Follower(columns, data, before))
    read_pickle(stream)
    return columns


def test_a_correct_job_has_no_finding(tmp_path):
    dumps = [read(tmp_path, [entry(n) for n in range(50)], f"rank_{rank}") for rank in range(2)]
    for dump in dumps:
        os.utime(dump.path)
    assert judge(traces_of(dumps)).findings == ()


def leave_dumps(folder):
    """What a rank does: a few calls, and both dumps of them."""

    def program(rank):
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

        pair, x = dist.new_group([0, 1]), torch.ones(4, 5)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(torch.empty(12), torch.ones(4))
        dist.broadcast(torch.ones(3, dtype=torch.bfloat16), src=1)
        if rank < 2:
            dist.all_reduce(torch.ones(2), group=pair)
        dist.barrier()
        (folder / f"pickled_{rank}").write_bytes(_dump_fr_trace())
        (folder / f"texts_{rank}").write_bytes(_dump_fr_trace_json())
        dist.barrier()

    return program


@pytest.mark.slow
@pytest.mark.gloo
def test_real_dumps_of_gloo(tmp_path, ranks):
    ranks(leave_dumps(tmp_path), size=3, mode=None, TORCH_FR_BUFFER_SIZE="50")
    found = [traces_of([read_dump(tmp_path / f"{kind}_{rank}") for rank in range(3)]) for kind in ("pickled", "texts")]
    for pickled, text in zip(*found, strict=True):
        assert pickled.world_size == 3
        assert pickled.groups == text.groups
        assert pickled.groups[0].ranks == (0, 1, 2)
        assert [group.ranks for group in pickled.groups[1:]] == ([(0, 1)] if pickled.rank < 2 else [])
        ops = [pickled.signatures[index].op for index in pickled.slots["signature"]]
        pairs = ["all_reduce"] * (pickled.rank < 2)
        assert ops == ["all_reduce", "all_gather", "broadcast", *pairs, "barrier"]
        assert ops == [text.signatures[index].op for index in text.slots["signature"]]
        first = pickled.slots[0]
        assert pickled.sources[first["source"]].file == __file__
        assert first["state"] == State.COMPLETED
        assert "state" in pickled.unknown
    assert judge(found[0]).findings == judge(found[1]).findings == ()


def remade(rank, damaged=()):
    """Two lives of the default group, of three calls and one; Gloo's dump does not say who belongs to it."""
    entries = [
        entry(n, f"gloo:{op}", collective_seq_id=sequence)
        for n, (op, sequence) in enumerate((("all_reduce", 1), ("broadcast", 2), ("barrier", 3), ("broadcast", 1)))
    ]
    for place, fields in dict(damaged).items():
        entries[place] = {**entries[place], **fields}
    return document(entries, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}}, rank=rank)


@pytest.mark.parametrize(
    "damaged",
    [
        {1: {"state": "scheduked"}},
        {2: {"input_sizes": None}},
        {3: {"process_group": ("0", "default_qg")}},
        {0: {"profiling_name": "gloo:all_redude"}},
        {3: {"profiling_name": "gloo:broadcasu"}},
    ],
)
def test_damage_leaves_the_lives_of_a_group_in_line(tmp_path, damaged):
    dumps = []
    for rank in range(3):
        path = tmp_path / f"rank_{rank}"
        path.write_bytes(WRITERS["torch"](remade(rank, damaged if rank == 1 else {})))
        dumps.append(read_dump(path))
    assert judge(traces_of(dumps)).findings == ()


def parted(rank, op, sent, **fields):
    """A rank of four whose group no dump describes, and that leaves with a rooted or an uneven call."""
    calls = [entry(0), entry(1, f"gloo:{op}", input_sizes=[[sent]], **fields), entry(2)]
    return document(calls, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}}, rank=rank)


@pytest.mark.parametrize("absent", [{3}, {0}, {1, 3}, set()])
@pytest.mark.parametrize("op", ["gather", "all_to_all"])
def test_a_member_that_nobody_names_may_have_left_no_dump(tmp_path, op, absent):
    dumps = []
    for rank in {0, 1, 2, 3} - absent:
        outputs = [[2]] * 4 if (op, rank) == ("gather", 3) else [] if op == "gather" else [[8 - 2 * rank]]
        sizes = {"output_sizes": outputs, "output_dtypes": ["Float"] * len(outputs)}
        path = tmp_path / f"rank_{rank}"
        path.write_bytes(WRITERS["torch"](parted(rank, op, 2 if op == "gather" else 2 + 2 * rank, **sizes)))
        dumps.append(read_dump(path))
    assert judge(traces_of(dumps)).findings == ()


@pytest.mark.parametrize("told", ["by the group", "by a call", None])
def test_where_the_members_are_known_nobody_is_the_root(tmp_path, told):
    dumps = []
    for rank in range(3):
        whole = parted(rank, "gather", 2, output_sizes=[], output_dtypes=[])
        if told == "by the group":
            whole["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
        if told == "by a call":
            parts = {"output_sizes": [[4, 5]] * 3, "output_dtypes": ["Float"] * 3}
            whole["entries"].append(entry(3, "gloo:all_gather", **parts))
        path = tmp_path / f"rank_{rank}"
        path.write_bytes(WRITERS["torch"](whole))
        dumps.append(read_dump(path))
    assert [one.code for one in judge(traces_of(dumps)).findings] == (["SC105"] if told else [])


@pytest.mark.parametrize("stated", [True, False])
def test_a_smaller_part_is_found_though_another_rank_left_no_dump(tmp_path, stated):
    dumps = []
    for rank in (0, 2, 3):
        parts = {"output_sizes": [[8]] * 4, "output_dtypes": ["Float"] * 4} if rank == 0 else {"output_sizes": []}
        whole = parted(rank, "gather", 6 if rank == 3 else 8, **{"output_dtypes": [], **parts})
        if stated:
            whole["pg_config"][""]["ranks"] = "[0, 1, 2, 3]"
        path = tmp_path / f"rank_{rank}"
        path.write_bytes(WRITERS["torch"](whole))
        dumps.append(read_dump(path))
    assert [(one.code, one.culprits) for one in judge(traces_of(dumps)).findings] == [("SC102", (3,))]
