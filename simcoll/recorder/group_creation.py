"""Records the begin and end of a rank's making of each process group: ranks that make it differently hang there."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed import distributed_c10d

from simcoll.core.rank_local import RankLocal
from simcoll.core.record import source_document
from simcoll.core.threads import let_gloo_rest
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.session import active_session
from simcoll.recorder.source import current_source
from simcoll.recorder.store_hint import warned_if_unserved


class Creations:
    """Counts the groups that this process makes, since it made its default group for the last time."""

    def __init__(self) -> None:
        self._life = 0
        self._ordinal = 0

    def begin(self) -> dict[str, int]:
        """The place of a new default group."""
        self._life, self._ordinal = self._life + 1, 0
        return {"life": self._life, "ordinal": 0}

    def place(self) -> dict[str, int]:
        """The place of the next other group: the default group's life, and its ordinal in that life, from 1."""
        self._ordinal += 1
        return {"life": self._life, "ordinal": self._ordinal}


_creations = RankLocal(Creations)


def initialising(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group``, with a note before and after where the environment names the ranks."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        place = _creations.here.begin()
        given = _given(signature, args, kwargs)
        size = _declared_size(given)
        recorder = None if size is None else _early_recorder()
        source = current_source()
        with warned_if_unserved(given, source):
            if size is None or recorder is None:
                return initialise(*args, **kwargs)
            recorder.event("creating", **place, ranks=list(range(size)), source=source_document(source))
            result = initialise(*args, **kwargs)
            recorder.event("created", **place)
            return result

    return init_process_group


def _given(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by name; unknown ones are left for the function to refuse."""
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError:
        return kwargs


def declared(given: Mapping[str, Any], name: str) -> int | None:
    """The ``rank`` or ``world_size`` that a call of ``init_process_group`` gives, first in its URL; None where none."""
    query = parse_qs(urlsplit(given.get("init_method") or "").query)
    number = int(query[name][0]) if name in query else given.get(name)
    return None if number == -1 else number


def _declared_size(given: Mapping[str, Any]) -> int | None:
    """Returns the world size that the call states; None where this rank is not the one that the environment names.

    Another size than the environment's is a mistake where the ranks meet by the environment; elsewhere it may be a job
    within the job.
    """
    try:
        own, everybody = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    rank, size = (value if type(value := given.get(name, -1)) is int else None for name in ("rank", "world_size"))
    here = given.get("init_method") in (None, "env://") and given.get("store") is None
    if rank == own and size == everybody:
        return size
    if not here or size is None or rank not in (-1, own):
        return None
    return everybody if size < 0 else size


def _early_recorder() -> Recorder | None:
    """The recorder of a process that is a rank by its environment, before torch knows that it is one."""
    session = active_session()
    return None if session is None or dist.is_initialized() else session.current_recorder()


def noted(make: Callable[..., Any]) -> Callable[..., Any]:
    """c10d's function that makes every group but the default one, with a note before and after."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_group(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder()
        members = None if recorder is None else _members(signature, args, kwargs)
        if recorder is None or members is None:
            return make(*args, **kwargs)
        place, before = _creations.here.place(), getattr(distributed_c10d._world, "group_count", None)
        recorder.event("creating", **place, before=before, ranks=members, source=source_document(current_source()))
        group = make(*args, **kwargs)
        recorder.event("created", **place)
        return group

    return make_group


declared_members: RankLocal[tuple[int, ...] | None] = RankLocal(lambda: None)
"""The global ranks of the group that is being made, where its backend does not know them."""


def shrinking(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap c10d's function that makes the group of ``shrink_group``, which gets the ranks that remain."""

    @functools.wraps(make)
    def make_group(new_backend: Any, remaining_ranks: Any, *args: Any, **kwargs: Any) -> Any:
        declared_members.set(tuple(remaining_ranks))
        try:
            return make(new_backend, remaining_ranks, *args, **kwargs)
        finally:
            declared_members.set(None)

    return make_group


def destroying(destroy: Callable[..., Any]) -> Callable[..., Any]:
    """``destroy_process_group``, with a note before: a rank that still calls on the group waits for this one in vain.

    Gloo's threads let the calls that have ended go before, while the group is held.
    """

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder()
        if recorder is None:
            return destroy(*args, **kwargs)
        group = args[0] if args else kwargs.get("group")
        every = group is None or group == dist.group.WORLD
        name = None if every else getattr(group, "group_name", "")
        recorder.event("destroyed", group=name, source=source_document(current_source()))
        let_gloo_rest()
        return destroy(*args, **kwargs)

    return destroy_process_group


def aborting(abort: Callable[..., Any]) -> Callable[..., Any]:
    """c10d's function that aborts a group or all: first they give up the calls that they have not launched.

    It opens a coalesced section around the abort, in which no call may be launched.
    """

    @functools.wraps(abort)
    def abort_process_group(*args: Any, **kwargs: Any) -> Any:
        group = args[0] if args else kwargs.get("group")
        every = group is None or group is dist.group.WORLD
        for one in list(distributed_c10d._world.pg_names) if every else [group]:
            if (give_up := getattr(one, "give_up", None)) is not None:
                give_up()
        return abort(*args, **kwargs)

    return abort_process_group


def _recorder() -> Recorder | None:
    session = active_session()
    return None if session is None or not dist.is_initialized() else session.current_recorder()


def _members(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
    """The members as torch takes them; None for those that torch will refuse, and for a group made by its members only.

    With local synchronization only the members make the group, each in its own order.
    """
    try:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("use_local_synchronization"):
            return None
        ranks = given.get("ranks")
        members = list(range(dist.get_world_size())) if ranks is None else [int(rank) for rank in ranks]
    except (TypeError, ValueError):
        return None
    return sorted(members) if given.get("sort_ranks", True) else members
