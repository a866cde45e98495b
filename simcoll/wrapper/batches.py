"""Writes down digests of the batches that data-parallel ranks give to their model: of the first pass of each step.

A model is one of DistributedDataParallel, or the root of a tree that FSDP's fully_shard has sharded: the ranks of its
group, or of its mesh, are to train on different data. Ranks do not communicate: the verifier compares what they wrote.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcoll.core.patches import Patches
from simcoll.core.record import source_document
from simcoll.recorder.session import Session
from simcoll.recorder.source import current_source
from simcoll.values.choice import Choice
from simcoll.values.contents import Arrivals, Hasher, HostCopy, apart, first_elements, flat_row, is_plain, plainly
from simcoll.values.folding import folded
from simcoll.wrapper.buckets import write_units
from simcoll.wrapper.first_inputs import FirstInputs
from simcoll.wrapper.process_group import calls_made, want_sum
from simcoll.wrapper.random_states import random_state

_STEPS_IN_A_ROW = 4
"""Steps that a sample takes together: three batches in a row show that they change and are the same everywhere."""

_WITH_GRADIENTS = 1
"""The one of them, part of any three, of which gradients are digested too: they tell whether a model cuts up a batch
that its ranks share.
"""

_FIRST_WINDOWS = (0, 4)
"""Such steps that a sample takes in any case: the very first may be a calibration, for which ranks share their data."""

_MOST_MODELS = 4
_MOST_TENSORS = 1024
_LEAST_ELEMENTS = 8
"""Fewer elements, or elements that are all the same, are no data: a number of the step, a size, a temperature."""

_FIRST_ELEMENTS = 1 << 16
_DEPTH = 6
_ABBREVIATED = 1 << 16
"""Characters of the plain values in a batch that are looked at."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_FSDP_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"


@dataclass(slots=True, eq=False)
class _Model:
    """A model whose batches are looked at, by its index on this rank; the steps in which it was trained so far,
    whether an optimizer has stepped since, and the pass that was looked at last until it has.
    """

    index: int
    groups: tuple[dist.ProcessGroup, ...]
    steps: int = 0
    fresh: bool = True
    open: _Pass | None = None


@dataclass(frozen=True, slots=True)
class _Pass:
    """The number of a step, the collectives made in each of the model's groups before its first pass, and the state of
    the generator that the program has by default.
    """

    number: int
    made: tuple[int | None, ...]
    random: str
    first: FirstInputs


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch whose numbers are on their way to the host: the digests of its tensors, and after them for each whether
    it is data. ``others`` is the digest of what else is in the batch; ``labels``: no sample is more than one integer.
    """

    model: int
    number: int
    others: int
    labels: bool


class BatchWatch:
    """The batches of one rank's models."""

    def __init__(self, session: Session, choice: Choice) -> None:
        self._session = session
        self._choice = choice
        self._models: WeakKeyDictionary[nn.Module, _Model | None] = WeakKeyDictionary()
        self._ordinals: Counter[tuple[int, ...]] = Counter()
        self._count = 0
        self._hasher = Hasher()
        self._of_layers: dict[int, Hasher] = {}
        self._arrivals: Arrivals[_Pending] = Arrivals()
        self._trained: Arrivals[dict[str, object]] = Arrivals()

    def entered(self, module: nn.Module, places: Callable[[], Ranks | None], inputs: Sequence[object]) -> None:
        """A forward pass begins; ``places`` finds the module's data-parallel ranks when it is first met."""
        if not torch.is_grad_enabled() or not module.training:
            return
        if module not in self._models:
            self._models[module] = self._model(module, places())
        known = self._models[module]
        if known is None or not known.fresh:
            return
        number = known.steps
        known.steps += 1
        known.fresh = False
        window = number // _STEPS_IN_A_ROW
        if self._choice.takes_step(window, _STEPS_IN_A_ROW, always=window in _FIRST_WINDOWS):
            with self._choice.counted():
                try:
                    items = [*_items(inputs, _DEPTH)]
                except _UnknownError:
                    return
                known.open = self._look(module, known, number, items)
        self.settle()

    def stepped(self) -> None:
        """An optimizer has made a step."""
        for known in self._models.values():
            if known is not None:
                known.fresh = True
                before, known.open = known.open, None
                if before is not None:
                    with self._choice.counted():
                        self._close(known, before)

    def _close(self, known: _Model, before: _Pass) -> None:
        """Write down which calls a step has made since the pass, and whether it has drawn random numbers."""
        state = random_state()
        before.first.close()
        for group in known.groups:
            want_sum(group, wanted=False)
        if state is not None:
            made = zip(before.made, map(calls_made, known.groups), strict=True)
            data = {
                "inputs": known.index,
                "number": before.number,
                "calls": [[first, last] for first, last in made],
                "random": before.random,
                "drew": state != before.random,
            }
            self._trained.add(HostCopy.of(before.first.digests), data)

    def _model(self, module: nn.Module, ranks: Ranks | None) -> _Model | None:
        recorder = self._session.existing_recorder()
        if ranks is None or recorder is None or len(ranks.members) < 2 or self._count >= _MOST_MODELS:
            return None
        index = self._count
        self._count += 1
        write_units(ranks.units, recorder)
        self._ordinals[ranks.members] += 1
        recorder.event(
            "inputs",
            index=index,
            by="FSDP" if not isinstance(module, DistributedDataParallel) else "DistributedDataParallel",
            ranks=list(ranks.members),
            groups=[group.group_name for group in ranks.groups],
            ordinal=self._ordinals[ranks.members],
            sampled=self._session.values == "sample",
            source=source_document(current_source()),
        )
        return _Model(index, ranks.groups)

    def _look(self, module: nn.Module, known: _Model, number: int, items: Sequence[_Item]) -> _Pass | None:
        tensors = [item for item in items if isinstance(item, torch.Tensor)]
        if len(tensors) > _MOST_TENSORS or not all(map(is_plain, tensors)):
            return None
        with apart():
            devices = {plainly(tensor).device for tensor in tensors}
        if len(devices) != 1:
            return None
        if devices.pop().type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        with apart():
            digests = self._hasher.digests(tensors)
            copy = HostCopy.of(torch.cat([digests, *(_is_data(tensor) for tensor in tensors)]))
            labels = _are_labels(tensors)
        self._arrivals.add(copy, _Pending(known.index, number, _digest(items), labels))
        state = random_state()
        if state is None:
            return None
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        first = FirstInputs(inner, state, self._parts_received, self._choice, self._of_layers)
        for group in known.groups if number % _STEPS_IN_A_ROW == _WITH_GRADIENTS else ():
            want_sum(group, wanted=True)
        return _Pass(number, tuple(map(calls_made, known.groups)), state, first)

    def _parts_received(self) -> int:
        recorder = self._session.existing_recorder()
        return 0 if recorder is None else recorder.parts_received

    def settle(self, *, last: bool = False) -> None:
        """Write down what has come to the host; the ``last`` time, what comes soon."""
        self._arrivals.settle(self._arrived, last=last)
        self._trained.settle(self._closed, last=last)

    def _closed(self, words: npt.NDArray[np.int64], data: dict[str, object]) -> None:
        if (recorder := self._session.existing_recorder()) is not None:
            recorder.event("trained", **data, first=words.tolist())

    def _arrived(self, words: npt.NDArray[np.int64], of: _Pending) -> None:
        recorder = self._session.existing_recorder()
        digests, data = np.split(words, 2)
        if recorder is not None and data.any():
            whole, part = folded(digests)[0] ^ of.others, folded(digests[data != 0])[0]
            labels = {"labels": True} if of.labels else {}
            recorder.event("batch", inputs=of.model, number=of.number, hash=whole, data=part, **labels)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The data-parallel ranks (global) of a model, and the groups that they make."""

    members: tuple[int, ...]
    groups: tuple[dist.ProcessGroup, ...]
    units: tuple[Any, ...] = ()
    """The groups of parameters of FSDP."""


def ranks_of_ddp(model: DistributedDataParallel) -> Ranks:
    """The ranks among which a model of DistributedDataParallel averages its gradients."""
    group = model.process_group
    return Ranks(tuple(dist.get_process_group_ranks(group)), (group,))


def _ranks_of_fsdp(state: Any) -> Ranks | None:
    """The ranks over which FSDP shards or replicates; None where that is not known."""
    units = []
    for one in dict.fromkeys((state, *state._state_ctx.all_states)):
        groups = getattr(one, "_fsdp_param_groups", None)
        units += [unit for unit in (groups if groups is not None else [one._fsdp_param_group]) if unit is not None]
    for unit in units:
        info = unit.mesh_info
        if info is not None and not getattr(info, "is_spmd_mesh", False):
            made = (getattr(info, f"{name}_process_group", None) for name in ("shard", "replicate"))
            ranks = sorted(info.mesh.mesh.flatten().tolist())
            return Ranks(tuple(ranks), tuple(group for group in made if group is not None), tuple(units))
    return None


Enter: TypeAlias = Callable[[nn.Module, Callable[[], Ranks | None], Sequence[object]], None]
"""Looks at what enters a module of these ranks; raises nothing."""


def watch_fsdp(patches: Patches, enter: Enter) -> None:
    """Have ``enter`` look at what enters roots of FSDP from now on, if the program has imported it; once."""
    module = sys.modules.get(_FSDP_STATE)
    kind: Any = getattr(module, "FSDPState", None)
    with _patching:
        if kind is None or getattr(kind._root_pre_forward, "watches", False):
            return
        entering = kind._root_pre_forward

        @functools.wraps(entering)
        def entered(state: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
            inner = getattr(getattr(state, "_state_ctx", None), "iter_forward_root", state) is not None
            inputs = entering(state, module, args, kwargs)
            if not inner:
                enter(module, lambda: _ranks_of_fsdp(state), inputs)
            return inputs

        entered.watches = True  # type: ignore[attr-defined]
        patches.replace(kind, "_root_pre_forward", entered)


_patching = threading.Lock()


_Item: TypeAlias = "torch.Tensor | str"
"""A tensor of a batch, or what else it has, in words."""


class _UnknownError(Exception):
    """A batch has a part of which nothing is known: it may be the data."""


def _items(value: object, depth: int) -> Iterator[_Item]:
    """What is in arguments: in lists, tuples, mappings and dataclasses, a few levels deep; raises _UnknownError."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, _PLAIN):
        yield repr(value)
    elif depth and isinstance(value, Mapping):
        for key, one in value.items():
            yield from _items(key, depth - 1)
            yield from _items(one, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for one in value:
            yield from _items(one, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _items(getattr(value, one.name, None), depth - 1)
    else:
        raise _UnknownError


def _digest(items: Sequence[_Item]) -> int:
    """A number of 64 bits that stands for what a batch has beside tensors, and for where."""
    texts = [item if isinstance(item, str) else "" for item in items]
    return int.from_bytes(blake2b(repr(texts).encode()[:_ABBREVIATED], digest_size=8).digest(), "big")


def _are_labels(tensors: Sequence[torch.Tensor]) -> bool:
    """True if tensors that may be data are rows of integers: what a model generates, it may be told so."""
    data = [one for one in tensors if _may_be_data(one)]
    return all(one.dim() < 2 and not one.is_floating_point() and not one.is_complex() for one in data)


def _may_be_data(tensor: torch.Tensor) -> bool:
    return tensor.numel() >= _LEAST_ELEMENTS and tensor.is_leaf


def _is_data(tensor: torch.Tensor) -> torch.Tensor:
    """One integer: whether a tensor has enough elements, and among its first ones different ones; and whether it came
    from outside: what other parts of a model compute from replicated weights is alike on all ranks.
    """
    if not _may_be_data(tensor):
        return torch.zeros(1, dtype=torch.int64, device=tensor.device)
    first = flat_row(first_elements(plainly(tensor).detach(), _FIRST_ELEMENTS))
    bits = first.view(torch.uint8).reshape(first.shape[0], -1)
    return (bits != bits[:1]).any().to(torch.int64).reshape(1)
