"""What keeps a job from starting: one clear line each, and the exit code of the contract."""

import errno
import os
from importlib import metadata
from pathlib import Path

import pytest

from simcoll.launch import preconditions
from simcoll.launch.preconditions import (
    PreconditionError,
    check_request,
    check_script,
    check_torch,
    held,
    prepare_folder,
)
from simcoll.launch.torchrun_arguments import split


def refusal(function, *arguments, **options):
    with pytest.raises(PreconditionError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return caught.value.code, str(caught.value)


def test_an_unknown_mode_names_those_that_are():
    code, text = refusal(check_request, split(["--mode", "detial", "x.py"], {}))
    assert (code, text) == (2, "unknown mode 'detial': expected one of off, record, check, detail")


def test_a_time_that_is_none_starts_no_job(monkeypatch):
    monkeypatch.setenv("SIMCOLL_NODE_LOST_SECONDS", "10s")
    code, text = refusal(check_request, split(["x.py"], {}))
    assert code == 2
    assert text == "SIMCOLL_NODE_LOST_SECONDS='10s': expected a number of seconds from 3 to 86,400; correct or unset it"


def test_a_folder_in_which_another_job_records_is_refused(tmp_path):
    def record():
        with held(tmp_path):
            pass

    with held(tmp_path):
        code, text = refusal(record)
    assert code == 2
    assert text == f"--out {tmp_path}: another simcoll run records there now; give each job a folder of its own"
    record()
    with held(tmp_path / "absent"):
        pass


def test_torch_must_find_simcoll_in_the_ranks(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text("pass")
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    code, text = refusal(check_request, split([str(program)], {}))
    assert code == 1
    assert "simcoll is not installed in " in text
    assert "use pip install" in text
    # Another Python has packages of its own, and plain torchrun needs none.
    check_request(split(["--mode", "off", str(program)], {}))
    check_request(split(["--no-python", "true"], {}))
    monkeypatch.setenv("PYTHON_EXEC", "/usr/bin/python9")
    check_request(split([str(program)], {}))


@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        ("2.10.1", False),
        ("1.13.0+cu117", False),
        ("2.11.0", True),
        ("2.13.0+cpu", True),
        ("2.12.0a0+git1234", True),
        ("3.0.0.dev20260101", True),
        ("unknown", True),
    ],
)
def test_torchs_version(monkeypatch, version, accepted):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    if accepted:
        check_torch()
    else:
        code, text = refusal(check_torch)
        assert code == 1
        assert f"torch {version} is too old: simcoll needs 2.11 or newer" in text


def test_a_torch_that_is_absent(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    code, text = refusal(check_torch)
    assert code == 1
    assert "torch is not installed: install torch 2.11 or newer" in text


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (b"fro x import y\n", 1, ":1: SyntaxError: invalid syntax: fro x import y"),
        (b"def f():\nreturn\n", 1, ":2: IndentationError"),
        (b"# coding: no-such\n", 1, "SyntaxError"),
        (b"x = '\xff'\n", 1, "SyntaxError"),
    ],
)
def test_a_script_that_does_not_compile(tmp_path, content, code, text):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    found, message = refusal(check_script, path, compiles=True)
    assert found == code
    assert message.startswith(str(path))
    assert text in message
    check_script(path, compiles=False)


def test_scripts_that_are_not_there(tmp_path):
    assert refusal(check_script, tmp_path / "none.py", compiles=True)[0] == 2
    assert refusal(check_script, tmp_path, compiles=True)[0] == 2
    (tmp_path / "__main__.py").touch()
    check_script(tmp_path, compiles=True)


def test_scripts_that_compile_without_a_warning(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\nassert (x, 'always true')\n'\\d'\n")
    check_script(path, compiles=True)
    path.write_bytes(b"PK\x03\x04\0\0")
    check_script(path, compiles=True)


def test_a_command_that_is_not_there():
    code, text = refusal(check_request, split(["--no-python", "no-such-command-here"], {}))
    assert code == 2
    assert "no-such-command-here: command not found" in text


def test_the_folder_is_made_and_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert prepare_folder(Path("a/b"), 2) == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    first, second = prepare_folder(None, 1), prepare_folder(None, 1)
    assert first.parent == second.parent == tmp_path / "simcoll-out"
    assert first != second


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    reasons = {"file": "it is a file", "file/below": "Not a directory"}
    for wanted, reason in reasons.items():
        code, text = refusal(prepare_folder, tmp_path / wanted, 1)
        assert code == 2
        assert text == f"cannot write results into {tmp_path / wanted}: {reason} (choose another folder with --out)"


def test_a_folder_without_room(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(preconditions, "reserve", full)
    code, text = refusal(prepare_folder, tmp_path, 8)
    assert code == 2
    assert "No space left on device (the black boxes take 35 MiB; choose another folder" in text
    assert refusal(prepare_folder, tmp_path / "new", 8)[0] == 2
    assert list(tmp_path.iterdir()) == [], "a folder that was made for nothing"


def test_a_wrong_number_of_records(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCOLL_RECORDS", "many")
    code, text = refusal(prepare_folder, tmp_path, 1)
    assert code == 2
    assert "SIMCOLL_RECORDS='many'" in text


@pytest.mark.slow
def test_the_modes_are_those_of_the_ranks():
    activation = pytest.importorskip("simcoll.wrapper.hooks")
    assert preconditions.MODES == activation.MODES
