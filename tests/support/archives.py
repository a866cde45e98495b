"""Builds what is released from a copy of the sources, and installs it into environments that hold nothing else.

No network is needed: the build uses this environment's setuptools, and what an archive requires is linked from here.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = "1700000000"
"""The moment that archives state, in seconds since 1970: two builds of the same sources are the same bytes."""

_OF_TOOLS = (".git", ".venv*", ".typing", "__pycache__", ".*_cache", ".hypothesis")
_GENERATED = (*_OF_TOOLS, "node_modules", "build", "dist", "*.egg-info", "*.so", "simcoll-out*")
_BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Archives:
    """What was built: the wheel of the sources, the source archive, its unpacked folder, and the wheel of that."""

    wheel: Path
    sdist: Path
    unpacked: Path
    rebuilt: Path


def build(folder: Path) -> Archives:
    """Build everything from a copy, because a build writes into its source."""
    source = folder / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*_GENERATED))
    wheel = wheel_of(source, folder / "wheel")
    _call([sys.executable, "-c", _BUILD_SDIST, str(folder)], cwd=source)
    sdist = next(folder.glob("simcoll-*.tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    unpacked = next((folder / "unpacked").iterdir())
    return Archives(wheel, sdist, unpacked, wheel_of(sdist, folder / "rebuilt"))


def wheel_of(source: Path, folder: Path, **variables: str) -> Path:
    """The wheel of a folder of sources or of a source archive, built with these variables."""
    options = ("--no-deps", "--no-index", "--no-build-isolation")
    pip("wheel", *options, "--wheel-dir", str(folder), str(source), **variables)
    return next(folder.glob("simcoll-*.whl"))


def pip(*arguments: str, **variables: str) -> None:
    """Run this environment's pip."""
    _call([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], **variables)


def _call(command: list[str], cwd: Path | None = None, **variables: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SIMCOLL_NATIVE"}
    environment |= {"SOURCE_DATE_EPOCH": BUILT, **variables}
    subprocess.run(command, cwd=cwd, env=environment, check=True, timeout=300, stdout=subprocess.DEVNULL)


def environment(folder: Path, *also: str) -> Path:
    """A virtual environment with what simcoll and ``also`` require, linked from here; simcoll is not in it."""
    home = folder / "venv"
    _call([sys.executable, "-m", "venv", "--without-pip", str(home)])
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    here = Path(sysconfig.get_path("purelib"))
    for name in {*also, *closure("simcoll", *also)}:
        for top in _top_level(name):
            if not (site / top).exists():
                (site / top).symlink_to(here / top)
    return home


def install(home: Path, archive: Path, *options: str) -> None:
    """Install one archive, or a folder, into an environment, with nothing that it requires."""
    pip("--python", str(home / "bin" / "python"), "install", "--no-deps", "--no-index", *options, str(archive))


def run_in(home: Path, cwd: Path, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of the environment, run in another folder, with none of this process's settings for Python."""
    program = [str(home / "bin" / str(command[0])), *map(str, command[1:])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SIMCOLL", "PYTEST"))}
    inherited = kept | {"OMP_NUM_THREADS": "1", "PATH": f"{home}/bin:{os.environ['PATH']}", **variables}
    return subprocess.run(program, cwd=cwd, env=inherited, text=True, capture_output=True, timeout=240, check=False)


def closure(*names: str) -> set[str]:
    """The distributions that some require, and theirs, without extras."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        for requirement in importlib.metadata.requires(queue.pop()) or []:
            needed = re.split(r"[<>=!~;\[( ]", requirement)[0]
            # An older Python, or another system, requires more.
            if re.search(r"extra ==|python_version <|sys_platform ==|platform_system ==", requirement):
                continue
            if needed not in found and _installed(needed):
                found.add(needed)
                queue.append(needed)
    return found


def _installed(name: str) -> bool:
    return bool(list(importlib.metadata.distributions(name=name)))


def _top_level(name: str) -> set[str]:
    """The files and folders that a distribution put into site-packages."""
    parts = {file.parts[0] for file in importlib.metadata.files(name) or []}
    return {part for part in parts if part not in ("..", "__pycache__")}
