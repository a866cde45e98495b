"""Writes down which parameters lie in the buckets in which DistributedDataParallel, and FSDP, send gradients."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal
from simcoll.recorder.recorder import Recorder
from simcoll.wrapper.process_group import calls_made

_MOST_PARAMETERS = 4000
"""Parameters of a model whose buckets are written down."""

_MOST_UNITS = 500
_LOOKS = 8
"""Passes after which the buckets are those of the model, if they are laid out anew at all."""


class _Assigned:
    """The parameters of the model that a rank makes, and the first assignment of them to buckets."""

    def __init__(self) -> None:
        self.parameters: Sequence[torch.Tensor] = ()
        self.buckets: Sequence[Sequence[int]] = ()


_assigned = RankLocal(_Assigned)


def watch_assignment(patches: Patches) -> None:
    """Note how each model that is made assigns its parameters to buckets from now on."""
    assigning: Any = dist._compute_bucket_assignment_by_size

    @functools.wraps(assigning)
    def assigned(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        found = assigning(tensors, *args, **kwargs)
        here = _assigned.here
        here.parameters, here.buckets = tensors, found[0]
        return found

    patches.replace(dist, "_compute_bucket_assignment_by_size", assigned)


def forget_assignment() -> None:
    """Forget the parameters of the model that was made: they are no longer than the model."""
    _assigned.here.parameters, _assigned.here.buckets = (), ()


class Buckets:
    """The buckets of one model: first as it is made, and then in the order in which gradients were ready."""

    def __init__(self, model: DistributedDataParallel, ordinal: int, recorder: Recorder | None) -> None:
        """``ordinal`` is the model's among those of its group."""
        self._ordinal = ordinal
        self._recorder = recorder
        names = {id(one): name for name, one in model.module.named_parameters()}
        here = _assigned.here
        self._parameters = [(names.get(id(one), ""), one.numel()) for one in here.parameters]
        self._group = model.process_group.group_name
        self._looks = _LOOKS if len(self._parameters) <= _MOST_PARAMETERS else 0
        self._made: list[int] = []
        # Gradients of the last layers are ready first.
        first, here.parameters, here.buckets = here.buckets[::-1], (), ()
        if self._looks:
            self._write(first, 0)

    def look(self, model: DistributedDataParallel) -> None:
        """A training pass begins: write down the buckets that have been laid out anew, when that is first known.

        That is after the first backward pass at the earliest, and before this pass.
        """
        made = calls_made(model.process_group)
        if not self._looks or made is None:
            return
        self._looks -= 1
        self._made.append(made)
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            self._look(model)

    def _look(self, model: DistributedDataParallel) -> None:
        laid_out = model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
        if isinstance(laid_out, str) and laid_out:
            self._looks = 0
            since = self._made[1] if len(self._made) > 1 else 0
            self._write([[int(place) for place in one.split()] for one in laid_out.split(",")], since)

    def _write(self, buckets: Sequence[Sequence[int]], since: int) -> None:
        known = all(0 <= place < len(self._parameters) for one in buckets for place in one)
        if known and buckets and self._recorder is not None:
            laid_out = [[self._parameters[place] for place in one] for one in buckets]
            until = self._made[-1] if self._made else 0
            self._recorder.event(
                "buckets", group=self._group, model=self._ordinal, buckets=laid_out, since=since, seen=until
            )


def write_units(units: Iterable[Any], recorder: Recorder) -> None:
    """Write down the gradients that each unit of FSDP's ``fully_shard`` reduces together: a row for each rank, in which
    every parameter has a part of the same size.
    """
    # They only give names: where this version of torch keeps them otherwise, the values are checked all the same.
    with contextlib.suppress(AttributeError, TypeError):
        _write_units(units, recorder)


def _write_units(units: Iterable[Any], recorder: Recorder) -> None:
    ordinals: Counter[str] = Counter()
    for unit in [*units][:_MOST_UNITS]:
        group = getattr(unit.mesh_info, "shard_process_group", None)
        parameters = [(one._param_fqn, one.padded_sharded_param_size.numel()) for one in unit.fsdp_params]
        if group is None or len(parameters) > _MOST_PARAMETERS or not all(name for name, _ in parameters):
            continue
        ordinals[group.group_name] += 1
        known = {"group": group.group_name, "model": -ordinals[group.group_name], "buckets": [parameters]}
        recorder.event("buckets", **known, rows=group.size())
