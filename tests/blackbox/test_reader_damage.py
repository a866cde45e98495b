"""Every file that a command reads, damaged at random: never a traceback, a clear line, and what is sound is still used.

A few rounds by default. ``SIMCOLL_DAMAGE_ROUNDS=10000 pytest tests/blackbox/test_reader_damage.py`` runs as many of
each kind, and ``SIMCOLL_DAMAGE_SEED`` begins at another seed. A failure prints the seed of its round.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from simcoll.cli import main
from tests.support.damage import damage_contents, damage_place, exchange
from tests.support.jobs import write_dumps, write_job, write_stalled_job, write_topologies

ROUNDS = int(os.environ.get("SIMCOLL_DAMAGE_ROUNDS", "60"))
SEED = int(os.environ.get("SIMCOLL_DAMAGE_SEED", "1"))
LIMIT_SECONDS = 60
LIMIT_BYTES = 1 << 30
TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    def report(self) -> dict[str, object]:
        document: dict[str, object] = json.loads(self.out)
        return document


def command(*arguments: str | Path) -> Said:
    """Run a command in this process; it keeps the contract whatever it reads."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    said = Said(code, out.getvalue(), err.getvalue())
    assert "Traceback" not in said.out + said.err
    assert code in (0, 2, 3), said
    if code == 2:
        assert said.err.startswith("simcoll"), said
        assert said.err.rstrip("\n"), said
    assert all(line.isprintable() for line in said.err.splitlines()), said
    return said


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """No round may take minutes or gigabytes, whatever a file pretends to hold."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"still at work after {LIMIT_SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < LIMIT_BYTES


def rounds(folder: Path, source: Path, attack: Callable[[random.Random, Path], None]) -> None:
    """Attack a fresh copy of a folder again and again; say which round failed."""
    for seed in range(SEED, SEED + ROUNDS):
        copy = folder / "copy"
        shutil.copytree(source, copy)
        try:
            with bounded():
                attack(random.Random(seed), copy)
        except BaseException as error:
            error.add_note(f"SIMCOLL_DAMAGE_SEED={seed} SIMCOLL_DAMAGE_ROUNDS=1; the files are in {copy}")
            raise
        shutil.rmtree(copy)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def damage_some(chance: random.Random, paths: Sequence[Path], count: int) -> list[str]:
    """Damage as many of the files; what was done to which."""
    contents = [path.read_bytes() for path in paths]
    return [_damage(chance, path, contents) for path in chance.sample(paths, count)]


def _damage(chance: random.Random, path: Path, contents: Sequence[bytes]) -> str:
    kind = chance.random()
    if kind < 0.06:
        return damage_place(chance, path)
    if kind < 0.12:
        return exchange(path, chance.choice(contents))
    return damage_contents(chance, path)


JOBS: dict[str, Callable[[Path], None]] = {
    "ended": write_job,
    "wrapped": lambda folder: write_job(folder, records=16, rounds=9, launched=False),
    "wrong": lambda folder: write_job(folder, wrong=[2]),
    "stalled": write_stalled_job,
    "dumps": write_dumps,
}


@pytest.mark.parametrize("kind", JOBS)
def test_whatever_is_damaged_verify_answers_in_its_words(tmp_path: Path, kind: str) -> None:
    JOBS[kind](tmp_path / "job")

    def attack(chance: random.Random, folder: Path) -> None:
        there = files(folder)
        damage_some(chance, there, chance.choice((1, 1, 2, len(there))))
        paths = [folder] if chance.random() < 0.7 else sorted(folder.iterdir())
        command("verify", *paths, *chance.choice(([], ["--json"], ["--html", folder / "report.html"])))

    rounds(tmp_path, tmp_path / "job", attack)


@pytest.mark.parametrize("kind", ["ended", "wrapped"])
def test_damage_to_black_boxes_never_accuses_a_correct_program(tmp_path: Path, kind: str) -> None:
    JOBS[kind](tmp_path / "job")

    def attack(chance: random.Random, folder: Path) -> None:
        boxes = sorted(folder.glob("*.simcoll"))
        done = damage_some(chance, boxes, chance.choice((1, 1, 1, 2)))
        said = command("verify", "--json", folder)
        errors = [one for one in said.report()["findings"] if one["severity"] == "error"]
        assert (said.code, errors) == (0, []), done
        ranks = [one["rank"] for one in said.report()["ranks"]]
        assert set(ranks) >= {int(path.name[4:9]) for path in boxes if not any(path.name in text for text in done)}

    rounds(tmp_path, tmp_path / "job", attack)


def test_what_the_sound_boxes_tell_is_still_found(tmp_path: Path) -> None:
    JOBS["wrong"](tmp_path / "job")

    def attack(chance: random.Random, folder: Path) -> None:
        box = folder / f"rank{chance.choice((0, 1, 3)):05d}.simcoll"
        done = damage_place(chance, box) if chance.random() < 0.1 else damage_contents(chance, box)
        said = command("verify", "--json", folder)
        errors = [one for one in said.report()["findings"] if one["severity"] == "error"]
        assert [(one["code"], one["culprits"]) for one in errors] == [("SC104", [2])], (done, errors)

    rounds(tmp_path, tmp_path / "job", attack)


def test_damaged_topologies_are_refused_or_read(tmp_path: Path) -> None:
    write_topologies(tmp_path / "topologies")

    def attack(chance: random.Random, folder: Path) -> None:
        there = files(folder)
        damage_some(chance, there, len(there))
        read_topology(chance, chance.choice(there))

    rounds(tmp_path, tmp_path / "topologies", attack)


def read_topology(chance: random.Random, path: Path) -> None:
    ways: list[list[str | Path]] = [
        ["topology", "show", "--topology", path],
        ["topology", "import", path, "--json"],
        ["topology", "draw", path, "--json"],
        ["estimate", "all_reduce", "--bytes", "1MiB", "--topology", path],
        ["estimate", "all_to_all", "--bytes", "1MiB", "--engine", "flow", "--topology", path],
    ]
    command(*chance.choice(ways))


def test_every_file_of_the_tests_damaged(tmp_path: Path) -> None:
    texts = [path for path in sorted(TESTS.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    (tmp_path / "none").mkdir()

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / f"file{chance.choice(('.simcoll', '.json', '.xml', '.yaml', '', '.pickle', '.txt'))}"
        shutil.copyfile(chance.choice(texts), path)
        damage_contents(chance, path)
        command("verify", path)
        command("verify", folder)
        read_topology(chance, path)

    rounds(tmp_path, tmp_path / "none", attack)
