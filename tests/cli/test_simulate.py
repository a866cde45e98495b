"""``simcoll simulate``: what it takes, what it says, how it exits."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.errors import BAD_INPUT

ANY_SOURCE = """
ranks = 3
[[calls]]
ranks = [1, 2]
op = "send"
peer = 0
[[calls]]
ranks = 0
op = "recv"
peer = "any"
[[calls]]
ranks = 0
op = "recv"
peer = 2
"""
RIGHT = """
title = "all is well"
ranks = 4
[topology]
gpu = "h100"
[[calls]]
repeat = 3
[[calls.calls]]
op = "all_reduce"
shape = [1024]
[expect]
findings = []
"""
PROGRAM = """
import numpy as np


def main(comm):
    x = np.ones(3)
    comm.all_reduce(x, op="max" if comm.rank == 1 else "sum")


def right(comm):
    comm.compute(0.5)
    comm.barrier()


number = 3
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(RIGHT)
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.py"
    path.write_text(PROGRAM)
    return path


def simulate(*arguments: object) -> int:
    return main(["simulate", *map(str, arguments)])


def test_a_finding_is_shown_with_the_line_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("SC104") == 3
    shown = capsys.readouterr().out
    assert "SC104 reduce-op-mismatch" in shown
    assert "best" in shown
    assert shown.rstrip().endswith("as the scenario expects")


@pytest.mark.parametrize("code", ["SC104", "sc203"])
def test_check_exits_0_exactly_when_all_is_as_expected(code: str) -> None:
    assert simulate(code, "--check") == 0


def test_a_folder_of_its_name_hides_no_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "SC104").mkdir()
    monkeypatch.chdir(tmp_path)
    assert simulate("SC104", "--check") == 0


def test_check_exits_3_where_it_is_not(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario.write_text(RIGHT.replace("findings = []", 'findings = ["SC104"]'))
    assert simulate(scenario) == 0
    assert simulate(scenario, "--check") == 3
    assert "not as the scenario expects: finding 1: expected SC104, there is none" in capsys.readouterr().out


def test_a_topology_gives_time(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(scenario, "--check") == 0
    shown = capsys.readouterr().out
    assert "us of virtual time" in shown
    assert "all_reduce :9" in shown


def test_the_command_line_has_another_topology(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for options in ((), ("--gpu", "a100", "--nodes", 4, "--gpus-per-node", 1)):
        assert simulate(scenario, "--json", *options) == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
    assert 0 < seconds[0] < seconds[1]


def test_expected_seconds_are_compared(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(scenario, "--json")
    seconds = json.loads(capsys.readouterr().out)["seconds"]
    for factor, code in ((1.0, 0), (1.5, 3)):
        scenario.write_text(RIGHT + f"seconds = {seconds * factor}\n")
        assert simulate(scenario, "--check") == code


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("SC105", "--json", "--gpu", "h100") == 3
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "simcoll.simulation/1"
    assert document["report"]["findings"][0]["code"] == "SC105"
    assert document["unmet"] == []
    assert document["differences"] is None
    assert document["seconds"] > 0


def test_a_slow_link_costs_time(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = RIGHT.replace('gpu = "h100"', 'gpu = "h100"\nnodes = 2\ngpus_per_node = 2').replace("1024", "1048576")
    fault = '[[faults]]\nkind = "slow-link"\nbetween = [1, 3]\n'
    seconds = []
    for change in ("", "factor = 0.01\n", "latency = 0.001\n"):
        scenario.write_text(text + (fault + change if change else ""))
        assert simulate(scenario, "--json") == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
    assert seconds[1] > 2 * seconds[0]
    assert seconds[2] > seconds[0]


def test_a_slow_link_needs_a_topology(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario.write_text("ranks = 2\ncalls = []\n[[faults]]\nkind = 'slow-link'\nbetween = [0, 1]\n")
    assert simulate(scenario) == 2
    assert "line 3: slow-link: there is no topology" in capsys.readouterr().err
    scenario.write_text("ranks = 9\ncalls = []\n[[faults]]\nkind = 'slow-link'\nbetween = [0, 8]\n")
    assert simulate(scenario, "--gpu", "h100") == 2
    assert "the topology has 8 ranks, none is number 8" in capsys.readouterr().err


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, sarif, out = tmp_path / "r.html", tmp_path / "r.sarif", tmp_path / "a" / "b"
    assert simulate("SC104", "--html", html, "--sarif", sarif, "--out", out) == 3
    assert "SC104" in html.read_text()
    assert json.loads(sarif.read_text())["runs"][0]["results"][0]["ruleId"] == "SC104"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json"]
    assert f"simcoll: report.html and report.json are in {out}\n" in capsys.readouterr().err
    assert json.loads((out / "report.json").read_text())["findings"][0]["culprits"] == [2]


def test_exploring_finds_what_an_order_hides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "any source.toml"
    path.write_text(ANY_SOURCE)
    assert simulate(path) == 0
    assert simulate(path, "--explore", 30) == 3
    captured = capsys.readouterr()
    assert "30 schedules tried" in captured.err
    command = captured.err.rstrip().splitlines()[-1]
    name, *arguments = shlex.split(command)
    assert name == "simcoll"
    assert main([*arguments, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["report"]["findings"][0]["code"] in ("SC204", "SC304")


def test_exploring_what_is_right(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(scenario, "--explore", 5, "--json") == 0
    captured = capsys.readouterr()
    assert "5 schedules tried, none fails" in captured.err
    assert json.loads(captured.out)["unmet"] == []


def test_sends_that_are_buffered(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("SC204") == 3
    assert simulate("SC204", "--sends", "buffered") == 0
    assert "not as the scenario expects" in capsys.readouterr().out


def test_a_program(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(program, "--ranks", 3, "--json") == 3
    [finding] = json.loads(capsys.readouterr().out)["report"]["findings"]
    named = {(Path(one["file"]).name, one["line"]) for side in finding["sides"] for one in side["source"]}
    assert named == {("p.py", 7)}
    assert simulate(f"{program}:right", "--ranks", 2, "--gpu", "h100", "--json") == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 0.5
    assert simulate(program, "--ranks", 3, "--explore", 3) == 3


def test_a_program_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_this_name")
    assert simulate(path, "--ranks", 2) == 1
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in capsys.readouterr().err
    path.write_text("def main(comm:\n")
    assert simulate(path, "--ranks", 2) in (1, 2)


REFUSED = {
    "no file": (["nowhere.toml"], "cannot read nowhere.toml: No such file"),
    "no code": (["SC999"], "SC999: there is no finding of this code, and no such file"),
    "a folder": (["."], "cannot read .: Is a directory"),
    "ranks of a scenario": (["SC104", "--ranks", "4"], "--ranks 4: the scenario states its ranks"),
    "no ranks of a program": (["PROGRAM"], "how many ranks run it? give --ranks N"),
    "ranks that cannot be": (["PROGRAM", "--ranks", "0"], "a simulated world has 1 to"),
    "no such function": (["PROGRAM:rihgt", "--ranks", "2"], "defines no function rihgt(comm); did you mean `right`?"),
    "no function": (["PROGRAM:number", "--ranks", "2"], "defines no function number(comm)"),
    "no such program": (["nowhere.py", "--ranks", "2"], "nowhere.py: cannot be read"),
    "a program on Gloo": (["PROGRAM", "--ranks", "2", "--backend", "gloo"], "--backend gloo: goes with a scenario"),
    "a program is checked": (["PROGRAM", "--ranks", "2", "--check"], "--check: goes with a scenario"),
    "nothing to check": (["SCENARIO", "--check"], "--check needs an [expect] table"),
    "no schedules": (["SC104", "--explore", "0"], "--explore 0: expected how many schedules"),
    "two ways": (["SC104", "--explore", "3", "--schedule", "1:1"], "--explore and --schedule: give one of them"),
    "a schedule that is none": (["SC104", "--schedule", "x"], "expected decision:option"),
    "a schedule on Gloo": (["SC104", "--backend", "gloo", "--schedule", "1:1"], "--schedule: only simulated ranks"),
    "a stall that is none": (["SC104", "--stall", "nan"], "--stall nan: expected seconds"),
    "a topology that is too small": (
        ["SC104", "--gpu", "h100", "--gpus-per-node", "2"],
        "4 ranks, and the topology has 2",
    ),
    "a topology that is none": (["SC104", "--topology", "dgx"], "dgx"),
    "a file that cannot be written": (["SC104", "--html", "/nowhere/x.html"], "cannot write /nowhere/x.html"),
    "a folder that cannot be made": (["SC104", "--out", "/dev/null/x"], "cannot make the folder /dev/null/x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_one_line(
    case: str, program: Path, scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(RIGHT.partition("[expect]")[0])
    arguments, said = REFUSED[case]
    places = {"PROGRAM": str(program), "SCENARIO": str(scenario)}
    given = [
        word.replace(word.partition(":")[0], places.get(word.partition(":")[0], word.partition(":")[0]))
        for word in arguments
    ]
    assert simulate(*given) == 2
    refusal = capsys.readouterr().err
    assert said in refusal
    assert refusal.count("\n") == 1


@pytest.mark.slow
@pytest.mark.gloo
def test_real_gloo_and_simulated_ranks_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert simulate("SC104", "--backend", "gloo", "--check", "--json", "--out", out) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["backend"], document["differences"], document["unmet"]) == ("gloo", [], [])
    assert document["report"]["findings"][0]["sequence"] == 2
    assert f"report.html, report.json and the records of the ranks are in {out}\n" in captured.err
    assert (out / "rank00000.simcoll").exists()


@pytest.mark.slow
def test_threads_and_simulated_ranks_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("SC104", "--backend", "threaded", "--check") == 0
    assert "simulated and threaded agree" in capsys.readouterr().out


@pytest.mark.slow
def test_what_only_simulated_ranks_can_show_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("SC107", "--backend", "threaded") == 3
    assert "simulated and threaded differ: only simulated finds SC107" in capsys.readouterr().out.replace("\n", " ")


def test_a_rule_that_no_scenario_can_play_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "sc904"]) == BAD_INPUT
    assert "SC904 has no scenario: its ranks make calls, and have no model" in capsys.readouterr().err
