"""The command line as a user meets it: help, versions, usage errors, bad input, exit codes."""

import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from simcoll.blackbox import BlackBoxWriter, Slot
from simcoll.cli import main
from simcoll.core.record import Group, Source, State
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.rules import RULES
from tests.support.documents import check_sarif


def simcoll(*arguments, env=None, cwd=None):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_")}
    command = [sys.executable, "-m", "simcoll", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment | (env or {}), cwd=cwd, check=False)


def record(folder, reduce_ops, states=State.COMPLETED, file="train.py"):
    """One all_reduce on as many ranks as there are reduce ops, as black boxes."""
    for rank, reduce_op in enumerate(reduce_ops):
        path = folder / f"rank{rank:05d}.simcoll"
        box = BlackBoxWriter(path, rank=rank, world_size=len(reduce_ops), mode="record", records=16)
        tensor = Buffer((20, 10), "float32")
        call = Call("all_reduce", "allreduce", (tensor,), (tensor,), reduce_op=reduce_op)
        group = box.group(Group("0", "default_pg", tuple(range(len(reduce_ops)))))
        ticket = box.schedule(Slot(group, 1, box.signature(call), box.source(Source(file, 41, "step", "x"))))
        box.advance(ticket, states)
        box.event("exit")
        box.close()
    return folder


def refused(capsys, code, *arguments):
    """Run a command that must be refused: the exit code, one line on stderr, nothing on stdout."""
    try:
        found = main([str(argument) for argument in arguments])
    except SystemExit as error:
        found = int(error.code or 0)
    out, err = capsys.readouterr()
    assert (found, out, err.count("\n")) == (code, "", 1)
    return err


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("run", "--help"),
        ("demo",),
        ("rules",),
        ("topology", "draw", "dgx-h100"),
        ("simulate", "SC501"),
        ("verify", "none"),
    ],
)
def test_torch_is_never_imported(tmp_path, arguments):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    ended = simcoll(*arguments, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert "torch was imported" not in ended.stderr
    assert ended.returncode == (2 if arguments[0] == "verify" else 0)


def test_help_lists_the_commands_that_exist(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    listed = {line.split()[0] for line in out.splitlines() if line.startswith("    ") and line[4:5].isalpha()}
    known = "run top status metrics verify simulate estimate plan topology calibrate demo preflight rules"
    assert set(known.split()) == listed


def test_help_of_run_leaves_the_programs_help_alone(capsys):
    assert main(["run", "--nproc-per-node", "2", "--help"]) == 0
    assert "All of torchrun's options pass through" in capsys.readouterr().out


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"simcoll {metadata.version('simcoll')}\n")


@pytest.mark.parametrize("arguments", [["--version", "--json"], ["--json", "--version"]])
def test_the_versions_of_all_as_a_document(arguments, capsys):
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["simcoll"], said["python"]) == (metadata.version("simcoll"), platform.python_version())
    assert said["numpy"] == metadata.version("numpy")
    required = [text for text in metadata.requires("simcoll") or [] if ";" not in text]
    assert set(said) == {"simcoll", "python", "torch", *(re.split(r"[<>=!~]", text)[0] for text in required)}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "COMMAND"),
        (("fly",), "fly"),
        (("verify",), "PATH"),
        (("verify", "--loud", "x"), "--loud"),
        (("verify", "--last", "0", "x"), "--last '0': expected how many calls, such as 20"),
        (("verify", "--last", "-3", "x"), "--last '-3': expected how many calls"),
        (("verify", "--last", "9" * 5000, "x"), "expected how many calls"),
        (("verify", "--last", "two", "x"), "--last 'two': expected how many calls, such as 20"),
        (("verify", "--ranks", "0-", "x"), "ranks '0-': expected ranks and ranges such as 0-7,16"),
        (("verify", "--ranks", "", "x"), "ranks '': expected ranks and ranges"),
        (("verify", "--sarif"), "--sarif: expected one argument"),
        (("rules", "SC999"), "unknown code 'SC999': expected one of SC101"),
        (("estimate", "allreduce"), "unknown op 'allreduce', expected all_reduce"),
        (("estimate", "no-such.py"), "no-such.py: cannot be read"),
        (("verify", "no-such-folder"), "no-such-folder: no such file or folder"),
        (("verify", "x" * 5000), "cannot be read: File name too long"),
        (("verify", f"{__file__}/x"), "cannot be read: Not a directory"),
        (("verify", "x", "--\n\x1b[31m"), "--  [31m"),
        (("topology", "show", "--topology", "x" * 5000), "xxx"),
        (("estimate", "all_reduce", "--gpu", "h100", "--bytes", ""), "size '': expected bytes such as 4096"),
        (("simulate", "x" * 5000), "File name too long; give a TOML file"),
        (("topology", "show", ""), "unknown preset ''"),
        (("verify", ""), "argument PATH: expected a path, got an empty one; is a variable not set?"),
        (("verify", "x", "--html", ""), "argument --html: expected a path, got an empty one"),
        (("estimate", "all_reduce", "--gpu", "h100", "--html="), "argument --html: expected a path"),
        (("simulate", "SC104", "--out", ""), "argument --out: expected a path"),
        (("run", "--out", "", "x.py"), "--out: expected a path"),
        (("run",), "no script given"),
        (("run", "--mode"), "--mode needs a value"),
        (("run", "--mode", "loud", "x.py"), "unknown mode 'loud'"),
        (("preflight", "--world-size", "2", "no-such.py", "--n", "3", "--s"), "no-such.py"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys, arguments, text):
    assert text in refused(capsys, 2, *arguments)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("x" * 5000, "cannot be read: File name too long"),
        ("no-such-script.py", "no-such-script.py: cannot be read: No such file or directory"),
    ],
    ids=["long", "missing"],
)
def test_a_script_that_is_not_there_is_refused(capsys, script, text):
    pytest.importorskip("torch")
    assert text in refused(capsys, 2, "run", script)


def test_a_folder_without_black_boxes(capsys, tmp_path):
    (tmp_path / "fr_rank0.json").write_text("{}")
    assert "no readable black box" in refused(capsys, 2, "verify", tmp_path)
    assert main(["verify", str(tmp_path / "fr_rank0.json")]) == 2
    err = capsys.readouterr().err
    assert "is no Flight Recorder dump" in err
    assert "no readable black box (*.simcoll) or Flight Recorder dump in" in err


def test_ranks_that_failed_before_they_recorded_anything(capsys, tmp_path):
    rank = {"rank": 0, "exit_code": 1, "ended_ns": 1, "stopped": False}
    (tmp_path / "launch.json").write_text(json.dumps({"ranks": [rank]}))
    assert main(["verify", str(tmp_path)]) == 1
    assert "rank 0 exited with code 1, before any process group existed" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "launch.json").write_text(json.dumps({"ranks": [rank | {"exit_code": 0}]}))
    assert "no readable black box" in refused(capsys, 2, "verify", tmp_path)


def test_json_has_one_document_on_stdout_even_for_an_error(capsys, tmp_path):
    assert main(["verify", "--json", str(tmp_path)]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit_code"]) == ("simcoll.error/1", 2)
    assert main(["verify", "--json", "--bogus", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["error"] == "unrecognized arguments: --bogus; see `simcoll verify --help`"
    assert said.err == "simcoll: unrecognized arguments: --bogus; see `simcoll verify --help`\n"


def test_boxes_that_agree_are_one_line(capsys, tmp_path):
    assert main(["verify", str(record(tmp_path, ["sum"] * 4))]) == 0
    assert capsys.readouterr().out.strip() == "simcoll: 1 collective on 4 ranks agrees"


def test_boxes_that_disagree_are_a_finding(capsys, tmp_path):
    record(tmp_path, ["sum", "sum", "max", "sum"])
    assert main(["verify", "--json", str(tmp_path)]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [(finding["code"], finding["culprits"]) for finding in report["findings"]] == [("SC104", [2])]
    assert (report["schema"], report["verdict"], report["world_size"]) == ("simcoll.report/1", "findings", 4)


def test_files_can_be_named_and_html_written(capsys, tmp_path):
    record(tmp_path, ["sum", "max"])
    page = tmp_path / "page.html"
    assert main(["verify", *map(str, sorted(tmp_path.glob("*.simcoll"))), "--html", str(page)]) == 3
    assert "SC104" in capsys.readouterr().out
    assert "SC104" in page.read_text()
    assert "cannot write" in refused(capsys, 2, "verify", tmp_path, "--html", tmp_path / "none" / "page.html")


def test_one_run_writes_every_form(capsys, tmp_path):
    record(tmp_path, ["sum", "sum", "max"])
    page, log = tmp_path / "page.html", tmp_path / "log.sarif"
    assert main(["verify", str(tmp_path), "--json", "--html", str(page), "--sarif", str(log), "--timeline"]) == 3
    document, found = json.loads(capsys.readouterr().out), json.loads(log.read_text())
    check_sarif(found)
    [run] = found["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["SC104"]
    assert run["invocations"][0]["exitCode"] == 3
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == f"{Path.cwd().as_uri()}/"
    assert [finding["code"] for finding in document["findings"]] == ["SC104"]
    assert document["timeline"]["total"] == 1
    assert "3 ranks, 1 call" in page.read_text()


def test_warnings_are_in_sarif_and_a_clean_job_has_no_results(tmp_path):
    log = tmp_path / "log.sarif"
    assert main(["verify", str(record(tmp_path, ["sum"] * 3)), "--sarif", str(log), "--srcroot", "/src"]) == 0
    [run] = json.loads(log.read_text())["runs"]
    assert (run["results"], run["invocations"][0]["exitCode"]) == ([], 0)
    assert run["originalUriBaseIds"] == {"SRCROOT": {"uri": "file:///src/"}}


@pytest.mark.parametrize(
    ("options", "shown", "ranks"),
    [((), ["SC104"], [0, 1, 2]), (("--ranks", "0"), ["SC104"], [0]), (("--group", "default_pg"), ["SC104"], [0, 1, 2])],
)
def test_what_is_shown_changes_neither_verdict_nor_exit_code(capsys, tmp_path, options, shown, ranks):
    record(tmp_path, ["sum", "sum", "max"])
    assert main(["verify", "--json", str(tmp_path), *options]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in report["findings"]] == shown
    assert [state["rank"] for state in report["ranks"]] == ranks
    assert ("shown" in report) == bool(options)


def test_groups_and_ranks_that_are_not_there_are_named(capsys, tmp_path):
    record(tmp_path, ["sum", "sum"])
    said = refused(capsys, 2, "verify", tmp_path, "--group", "dp")
    assert said == "simcoll: no group 'dp' in the records; they have default_pg, 0\n"
    said = refused(capsys, 2, "verify", tmp_path, "--ranks", "1,7")
    assert said == "simcoll: the job has no rank 7; it has ranks 0-1\n"


@pytest.mark.slow
def test_the_last_calls_and_the_timeline_are_shown_of_a_clean_job_too(capsys, tmp_path):
    assert main(["verify", str(record(tmp_path, ["sum"] * 4)), "--last", "5", "--timeline"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("simcoll: 1 collective on 4 ranks agrees\nlast calls of ranks 0-3\n")
    assert "timeline: 1 call in order of time" in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_may_not_be_listed_is_named(capsys, tmp_path):
    tmp_path.chmod(0)
    assert f"{tmp_path}: cannot be read: Permission denied" in refused(capsys, 2, "verify", tmp_path)
    assert f"{tmp_path / 'x'}: cannot be read: Permission denied" in refused(capsys, 2, "verify", tmp_path / "x")


def test_a_folder_that_is_gone_is_no_reason_to_end(capsys, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    assert main(["verify", str(record(tmp_path, ["sum"] * 4))]) == 0
    assert capsys.readouterr().out.strip() == "simcoll: 1 collective on 4 ranks agrees"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "tr\\xe4in.py:41"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "tr\\xe4in.py:41"),
        ({"COLUMNS": "0"}, "SC104"),
        ({"COLUMNS": "9" * 12}, "SC104"),
    ],
)
def test_a_poor_terminal_gets_what_it_can_show(tmp_path, environment, text):
    record(tmp_path, ["sum", "sum", "max"], file="tr\xe4in.py")
    ended = simcoll("verify", tmp_path, env=environment)
    assert (ended.returncode, ended.stderr) == (3, "")
    assert text in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_an_exit_code_does_not_depend_on_stderr(tmp_path, stderr):
    command = f'"{sys.executable}" -m simcoll verify none {stderr}'
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 2


def test_too_little_memory_is_one_line(capsys, monkeypatch, tmp_path):
    def judge(*_, **__):
        raise MemoryError

    record(tmp_path, ["sum"])
    monkeypatch.setattr("simcoll.cli.records.judge", judge)
    assert "there is not enough memory" in refused(capsys, 2, "verify", tmp_path)


@pytest.mark.parametrize("option", ["--html", "--sarif"])
def test_files_that_cannot_be_written_are_one_line(capsys, tmp_path, option):
    record(tmp_path, ["sum", "max"])
    said = refused(capsys, 2, "verify", tmp_path, option, tmp_path / "none" / "x")
    assert said.startswith(f"simcoll: cannot write {tmp_path}/none/x: No such file or directory")
    assert "No space left on device" in refused(capsys, 2, "verify", tmp_path, option, "/dev/full")
    assert Path("/dev/full").is_char_device()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", ["verify .", "verify . --json", "verify . --timeline", "topology import dgx-h100 --nodes 64"]
)
def test_a_full_disk_behind_stdout_is_one_line(tmp_path, arguments):
    command = [sys.executable, "-m", "simcoll", *arguments.split()]
    record(tmp_path, ["sum", "max"])
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stderr) == (2, "simcoll: cannot write to stdout: No space left on device\n")


def test_a_damaged_file_is_named_and_the_rest_is_judged(capsys, tmp_path):
    record(tmp_path, ["sum", "max", "sum"])
    (tmp_path / "rank00002.simcoll").write_bytes(b"\x80\x04")
    assert main(["verify", str(tmp_path)]) == 3
    assert "rank00002.simcoll: found" in capsys.readouterr().err


def test_the_accounts_of_launchers_are_used_wherever_the_records_lie(capsys, tmp_path):
    record(tmp_path, ["sum", "sum"])
    for folder, rank, code in (("host0", 0, 0), ("host1", 1, -9), ("earlier", None, 1)):
        (tmp_path / folder).mkdir()
        ranks = {"rank": rank or 0, "exit_code": code, "ended_ns": 1, "stopped": False}
        (tmp_path / folder / "launch.json").write_text(json.dumps({"ranks": [ranks]}))
        if rank is not None:
            (tmp_path / f"rank{rank:05d}.simcoll").rename(tmp_path / folder / f"rank{rank:05d}.simcoll")
    assert main(["verify", "--json", str(tmp_path)]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [(state["rank"], state["exit_code"]) for state in report["ranks"]] == [(0, 0), (1, -9)]
    assert [finding["code"] for finding in report["findings"]] == ["SC701"]


def test_rules(capsys):
    assert main(["rules"]) == 0
    listed = capsys.readouterr().out
    assert all(code in listed for code in ("SC101", "SC601", "SC801"))
    assert main(["rules", "sc104"]) == 0
    page = capsys.readouterr().out
    assert "reduce-op-mismatch" in page
    assert main(["rules", "Reduce-Op-Mismatch"]) == 0
    assert capsys.readouterr().out == page
    assert main(["rules", "SC104", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "reduce-op-mismatch"
    assert main(["rules", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [rule["code"] for rule in listed] == list(RULES)
    assert {tuple(rule) for rule in listed} == {
        ("code", "name", "advice", "means", "harm", "example", "remedy", "unplayed", "severity", "scenario")
    }
    assert all(
        value and isinstance(value, str)
        for rule in listed
        for name, value in rule.items()
        if name not in ("unplayed", "scenario")
    )
    assert {rule["code"] for rule in listed if rule["scenario"]} == {
        one.code for one in RULES.values() if not one.unplayed
    }


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
    record(tmp_path, ["sum", "max"])
    command = [sys.executable, "-m", "simcoll", "verify", str(tmp_path)]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 1
