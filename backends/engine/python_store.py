"""The base of c10d stores written in Python: what does not depend on where the keys are, and C++'s names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store

_NAMES_IN_CPP = {
    "compare_set": "compareSet",
    "delete_key": "deleteKey",
    "num_keys": "getNumKeys",
    "multi_get": "multiGet",
    "multi_set": "multiSet",
    "has_extended_api": "hasExtendedApi",
    "set_timeout": "setTimeout",
}


class PythonStore(Store):
    """A store whose subclass has the keys; ``timeout`` is that of waits. C++ calls the methods too."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__()
        self._limit = timeout

    def __init_subclass__(cls) -> None:
        for name, in_cpp in _NAMES_IN_CPP.items():
            setattr(cls, in_cpp, getattr(cls, name))

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Set several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """True: append, multi_get and multi_set are there."""
        return True

    def clone(self) -> PythonStore:
        """The store itself: there is no connection to duplicate."""
        return self

    @property
    def timeout(self) -> timedelta:
        """The timeout of waits."""
        return self._limit

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of waits."""
        self._limit = timeout
