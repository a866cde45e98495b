"""Notes when this rank begins and ends to make a process group: a group that others do not make alike hangs there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from simcoll.recorder import Recorder, source_document
from simcoll.session import active_session
from simcoll.source import current_source


class Creations:
    """Counts the groups that this process makes, since its default group was made for the last time."""

    def __init__(self) -> None:
        self._default: object = None
        self._life = 0
        self._ordinal = 0

    def place(self) -> dict[str, int]:
        """The next group's place: which life of the default group, and the how-manieth group in it, from 1."""
        default = distributed_c10d._world.default_pg
        if default is not self._default:
            self._default = default
            self._life += 1
            self._ordinal = 0
        self._ordinal += 1
        return {"life": self._life, "ordinal": self._ordinal}


_creations = Creations()


def noted(make: Callable[..., Any]) -> Callable[..., Any]:
    """c10d's function that makes every group but the default one, with a note before and after."""

    @functools.wraps(make)
    def make_group(ranks: Any = None, *args: Any, use_local_synchronization: bool = False, **kwargs: Any) -> Any:
        options = {**kwargs, "use_local_synchronization": use_local_synchronization}
        recorder = _recorder()
        # With local synchronization only the members make the group, each in its own order.
        if recorder is None or use_local_synchronization:
            return make(ranks, *args, **options)
        members = _members(ranks, sort=kwargs.get("sort_ranks", True))
        if members is None:
            return make(ranks, *args, **options)
        place = _creations.place()
        recorder.event("creating", **place, ranks=members, source=source_document(current_source()))
        group = make(ranks, *args, **options)
        recorder.event("created", **place)
        return group

    return make_group


def _recorder() -> Recorder | None:
    session = active_session()
    return None if session is None or not dist.is_initialized() else session.current_recorder()


def _members(ranks: Any, *, sort: bool) -> list[int] | None:
    """The members as torch takes them; None for what torch will refuse."""
    if ranks is None:
        return list(range(dist.get_world_size()))
    try:
        members = [int(rank) for rank in ranks]
    except (TypeError, ValueError):
        return None
    return sorted(members) if sort else members
