"""What a process group that is written in Python has to answer to c10d: its name, its store, its coalesced sections."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Store


class PythonProcessGroup(ProcessGroup):
    """One rank's side of a group without a backend in C++; ``called`` is the name of the backend that it stands for."""

    def __init__(self, rank: int, size: int, store: Store, called: str) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs know one constructor
        self.store = store
        self._rank = rank
        self._called = called
        self._name, self._desc = "", ""

    def _get_backend(self, device: torch.device) -> Any:
        return NamedBackend(self._called, self._rank, self.size())

    def getBackendName(self) -> str:  # noqa: N802  # C++ asks under this name
        """The backend's name for C++, which expects of one that it knows what it is made of."""
        return "threaded"

    def name(self) -> str:
        """The backend's name."""
        return self._called

    _get_backend_name = name

    def getGroupName(self) -> str:  # noqa: N802  # C++ asks under this name
        """The group's name."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802  # C++ asks under this name
        """The group's description."""
        return self._desc

    # torch's own keep these in their backends, of which there are none.
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
        """Nothing here takes time; a group that waits has a limit of its own."""

    def _set_sequence_number_for_group(self) -> None:
        """The records count."""

    def _wait_for_pending_works(self) -> None:
        """There are no hooks to wait for."""


class NamedBackend:
    """What c10d is given that asks a group for a backend: its name, and this rank's place in it."""

    supports_splitting = False
    supports_coalescing = False

    def __init__(self, called: str, rank: int, size: int) -> None:
        self._called, self._rank, self._size = called, rank, size

    def name(self) -> str:
        """The backend's name."""
        return self._called

    def rank(self) -> int:
        """The group rank."""
        return self._rank

    def size(self) -> int:
        """How many ranks the group has."""
        return self._size
