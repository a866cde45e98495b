"""Records the model that each rank gives to DistributedDataParallel, and proves it in ``detail`` mode.

torch compares the number of parameters and their sizes, with those of rank 0 alone: the ranks that differ raise, and
rank 0 waits for them. It compares neither dtypes nor the order of parameters of one size. The list is written down
before torch looks at it, and stands beside the statement of the first collective of the construction, so that the proof
of that call proves the model too.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from simcoll.core.record import source_document
from simcoll.recorder.dynamo import leave_uncompiled
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.source import current_source
from simcoll.spec.ddp_model import Claim, ModelParameter, Parameters, claim_of, to_json

_MOST_NAMED = 10_000
"""Parameters of a model that are written down one by one; of a larger one only the digest is."""


class _Pending(threading.local):
    """The claim that waits for the first collective of a construction in this thread, and the group that it is for."""

    claim: Claim | None = None
    group: str | None = None


_pending = _Pending()
open_claims: list[Claim] = []
"""The claims of all threads that construct a model now."""
_written: WeakKeyDictionary[Recorder, set[int]] = WeakKeyDictionary()


def take_claim(group: str) -> Claim | None:
    """Take the pending claim that goes with this thread's next collective of the group; None where there is none."""
    claim = _pending.claim
    if claim is None or _pending.group != group:
        return None
    _pending.claim = None
    return claim


def recorded_verification(
    verify: Callable[..., Any], recorder: Callable[[ProcessGroup], Recorder | None]
) -> Callable[..., Any]:
    """Returns a replacement for ``_verify_param_shape_across_processes`` where DistributedDataParallel calls it.
    ``recorder`` finds where the calls of a group are written down, if they are.

    Its constructor itself is left alone: it warns by its depth in the stack. One with ``init_sync=False`` leaves
    it to the user that the models are alike, and does not come here.
    """

    @functools.wraps(verify)
    def verify_params(process_group: ProcessGroup, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        noted, model = recorder(process_group), sys._getframe(1).f_locals.get("self")
        if noted is None or not isinstance(model, DistributedDataParallel) or process_group.size() < 2:
            return verify(process_group, tensors, *args, **kwargs)
        try:
            claim = claim_of(_parameters(model))
        except (AttributeError, RuntimeError, TypeError):
            # Another torch's model, or parameters without a shape: nothing is stated, and torch decides.
            return verify(process_group, tensors, *args, **kwargs)
        _write(noted, process_group.group_name, claim)
        with _claiming(process_group.group_name, claim):
            return verify(process_group, tensors, *args, **kwargs)

    leave_uncompiled(verify_params)
    return verify_params


@contextmanager
def _claiming(group: str, claim: Claim) -> Iterator[None]:
    open_claims.append(claim)
    _pending.claim, _pending.group = claim, group
    try:
        yield
    finally:
        _pending.claim = None
        open_claims.remove(claim)


def _parameters(model: DistributedDataParallel) -> Parameters:
    ignored = model.parameters_to_ignore
    return tuple(_parameter(name, one) for name, one in model.module.named_parameters() if name not in ignored)


def _parameter(name: str, one: torch.Tensor) -> ModelParameter:
    return ModelParameter(name, str(one.dtype).removeprefix("torch."), tuple(map(int, one.shape)), one.requires_grad)


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
