"""The cost of a training step before it is run, from descriptions of a model, a parallel layout and a cluster.

Models are data here, and so is what GPUs reach; the price of one collective comes from ``simcoll.estimator``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package, which is at once the function `simcoll.plan`: both have the one name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A plan, as `simcoll.plan.planning.plan` makes it."""
        from simcoll.plan.planning import plan

        return plan(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
