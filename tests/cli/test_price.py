"""``simcoll estimate TRACE``: black boxes and dumps priced; what-if; refusals in one line; nothing torch."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from base64 import b64decode

import pytest

import simcoll
from simcoll.cli import main
from simcoll.verifier.agreement import matched_calls
from tests.support.flight_dumps import document, entry, torch_pickle
from tests.support.jobs import write_job


def run(capsys, *arguments):
    code = main(["estimate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "job"
    write_job(folder)
    return folder


def test_a_folder_of_black_boxes(capsys, job):
    code, out, err = run(capsys, job, "--gpu", "h100")
    assert (code, err) == (0, "")
    assert "56 collectives and 16 messages of 4 ranks on 1 x 8 h100" in out
    assert "8 steps of 6 calls, as rank 0 has them" in out
    assert "bottleneck links" in out
    assert max(map(len, out.splitlines())) <= 80


def test_calls_are_matched_once_for_the_price_and_the_verdict(capsys, job, monkeypatch):
    matched = []

    def noted(name, traces, *, own):
        matched.append(name)
        return own(traces)

    for name in ("columns_of", "match_messages"):
        own = getattr(matched_calls, name)
        monkeypatch.setattr(matched_calls, name, functools.partial(noted, name, own=own))
    assert run(capsys, job, "--gpu", "h100")[0] == 0
    assert matched == ["columns_of", "match_messages"]


def test_the_document_has_every_collective_with_the_price_of_the_estimator(capsys, job):
    code, out, _ = run(capsys, job, "--gpu", "h100", "--compute", "none", "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["world_size"], found["ranks_with_records"]) == (0, "simcoll.pricing/1", 4, 4)
    (scenario,) = found["scenarios"]
    topology = simcoll.cluster(gpu="h100")
    assert len(scenario["collectives"]) == 72
    one = next(each for each in scenario["collectives"] if each["op"] == "all_reduce" and each["ranks"] == 4)
    assert one["seconds"] == pytest.approx(simcoll.estimate("all_reduce", 800, topology, ranks=range(4)).seconds)
    assert {"op", "bytes", "group", "sequence", "seconds", "algorithm", "bottleneck"} <= one.keys()
    assert scenario["steps"]["count"] == 8
    assert [each["rank"] for each in scenario["ranks"]] == [0, 1, 2, 3]


def test_what_if_and_other_topologies_stand_side_by_side(capsys, job):
    options = ["--straggler", "3:+0.01", "--slow-link", "host0,4", "--compare", "dgx-b200", "--world-size", "8"]
    code, out, _ = run(capsys, job, "--gpu", "h100", *options, "--json")
    scenarios = json.loads(out)["scenarios"]
    assert code == 0
    assert [each["world_size"] for each in scenarios] == [4, 8, 8]
    assert "straggler 3:+0.01" in scenarios[1]["name"]
    assert scenarios[1]["seconds"] > scenarios[0]["seconds"] + 0.05
    code, out, _ = run(capsys, job, "--gpu", "h100", *options)
    assert "what if" in out
    assert f"x{scenarios[1]['ratio']:.2f}" in out


def test_a_smaller_job_needs_no_room_for_the_recorded_one(capsys, job):
    code, out, _ = run(capsys, job, "--gpu", "h100", "--gpus-per-node", "2", "--world-size", "2", "--json")
    assert code == 0
    assert [each["world_size"] for each in json.loads(out)["scenarios"]] == [2]


def test_a_picture_has_a_row_a_rank(capsys, job):
    _, out, _ = run(capsys, job, "--gpu", "h100", "--straggler", "2:+0.01", "--picture")
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith("rank ") and line[12] in ".#~"}
    assert sorted(rows) == ["0", "1", "2", "3"]
    assert rows["0"].count("~") > 30
    assert rows["2"].count(".") > 30


def test_a_timeline_is_written(capsys, job, tmp_path):
    assert run(capsys, job, "--gpu", "h100", "--timeline", tmp_path / "t.json")[0] == 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert main(["verify", str(job), "--trace-events", str(tmp_path / "v.json")]) == 0
    assert json.loads((tmp_path / "v.json").read_text())["traceEvents"]
    assert main(["verify", str(job), "--trace-events", str(tmp_path / "no" / "v.json")]) == 2


def test_flight_recorder_dumps(capsys, tmp_path):
    for rank in range(2):
        entries = [
            entry(number, process_group=("0", "default_pg"), time_created_ns=10**18 + number * 10**7)
            for number in range(6)
        ]
        (tmp_path / f"dump_{rank}").write_bytes(torch_pickle(document(entries, rank=rank)))
    code, out, _ = run(capsys, tmp_path, "--gpu", "h100", "--json")
    (scenario,) = json.loads(out)["scenarios"]
    assert code == 0
    assert [each["op"] for each in scenario["collectives"]] == ["all_reduce"] * 6
    assert scenario["seconds"] > 0


def test_a_job_with_errors_is_priced_with_a_warning(capsys, tmp_path):
    write_job(tmp_path / "job", wrong=[2])
    code, out, err = run(capsys, tmp_path / "job", "--gpu", "h100")
    assert code == 0
    assert out.startswith("warning: ")
    assert "findings of severity error (SC104" in " ".join(out.split())
    assert err == ""
    assert "collectives" in out


def test_a_damaged_file_costs_itself(capsys, job):
    box = job / "rank00001.simcoll"
    box.write_bytes(box.read_bytes()[:100])
    code, out, err = run(capsys, job, "--gpu", "h100", "--json")
    assert code == 0
    assert "rank00001" in err
    assert any("rank 1 left no record" in note for note in json.loads(out)["notes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h100", "--bytes", "4"], "--bytes goes with one collective"),
        (["--gpu", "h100", "--ranks", "0-1"], "--ranks goes with one collective"),
        (["--gpu", "h100", "--straggler", "x"], "expected RANK:FACTOR"),
        (["--gpu", "h100", "--straggler", "7:2"], "straggler 7: no such rank"),
        (["--gpu", "h100", "--slow-link", "x"], "expected NODE"),
        (["--gpu", "h100", "--slow-link", "x,2"], "has no node 'x'"),
        (["--gpu", "h100", "--compute", "much"], "expected measured, none, or the seconds"),
        (["--gpu", "h100", "--flops", "1e15"], "--gpu-peak"),
        (["--gpu", "h100", "--mfu", "0.5"], "go with --flops"),
        (["--gpu", "h100", "--flops", "1", "--compute", "1"], "give one of them"),
        (["--gpu", "h100", "--world-size", "5"], "multiple of"),
        (["--gpu", "h100", "--world-size", "16"], "16 ranks"),
        (["--gpu", "h100", "--algorithm", "magic"], "no collective has an algorithm 'magic'"),
        (["--gpu", "h100", "--protocol", "magic"], "protocol is 'magic'"),
        (["--gpu", "h100", "--gpus-per-node", "2"], "the job has 4 ranks"),
        (["--gpu", "h100", "--compare", "nothing-like-it"], "nothing-like-it"),
        (["--gpu", "h100", "--timeline", "no/such/folder/t.json"], "cannot write"),
        ([], "no topology is given"),
    ],
)
def test_bad_input_is_one_line(capsys, job, arguments, said):
    code, out, err = run(capsys, job, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert json.loads(run(capsys, job, *arguments, "--json")[1])["exit_code"] == 2


@pytest.mark.parametrize("name", ["no/such/folder", "missing.simcoll", "missing.json"])
def test_what_looks_like_a_path_is_one(capsys, name):
    code, _, err = run(capsys, name, "--gpu", "h100")
    assert code == 2
    assert "no such file or folder" in err


def test_a_folder_with_nothing_to_read(capsys, tmp_path):
    code, _, err = run(capsys, tmp_path, "--gpu", "h100")
    assert code == 2
    assert "no readable black box" in err


def test_a_collectives_name_is_the_collective_and_its_path_the_folder(capsys, job, tmp_path, monkeypatch):
    os.rename(job, tmp_path / "all_reduce")
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "all_reduce", "--gpu", "h100", "--bytes", "1MiB")
    assert code == 0
    assert "write ./all_reduce" in err
    assert "all_reduce of 1 MiB" in out
    code, out, err = run(capsys, "./all_reduce", "--gpu", "h100")
    assert (code, err) == (0, "")
    assert "collectives" in out


def test_options_of_a_job_do_not_go_with_a_collective(capsys):
    code, _, err = run(capsys, "all_reduce", "--gpu", "h100", "--straggler", "1:2")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--straggler goes with a recorded job" in err
    code, _, err = run(capsys, "all_reduce", "broadcast", "--gpu", "h100")
    assert code == 2
    assert "one argument too many" in err


@pytest.mark.slow
def test_torch_is_never_imported(job, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    ended = subprocess.run(
        [sys.executable, "-m", "simcoll", "estimate", str(job), "--gpu", "h100", "--timeline", str(tmp_path / "t")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_links_that_hold_a_job_up_are_drawn(capsys, job, tmp_path):
    code, _, err = run(capsys, job, "--gpu", "h100", "--svg", tmp_path / "x.svg")
    assert (code, err) == (0, "")
    text = (tmp_path / "x.svg").read_text()
    assert 1 <= text.count('class="mark"') <= 3
    assert "! bottleneck: nvlink host0/gpu" in text
    code, out, err = run(capsys, job, "--gpu", "h100", "--svg", tmp_path / "none" / "x.svg")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_slow_link_is_drawn_as_it_was_priced(capsys, job, tmp_path):
    options = "--gpu", "h100", "--slow-link", "host0/gpu0,host0/nvswitch,4"
    plain = run(capsys, job, "--gpu", "h100", "--svg", tmp_path / "plain.svg")
    slow = run(capsys, job, *options, "--svg", tmp_path / "slow.svg", "--html", tmp_path / "slow.html")
    assert (plain[0], slow[0]) == (0, 0)
    before, after = ((tmp_path / name).read_text() for name in ("plain.svg", "slow.svg"))
    assert "slow link" in after
    assert "370.8 GB/s" in before
    assert "92.7 GB/s" not in before
    assert "92.7 GB/s" in after
    picture = re.search('src="data:image/svg[+]xml;base64,([^"]+)"', (tmp_path / "slow.html").read_text())
    assert picture is not None
    assert b"92.7 GB/s" in b64decode(picture[1])
