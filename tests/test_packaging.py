"""Folders that install as one package: what is shipped, what it imports, and that it works from a wheel."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
SOURCES = sorted(path for folder in FOLDERS.values() for path in (ROOT / folder).glob("*.py"))
TORCH_FREE = ("backends/__init__.py", "reports/", "verifier/")
TORCH_BLOCKED = "import sys; sys.modules['torch'] = None; "


def test_every_folder_with_an_init_is_a_listed_package() -> None:
    found = (*ROOT.glob("*/__init__.py"), *ROOT.glob("examples/*/__init__.py"))
    assert {path.parent.relative_to(ROOT).as_posix() for path in found} == set(FOLDERS.values())
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_a_mapped_folder_is_flat(folder: str) -> None:
    nested = {path.parent.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
    assert nested == {Path(folder)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_are_absolute(path: Path) -> None:
    """A relative import would resolve to another module in the checkout than in the wheel."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level] == []


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if path.relative_to(ROOT).as_posix().startswith(TORCH_FREE)],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_module_that_must_not_need_torch_does_not_name_it(path: Path) -> None:
    assert "torch" not in top_level_imports(path)


def top_level_imports(path: Path) -> set[str]:
    """The first part of each module that importing this one imports."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    program = "import simcoll, sys; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    assert run_python(program).stdout.strip() == "[]"


@pytest.mark.slow
def test_every_torch_free_module_imports_where_torch_is_absent() -> None:
    free = (*TORCH_FREE, "simcoll/cli")
    modules = [module_name(path) for path in SOURCES if path.relative_to(ROOT).as_posix().startswith(free)]
    program = TORCH_BLOCKED + "".join(f"import {name}; " for name in modules)
    assert run_python(program).returncode == 0


def module_name(path: Path) -> str:
    package = next(name for name, folder in FOLDERS.items() if ROOT / folder == path.parent)
    return package if path.stem == "__init__" else f"{package}.{path.stem}"


def test_the_torch_hook_is_silent_and_needs_no_torch_where_no_mode_is_set() -> None:
    answer = run_python(TORCH_BLOCKED + "from simcoll.autoload import autoload; autoload()")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_the_torch_hook_is_registered() -> None:
    hooks = importlib.metadata.entry_points(group="torch.backends", name="simcoll")
    assert {hook.value for hook in hooks} == {"simcoll.autoload:autoload"}


def test_the_pytest_plugin_is_registered() -> None:
    hooks = importlib.metadata.entry_points(group="pytest11", name="simcoll")
    assert {hook.value for hook in hooks} == {"simcoll.pytest_plugin"}


def test_the_version_is_stated_once_in_effect() -> None:
    import simcoll

    assert PROJECT["project"]["version"] == simcoll.__version__
    assert f"## [{simcoll.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_constraints_pin_every_tool_and_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    wanted = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    wanted += PROJECT["dependency-groups"]["docs"]
    wanted += PROJECT["project"]["optional-dependencies"]["torch"]
    assert {normal(re.split(r"[<>=!~;\[ ]", requirement)[0]) for requirement in wanted} <= pinned


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Another interpreter, in a folder without the sources."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=os.sep, text=True, capture_output=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without the network from a copy, because a build writes into its source."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in FOLDERS.values():
        shutil.copytree(
            ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source"))
    return next(folder.glob("simcoll-*.whl"))


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, timeout=300)


@pytest.mark.slow
def test_the_wheel_holds_the_folders_as_one_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {f"{module_name(path).replace('.', '/')}.py" for path in SOURCES if path.stem != "__init__"}
    shipped |= {f"{package.replace('.', '/')}/__init__.py" for package in FOLDERS}
    shipped |= {f"simcoll/scenarios/{path.name}" for path in (ROOT / "examples" / "scenarios").glob("*.toml")}
    page = "simcoll/reports/page"
    shipped |= {f"{page}/{name}" for name in ("report.html.jinja", "page.css", "timeline.js", "vendor/drawing.js")}
    assert shipped | {"simcoll/py.typed", f"{page}/vendor/drawing.LICENSES.txt"} <= names
    assert not any("node_modules" in name for name in names)
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"simcoll"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.fixture(scope="module")
def clean_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what it requires, and nothing else: no torch.

    The requirements are linked from this environment, so that the test needs no network; what the wheel does not
    require is not there.
    """
    home = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    pip("--python", str(home / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    here = Path(sysconfig.get_path("purelib"))
    for name in closure("simcoll"):
        for top in top_level(name):
            (site / top).symlink_to(here / top)
    return home


def closure(name: str) -> set[str]:
    """The distributions that one requires, and theirs, without extras."""
    found: set[str] = set()
    queue = [name]
    while queue:
        for requirement in importlib.metadata.requires(queue.pop()) or []:
            needed = re.split(r"[<>=!~;\[( ]", requirement)[0]
            # An older Python alone requires tomli.
            if not re.search("extra ==|python_version <", requirement) and needed not in found:
                found.add(needed)
                queue.append(needed)
    return found


def top_level(name: str) -> set[str]:
    """The files and folders that a distribution put into site-packages."""
    parts = {file.parts[0] for file in importlib.metadata.files(name) or []}
    return {part for part in parts if part not in ("..", "__pycache__")}


@pytest.mark.slow
def test_the_wheel_works_in_another_folder_without_torch(clean_environment: Path, tmp_path: Path) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        program = [str(clean_environment / "bin" / command[0]), *command[1:]]
        return subprocess.run(program, cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False)

    assert run("python", "-c", "import torch").returncode != 0
    version = run("simcoll", "--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert PROJECT["project"]["version"] in version.stdout
    demo = run("simcoll", "demo")
    assert demo.returncode == 0, demo.stderr
    assert "SC104" in demo.stdout
    assert run("python", "-m", "simcoll", "--version").stdout == version.stdout
    assert run("simcoll", "simulate", "SC104", "--check").returncode == 0
    assert list(tmp_path.iterdir()) == []
