"""Plays a scenario on simulated ranks: numpy arrays, a :class:`~simcoll.backends.simulated.comm.Comm` per group.

The slow links of the scenario are applied to its topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from simcoll.backends.simulated.comm import Comm
from simcoll.backends.simulated.requests import Request
from simcoll.simulation.operations import Verb
from simcoll.simulation.player import JoinedGroup, PlayedCall, Player, Result
from simcoll.simulation.scenario import Scenario, ScenarioLink, ScenarioStep
from simcoll.spec.call import ANY_SOURCE
from simcoll.spec.semantics import Array

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology


def with_slow_links(scenario: Scenario, topology: Topology | None) -> Topology | None:
    """A copy of a topology with the paths slowed that the scenario's faults name.

    Raises ScenarioError where there is no topology, or where it has no such rank.
    """
    if not scenario.slow_links:
        return topology
    if topology is None:
        raise scenario.error(scenario.slow_links[0].line, "slow-link: there is no topology; state one in [topology]")
    slowed = topology.copy()
    for link in scenario.slow_links:
        for edge in _path(scenario, link, topology):
            attributes = dict(slowed.edges[edge])
            attributes["bandwidth"] *= link.factor
            attributes["latency"] += link.latency
            slowed.add_edge(*edge, **attributes)
    return slowed


def _path(scenario: Scenario, link: ScenarioLink, topology: Topology) -> set[tuple[object, object]]:
    """The links that messages between the two ranks use, in both directions; one of several equal ones."""
    from simcoll.estimator.flow.routes import router

    prepared = router(topology)
    network = prepared.network
    if max(link.between) >= len(network.ranks):
        there = f"the topology has {len(network.ranks)} ranks, none is number {max(link.between)}"
        raise scenario.error(link.line, f"slow-link: {there}")
    ends = network.ranks[np.array(link.between)]
    members = prepared.fabric.member[prepared.routes(ends, ends[::-1]).link]
    return {(network.nodes[network.source[edge]], network.nodes[network.target[edge]]) for edge in members}


def play(scenario: Scenario, comm: Comm) -> list[Result]:
    """Play one rank's steps and return the results of its calls; raises what the calls and the faults raise."""
    player = NumpyPlayer(scenario, comm)
    player.play()
    return player.results


class DeviceArray(np.ndarray[Any, Any]):
    """An array with a declared device."""

    device: Any = "cpu"


class NumpyPlayer(Player[Array]):
    """One rank on numpy arrays."""

    def __init__(self, scenario: Scenario, comm: Comm) -> None:
        super().__init__(scenario, comm.rank)
        self._comm = comm

    def world(self) -> JoinedGroup:
        """The group of all ranks."""
        return _joined(self._comm)

    def tensor(self, shape: tuple[int, ...], dtype: str, device: str, order: tuple[int, ...] | None) -> Array:
        """An array filled with the rank plus one."""
        if order is None or len(order) != len(shape):
            array = np.full(shape, self.rank + 1, dtype)
        else:
            array = np.full([shape[axis] for axis in order], self.rank + 1, dtype).transpose(np.argsort(order))
        if device == "cpu":
            return array
        claimed = array.view(DeviceArray)
        claimed.device = device
        return claimed

    def rows(self, whole: Array, first: int, end: int) -> Array:
        """Some rows of an array, in the same memory."""
        return whole[first:end]

    def total(self, tensor: Array) -> complex:
        """The sum over an array."""
        return complex(np.asarray(tensor).astype(np.complex128).sum())

    def call(self, played: PlayedCall[Array]) -> object:
        """Make a call; returns the request of an asynchronous one."""
        step, verb = played.step, played.verb
        spec = verb.spec
        keywords: dict[str, Any] = {}
        if "reduce_op" in spec.agree:
            keywords["reduce_op"] = step.reduce_op
        if "root" in spec.agree:
            keywords["root"] = step.root
        if "tag" in spec.agree:
            keywords |= {"peer": played.peer, "tag": step.tag}
        if not verb.spelling.listed:
            keywords |= {
                name: getattr(step, name) for name in ("input_splits", "output_splits") if name in spec.law_reads
            }
        spelling = "recv_anysource" if played.peer == ANY_SOURCE and verb.method == "recv" else verb.method
        comm = _comm(played.group)
        make = comm.post if step.asynchronous or verb.asynchronous else comm.call
        return make(spelling, played.role("inputs"), played.role("outputs"), **keywords)

    def call_as_non_member(self, step: ScenarioStep, verb: Verb) -> None:
        """Make a call on a group that this rank is no member of."""
        self._comm.outside(verb.name)

    def wait(self, work: object) -> None:
        """Wait for a request."""
        cast(Request, work).wait()

    def write(self, tensor: Array) -> None:
        """Write to an array."""
        tensor += 1

    def spoil_next_result(self) -> None:
        """Have the next call bring a wrong element."""
        self._comm.spoil_next_result()

    def compute(self, seconds: float) -> None:
        """Compute for so long in virtual time."""
        self._comm.compute(seconds)

    def parameters(self, step: ScenarioStep) -> None:
        """Declare a model's parameters."""
        named = {each.name: np.zeros(each.shape, each.dtype) for each in step.parameters}
        frozen = [each.name for each in step.parameters if not each.trained]
        if (joined := self._joined[step.group]) is not None:
            _comm(joined).state_parameters(named, frozen)

    def new_group(self, ranks: Sequence[int], name: str) -> JoinedGroup | None:
        """Make a group of global ranks."""
        made = self._comm.new_group(list(ranks), name)
        return None if made is None else _joined(made)

    def destroy_group(self, joined: JoinedGroup) -> None:
        """Destroy a group."""
        _comm(joined).destroy()

    def hang(self) -> NoReturn:
        """Never return."""
        self._comm.hang()
        raise RuntimeError("a rank that hangs goes on")


def _joined(comm: Comm) -> JoinedGroup:
    return JoinedGroup(comm, comm.rank, comm.size)


def _comm(joined: JoinedGroup) -> Comm:
    return cast(Comm, joined.handle)
