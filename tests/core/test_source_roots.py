"""Which folders are simcoll's own: also where the installer or a build tool links its files one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import simcoll
from simcoll import backends, reports, verifier
from simcoll.core.source_roots import SKIP, kind_of


def test_files_of_simcoll_are_passed_over() -> None:
    for package in (simcoll, backends, reports, verifier):
        assert kind_of(str(package.__file__)) == SKIP


def test_a_package_of_links_is_passed_over(tmp_path: Path) -> None:
    """As Bazel's runfiles and uv's link mode make it: real folders, each file a link."""
    for folder, package in (("simcoll", simcoll), ("simcoll/backends", backends), ("simcoll/verifier", verifier)):
        root = Path(str(package.__file__)).parent
        for path in root.rglob("*.py"):
            link = tmp_path / folder / path.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(path, link)
    asked = "from simcoll.core import record, source_roots; print(source_roots.kind_of(record.__file__))"
    ended = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(SKIP)
