"""What is released: the wheel and the source archive, installed outside of the checkout and used as users do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import simcoll
from simcoll.core.native import PARTS
from tests.release.test_packaging import SOURCES, module_name
from tests.support.archives import ROOT, Archives, build, environment, install, run_in, wheel_of

pytestmark = pytest.mark.slow

PAGE = "simcoll/reports/page"
TORCH_JOB = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
ones = torch.ones(4)
dist.all_reduce(ones, op=dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)
"""
MARKED_TEST = """
import numpy as np
import pytest


@pytest.mark.simcoll(world_size=3)
def test_sum(comm):
    array = np.full(3, comm.rank)
    comm.all_reduce(array)
    assert array.tolist() == [3, 3, 3]
"""
TYPED_PROGRAM = """
import simcoll
from simcoll.testing import run_ranks

topology = simcoll.cluster(gpu="h100", nodes=2)
reveal_type(simcoll.estimate("all_reduce", 1 << 20, topology).seconds)
reveal_type(run_ranks)
simcoll.enable(mode="detail", out="here")
simcoll.enable(mode=3)
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return build(tmp_path_factory.mktemp("archives"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_folders_as_one_package(archives: Archives) -> None:
    names = set(contents(archives.wheel))
    shipped = {f"{module_name(path).replace('.', '/')}.py" for path in SOURCES if path.stem != "__init__"}
    shipped |= {f"{module_name(path).replace('.', '/')}/__init__.py" for path in SOURCES if path.stem == "__init__"}
    shipped |= {"simcoll/scenarios/__init__.py"}
    shipped |= {f"simcoll/scenarios/{path.name}" for path in (ROOT / "examples" / "scenarios").glob("*.toml")}
    shipped |= {f"{PAGE}/{path.name}" for path in (ROOT / "reports" / "page").iterdir() if path.is_file()}
    shipped |= {f"{PAGE}/vendor/drawing.js", f"{PAGE}/vendor/drawing.LICENSES.txt", "simcoll/py.typed"}
    described = (path for kind in ("*.json", "*.toml") for path in (ROOT / "simcoll").rglob(kind))
    shipped |= {path.relative_to(ROOT).as_posix() for path in described}
    shipped |= {f"simcoll/reports/{path.name}" for path in (ROOT / "reports").glob("*.json")}
    shipped |= compiled()
    assert {name for name in names if ".dist-info/" not in name} == shipped
    licences = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "reports/page/vendor/drawing.LICENSES.txt"}


def compiled() -> set[str]:
    """The parts in C that a wheel holds: all of them, or none where there is no compiler."""
    built = {f"{part.replace('.', '/')}.abi3.so" for part in PARTS}
    return built if shutil.which("cc") or shutil.which("gcc") else set()


def test_the_wheel_fits_every_python_and_is_for_any_machine_without_the_compiled_parts(
    archives: Archives, tmp_path: Path
) -> None:
    assert "-cp310-abi3-" in archives.wheel.name
    pure = wheel_of(archives.sdist, tmp_path, SIMCOLL_NATIVE="0")
    assert pure.name.endswith("-py3-none-any.whl")
    assert set(contents(archives.wheel)) - set(contents(pure)) == compiled()


def test_without_a_compiler_simcoll_is_installed_without_the_compiled_parts(archives: Archives, tmp_path: Path) -> None:
    made = wheel_of(archives.sdist, tmp_path, CC="no-such-compiler", LDSHARED="no-such-compiler")
    assert [name for name in contents(made) if name.endswith(".so")] == []


def test_the_compiled_parts_are_in_use_where_they_are_installed(with_torch: Path, tmp_path: Path) -> None:
    program = "from simcoll.core.native import PARTS, native; print([native(part) is not None for part in PARTS])"
    used = run_in(with_torch, tmp_path, "python", "-c", program).stdout.strip()
    assert used == str([bool(compiled())] * len(PARTS))
    unused = run_in(with_torch, tmp_path, "python", "-c", program, SIMCOLL_NATIVE="0").stdout.strip()
    assert unused == str([False] * len(PARTS))


def test_the_metadata_is_valid_and_complete(archives: Archives) -> None:
    found = next(text for name, text in contents(archives.wheel).items() if name.endswith("/METADATA"))
    stated = Metadata.from_email(found, validate=True)
    assert str(stated.version) == simcoll.__version__
    assert stated.license_expression == "BSD-3-Clause AND ISC"
    assert stated.description
    assert stated.description_content_type == "text/markdown"
    tried = {text.rpartition(" ")[2] for text in stated.classifiers or [] if re.search(r":: 3\.\d+$", text)}
    assert tried == {"3.10", "3.11", "3.12", "3.13"}


def test_the_source_archive_makes_the_same_wheel(archives: Archives) -> None:
    """Byte for byte, so that what is shown of one wheel is shown of the other."""
    assert archives.rebuilt.read_bytes() == archives.wheel.read_bytes()


def test_the_source_archive_holds_what_is_versioned(archives: Archives) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, text=True, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("these sources are no git checkout")
    versioned = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    added = {"PKG-INFO", "setup.cfg"}
    held = {path.relative_to(archives.unpacked).as_posix() for path in archives.unpacked.rglob("*") if path.is_file()}
    held = {name for name in held if not name.startswith("simcoll.egg-info/")}
    assert versioned - held == set()
    # What nobody has added to git yet may lie in this checkout.
    assert {name for name in held - versioned - added if not (ROOT / name).exists()} == set()


def test_nothing_tells_where_or_when_an_archive_was_built(archives: Archives) -> None:
    places = [str(place).encode() for place in (ROOT, archives.wheel.parent.parent, Path.home(), Path(sys.prefix))]
    for name, text in contents(archives.wheel).items():
        assert not any(place in text for place in places), name
    with zipfile.ZipFile(archives.wheel) as archive:
        assert {entry.date_time[0] for entry in archive.infolist()} == {2023}


@pytest.fixture(scope="module")
def without_torch(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive's wheel and what it requires, and nothing else: no torch."""
    home = environment(tmp_path_factory.mktemp("bare"))
    install(home, archives.rebuilt)
    return home


@pytest.fixture(scope="module")
def with_torch(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = environment(tmp_path_factory.mktemp("torch"), "torch", "pytest")
    install(home, archives.wheel)
    return home


@pytest.fixture(scope="module")
def recorded(with_torch: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real job of two ranks under torch's own launcher, which ``SIMCOLL_MODE`` alone has recorded."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(TORCH_JOB)
    launch = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    done = run_in(with_torch, folder, *launch, SIMCOLL_MODE="record", SIMCOLL_OUT="records")
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "records").glob("rank*.simcoll"))) == 2
    return folder / "records"


@pytest.mark.gloo
@pytest.mark.parametrize("kind", ["without_torch", "with_torch"])
def test_every_command_works_in_another_folder(kind, recorded, tmp_path, request):
    home = request.getfixturevalue(kind)

    def said(code: int, *command: object) -> str:
        done = run_in(home, tmp_path, "simcoll", *command)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    assert (run_in(home, tmp_path, "python", "-c", "import torch").returncode == 0) == (kind == "with_torch")
    assert said(0, "--version") == f"simcoll {simcoll.__version__}\n"
    assert run_in(home, tmp_path, "python", "-m", "simcoll", "--version").stdout == said(0, "--version")
    assert (json.loads(said(0, "--version", "--json"))["torch"] is None) == (kind == "without_torch")
    assert "SC104" in said(0, "demo")
    assert "SC104" in said(3, "verify", recorded, "--html", "page.html", "--sarif", "page.sarif")
    assert "<!doctype html>" in (tmp_path / "page.html").read_text().lower()
    assert json.loads((tmp_path / "page.sarif").read_text())["version"] == "2.1.0"
    assert said(0, "estimate", "all_reduce", "--bytes", "1GiB", "--gpu", "h100", "--nodes", "2")
    assert "SC204" in said(3, "simulate", "SC204")
    assert "reduce-op-mismatch" in said(0, "rules", "SC104")
    assert said(0, "topology", "list")
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "page.sarif"}


@pytest.mark.gloo
def test_run_works_in_another_folder(with_torch, tmp_path):
    (tmp_path / "train.py").write_text(TORCH_JOB)
    done = run_in(with_torch, tmp_path, "simcoll", "run", "--standalone", "--nproc-per-node", "2", "train.py")
    assert (done.returncode, "SC104" in done.stdout) == (3, True), done.stderr


def test_the_plugin_runs_marked_tests(with_torch, tmp_path):
    (tmp_path / "test_ranks.py").write_text(MARKED_TEST)
    done = run_in(with_torch, tmp_path, "python", "-m", "pytest", "-q", "--strict-markers", "test_ranks.py")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["backends", "benchmarks", "docs", "examples", "reports", "tests", "verifier"])
def test_no_folder_of_the_sources_becomes_a_package_of_its_own(name, without_torch, tmp_path):
    done = run_in(without_torch, tmp_path, "python", "-c", f"import {name}")
    assert f"No module named '{name}'" in done.stderr


@pytest.mark.parametrize("kind", ["without_torch", pytest.param("with_torch", marks=pytest.mark.nightly)])
def test_users_programs_see_the_types(kind, tmp_path, request):
    """By a user's own mypy, which is strict; the last line is wrong on purpose."""
    home = request.getfixturevalue(kind)
    (tmp_path / "program.py").write_text(TYPED_PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(home / "bin" / "python")]
    done = subprocess.run([*command, "program.py"], cwd=tmp_path, text=True, capture_output=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("program.py")]
    assert 'float"' in lines[0], done.stdout
    assert "def" in lines[1]
    assert '"enable" has incompatible type "int"' in lines[2]
    assert len(lines) == 3


def test_the_tests_run_in_the_unpacked_source_archive(archives, tmp_path):
    """A part of them; installed as ``make setup`` does, editable."""
    tools = ("torch", "pytest", "pytest-timeout", "hypothesis", "jsonschema", "setuptools", "packaging")
    home = environment(tmp_path, *tools)
    install(home, archives.unpacked, "--no-build-isolation", "--editable")
    parts = ("tests/spec/test_table.py", "tests/release/test_packaging.py", "tests/verifier/findings/test_rules.py")
    options = ("-q", "-m", "not slow", "-p", "no:cacheprovider")
    done = run_in(home, archives.unpacked, "python", "-m", "pytest", *options, *parts)
    assert done.returncode == 0, done.stdout[-2000:]
    assert os.fspath(ROOT) not in done.stdout
