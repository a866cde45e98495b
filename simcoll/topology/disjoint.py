"""Nodes of a graph gathered into disjoint sets (union-find with path halving)."""

from __future__ import annotations

from collections.abc import Hashable


class DisjointSets:
    """Sets of nodes that grow together; a node that was never joined is alone."""

    def __init__(self) -> None:
        self._parent: dict[Hashable, Hashable] = {}

    def root(self, node: Hashable) -> Hashable:
        """The node that stands for the set of ``node``."""
        parent = self._parent
        parent.setdefault(node, node)
        while (above := parent[node]) != node:
            parent[node] = node = parent[above]
        return node

    def join(self, one: Hashable, other: Hashable) -> None:
        """Make one set of the two that hold ``one`` and ``other``."""
        self._parent[self.root(one)] = self.root(other)
