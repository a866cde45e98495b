"""Keeps torch.compile out of simcoll's own frames.

C++ calls the recorded group back in the middle of compiled regions (DistributedDataParallel's reducer does), where
dynamo would try to compile any Python that it meets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo import eval_frame


def leave_uncompiled(*functions: Callable[..., Any]) -> None:
    """Run these functions, and all that they call, as plain Python; costs no import of dynamo."""
    action = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(action, action)
    for function in functions:
        eval_frame.set_code_exec_strategy(function.__code__, strategy)


def leave_class_uncompiled(kind: type) -> None:
    """:func:`leave_uncompiled` for every method that a class defines itself."""
    leave_uncompiled(*(value for value in vars(kind).values() if hasattr(value, "__code__")))
