"""The memory layout of a strided tensor or array; strides count elements."""

from __future__ import annotations

from collections.abc import Sequence


def long_dimensions(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Stride and size of the dimensions longer than one."""
    return [(stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1]


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first in memory to the last, gaps included; there is at least one."""
    return 1 + int(sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if the elements fill the memory from the first to the last, each place once, in whatever order."""
    expected = 1
    for stride, size in sorted(long_dimensions(shape, strides)):
        if stride != expected:
            return False
        expected *= size
    return True
