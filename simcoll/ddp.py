"""Notes, and in ``detail`` mode has proved, the model that each rank gives to DistributedDataParallel.

torch compares the number of parameters and their sizes, with those of rank 0 alone: the ranks that differ raise, and
rank 0 waits for them. It compares neither dtypes nor the order of parameters of one size. The list is written down
before torch looks at it, and stands beside the statement of the first collective of the construction, so that the proof
of that call proves the model too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed import ProcessGroup, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from simcoll.dynamo import leave_uncompiled
from simcoll.parameters import Claim, Parameter, Parameters, claim_of, to_json
from simcoll.recorder import Recorder, source_document
from simcoll.source import current_source

_MOST_NAMED = 10_000
"""Parameters of a model that are written down one by one; of a larger one only the digest is."""


class _Pending(threading.local):
    """The claim that waits for the first collective of a construction in this thread, and the group that it is for."""

    claim: Claim | None = None
    group: str | None = None


_pending = _Pending()
_written: WeakKeyDictionary[Recorder, set[int]] = WeakKeyDictionary()


def take_claim(group: str) -> Claim | None:
    """What the next collective of the group that this thread makes stands for beside itself, once."""
    claim = _pending.claim
    if claim is None or _pending.group != group:
        return None
    _pending.claim = None
    return claim


def recorded_construction(
    construct: Callable[..., None], recorder: Callable[[], Recorder | None]
) -> Callable[..., None]:
    """``DistributedDataParallel.__init__`` that notes its model where ``recorder`` gives one."""

    @functools.wraps(construct)
    def __init__(self: DistributedDataParallel, module: Any, *args: Any, **kwargs: Any) -> None:
        noted = recorder()
        stated = None if noted is None else _stated(construct, self, module, args, kwargs)
        if noted is None or stated is None:
            construct(self, module, *args, **kwargs)
            return
        group, parameters = stated
        claim = claim_of(parameters)
        _write(noted, group, claim)
        with _claiming(group, claim):
            construct(self, module, *args, **kwargs)

    leave_uncompiled(__init__)
    return __init__


@contextmanager
def _claiming(group: str, claim: Claim) -> Iterator[None]:
    _pending.claim, _pending.group = claim, group
    try:
        yield
    finally:
        _pending.claim = None


def _stated(
    construct: Callable[..., None], model: object, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Parameters] | None:
    """The group and the parameters, or None where torch compares nothing, or will refuse the arguments."""
    try:
        bound = _signature(construct).bind(model, module, *args, **kwargs).arguments
    except TypeError:
        return None
    group = _group_of(bound)
    if group is None or not isinstance(module, torch.nn.Module) or not bound.get("init_sync", True):
        return None
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    named = [(name, one) for name, one in module.named_parameters() if name not in ignored]
    if any(is_lazy(one) for _, one in named):
        return None
    return group.group_name, tuple(_parameter(name, one) for name, one in named)


@functools.cache
def _signature(construct: Callable[..., None]) -> Any:
    import inspect

    return inspect.signature(construct)


def _group_of(bound: dict[str, Any]) -> ProcessGroup | None:
    group, mesh = bound.get("process_group"), bound.get("device_mesh")
    try:
        if mesh is not None:
            group = mesh.get_group(mesh_dim=0)
        if group is None:
            group = distributed_c10d._get_default_group()
    except (RuntimeError, ValueError):
        return None
    return group if isinstance(group, ProcessGroup) and group.size() > 1 else None


def _parameter(name: str, one: torch.Tensor) -> Parameter:
    return Parameter(name, str(one.dtype).removeprefix("torch."), tuple(map(int, one.shape)), one.requires_grad)


def _write(recorder: Recorder, group: str, claim: Claim) -> None:
    """The event, with the list itself only where this process has not written it before."""
    written = _written.setdefault(recorder, set())
    full = claim.digest not in written and claim.count <= _MOST_NAMED
    written.add(claim.digest)
    data: dict[str, object] = {"parameters": to_json(claim.parameters)} if full else {}
    recorder.event(
        "parameters",
        group=group,
        digest=f"{claim.digest:016x}",
        count=claim.count,
        source=source_document(current_source()),
        **data,
    )
