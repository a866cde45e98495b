"""``simcoll.step`` and ``simcoll.mark_steps``: a program tells where its training steps end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simcoll.recorder.session import Session


class SteppedOptimizer(Protocol):
    """An optimizer of torch, or one that wraps it: what is called after each of its steps can be registered."""

    def register_step_post_hook(self, hook: Any) -> Any:
        """Call ``hook(optimizer, args, kwargs)`` after each step; returns a handle with ``remove()``."""
        ...


def step() -> None:
    """Mark the end of a training step of this rank.

    Findings, reports, ``simcoll top`` and ``simcoll metrics`` then speak of steps by their number, from 1. Every rank
    marks its own steps; nothing is sent. In a process that records nothing the call does nothing.
    """
    # A process that records has imported the session already; a process that does not may have no torch.
    module = sys.modules.get("simcoll.recorder.session")
    active: Session | None = None if module is None else module.active_session()
    recorder = None if active is None else active.existing_recorder()
    if recorder is not None:
        recorder.box.step()


def mark_steps(optimizer: SteppedOptimizer) -> Any:
    """Mark a step after each step of an optimizer; returns torch's handle, whose ``remove()`` ends that.

    For loops of which only the optimizer is at hand: those of Accelerate (which makes no step while gradients are
    accumulated) and torchtitan. Give one optimizer of those that a step goes through. Of an object that wraps its
    ``optimizer``, as Accelerate's do, the inner one is taken.
    """
    innermost: Any = optimizer
    seen = {id(innermost)}
    while hasattr(inner := getattr(innermost, "optimizer", None), "register_step_post_hook") and id(inner) not in seen:
        innermost = inner
        seen.add(id(inner))
    return innermost.register_step_post_hook(lambda *_: step())
