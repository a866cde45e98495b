"""Plays a page from top to bottom in a fresh folder that holds a copy of ``examples/``.

=========  ==============================================================================================
python     all such blocks are one module, run by pytest at the last of them; ``file``: written to that file
console    run, and compared with the output that is shown; see ELSEWHERE for what is not run
text       right after a console block: its output; anywhere else it needs a reason
data       toml, json, yaml, xml, ini: parsed; ``file``: written to that file
bash       must parse; ``file``: written to that file
=========  ==============================================================================================

Any other block is a fault: nothing on a page escapes.
"""

from __future__ import annotations

import configparser
import functools
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import yaml

from tests.support.page_output import difference
from tests.support.page_shell import LIMIT, Shell
from tests.support.pages import Block, PageError, read_page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

PARSERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "json": json.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "xml": ElementTree.fromstring,
    "ini": lambda text: configparser.ConfigParser().read_string(text),
}

DIRECTIVES = frozenset({"{toctree}", "{figure}", "{image}", "{eval-rst}"})
"""What the build of the site makes and checks."""

NEEDS = {
    **{name: (name,) for name in ("accelerate", "deepspeed", "lightning", "ray", "torchtitan", "transformers")},
    "chromium": ("chromium", "--version"),
    "docker": ("docker", "version"),
    "mpi": ("mpirun", "--version"),
    "slurm": ("sinfo", "--noheader"),
}
"""What a block may need, and by what it is there: a module, or a command that exits with 0 (where a daemon answers)."""


def missing(block: Block) -> tuple[str, ...]:
    """What a block needs and this machine does not have."""
    return tuple(name for name in block.needs if name in NEEDS and not _is_there(*NEEDS[name]))


@functools.cache
def _is_there(program: str, *arguments: str) -> bool:
    if not arguments:
        return importlib.util.find_spec(program) is not None
    if shutil.which(program) is None:
        return False
    try:
        answer = subprocess.run([program, *arguments], capture_output=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is not as the page says, and the line of the page."""

    line: int
    message: str


def play(page: Path, limit: float = LIMIT) -> list[Fault]:
    """Play a page; its faults, by line."""
    # The path of pytest's own folders is so long that a report breaks it in two.
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        return _played_in(Path(folder).resolve(), page, limit)


def _played_in(folder: Path, page: Path, limit: float) -> list[Fault]:
    try:
        blocks = read_page(page)
    except PageError as error:
        return [Fault(0, str(error))]
    here = folder / "page"
    shutil.copytree(ROOT / "examples", here / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shell = Shell(here, folder / "home", limit)
    try:
        faults = list(_Player(page, blocks, here, shell).faults())
    finally:
        left = shell.close()
    return faults + [Fault(0, f"a process outlives the page: {words}") for words in left]


class _Player:
    def __init__(self, page: Path, blocks: tuple[Block, ...], folder: Path, shell: Shell) -> None:
        self._blocks, self._folder, self._shell = blocks, folder, shell
        self._module = [block for block in blocks if block.language == "python" and not _is_apart(block)]
        self._module_name = "test_page_" + re.sub(r"\W", "_", page.stem.lower())
        self._printed = ""
        self._skipped = False

    def faults(self) -> Iterator[Fault]:
        for block in self._blocks:
            yield from self._noted(block)
            if missing(block) or "not run" in block.notes:
                self._skipped = True
                if block.language == "python":
                    yield from _compiled(block)
            elif "file" in block.notes:
                yield from self._written(block)
            else:
                yield from self._played(block)

    def _noted(self, block: Block) -> Iterator[Fault]:
        for name in set(block.needs) - set(NEEDS):
            yield Fault(block.line, f"`needs: {name}` is unknown; there are {sorted(NEEDS)}")
        if "exit" in block.notes and block.language != "console":
            yield Fault(block.line, f"`exit` is for console blocks, this one is {block.language!r}")
        if "exit" in block.notes and not block.notes["exit"].isdigit():
            yield Fault(block.line, f"`exit: {block.notes['exit']}`, expected a number")

    def _written(self, block: Block) -> Iterator[Fault]:
        path = (self._folder / block.notes["file"]).resolve()
        if not path.is_relative_to(self._folder) or block.language not in {*PARSERS, "python", "bash", "text"}:
            yield Fault(block.line, f"a {block.language!r} block cannot be the file {block.notes['file']}")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            yield from _compiled(block)

    def _played(self, block: Block) -> Iterator[Fault]:
        if block.language == "console":
            yield from self._typed(block)
        elif block.answers:
            if not self._skipped and (wrong := difference(block.text, self._printed)):
                yield Fault(block.line, f"the output of the console block above is not this:\n{wrong}")
        elif block.language == "python":
            if block is self._module[-1]:
                yield from self._run_module(block)
        elif block.language in PARSERS:
            yield from _parsed(block)
        elif block.language == "bash":
            yield from _parsed_by_bash(block)
        elif block.language == "text":
            yield Fault(
                block.line, "text that is no output: put `<!-- run: COMMAND -->` or `<!-- not run: WHY -->` above"
            )
        elif block.language not in DIRECTIVES:
            yield Fault(block.line, f"no rule for a block in {block.language or 'no language'}")

    def _typed(self, block: Block) -> Iterator[Fault]:
        self._printed, self._skipped, codes = "", False, []
        for line, command, shown in commands(block):
            if not command:
                yield Fault(line, f"expected a line that begins with `$ `, got {shown!r}")
            elif (elsewhere := run_elsewhere(command)) is not None:
                if elsewhere or shown:
                    yield Fault(line, elsewhere or f"`{command}` is not run here, so its output cannot be shown")
            else:
                ran = self._shell.run(command)
                self._printed += ran.output
                codes.append(ran.code)
                yield from _judged(block, line, command, shown, ran.code, ran.output)
        if "exit" in block.notes and not any(codes):
            yield Fault(block.line, f"no command exits with {block.notes['exit']}")

    def _run_module(self, block: Block) -> Iterator[Fault]:
        """A test of the page has the lines of the page."""
        lines = [""] * block.line
        for part in self._module:
            lines += [""] * (part.line - len(lines))
            lines[part.line :] = part.text.splitlines()
        text = "\n".join([*lines, "", "", "def test_the_module_is_imported():", "    pass", ""])
        (self._folder / f"{self._module_name}.py").write_text(text, encoding="utf-8")
        options = "-q --tb=short -p no:cacheprovider --strict-markers -c /dev/null --rootdir ."
        ran = self._shell.run(f"python -m pytest {options} {self._module_name}.py")
        if ran.code != 0:
            place = re.search(rf"^(?:E\s+File \"\S*)?{self._module_name}\.py\D{{1,8}}(\d+)", ran.output, re.MULTILINE)
            line = int(place[1]) if place else block.line
            yield Fault(line, f"the python blocks of the page fail (its lines are the page's):\n{ran.output}")


def commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """The line, the command and the output below it, of each command of a console block; no command: no `$ `."""
    if "run" in block.notes:
        yield block.line, block.notes["run"], ""
        return
    line, command, shown, open_ended = block.line + 1, "", [""], False
    for number, text in enumerate(block.text.splitlines(), block.line + 1):
        if text.startswith("$ ") and not open_ended:
            if command or any(shown):
                yield line, command, "\n".join(shown).strip("\n")
            line, command, shown = number, text[2:], []
        elif open_ended:
            command += "\n" + text
        else:
            shown.append(text)
            continue
        open_ended = text.endswith("\\")
    yield line, command, "\n".join(shown).strip("\n")


def run_elsewhere(command: str) -> str | None:
    """ELSEWHERE: commands that no page runs. None: it is run here; else what is wrong with it, or an empty string.

    * ``make TARGET``: CI runs or has run these targets; here they only have to exist.
    * ``pip install``: test_packaging.py installs, without an index.
    """
    words = [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if words[:1] == ["make"]:
        targets = {word for word in words[1:] if not word.startswith("-")}
        unknown = targets - set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
        return f"there is no make target {', '.join(sorted(unknown))}" if unknown else ""
    if re.match(r"(\S*python3? -m )?\S*pip install ", " ".join(words) + " "):
        return ""
    return None


def _judged(block: Block, line: int, command: str, shown: str, code: int | None, output: str) -> Iterator[Fault]:
    expected = {0, int(block.notes.get("exit", "0"))}
    if code is None:
        yield Fault(line, f"`{command}` took too long; it printed\n{output}")
    elif code not in expected:
        yield Fault(line, f"`{command}` exits with {code}, expected {max(expected)}; it printed\n{output}")
    elif wrong := difference(shown, output):
        yield Fault(line, f"`{command}` does not print what is shown:\n{wrong}")


def _is_apart(block: Block) -> bool:
    return bool(missing(block)) or "not run" in block.notes or "file" in block.notes


def _compiled(block: Block) -> Iterator[Fault]:
    try:
        compile("\n" * block.line + block.text, "page", "exec")
    except SyntaxError as error:
        yield Fault(error.lineno or block.line, f"it is no Python: {error}")


def _parsed(block: Block) -> Iterator[Fault]:
    try:
        PARSERS[block.language](block.text)
    except (ValueError, ElementTree.ParseError, configparser.Error, yaml.YAMLError) as error:
        yield Fault(block.line, f"it is no {block.language}: {error}")


def _parsed_by_bash(block: Block) -> Iterator[Fault]:
    told = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    if told.returncode:
        yield Fault(block.line, f"it is no bash: {told.stderr}")
