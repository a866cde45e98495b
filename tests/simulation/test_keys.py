"""The keys of a scenario file: documented, read, and each refused where it is misspelt."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from simcoll.simulation.backends import run_simulated
from simcoll.simulation.keys import KEYS, KINDS
from simcoll.simulation.operations import ACTIONS, VERBS, keys_of
from simcoll.simulation.rank_steps import check_steps
from simcoll.simulation.report import unmet
from simcoll.simulation.toml_table import ScenarioTable
from tests.support.scenarios import parse_scenario

DOCS = Path(__file__).parents[2] / "docs"
EVERYTHING = """
title = "t"
description = "d"
ranks = 8
sends = "either"
seed = 3
buffers = [{ name = "a", shape = 8, dtype = "float64" }, { name = "b", of = "a", rows = [0, 4] }]
groups = [{ name = "g", ranks = "0-3", made_by = "0-7", variants = [{ on = 7, ranks = "0-3" }] }]
faults = [
    { kind = "wrong-root", ranks = 1, call = "n", iteration = 1, root = 2 },
    { kind = "slow-rank", ranks = 1, at = 1, seconds = 0.1 },
    { kind = "slow-link", between = [0, 1], factor = 0.5, latency = 1e-6 },
    { kind = "crash", ranks = 2, call = "n", exception = "ValueError", message = "m" },
    { kind = "exit", ranks = 3, call = "n", exit_code = 4 },
]
calls = [
    { name = "n", op = "broadcast", ranks = "0-3", root = 1, group = "g", async = true, order = [0], device = "cpu" },
    { op = "wait", call = "n" },
    { op = "compute", seconds = 1 },
    { op = "all_gather", buffer = "b", output = "a", parts = [4], overrides = [{ ranks = 1, dtype = "int8" }] },
    { op = "all_to_all_single", shape = [8], input_splits = [8], output_splits = [8] },
    { op = "all_reduce_coalesced", shapes = [[4], 5], reduce_op = "max", dtype = "float64" },
    { op = "isend", peer = "+1", tag = 1 },
    { op = "parameters", parameters = [{ name = "w", shape = 3, dtype = "float64", trained = false }] },
    { repeat = 2, calls = [{ op = "barrier" }] },
]
[topology]
gpu = "h100"
nodes = 1
gpus_per_node = 8
nics_per_node = 8
nic_gbps = 400
fabric = "ib"
nvlink_domain = 8
[expect]
findings = [{ code = "SC104", culprits = 1, ranks = [0, 1], sequence = 1, group = "world", severity = "error" }]
seconds = 1.0
within = 0.5
"""


def test_the_page_is_what_the_parser_knows() -> None:
    page = runpy.run_path(str(DOCS / "scenario_keys.py"))["page"]()
    assert (DOCS / "scenario-keys.md").read_text(encoding="utf-8") == page, "run: make pages"


def test_every_key_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, set[str]] = {}
    for name in ("text", "whole", "number", "flag", "ranks", "shape", "shapes", "wholes", "raw", "tables", "table"):
        method = getattr(ScenarioTable, name)

        def noted(self, key, *args, _method=method, **kwargs):
            read.setdefault(self.kind, set()).add(key)
            return _method(self, key, *args, **kwargs)

        monkeypatch.setattr(ScenarioTable, name, noted)
    parse_scenario(EVERYTHING)
    for kind in [kind for kind in KINDS if kind.startswith("wrong")]:
        key = min(KINDS[kind][0])
        value = {"op": "'barrier'", "shape": "1", "dtype": "'int8'", "reduce_op": "'max'", "group": "'world'"}.get(
            key, "1"
        )
        value = "[1]" if key.endswith("splits") else value
        parse_scenario(
            f"ranks = 1\ncalls = [{{ op = 'barrier' }}]\n"
            f"faults = [{{ kind = '{kind}', ranks = 0, at = 1, {key} = {value} }}]"
        )
    for text in ("preset = 'dgx-h100'", "file = 'x.json'"):
        parse_scenario(f"ranks = 1\ncalls = []\n[topology]\n{text}")
    unread = {kind: {key.name for key in keys} - read.get(kind, set()) for kind, keys in KEYS.items()}
    # Of an override and of a fault the same code reads what it reads of a call.
    stated = read["calls"]
    unread = {
        kind: keys - (stated if kind in ("calls.overrides", "faults") else set()) for kind, keys in unread.items()
    }
    assert unread == {kind: set() for kind in KEYS}


@pytest.mark.parametrize("op", [*VERBS, *ACTIONS])
def test_what_an_op_takes_are_keys_of_a_call(op: str) -> None:
    assert keys_of(op) <= {key.name for key in KEYS["calls"]}


def test_keys_of_a_fault_are_keys() -> None:
    known = {key.name for key in KEYS["faults"]}
    assert all(keys <= known for keys, _ in KINDS.values())


BLOCKS = re.findall(r"```toml\n(.*?)```", (DOCS / "scenarios.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", BLOCKS, ids=range(len(BLOCKS)))
def test_the_examples_of_the_page_do_what_they_expect(text: str) -> None:
    scenario = parse_scenario(text)
    check_steps(scenario)
    topology = None if scenario.topology is None else scenario.topology.build()
    run = run_simulated(scenario, topology, seed=0, sends=scenario.sends)
    assert scenario.expect is not None
    assert unmet(scenario, run.report, run.seconds) == []
