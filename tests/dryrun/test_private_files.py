"""Each rank of a dry run finds the files of a first run: its own, and others' in the order of collectives."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from simcoll.dryrun.private_files import private_files
from simcoll.launch.preconditions import PreconditionError

pytestmark = [pytest.mark.slow]

LIMIT = 300

PROGRAM = """\
import os, shutil, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert not os.path.exists("run")
assert open("old/data.txt").read() == "old"
if rank == 1:
    os.rename("old", "older")
    os.mkdir("empty")
    os.replace("older", "empty")
    assert not os.path.exists("older") and open("empty/data.txt").read() == "old"
    shutil.move("empty", "old")
history = open("history.txt", "a")
history.write(f"begin {rank}\\n")
history.flush()
if rank == 0:
    os.makedirs("run/saved")
    torch.save({"step": 1}, "run/saved/last.pt")
    open("run/settings.txt", "w").close()
    with open("run/state.txt", "w") as state:
        state.write("new")
dist.barrier()
if rank == 1:
    with open("run/state.txt", "a") as state:
        state.write(", changed by one that has seen it")
assert torch.load("run/saved/last.pt")["step"] == 1
with open("log.txt", "a") as log:
    log.write(f"{rank}\\n")
history.write("same\\n")
history.flush()
with open("config.txt", "w") as config:
    config.write("whole")
dist.barrier()
begun = ["earlier", *(f"begin {one}" for one in range(size)), *["same"] * size]
assert open("history.txt").read().split("\\n")[:-1] == begun
assert open("log.txt").read() == "".join(f"{one}\\n" for one in range(size))
assert open("config.txt").read() == "whole"
if rank == 0:
    history.write("end\\n")
    history.close()
    os.remove("log.txt")
    os.remove("run/settings.txt")
    torch.save({"step": 2}, "run/saved/last.pt")
    shutil.rmtree("old")
dist.all_reduce(torch.ones(4))
assert not os.path.exists("run/settings.txt") and not os.path.exists("old")
assert open("history.txt").read().endswith("same\\nend\\n")
with open("log.txt", "a") as log:
    log.write("again\\n")
assert torch.load("run/saved/last.pt")["step"] == 2
torch.save(rank, f"run/part{rank}.pt")
dist.barrier()
assert open("run/state.txt").read() == "new, changed by one that has seen it"
assert open("log.txt").read() == "again\\n" * size
if rank == 0:
    assert [torch.load(f"run/part{other}.pt") for other in range(size)] == list(range(size))
if rank == size - 1 and sys.argv[1:]:
    os.kill(os.getpid(), 9)
dist.barrier()
"""

REFUSED = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv "$@"', "sh"]
WITHOUT_NAMESPACES = [*REFUSED, "--bounding-set=-all", "--inh-caps=-all"]


def preflight(folder: Path, before: list[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    (folder / "old").mkdir()
    (folder / "old" / "data.txt").write_text("old", encoding="utf-8")
    (folder / "history.txt").write_text("earlier\n", encoding="utf-8")
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    words = ["-m", "simcoll", "preflight", "--json", "--world-size", "3", "--out", "out", "train.py", *arguments]
    done = subprocess.run(
        [*before, sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def assert_nothing_is_left(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["history.txt", "old", "out", "train.py"]
    assert (folder / "history.txt").read_text(encoding="utf-8") == "earlier\n"
    assert (folder / "old" / "data.txt").read_text(encoding="utf-8") == "old"
    assert not (folder / "out" / "rank-files").exists()


def test_files_of_others_come_with_collectives_and_nothing_is_left(tmp_path: Path) -> None:
    code, report = preflight(tmp_path, [])
    assert (code, report["findings"], report["coverage"]["gaps"]) == (0, [], [])
    assert_nothing_is_left(tmp_path)


def test_nothing_is_left_by_a_rank_that_is_killed(tmp_path: Path) -> None:
    preflight(tmp_path, [], "die")
    assert_nothing_is_left(tmp_path)


@pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("setpriv")), reason="needs util-linux")
def test_without_namespaces_calls_are_redirected(tmp_path: Path) -> None:
    allowed = subprocess.run([*WITHOUT_NAMESPACES, "true"], capture_output=True, check=False).returncode == 0
    if not allowed:
        pytest.skip("this system lets nobody give up namespaces")
    code, report = preflight(tmp_path, WITHOUT_NAMESPACES)
    assert (code, report["findings"], report["coverage"]["gaps"]) == (0, [], [])
    assert "no file systems of its own" in str(report["notes"])
    assert_nothing_is_left(tmp_path)


def test_a_link_where_ranks_would_keep_their_files_leads_nowhere(tmp_path: Path) -> None:
    """Ranks unpickle what they find there: it may lead to what another user has written."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rank-files").symlink_to(tmp_path / "elsewhere")
    code, report = preflight(tmp_path, [])
    assert (code, report["findings"]) == (0, [])
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (tmp_path / "out" / "rank-files").is_symlink()


def test_a_folder_that_cannot_be_removed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank-files").mkdir()
    monkeypatch.setattr("simcoll.dryrun.private_files.remove_tree", lambda folder: None)
    dry_run: Any = SimpleNamespace(folder=tmp_path, world_size=2)
    refused = pytest.raises(PreconditionError, match="rank-files is there and cannot be removed; remove it, or give")
    with refused, private_files(dry_run, 10.0):
        pass
