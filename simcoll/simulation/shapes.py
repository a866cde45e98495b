"""The number and shapes of the tensors of a step, from its row and its c10d method.

A scenario gives one shape: that of the tensor where a call works in place, of one rank's part where one side has a part
for each rank, and of the whole where both sides do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from simcoll.simulation.operations import VERBS, Verb
from simcoll.simulation.scenario import ScenarioStep
from simcoll.spec.table import CollectiveSpec

Shape: TypeAlias = "tuple[int, ...]"
Shapes: TypeAlias = "tuple[Shape, ...]"

_SPLITS: Mapping[str, str] = {"inputs": "input_splits", "outputs": "output_splits"}


def shapes_of(step: ScenarioStep, group_rank: int, group_size: int) -> dict[str, Shapes]:
    """The shapes of each role (``inout``, ``inputs``, ``outputs``) that the call takes, by role."""
    verb = VERBS[step.op]
    return {role: _role(step, verb, role, group_rank, group_size) for role in verb.spelling.buffers}


def own_role(verb: Verb) -> str:
    """The role that a scenario's ``buffer`` and ``shape`` describe; empty where a call takes no tensor."""
    if verb.spec.measured is None:
        return ""
    return "inout" if verb.spec.in_place else verb.spec.measured


def explicit_splits(verb: Verb) -> tuple[str, ...]:
    """The splits that are arguments of the call; a list of tensors implies its own."""
    return () if verb.spelling.listed else tuple(sorted(verb.spec.law_reads & set(_SPLITS.values())))


def _role(step: ScenarioStep, verb: Verb, role: str, group_rank: int, group_size: int) -> Shapes:
    spec = verb.spec
    if role not in spec.divided:
        return step.shapes
    if not _holds(spec, step.root, group_rank):
        return ()
    [shape] = step.shapes[:1]
    if verb.spelling.listed:
        return _listed(step, role, shape, group_size)
    if len(spec.divided) > 1:
        splits = getattr(step, _SPLITS[role])
        # The shape is that of the input; the size of the output follows from the splits.
        return ((sum(splits), *shape[1:]) if splits and role == "outputs" else shape,)
    return ((shape[0] * group_size, *shape[1:]) if shape else (group_size,),)


def _holds(spec: CollectiveSpec, root: int, group_rank: int) -> bool:
    """Whether this rank has the divided side: only the root does, where there is one."""
    return spec.rooted is None or group_rank == root


def _listed(step: ScenarioStep, role: str, shape: Shape, group_size: int) -> Shapes:
    rows = getattr(step, _SPLITS[role]) or step.parts
    if rows is None:
        return (shape,) * group_size
    return tuple((each, *shape[1:]) for each in rows)
