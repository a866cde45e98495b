"""A recorded group around a process group written in Python, which answers in the place of C++."""

from __future__ import annotations

from typing import Any

import torch

from simcoll.recorder.recorder import GroupLog
from simcoll.wrapper.pipeline import Pipeline, RecordedPipeline
from simcoll.wrapper.process_group import RecordedProcessGroup


class RecordedPythonGroup(RecordedProcessGroup):
    """A recorded group whose inner one is a :class:`~simcoll.backends.engine.python_group.PythonProcessGroup`."""

    _inner: Any

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self._inner._get_backend(device)

    def getBackendName(self) -> str:  # noqa: N802  # C++ asks under this name
        """The backend's name for C++."""
        name: str = self._inner.getBackendName()
        return name

    def name(self) -> str:
        """The backend's name."""
        name: str = self._inner.name()
        return name

    _get_backend_name = name

    def getGroupName(self) -> str:  # noqa: N802  # C++ asks under this name
        """The group's name."""
        name: str = self._inner.group_name
        return name

    def getGroupDesc(self) -> str:  # noqa: N802  # C++ asks under this name
        """The group's description."""
        desc: str = self._inner.group_desc
        return desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _set_group_name(self, name: Any) -> None:
        self._inner._set_group_name(name)

    def _set_group_desc(self, desc: str) -> None:
        self._inner._set_group_desc(desc)
        if self._session is not None:
            self._make_pipeline(self._session)

    def _set_sequence_number_for_group(self) -> None:
        """The records count."""

    def _new_pipeline(self, log: GroupLog, mode: str, being_made: bool) -> Pipeline:
        """Ranks in one process, or without peers, prove nothing to each other over a wire."""
        return RecordedPipeline(log, self._times())
