"""A rank's statement of the model that it gives to DistributedDataParallel: names, dtypes, shapes, gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ModelParameter:
    """One parameter, by its name in the module; ``trained`` says that it requires a gradient."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    trained: bool = True

    @property
    def form(self) -> tuple[object, ...]:
        """Everything but the name: the fields that ranks must agree on position by position."""
        return self.dtype, self.shape, self.trained


Parameters: TypeAlias = tuple[ModelParameter, ...]
"""The parameters of a module, in their order."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The addition of a model's construction to the statement of its first collective: a digest and its parameters."""

    digest: int
    count: int
    parameters: Parameters


def claim_of(parameters: Parameters) -> Claim:
    """The claim that these are the parameters, in this order."""
    return Claim(digest_of(parameters), len(parameters), parameters)


def digest_of(parameters: Iterable[ModelParameter]) -> int:
    """64 bits that stand for a list of parameters, equal in every process."""
    text = repr([(one.name, *one.form) for one in parameters])
    return int.from_bytes(blake2b(text.encode(), digest_size=8, key=b"parameters").digest(), "little")


def to_json(parameters: Iterable[ModelParameter]) -> list[object]:
    """JSON values for :func:`from_json`."""
    return [[one.name, one.dtype, list(one.shape), one.trained] for one in parameters]


def from_json(document: object) -> Parameters | None:
    """The parameters of a document; None where it is none."""
    if not isinstance(document, list):
        return None
    found = [_parameter(entry) for entry in document]
    return None if any(one is None for one in found) else tuple(one for one in found if one is not None)


def _parameter(entry: object) -> ModelParameter | None:
    if not isinstance(entry, list) or len(entry) != 4:
        return None
    name, dtype, shape, trained = entry
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        return None
    return ModelParameter(name, dtype, _sizes(shape), trained is True)


def _sizes(shape: Sequence[object]) -> tuple[int, ...]:
    return tuple(size if type(size) is int else -1 for size in shape)
