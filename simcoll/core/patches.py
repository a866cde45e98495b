"""Replaces attributes of modules and classes, and restores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

_INHERITED = object()
"""In place of an original that the owner itself did not hold."""


class Removable(Protocol):
    """The handle of a hook."""

    def remove(self) -> None:
        """Call the hook no more."""
        ...


class Patches:
    """Replaces attributes, and restores them at the end of a ``with`` block or by :meth:`restore`, the last one first.

    True while anything is replaced. Without a call of :meth:`restore` the replacement is permanent. Not thread-safe:
    callers in several threads hold a lock.
    """

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []
        self._handles: list[Removable] = []

    def __bool__(self) -> bool:
        return bool(self._originals or self._handles)

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute if the owner has one of that name."""
        if hasattr(owner, name):
            self.put(owner, name, value)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, also if the owner has none of that name."""
        # Not by getattr: on a class, that would restore a static method as a plain function.
        self._originals.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Replace an attribute by the result of ``wrapper`` on it, if the owner has one of that name."""
        if hasattr(owner, name):
            self.replace(owner, name, wrapper(getattr(owner, name)))

    def hold(self, handle: Removable) -> None:
        """Keep the handle of a hook, which is removed when attributes are restored."""
        self._handles.append(handle)

    def restore(self) -> None:
        """Restore all replaced attributes, and remove hooks."""
        while self._handles:
            self._handles.pop().remove()
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
