"""Write PyTorch's own tests, kept as fenced code in documents, into a folder from which they run unedited.

Usage: ``python extract_pytorch_tests.py DOCUMENTS FOLDER``. A document counts when a line of its head names one of
the tests; its first Python block is the test. The tests import ``LOOPBACK`` from ``test_c10d_common``, a module of
PyTorch's test folder that no wheel carries, so a one-line stand-in is written beside them. Exits 2 if one is missing.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

TESTS = ("test_pg_wrapper.py", "test_dist2.py", "test_multi_threaded_pg.py")
STAND_IN = ("test_c10d_common.py", 'LOOPBACK = "lo"\n')
HEAD_CHARACTERS = 2000
PYTHON_BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main(arguments: list[str]) -> int:
    """Extract; the exit code says whether every test was found."""
    if len(arguments) != 2:
        print("usage: extract_pytorch_tests.py DOCUMENTS FOLDER", file=sys.stderr)
        return 2
    documents, folder = Path(arguments[0]), Path(arguments[1])
    found = extract(documents)
    if missing := sorted(set(TESTS) - set(found)):
        print(f"extract_pytorch_tests: no document in {documents} holds {', '.join(missing)}", file=sys.stderr)
        return 2
    write(folder, {**found, STAND_IN[0]: STAND_IN[1]})
    return 0


def extract(documents: Path) -> dict[str, str]:
    """The source of each test that a document in the folder holds, by file name."""
    found: dict[str, str] = {}
    for document in sorted(documents.glob("*.txt")):
        text = document.read_text(encoding="utf-8")
        name = _named_in(text[:HEAD_CHARACTERS])
        if name is not None and (source := _first_program(text)) is not None:
            found.setdefault(name, source)
    return found


def _named_in(head: str) -> str | None:
    return next((name for name in TESTS if re.search(rf"[/\\]{re.escape(name)}\b", head)), None)


def _first_program(text: str) -> str | None:
    """The first Python block that parses; a document cut short has none."""
    for match in PYTHON_BLOCK.finditer(text):
        try:
            ast.parse(match.group(1))
        except SyntaxError:
            continue
        return match.group(1)
    return None


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files, each only if it is not there already in this form."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
