"""simcoll records what every rank says to every other rank, proves that they agree, and prices it.

Importing this package imports no torch; the names that need it import it when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcoll.activation import disable, enable, wrap_process_group
    from simcoll.errors import CollectiveMismatchError, ConfigurationError, MissingRankError, SimcollError
    from simcoll.estimate_value import Estimate
    from simcoll.estimator import estimate

__version__ = "0.1.0"

_HOMES = {
    "CollectiveMismatchError": "simcoll.errors",
    "ConfigurationError": "simcoll.errors",
    "Estimate": "simcoll.estimate_value",
    "MissingRankError": "simcoll.errors",
    "SimcollError": "simcoll.errors",
    "disable": "simcoll.activation",
    "enable": "simcoll.activation",
    "estimate": "simcoll.estimator",
    "wrap_process_group": "simcoll.activation",
}

__all__ = [
    "CollectiveMismatchError",
    "ConfigurationError",
    "Estimate",
    "MissingRankError",
    "SimcollError",
    "__version__",
    "disable",
    "enable",
    "estimate",
    "wrap_process_group",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'simcoll' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value  # found at once the next time: `simcoll.estimate` is called in loops
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
