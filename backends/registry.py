"""The backends of torch whose limits and habits are known, by the name that torch gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simcoll.backends.base import Backend
from simcoll.backends.gloo import GLOO
from simcoll.backends.nccl import NCCL, NCCL2, NCCL_LAZY, configured

KNOWN: Mapping[str, Backend] = MappingProxyType({one.name: one for one in (GLOO, NCCL, NCCL2, NCCL_LAZY)})
"""Each of them as it is by default."""


def known(name: str, environment: Mapping[str, str], *, bound: bool) -> Backend | None:
    """The backend that torch calls ``name``, as the variables of ``environment`` set it; None where nothing is known.

    ``bound`` says that its group knows its device.
    """
    backend = KNOWN.get(name)
    return backend if backend in (GLOO, None) else configured(backend, environment, bound=bound)
