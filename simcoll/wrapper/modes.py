"""Chooses the pipeline of a group by its mode, and sets up the comparison of its calls with the other ranks'."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection
from datetime import timedelta

import torch
from torch._C._distributed_c10d import ProcessGroup, Store, Work
from torch.distributed import HashStore

from simcoll.backends.registry import KNOWN
from simcoll.core.record import Group
from simcoll.cuda.watcher import DeviceTimes
from simcoll.proof.checker import LATE, Checker, MessageChecker, Rounds, calls_between_rounds
from simcoll.proof.p2p_check import DigestExchange
from simcoll.proof.p2p_detail import LATE_END, Messages, StandIn
from simcoll.proof.prover import Prover
from simcoll.proof.store import PolledStore, meeting_place
from simcoll.recorder.recorder import GroupLog
from simcoll.wrapper.pipeline import CheckedPipeline, Pipeline, RecordedPipeline
from simcoll.wrapper.proved_pipeline import ProvedPipeline

_UNPROVABLE_BACKENDS = ("fake", "mpi")
"""Backends without peers to prove a call to, or without a store to do it through."""


def pipeline_of(
    mode: str,
    log: GroupLog,
    times: DeviceTimes | None,
    plain: ProcessGroup,
    store: Store | None,
    timeout: Callable[[], timedelta],
    *,
    being_made: bool,
) -> Pipeline:
    """The pipeline of a group in a mode: the backends of ``plain`` run its calls, and its ranks meet in ``store``.

    Where its ranks cannot meet, the calls are only recorded. ``being_made`` says that this thread is making the group.
    """
    names = {device.type: plain._get_backend(device).name() for device in plain._device_types}
    provable = bool(names) and not set(names.values()) & set(_UNPROVABLE_BACKENDS)
    if mode not in ("check", "detail") or store is None or not provable:
        return RecordedPipeline(log, times)
    group, group_rank = log.group, log.group_rank
    alone = len(group.ranks) == 1
    # Under keys that no earlier group of this name has used.
    place = meeting_place(HashStore() if alone else store, free=being_made)
    place = place.under(_incarnation(place, group_rank))
    known = {device: KNOWN[name] for device, name in names.items() if name in KNOWN and not alone}
    beyond = [device for device, backend in known.items() if device != "cpu" or not backend.tagged]
    if mode == "check" or beyond:
        _checked.add(plain)
    if mode == "check":
        rounds = Rounds(log, place.under("rounds"))
        checker = Checker(group, "check", rounds, calls_between_rounds(), _keep_all)
        return CheckedPipeline(log, times, checker, _message_checker(group, group_rank, place, list(known), LATE))
    messages = Messages(group, group_rank, place.under("messages"), _stand_in_of(plain)) if known else None
    prover = Prover(group, group_rank, place.under("proofs"), timeout)
    return ProvedPipeline(log, times, prover, messages, _message_checker(group, group_rank, place, beyond, LATE_END))


def _message_checker(
    group: Group, group_rank: int, place: PolledStore, devices: Collection[str], note: str
) -> MessageChecker | None:
    """Returns the background check of sends and receives of tensors on these devices; ``note`` ends its errors."""
    if not devices:
        return None
    exchange = DigestExchange(group, group_rank, place.under("letters"), devices, note)
    return MessageChecker(group, exchange, calls_between_rounds(), _keep_all)


_checked: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _keep_all() -> None:
    """Have groups outlive the interpreter: calls that ranks disagree about may never end, and a Gloo group that is
    freed waits for them, so that a process that has raised a mismatch would not end before the group's timeout.
    """
    for plain in list(_checked):
        keep_for_good(plain)
    _checked.clear()


def keep_for_good(plain: ProcessGroup) -> None:
    """Have a group outlive the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(plain))


def _incarnation(place: PolledStore, group_rank: int) -> str:
    """Tells apart groups of one name made one after the other, whose keys may meet in the same store.

    Counted there and not in the process, which may outlive its peers: new ones have made fewer groups.
    """
    try:
        return str(place.add(f"made/{group_rank}", 1))
    except RuntimeError:
        # The store has gone: whoever asks it next is told.
        return ""


def _stand_in_of(inner: ProcessGroup) -> StandIn:
    """Returns a function that makes unrecorded sends and receives on a plain group, without keeping the group alive."""
    known = weakref.ref(inner)

    def stand_in(op: str, tensor: torch.Tensor, peer: int, tag: int) -> Work | None:
        alive = known()
        if alive is None:
            return None
        return alive.send([tensor], peer, tag) if op == "send" else alive.recv([tensor], peer, tag)

    return stand_in
