"""The switches between the hosts, with those that no route can tell apart taken together.

The spines of a pod all join the same leaves, and traffic that is split evenly loads them alike: one node with the sum
of their links has the same loads. Which switches are alike is found by refining colours until neighbours of like
switches are alike (an equitable partition; the switches that hosts hang on keep a colour each), so that any edited link
splits exactly those that it makes unlike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcoll.estimator.flow.network import Network
from simcoll.estimator.flow.paths import Floats, Integers, Paths, Walk

_Hashes = npt.NDArray[np.uint64]


class Fabric:
    """The switches of a network as classes; links of the same two classes, bandwidth and latency are one wide link.

    The first links are the network's own, by their numbers, and the wide links follow. ``member`` is for each link one
    of the network's that it stands for, ``width`` how many.
    """

    def __init__(self, network: Network, held: Integers) -> None:
        switch = network.of_kind("switch")
        inner = np.flatnonzero(switch[network.source] & switch[network.target])
        colours = _refined(network, inner, switch, held)
        self._colour = colours
        source, target = colours[network.source[inner]], colours[network.target[inner]]
        keys = (source << 42) + (target << 21) + _looks(network, inner)
        _, first, count = np.unique(keys, return_index=True, return_counts=True)
        own = len(network.source)
        self.member: Integers = np.concatenate([np.arange(own), inner[first]]).astype(np.int64)
        self.width: Floats = np.concatenate([np.ones(own), count]).astype(float)
        members = np.bincount(colours[switch], minlength=1)
        self._paths = Paths(
            len(members),
            source[first],
            target[first],
            network.cost[inner[first]],
            own + np.arange(len(first)),
            count / members[source[first]],
        )

    def cost(self, sources: Integers, targets: Integers) -> Floats:
        """What the way from one switch to another costs, by the network's numbers of the switches."""
        return self._paths.cost(self._colour[sources], self._colour[targets])

    def walk(self, sources: Integers, targets: Integers) -> Walk:
        """The links from one switch to another."""
        return self._paths.walk(self._colour[sources], self._colour[targets])


def _looks(network: Network, links: Integers) -> Integers:
    """A number for each pair of bandwidth and cost."""
    pairs = network.bandwidth[links] + 1j * network.cost[links]
    return np.unique(pairs, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _refined(network: Network, inner: Integers, switch: npt.NDArray[np.bool_], held: Integers) -> Integers:
    """The class of each switch, from 0; -1 for other nodes."""
    source, target = network.source[inner], network.target[inner]
    look = _mixed(_looks(network, inner).astype(np.uint64))
    colours = np.zeros(len(switch), np.int64)
    colours[held] = 1 + np.arange(len(held))
    colours[~switch] = -1
    places = np.flatnonzero(switch)
    before, classes = -1, 0
    while before < classes:
        sign = _mixed(colours.astype(np.uint64))
        out = _mixed(sign[target] + look)
        into = _mixed(sign[source] * np.uint64(3) + look)
        total = sign.copy()
        np.add.at(total, source, out)
        np.add.at(total, target, into)
        found, colours[places] = np.unique(total[places], return_inverse=True)
        before, classes = classes, len(found)
    return colours


def _mixed(values: _Hashes) -> _Hashes:
    """The finaliser of splitmix64: a different 64-bit number for each one."""
    with np.errstate(over="ignore"):
        mixed = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
