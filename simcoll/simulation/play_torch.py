"""Plays a scenario on torch.distributed: the same list of steps, by the functions that a user's program calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist

from simcoll.simulation.operations import Verb
from simcoll.simulation.player import JoinedGroup, PlayedCall, Player, explicit_splits
from simcoll.simulation.scenario import Scenario, ScenarioStep
from simcoll.spec.call import ANY_SOURCE
from simcoll.values.faults import double_an_element, due_faults


def play_on_torch(scenario: Scenario) -> TorchPlayer:
    """Play this process's (or thread's) rank of the default group; the player has its tensors and its results."""
    player = TorchPlayer(scenario, dist.get_rank())
    player.play()
    return player


class TorchPlayer(Player[torch.Tensor]):
    """One rank of torch.distributed."""

    def world(self) -> JoinedGroup:
        """The default group."""
        return JoinedGroup(None, dist.get_rank(), dist.get_world_size())

    def tensor(self, shape: tuple[int, ...], dtype: str, device: str, order: tuple[int, ...] | None) -> torch.Tensor:
        """A tensor filled with the rank plus one."""
        made = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        if order is not None and len(order) == len(shape):
            inner = torch.empty([shape[axis] for axis in order], dtype=made.dtype, device=device)
            made = inner.permute([order.index(axis) for axis in range(len(order))])
        return made.fill_(self.rank + 1)

    def rows(self, whole: torch.Tensor, first: int, end: int) -> torch.Tensor:
        """Some rows of a tensor, in the same memory."""
        return whole[first:end]

    def total(self, tensor: torch.Tensor) -> complex:
        """The sum over a tensor."""
        return complex(tensor.to(torch.complex128).sum().item())

    def call(self, played: PlayedCall[torch.Tensor]) -> object:
        """Make a call; returns the Work of an asynchronous one."""
        leading = [_argument(played, role) for role in played.verb.buffers]
        return getattr(dist, played.verb.name)(*leading, **_keywords(played.verb, played))

    def call_as_non_member(self, step: ScenarioStep, verb: Verb) -> None:
        """Make a call on a group that this rank is no member of: torch warns and returns."""
        tensors = [self.tensor(step.shapes[0], step.dtype, step.device, step.order) for _ in verb.buffers]
        arguments = [[each] if verb.spelling.listed and not number else each for number, each in enumerate(tensors)]
        ranked = {verb.rank: 0} if verb.rank else {}
        getattr(dist, verb.name)(*arguments, group=dist.GroupMember.NON_GROUP_MEMBER, **ranked)

    def wait(self, work: object) -> None:
        """Wait for a Work, or for the future that torch returns in its place."""
        cast(dist.Work, work).wait()

    def write(self, tensor: torch.Tensor) -> None:
        """Write to a tensor."""
        tensor.add_(1)

    def spoil_next_result(self) -> None:
        """Have the next call bring a wrong element."""
        due_faults.here.add(double_an_element)

    def compute(self, seconds: float) -> None:
        """Sleep so long: other ranks only see the time that a computation takes."""
        time.sleep(seconds)

    def parameters(self, step: ScenarioStep) -> None:
        """Wrap a model of these parameters in DistributedDataParallel."""
        model = torch.nn.Module()
        for each in step.parameters:
            tensor = torch.zeros(each.shape, dtype=getattr(torch, each.dtype))
            model.register_parameter(each.name, torch.nn.Parameter(tensor, requires_grad=each.trained))
        joined = self._joined[step.group]
        self._kept.append(torch.nn.parallel.DistributedDataParallel(model, process_group=joined and joined.handle))

    def new_group(self, ranks: Sequence[int], name: str) -> JoinedGroup | None:
        """Make a group of global ranks."""
        made = dist.new_group(list(ranks), group_desc=name)
        rank = dist.get_rank(made)
        return None if rank < 0 else JoinedGroup(made, rank, len(ranks))

    def destroy_group(self, joined: JoinedGroup) -> None:
        """Destroy a group."""
        dist.destroy_process_group(joined.handle)

    def hang(self) -> NoReturn:
        """Wait forever."""
        while True:
            threading.Event().wait()


def _argument(played: PlayedCall[torch.Tensor], role: str) -> object:
    """The argument of a function for a role: a list, a tensor, or None where this rank has none."""
    tensors = list(played.tensors.get(role, ()))
    spelling = played.verb.spelling
    if spelling.coalesced or (spelling.listed and role in played.verb.spec.divided):
        return tensors or None
    return tensors[0]


def _keywords(verb: Verb, played: PlayedCall[torch.Tensor]) -> dict[str, Any]:
    step, spec = played.step, verb.spec
    found: dict[str, Any] = {"group": played.group.handle}
    if "reduce_op" in spec.agree:
        found["op"] = getattr(dist.ReduceOp, step.reduce_op.upper())
    if "tag" in spec.agree:
        found |= {verb.rank: None if played.peer == ANY_SOURCE else played.peer, "tag": step.tag}
    elif verb.rank:
        found[verb.rank] = step.root
    for name in explicit_splits(verb):
        if (rows := getattr(step, name)) is not None:
            found[name.replace("splits", "split_sizes")] = list(rows)
    if step.asynchronous:
        found["async_op"] = True
    return found
