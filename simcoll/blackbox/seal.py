"""A slot's seal: 16 bits by which a reader tells a call as it was written from one that a damaged disk or copy made up.

The seal covers what says which call it was. States and times change after it is made; they are bound to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State

_FACTORS = (0x9E3779B97F4B, 0xC2B2AE3D27D5, 0x165667B19E37, 0xD6E8FEB86659, 0xA0761D6478BD)
"""Odd numbers of 48 bits without a pattern: a bit of any field changes some of the upper 16 bits of the sum."""

_GROUP, _SEQUENCE, _P2P, _SIGNATURE, _SOURCE = _FACTORS
_FIELDS = ("group", "sequence", "p2p_sequence", "signature", "source")


def seal(group: int, sequence: int, p2p_sequence: int, signature: int, source: int) -> int:
    """The seal of one call, 1 to 65,535, by its fields as they stand in the slot."""
    total = group * _GROUP + sequence * _SEQUENCE + p2p_sequence * _P2P + signature * _SIGNATURE + source * _SOURCE
    return total >> 32 & 0xFFFF or 1


def seals(ring: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The seal of each slot."""
    total: npt.NDArray[np.uint64] = np.zeros(len(ring), np.uint64)
    for field, factor in zip(_FIELDS, _FACTORS, strict=True):
        total += ring[field].astype(np.uint64) * np.uint64(factor)
    upper: npt.NDArray[np.uint64] = total >> np.uint64(32) & np.uint64(0xFFFF)
    return np.maximum(upper, np.uint64(1))


def intact(ring: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which slots state what a writer can have stated. A file without any seal is taken as it is."""
    sound: npt.NDArray[np.bool_] = ring["state"] <= max(State)
    if ring["seal"].any():
        sound &= ring["seal"] == seals(ring)
    sound &= (ring["state"] < State.COMPLETED) | (ring["finished_ns"] > 0)
    return sound


def settle(slots: npt.NDArray[Any]) -> None:
    """Give a call whose end has its time, and whose state does not say so, the state that was to follow."""
    slots["state"][(slots["finished_ns"] > 0) & (slots["state"] < State.COMPLETED)] = State.COMPLETED
