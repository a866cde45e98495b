"""Which folders are simcoll's own: also where the installer or a build tool links its files one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import simcoll
from simcoll import backends, reports, verifier
from simcoll.core.source_roots import INSTALLED, OWN, SKIP, Roots, kind_of, own_roots


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


def test_files_are_told_by_the_folders_that_their_process_wrote_down() -> None:
    theirs = Roots(("/a/torch/",), ("/a/simcoll/", "/a/verifier/"), ("/a/packages/",), ("/a/lib/",))
    files = ("/a/verifier/x.py", "/a/torch/x.py", "/a/packages/x.py", "/a/lib/x.py", "/a/train.py", "<string>", "\0")
    read = Roots.of(theirs.document())
    assert read == theirs
    assert [read.kind_of(file) for file in files] == [SKIP, SKIP, INSTALLED, SKIP, OWN, SKIP, SKIP]
    assert kind_of("/a/verifier/x.py") == OWN


@pytest.mark.parametrize("document", [None, {}, [], {"simcoll": "/"}, {"simcoll": ["/"], "torch": [7, "a", "/b"]}])
def test_folders_that_make_no_sense_are_those_of_this_process(document: object) -> None:
    assert Roots.of(document) == own_roots()
