"""The backends of torch with known limits and behaviour, by torch's name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simcoll.backends.base import Backend
from simcoll.backends.gloo import GLOO
from simcoll.backends.nccl import NCCL, NCCL2, NCCL_LAZY, configured

KNOWN: Mapping[str, Backend] = MappingProxyType({one.name: one for one in (GLOO, NCCL, NCCL2, NCCL_LAZY)})
"""The backends in their default configuration."""


def known(name: str, environment: Mapping[str, str], *, bound: bool) -> Backend | None:
    """The backend that torch calls ``name``, as configured by ``environment``; None for an unknown one.

    ``bound`` is True if its group knows its device.
    """
    backend = KNOWN.get(name)
    return backend if backend in (GLOO, None) else configured(backend, environment, bound=bound)
