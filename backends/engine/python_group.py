"""The base of process groups written in Python: name, store and backend, as c10d asks for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Store, Work

from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.spec.collectives import METHODS


class PythonProcessGroup(ProcessGroup):
    """One rank's side of a group without a backend in C++; ``backend_name`` is that of the replaced backend."""

    def __init__(self, rank: int, size: int, store: Store, backend_name: str) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs know one constructor
        self.store = store
        self._rank = rank
        self._backend_name = backend_name
        self._name, self._desc = "", ""

    def _get_backend(self, device: torch.device) -> Any:
        return NamedBackend(self._backend_name, self._rank, self.size())

    def getBackendName(self) -> str:  # noqa: N802  # C++ asks under this name
        """A backend name that C++ does not know: it would make assumptions about a known one."""
        return "threaded"

    def name(self) -> str:
        """The backend's name."""
        return self._backend_name

    _get_backend_name = name

    def getGroupName(self) -> str:  # noqa: N802  # C++ asks under this name
        """The group's name."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802  # C++ asks under this name
        """The group's description."""
        return self._desc

    # torch's own groups keep these in their backends; this one has none.
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def get_group_store(self) -> Store:
        """The store of the group."""
        return self.store

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: calls here do not wait; a group that waits overrides this."""

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the records count."""

    def _wait_for_pending_works(self) -> None:
        """Do nothing: there are no hooks to wait for."""


def add_c10d_methods(kind: type[PythonProcessGroup]) -> None:
    """Give a class those of c10d's methods that this version of torch has; each calls ``_collective``."""
    for name in METHODS:
        if hasattr(ProcessGroup, name) and name not in vars(kind):
            setattr(kind, name, _method(name))
    leave_class_uncompiled(kind)


def _method(name: str) -> Callable[..., Work]:
    @functools.wraps(getattr(ProcessGroup, name), assigned=("__doc__",))
    def method(self: Any, *args: Any, **kwargs: Any) -> Work:
        work: Work = self._collective(name, args, kwargs)
        return work

    method.__name__ = name
    return method


class NamedBackend:
    """The backend object that c10d gets from a group: a name, and this rank's place."""

    supports_splitting = False
    supports_coalescing = False

    def __init__(self, name: str, rank: int, size: int) -> None:
        self._backend_name, self._rank, self._size = name, rank, size

    def name(self) -> str:
        """The backend's name."""
        return self._backend_name

    def rank(self) -> int:
        """The group rank."""
        return self._rank

    def size(self) -> int:
        """The group's size."""
        return self._size
