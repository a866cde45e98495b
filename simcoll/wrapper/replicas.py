"""Writes down digests of what ranks have to hold alike: replicated parameters, buffers and states of optimizers.

Two promises are taken at their word, and no other. DistributedDataParallel promises equal parameters when a forward
pass that is to synchronise gradients begins, and equal buffers where it has just broadcast them; the first such pass
after a step is looked at. Programs that alter weights for this pass alone (noise, an ascent, a fast copy) have
restored them when the optimizer steps: so the parameters are looked at after that step once more, and what is equal
there was meant. The placement of a DTensor says over which dimensions of its mesh it is replicated; it is looked at
after each step of its optimizer, and before the first. Ranks do not communicate: the verifier compares what they
wrote.
"""

from __future__ import annotations

import functools
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal
from simcoll.core.record import source_document
from simcoll.recorder.dynamo import leave_class_uncompiled, leave_uncompiled
from simcoll.recorder.session import Session, active_session, pipelines
from simcoll.recorder.source import current_source
from simcoll.values.choice import Choice, budget_wanted
from simcoll.values.contents import Arrivals, Hasher, HostCopy, apart, is_plain, plainly, unseen
from simcoll.values.folding import STEPPED, folded
from simcoll.values.guard import Guard
from simcoll.wrapper.batches import BatchWatch, Ranks, ranks_of_ddp, watch_fsdp
from simcoll.wrapper.buckets import Buckets, forget_assignment, watch_assignment
from simcoll.wrapper.discards import DiscardWatch, Holder, can_be_followed, parameters_of, watch_clearing
from simcoll.wrapper.dtensors import dtensor, holders, local_part, watch_conversions
from simcoll.wrapper.outlived import OutlivedWatch
from simcoll.wrapper.process_group import calls_made, is_recorded
from simcoll.wrapper.random_states import RandomWatch

_BETWEEN_STATES = 8
"""The state of an optimizer follows from gradients and shows in the parameters a step later: so it is read rarely."""

_READ_EACH_TIME = 64 << 20
_MOST_BETWEEN = 8
"""Bytes of a set on a host that are read at every boundary; a larger one is read at every second, fourth or eighth, and
half as often where it is read twice.
"""

_MOST_SETS = 256
_MOST_NAMES = 500_000
"""Characters of names of one set that are written down."""

_MOST_GROUPS = 4
"""Parameter groups of an optimizer whose settings are written down."""

_OF = " of "
"""Between the name of a state and that of its parameter."""

_DDP = "DistributedDataParallel"
_EQUALISING = (
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks",
)
"""Modules of communication hooks that leave every rank the same gradients."""

Named = tuple[str, torch.Tensor]
_Key = tuple[str, str, tuple[int, ...], int]
"""What promises that tensors are alike, the group's name, the ranks that hold them, the ordinal among theirs."""


@dataclass(slots=True, eq=False)
class _Model:
    """A DistributedDataParallel model: ``parameters`` are those that it synchronises. ``synchronises`` says that the
    last forward pass with gradients does, ``apart`` that one did not; a ``local`` model has made a step after such a
    pass, so that its ranks may differ. ``looked`` is the number of steps at the last look, and ``open`` that boundary
    until the next step has been looked at. ``place`` is that of the last look, ``met`` that of the last pass;
    ``numbers`` are those of the last two looks; ``due``: a look is to be made, and ``seen`` that it was. ``gradients``
    are those before the first of the passes that do not synchronise. The ``ordinal`` is 0 until all ranks are known to
    have the model.
    """

    process_group: dist.ProcessGroup
    parameters: tuple[Named, ...]
    ordinal: int = 0
    passes: int = 0
    steps: int = 0
    looked: int | None = None
    open: _Boundary | None = None
    place: int | None = None
    met: int | None = None
    numbers: tuple[int, int] = (-1, -1)
    due: bool = False
    seen: bool = False
    synchronises: bool = True
    apart: bool = False
    local: bool = False
    gradients: tuple[tuple[int, int], ...] = ()
    optimizers: WeakKeyDictionary[Optimizer, None] = field(default_factory=WeakKeyDictionary)
    buckets: Buckets | None = None

    @property
    def key(self) -> _Key:
        """What names the model on all its ranks."""
        ranks = tuple(dist.get_process_group_ranks(self.process_group))
        return _DDP, self.process_group.group_name, ranks, self.ordinal

    @property
    def trained(self) -> list[Named]:
        """The parameters that change."""
        return [one for one in self.parameters if one[1].requires_grad]


@dataclass(slots=True, eq=False)
class _Placed:
    """The replicated DTensors of one optimizer by the ranks that hold the same elements, and the modules of FSDP that
    synchronise them.
    """

    count: int
    ordinals: Mapping[tuple[int, ...], int]
    sets: Mapping[tuple[int, ...], tuple[Named, ...]]
    units: tuple[Callable[[], nn.Module | None], ...]
    steps: int = 0
    local: bool = False


@dataclass(frozen=True, slots=True)
class _Boundary:
    """A place at which ranks can be compared: its number, that of the one looked at before, its place in what all ranks
    do, the steps so far, and the optimizer's settings.
    """

    number: int
    before: int
    place: int
    steps: int
    settings: Mapping[str, object]

    def is_first_of(self, count: int) -> bool:
        """True if it is the first of so many consecutive numbers to be looked at."""
        return self.number // count > self.before // count


class ReplicaWatch:
    """The replicated tensors of one rank. It ends with the rank's groups, as their pipelines do."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Half of the budget is for calls.
        self._choice = Choice(session.values, budget_wanted() / 2)
        self.guard = Guard(self._choice, session.existing_recorder, "steps")
        self.batches = BatchWatch(session, self._choice)
        self.randoms = RandomWatch(session, self._choice)
        self.discards = DiscardWatch(session, lambda model: _has_optimizer(model.parameters()))
        self.outlived = OutlivedWatch(
            session,
            self._choice,
            lambda: [*_optimizers.here],
            lambda: [one for model in self._models.values() for _, one in model.parameters],
        )
        self._models: WeakKeyDictionary[nn.Module, _Model] = WeakKeyDictionary()
        self._placed: WeakKeyDictionary[Optimizer, _Placed] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._ordinals: Counter[object] = Counter()
        self._sets: dict[object, int | None] = {}
        self._hashers: dict[int, Hasher] = {}
        self._arrivals: Arrivals[dict[str, object]] = Arrivals()

    # A model of DistributedDataParallel.

    def entered(self, model: DistributedDataParallel, broadcast: bool) -> None:
        """A forward pass begins; ``broadcast``: the model has just sent its buffers to all ranks."""
        if not torch.is_grad_enabled():
            return
        if model not in self._models:
            self._follow(model)
        known = self._models[model]
        if known.buckets is not None:
            known.buckets.look(model)
        if known.synchronises and not model.require_backward_grad_sync:
            known.gradients = _gradients(known)
        known.synchronises = model.require_backward_grad_sync
        known.apart |= not known.synchronises
        if not known.synchronises or not model.training:
            return
        if known.ordinal == 0:
            known.ordinal = -self._next_ordinal(("copies", model.process_group.group_name))
        if known.local or not _equalises(model):
            return
        place = calls_made(model.process_group)
        stepping = known.steps > 0 or _has_optimizer(one for _, one in known.parameters)
        # Where the steps are the program's own, nothing tells whether one came before gradients were synchronised.
        if place is None or (place == known.place if stepping else known.apart):
            return
        # Of a program's own steps the last of the passes at one place counts: weights may have changed before it.
        if place != known.met:
            self._moved(known, place)
        if stepping and known.looked == known.steps:
            return
        first = known.steps > 0 and not known.looked
        known.place, known.looked = place, known.steps
        if not known.due:
            self.settle()
            return
        with self._choice.counted():
            self._look_at(model, known, place, broadcast, first)

    def _look_at(self, model: DistributedDataParallel, known: _Model, place: int, broadcast: bool, first: bool) -> None:
        """The parameters at the start of a pass, and what else of a model is due; it is the ``first`` after a step."""
        number, known.seen = known.passes, True
        if number != known.numbers[1]:
            known.numbers = known.numbers[1], number
        optimizers = [one for one in known.optimizers if type(one).__module__.startswith("torch.optim.")]
        settings = _settings(optimizers[0]) if len(optimizers) == 1 else {}
        boundary = _Boundary(number, known.numbers[0], place, known.steps or number, settings)
        key = known.key
        self._write(key, "parameters", known.trained, boundary)
        known.open = boundary
        if broadcast:
            ignored = model.parameters_to_ignore
            buffers = [one for one in model.module.named_buffers() if one[0] not in ignored]
            self._write(key, "buffers", buffers, boundary)
        if first or boundary.is_first_of(_BETWEEN_STATES):
            names = {id(parameter): name for name, parameter in known.parameters}
            state = [one for optimizer in optimizers for one in _state(optimizer, names)]
            self._write(key, "optimizer state", state, boundary)
        self.settle()

    def _moved(self, known: _Model, place: int) -> None:
        """A pass begins at another place than the last one. It counts on a rank that has left out a step, too: ranks
        look at the passes of the same numbers, or at the next one after a step.
        """
        known.passes += known.met is not None
        known.met = place
        chosen = self._choice.takes_step(known.passes, always=known.passes == 0)
        known.due, known.seen = chosen or (known.due and not known.seen), False

    def made(self, model: DistributedDataParallel) -> None:
        """All ranks of a group make their models in the same order, but may use them in another."""
        known = self._follow(model)
        known.ordinal = self._next_ordinal(model.process_group.group_name)
        known.buckets = Buckets(model, known.ordinal, self._session.existing_recorder())

    def _follow(self, model: DistributedDataParallel) -> _Model:
        """A model of this rank. One that is a copy, or was made before values were checked, may be on this rank alone:
        it has its place among those that all ranks have when it first synchronises gradients.
        """
        ignored = model.parameters_to_ignore
        parameters = tuple(one for one in model.module.named_parameters() if one[0] not in ignored)
        self._known.clear()
        known = self._models[model] = _Model(model.process_group, parameters)
        return known

    def _next_ordinal(self, kind: object) -> int:
        self._ordinals[kind] += 1
        return self._ordinals[kind]

    # Optimizers.

    def steps(self, optimizer: Optimizer) -> None:
        """An optimizer is about to make a step."""
        self.discards.steps(optimizer)
        if not can_be_followed(optimizer):
            return
        placed = self._placed_of(optimizer)
        if placed is not None and placed.steps == 0:
            with self._choice.counted():
                self._look(optimizer, placed)

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step."""
        self.batches.stepped()
        self.randoms.stepped()
        self.discards.stepped(optimizer)
        self.outlived.stepped()
        if not can_be_followed(optimizer):
            return
        if self._known.get(optimizer) != len(self._models):
            self._known[optimizer] = len(self._models)
            mine = {id(parameter) for parameter in parameters_of(optimizer)}
            for model in self._models.values():
                if any(id(parameter) in mine for _, parameter in model.parameters):
                    model.optimizers[optimizer] = None
        for model in self._models.values():
            if optimizer in model.optimizers:
                model.steps += 1
                model.local |= not model.synchronises and _gradients(model) != model.gradients
                self._look_again(model)
        placed = self._placed_of(optimizer)
        if placed is not None:
            placed.steps += 1
            placed.local |= not all(map(_synchronises, placed.units))
            if not placed.local and self._choice.takes_step(placed.steps):
                with self._choice.counted():
                    self._look(optimizer, placed)

    def _look_again(self, model: _Model) -> None:
        """The parameters after the step that follows a look."""
        boundary, model.open = model.open, None
        place = calls_made(model.process_group)
        if boundary is not None and place is not None:
            again = _Boundary(boundary.number, boundary.before, place, model.steps, {})
            with self._choice.counted():
                self._write(model.key, STEPPED, model.trained, again)
                self.settle()

    def _placed_of(self, optimizer: Optimizer) -> _Placed | None:
        """The replicated DTensors of an optimizer; None where it has none."""
        kind = dtensor()
        if kind is None:
            return None
        placed = self._placed.get(optimizer)
        if placed is None or placed.count != _count(optimizer):
            steps = placed.steps if placed is not None else 0
            # Ranks make optimizers in one order, but may use them in another.
            self._placed.pop(optimizer, None)
            for one in [*_optimizers.here, optimizer]:
                if one not in self._placed:
                    self._placed[one] = self._place(one, kind)
            placed = self._placed[optimizer]
            placed.steps = steps
        return placed if placed.sets else None

    def _place(self, optimizer: Optimizer, kind: type) -> _Placed:
        parameters: list[Any] = [one for one in parameters_of(optimizer) if isinstance(one, kind)]
        found: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for one in parameters:
            ranks = holders(one.device_mesh, one.placements)
            if len(ranks) > 1:
                found.setdefault(ranks, []).append(one)
        owners = _modules_of(parameters) if found else []
        names = {id(one): name for module in owners for name, one in module.named_parameters()}
        places = {id(one): place for place, one in enumerate(parameters_of(optimizer))}
        sets = {
            ranks: tuple((names.get(id(one), f"parameter {places[id(one)]}"), one) for one in same)
            for ranks, same in found.items()
        }
        units = tuple(ref(unit) for module in owners for unit in module.modules() if hasattr(unit, "_get_fsdp_state"))
        return _Placed(_count(optimizer), {ranks: self._next_ordinal(ranks) for ranks in sets}, sets, units)

    def _look(self, optimizer: Optimizer, placed: _Placed) -> None:
        boundary = _Boundary(placed.steps, placed.steps - 1, placed.steps, placed.steps, _settings(optimizer))
        standard = type(optimizer).__module__.startswith("torch.optim.")
        for ranks, named in placed.sets.items():
            key = "DTensor", "", ranks, placed.ordinals[ranks]
            self._write(key, "parameters", [(name, local_part(one)) for name, one in named], boundary)
            if standard and (placed.steps == 1 or placed.steps % _BETWEEN_STATES == 0):
                self._write(key, "optimizer state", _state(optimizer, {id(one): name for name, one in named}), boundary)
        self.settle()

    # What is written down.

    def _write(self, key: _Key, kind: str, named: Iterable[Named], boundary: _Boundary) -> None:
        """Queue the digests of tensors, which ranks have to hold alike."""
        items = [(name, tensor) for name, tensor in named if is_plain(tensor)]
        with apart():
            devices = {plainly(tensor).device for _, tensor in items}
        looks = 2 if key[0] == _DDP else 1
        if len(devices) != 1 or not self._is_due(devices.pop().type, items, boundary, looks):
            return
        index = self._index(key, kind, items)
        if index is None:
            return
        hasher = self._hashers.setdefault(index, Hasher())
        copy = HostCopy.of(hasher.digests([tensor for _, tensor in items]))
        data = {"at": boundary.place, "steps": boundary.steps, "settings": boundary.settings}
        self._arrivals.add(copy, {"replicas": index, **data})

    def _is_due(self, device: str, items: Sequence[Named], boundary: _Boundary, looks: int) -> bool:
        """True unless a graph is captured, or all boundaries are looked at and a large set on a host can wait."""
        if device == "cuda":
            return not torch.cuda.is_current_stream_capturing()
        if self._session.values != "all":
            return True
        size = sum(tensor.nbytes for _, tensor in items)
        return boundary.is_first_of(min(1 << (looks * size // _READ_EACH_TIME).bit_length(), looks * _MOST_BETWEEN))

    def _index(self, key: _Key, kind: str, items: Sequence[Named]) -> int | None:
        """The number of a set of tensors, which is described when it is first met; None of too many."""
        stable = _below_what_holds_all([name for name, _ in items])
        forms = [(name, str(one.dtype), tuple(one.shape)) for name, (_, one) in zip(stable, items, strict=True)]
        described = blake2b(repr(forms).encode(), digest_size=8).hexdigest()
        # On this rank sets of one form may have other names.
        whole = *key, kind, described, hash(tuple(name for name, _ in items))
        if whole not in self._sets:
            recorder = self._session.existing_recorder()
            full = len(self._sets) >= _MOST_SETS
            self._sets[whole] = None if recorder is None or full else len(self._sets)
            if recorder is not None and not full:
                names = [name for name, _ in items]
                recorder.event(
                    "replicas",
                    index=self._sets[whole],
                    by=key[0],
                    group=key[1],
                    ranks=list(key[2]),
                    ordinal=key[3],
                    tensors=kind,
                    form=described,
                    count=len(names),
                    names=names if sum(map(len, names)) <= _MOST_NAMES else [],
                    source=source_document(current_source()),
                )
        return self._sets[whole]

    def settle(self, *, last: bool = False) -> None:
        """Write down what has come to the host; the ``last`` time, what comes soon."""
        self._arrivals.settle(self._arrived, last=last)

    def _arrived(self, words: npt.NDArray[np.int64], data: dict[str, object]) -> None:
        recorder = self._session.existing_recorder()
        if recorder is not None:
            whole, parts = folded(words)
            recorder.event("state", **data, hash=whole, parts=parts)

    # Its end, as a group's pipeline has it.

    def await_launches(self) -> None:
        """Nothing waits for its launch."""

    def finish(self) -> None:
        """Nothing is in flight."""

    def close(self, seconds: float) -> None:
        """Write down what comes soon: each of these waits half a second at most."""
        with unseen():
            for settle in (self.settle, self.batches.settle, self.randoms.settle, self.outlived.settle):
                self.guard.run(functools.partial(settle, last=True))


class _Watches:
    """The watches of one rank, one a process and session."""

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[Session, tuple[int, ReplicaWatch]] = WeakKeyDictionary()

    def of(self, session: Session) -> ReplicaWatch:
        """That of a session, in this process."""
        found = self._found.get(session)
        if found is None or found[0] != os.getpid():
            found = self._found[session] = os.getpid(), ReplicaWatch(session)
            pipelines.here.add(found[1])
        return found[1]


_watches = RankLocal(_Watches)
_optimizers: RankLocal[WeakKeyDictionary[Optimizer, None]] = RankLocal(WeakKeyDictionary)


def _watch() -> ReplicaWatch | None:
    """The watch of the calling rank; None where no values are checked, or no call was recorded yet."""
    session = active_session()
    if session is None or session.values == "off" or session.existing_recorder() is None:
        return None
    return _watches.here.of(session)


def _check(check: Callable[[ReplicaWatch], object]) -> None:
    """Run a check of the calling rank, if its values are checked."""
    if (watch := _watch()) is not None:
        watch.guard.run(lambda: _run(check, watch))


def _run(check: Callable[[ReplicaWatch], object], watch: ReplicaWatch) -> None:
    with unseen():
        check(watch)


def _watch_later(patches: Patches) -> None:
    """Look at what a program has by now imported: one that does not need FSDP or DTensor need not wait for them."""
    watch_fsdp(patches, _enter_fsdp)
    watch_conversions(
        patches,
        lambda look: _check(lambda _: look()),
        lambda ranks, local: _check(lambda watch: watch.randoms.promised(ranks, local)),
    )


def _enter_fsdp(module: nn.Module, ranks: Callable[[], Ranks | None], inputs: Sequence[object]) -> None:
    def entered(watch: ReplicaWatch) -> None:
        watch.discards.entered(module)
        watch.batches.entered(module, ranks, inputs)

    _check(entered)


def watch_replicas(patches: Patches) -> None:
    """Look at models of DistributedDataParallel and at optimizers from now on, where values are checked; once."""
    entering: Any = DistributedDataParallel._pre_forward
    if getattr(entering, "watches", False):
        return

    @functools.wraps(entering)
    def entered(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return entering(model, *args, **kwargs)
        broadcasts: list[bool] = []
        _check(lambda _: broadcasts.append(_broadcasts_buffers(model)))
        inputs = entering(model, *args, **kwargs)
        _check(lambda watch: _entered(watch, model, any(broadcasts), inputs))
        return inputs

    entered.watches = True  # type: ignore[attr-defined]
    patches.replace(DistributedDataParallel, "_pre_forward", entered)
    watch_assignment(patches)
    watch_clearing(patches, _clear)
    finishing: Any = DistributedDataParallel._ddp_init_helper

    @functools.wraps(finishing)
    def finished(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        # A copy has by now what a new model is given after this; a rank may make one alone.
        copied = hasattr(model, "_comm_hooks")
        finishing(model, *args, **kwargs)
        _check(lambda watch: watch.made(model) if not copied and _is_watched(model) else None)
        forget_assignment()

    patches.replace(DistributedDataParallel, "_ddp_init_helper", finished)
    making: Any = Optimizer.__init__

    @functools.wraps(making)
    def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        _watch_later(patches)
        making(optimizer, *args, **kwargs)
        if can_be_followed(optimizer):
            _optimizers.here[optimizer] = None

    patches.replace(Optimizer, "__init__", made)
    before: Any = register_optimizer_step_pre_hook
    after: Any = register_optimizer_step_post_hook
    patches.hold(before(functools.partial(_steps, patches)))
    patches.hold(after(_stepped))


def _entered(watch: ReplicaWatch, model: DistributedDataParallel, broadcast: bool, inputs: Sequence[object]) -> None:
    if _is_watched(model):
        watch.discards.entered(model)
        watch.batches.entered(model, functools.partial(ranks_of_ddp, model), inputs)
        watch.entered(model, broadcast)


def _clear(holder: Holder) -> None:
    _check(lambda watch: watch.discards.cleared(holder))


def _is_watched(model: DistributedDataParallel) -> bool:
    """True if several ranks have the model, and their calls are recorded."""
    return is_recorded(model.process_group) and model.process_group.size() > 1


def _broadcasts_buffers(model: DistributedDataParallel) -> bool:
    return model._check_sync_bufs_pre_fwd() and getattr(model, "buffer_hook", None) is None


def _steps(patches: Patches, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    # Dynamo traces the hooks of a step that it compiles.
    if not torch.compiler.is_compiling():
        _watch_later(patches)
        _check(lambda watch: watch.steps(optimizer))


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _check(lambda watch: watch.stepped(optimizer))


leave_uncompiled(_check)
leave_class_uncompiled(ReplicaWatch)
leave_class_uncompiled(BatchWatch)
leave_class_uncompiled(RandomWatch)


def _equalises(model: DistributedDataParallel) -> bool:
    """True if a model's communication hooks leave every rank the same gradients, as far as is known."""
    ranks = {*dist.get_process_group_ranks(model.process_group)}
    return all(_is_equalising(hook) and ranks <= _averaged(state) for hook, state in model._comm_hooks)


def _is_equalising(hook: Any) -> bool:
    inner = (cell.cell_contents for cell in getattr(hook, "__closure__", None) or ())
    return getattr(hook, "__module__", "") in _EQUALISING and all(_is_equalising(one) for one in inner if callable(one))


def _averaged(state: Any) -> set[int]:
    """The ranks (global) over which torch's hooks average by their state: a group, one that it holds, or all."""
    group = getattr(state, "process_group", state)
    return {*dist.get_process_group_ranks(group if isinstance(group, dist.ProcessGroup) else dist.group.WORLD)}


def _has_optimizer(parameters: Iterable[torch.Tensor]) -> bool:
    """True if this rank has an optimizer of any of these parameters."""
    mine = {*map(id, parameters)}
    return any(id(one) in mine for optimizer in _optimizers.here for one in parameters_of(optimizer))


def _count(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _state(optimizer: Optimizer, names: Mapping[int, str]) -> list[Named]:
    """The tensors of an optimizer's state that are shaped, and placed, as their parameters."""
    found = []
    for parameter in parameters_of(optimizer):
        if id(parameter) not in names:
            continue
        for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
            placements = getattr(parameter, "placements", None)
            shaped = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if shaped and getattr(value, "placements", None) == placements:
                found.append((f"{key}{_OF}{names[id(parameter)]}", local_part(value)))
    return found


def _below_what_holds_all(names: Sequence[str]) -> list[str]:
    """Names without the path that all have in common: on some ranks alone another module may hold the model."""
    paths = [name.rpartition(_OF)[2].split(".") for name in names]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    shared = sum(1 for _ in takewhile(lambda level: len({*level}) == 1, levels))
    heads = ("".join(name.rpartition(_OF)[:2]) for name in names)
    return [head + ".".join(path[shared:]) for head, path in zip(heads, paths, strict=True)]


def _gradients(model: _Model) -> tuple[tuple[int, int], ...]:
    """The gradients of a model, by which it shows whether a backward pass has added to them."""
    with apart():
        gradients = (parameter.grad for _, parameter in model.trained)
        return tuple((id(one), one._version) for one in gradients if one is not None)


def _settings(optimizer: Optimizer) -> dict[str, object]:
    """The numbers that an optimizer's groups of parameters are set to."""
    found: dict[str, object] = {}
    for place, group in enumerate(optimizer.param_groups[:_MOST_GROUPS]):
        for name, value in group.items():
            value = value.item() if _is_number_of_host(value) else value
            if type(value) in (int, float) or (type(value) is tuple and all(type(one) is float for one in value)):
                found[name if place == 0 else f"{name} of parameter group {place}"] = value
    return found


def _is_number_of_host(value: object) -> bool:
    """True for a tensor of one number that can be read without waiting for a device: a learning rate may be one."""
    return is_plain(value) and isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu"


def _modules_of(parameters: Sequence[torch.Tensor]) -> list[nn.Module]:
    """The outermost modules that hold any of these parameters."""
    wanted = {id(one) for one in parameters}
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in vars(one)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    outer = (module for module in modules if id(module) not in inner)
    return [module for module in outer if any(id(one) in wanted for one in module.parameters())]


def _synchronises(unit: Callable[[], nn.Module | None]) -> bool:
    """True if a module of FSDP adds up gradients over its whole mesh."""
    module: Any = unit()
    if module is None:
        return True
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    return all(group is None or (group.reduce_grads and group.all_reduce_grads) for group in groups)
