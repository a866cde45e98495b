"""Folders that install as one package: what is shipped, and what it imports."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
SOURCES = sorted(
    path
    for folder in ("simcoll", "backends", "reports", "verifier")
    for path in (ROOT / folder).rglob("*.py")
    if "node_modules" not in path.parts
)
TORCH_FREE = ("backends/__init__.py", "reports/", "verifier/")
NEEDS_TORCH = ("simcoll/cli/dry_run.py",)  # what preflight imports once torch was found
TORCH_BLOCKED = "import sys; sys.modules['torch'] = None; "


def test_every_folder_with_an_init_is_a_listed_package() -> None:
    found = {module_name(path) for path in SOURCES if path.name == "__init__.py"} | {"simcoll.scenarios"}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(found)


def test_every_module_lies_in_a_package() -> None:
    assert {path.parent for path in SOURCES if not (path.parent / "__init__.py").is_file()} == set()


def test_imports_are_absolute() -> None:
    """A relative import would resolve to another module in the checkout than in the wheel."""
    relative = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_a_module_that_must_not_need_torch_does_not_name_it() -> None:
    free = [path for path in SOURCES if path.relative_to(ROOT).as_posix().startswith(TORCH_FREE)]
    assert len(free) > 90
    assert [path for path in free if "torch" in top_level_imports(path)] == []


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
    free = (*TORCH_FREE, "simcoll/cli/")
    names = {path.relative_to(ROOT).as_posix(): module_name(path) for path in SOURCES}
    modules = [name for path, name in names.items() if path.startswith(free) and path not in NEEDS_TORCH]
    program = TORCH_BLOCKED + "".join(f"import {name}; " for name in modules)
    assert run_python(program).returncode == 0


def module_name(path: Path) -> str:
    top, _, rest = path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__").partition("/")
    package = next(name for name, folder in FOLDERS.items() if folder == top)
    return f"{package}.{rest.replace('/', '.')}" if rest else package


def test_the_torch_hook_is_silent_and_needs_no_torch_where_no_mode_is_set() -> None:
    answer = run_python(TORCH_BLOCKED + "from simcoll.autoload import autoload; autoload()")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_the_torch_hook_is_registered() -> None:
    hooks = importlib.metadata.entry_points(group="torch.backends", name="simcoll")
    assert {hook.value for hook in hooks} == {"simcoll.autoload:autoload"}


def test_the_pytest_plugin_is_registered() -> None:
    hooks = importlib.metadata.entry_points(group="pytest11", name="simcoll")
    assert {hook.value for hook in hooks} == {"simcoll.testing.plugin"}


def test_the_version_is_stated_once_in_effect() -> None:
    import simcoll

    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "simcoll.__version__"}}
    assert importlib.metadata.version("simcoll") == simcoll.__version__
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
