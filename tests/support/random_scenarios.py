"""Scenarios drawn at random from a seed: right ones, and ones with a fault."""

from __future__ import annotations

import json
import random
from typing import TypeAlias

from simcoll.simulation.operations import VERBS, keys_of
from simcoll.spec.table import Kind

_COLLECTIVES = [name for name, verb in VERBS.items() if verb.spec.kind is not Kind.POINT_TO_POINT]
_FAULTS = (
    "crash",
    "exit",
    "skip",
    "extra",
    "swap",
    "wrong-dtype",
    "wrong-shape",
    "wrong-reduce-op",
    "wrong-root",
    "wrong-op",
)
_STATED = {
    "wrong-dtype": ("dtype", "int64"),
    "wrong-shape": ("shape", [9]),
    "wrong-reduce-op": ("reduce_op", "max"),
    "wrong-root": ("root", 1),
    "wrong-op": ("op", "barrier"),
}


Table: TypeAlias = "dict[str, object]"


def random_scenario(seed: int) -> str:
    """The text of a scenario; every second one has a fault."""
    chance = random.Random(seed)
    ranks = chance.randint(2, 4)
    text = f"ranks = {ranks}\n"
    groups = ["world"]
    if ranks > 2:
        text += f'[[groups]]\nname = "front"\nranks = {json.dumps(list(range(ranks - 1)))}\n'
        groups.append("front")
    calls = []
    for number in range(chance.randint(2, 7)):
        call, more = _call(chance, f"c{number}", chance.choice(groups), ranks)
        calls.append(call)
        text += "".join(map(_table, [call, *more]))
    return text + (_fault(chance, calls, ranks) if seed % 2 else "")


def _call(
    chance: random.Random, name: str, group: str, ranks: int
) -> tuple[dict[str, object], list[dict[str, object]]]:
    size = ranks - (group == "front")
    if chance.random() < 0.2:
        tag = chance.randint(0, 2)
        return {"name": name, "op": "isend", "group": group, "peer": "+1", "tag": tag}, [
            {"op": "recv", "group": group, "peer": "-1", "tag": tag},
            {"op": "wait", "call": name},
        ]
    op = chance.choice(_COLLECTIVES)
    takes = keys_of(op)
    call: dict[str, object] = {"name": name, "op": op, "group": group}
    if "shape" in takes:
        call["shape"] = [size * chance.randint(1, 3), *chance.choice([[], [2], [1, 3]])]
        call["dtype"] = chance.choice(["float32", "float64", "int32", "uint8"])
    if "reduce_op" in takes:
        call["reduce_op"] = chance.choice(["sum", "max", "min"])
    if "root" in takes:
        call["root"] = chance.randrange(size)
    if "async" in takes and chance.random() < 0.3:
        return {**call, "async": True}, [{"op": "wait", "call": name}]
    return call, []


def _fault(chance: random.Random, calls: list[dict[str, object]], ranks: int) -> str:
    call = chance.choice(calls)
    fitting = [kind for kind in _FAULTS if kind not in _STATED or _STATED[kind][0] in keys_of(str(call["op"]))]
    kind = chance.choice(fitting)
    stated = dict([_STATED[kind]]) if kind in _STATED else {}
    fault = {"kind": kind, "ranks": chance.randrange(ranks - 1), "call": call["name"], **stated}
    return _table(fault, "faults")


def _table(values: dict[str, object], name: str = "calls") -> str:
    return f"[[{name}]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
