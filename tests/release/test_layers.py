"""The order of the packages: each imports those above it in the list, never those below, not even for types."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.release.test_packaging import ROOT, SOURCES, module_name

LAYERS = (
    "simcoll.public_paths",
    "simcoll.errors",
    "simcoll.spec",
    "simcoll.core",
    "simcoll.values",
    "simcoll.backends",
    "simcoll.verifier.findings",
    "simcoll.verifier.flight_recorder",
    "simcoll.verifier.program_text",
    "simcoll.verifier.agreement",
    "simcoll.verifier.values",
    "simcoll.verifier.halts",
    "simcoll.verifier.causes",
    "simcoll.verifier.views",
    "simcoll.verifier",
    "simcoll.reports",
    "simcoll.blackbox",
    "simcoll.recorder",
    "simcoll.proof",
    "simcoll.cuda",
    "simcoll.wrapper",
    "simcoll.autoload",
    "simcoll.topology",
    "simcoll.estimator.flow",
    "simcoll.estimator",
    "simcoll.launch.nodes",
    "simcoll.launch",
    "simcoll.backends.engine",
    "simcoll.backends.simulated",
    "simcoll.backends.threaded",
    "simcoll.pricing",
    "simcoll.pricing.views",
    "simcoll.dryrun.rank",
    "simcoll.dryrun",
    "simcoll.simulation",
    "simcoll.plan",
    "simcoll.live",
    "simcoll.testing",
    "simcoll.callbacks",
    "simcoll.cli",
)
"""From the bottom to the top: packages, and the modules of ``simcoll`` itself that others import. Its ``__init__`` and
``__main__`` are the public face: whoever wants a name imports it there."""

PUBLIC_TYPE = ("simcoll.errors", "simcoll.verifier.findings.finding")
"""The one import against the order, for a type: what ``CollectiveMismatchError.findings`` holds is known to a user's
type checker, and errors are raised in every package."""

MODULES = {module_name(path): path for path in SOURCES}
MOST_MODULES = 25


def package_of(module: str) -> str:
    return module if MODULES[module].stem == "__init__" else module.rpartition(".")[0]


TESTS = Path(__file__).parents[1]
PACKAGES = [layer for layer in LAYERS if package_of(layer) == layer]
MIRRORED = [
    path
    for package in PACKAGES
    for path in sorted((TESTS / package.partition(".")[2].replace(".", "/")).glob("test_*.py"))
]


def layer_of(module: str) -> str:
    return module if module in LAYERS else package_of(module)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Each module of simcoll that a module imports, with the line, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in named:
            found = name if name in MODULES else name.rpartition(".")[0]
            if found in MODULES:
                yield node.lineno, found


def test_every_package_has_its_layer() -> None:
    assert {layer_of(module) for module in MODULES} == {"simcoll", *LAYERS}
    assert {module for module in MODULES if layer_of(module) == "simcoll"} == {"simcoll", "simcoll.__main__"}


def test_a_module_imports_from_its_own_layer_and_from_those_above_it_in_the_list() -> None:
    place = {layer: number for number, layer in enumerate(LAYERS)}
    below = [
        f"{path.relative_to(ROOT)}:{line}: {other}"
        for module, path in MODULES.items()
        if layer_of(module) != "simcoll"
        for line, other in imports(path)
        if layer_of(other) != "simcoll" and place[layer_of(other)] > place[layer_of(module)]
        if (module, other) != PUBLIC_TYPE
    ]
    assert below == []


def test_the_public_face_imports_no_package_before_a_name_is_asked_for() -> None:
    """``python -m simcoll`` alone does: it is the command line."""
    eager = [
        (module, getattr(node, "module", None) or node.names[0].name)
        for module, path in MODULES.items()
        if package_of(module) == "simcoll" and module != "simcoll.__main__"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(eager) > 2
    assert [(module, name) for module, name in eager if name in MODULES and package_of(name) != "simcoll"] == []


def test_no_package_has_more_modules_than_a_reader_takes_in() -> None:
    sizes = Counter(package_of(module) for module in MODULES if MODULES[module].stem != "__init__")
    assert {package: size for package, size in sizes.items() if size > MOST_MODULES} == {}


def test_a_package_says_in_two_sentences_or_more_what_lives_there() -> None:
    texts = {one: ast.get_docstring(ast.parse(MODULES[one].read_text(encoding="utf-8"))) or "" for one in PACKAGES}
    sentences = {one: len(re.findall(r"\w\W*[.](?=\s|$)", text)) for one, text in texts.items()}
    assert [one for one, text in texts.items() if len(text.split()) <= 8 or sentences[one] < 2] == []


FRAMEWORKS_NAME = {"StepCallback"}
"""What each framework's module of ``simcoll.callbacks`` calls its one class, so that programs read alike."""


def test_the_name_of_a_public_class_means_one_thing() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1 and name not in FRAMEWORKS_NAME}
    assert twice == {}


WHOLE_PACKAGE = {"test_nccl_hangs", "test_on_gpu"}
"""Tests of the package ``cuda`` with everything above it, on a double of the CUDA libraries or on a GPU."""


def test_a_test_of_a_package_is_named_after_a_module() -> None:
    """``test_MODULE.py`` or ``test_MODULE_ASPECT.py``, in the folder of the tests that mirrors the module's."""
    assert len(MIRRORED) > 200
    assert [str(test.relative_to(TESTS)) for test in MIRRORED if not mirrors(test)] == []


def mirrors(test: Path) -> bool:
    package = f"simcoll.{'.'.join(test.parent.relative_to(TESTS).parts)}"
    modules = {name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == package}
    name = test.stem.removeprefix("test_")
    parts = name.split("_")
    beginnings = {"_".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return bool(beginnings & (modules | {package.rpartition(".")[2]})) or test.stem in WHOLE_PACKAGE
