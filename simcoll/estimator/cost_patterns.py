"""The transfers of each algorithm as latency and bandwidth terms: the closed form of a bare schedule.

A schedule of steps costs, in each step, the latency of its farthest transfer and the time of its busiest link. The
terms are exact where all ranks are alike and a step's transfers share links evenly; in a pipelined schedule (ring
broadcast, tree) the pieces are taken as infinitely fine. Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization
of collective communication operations in MPICH", IJHPCA 2005; P. Sanders, J. Speck, J. Traeff, "Two-tree algorithms for
full bandwidth broadcast, reduction and scan", Parallel Computing 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from simcoll.estimator.shape import ClusterShape


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of a step and of a byte: seconds of a step inside a domain and across domains, and bytes/s.

    ``inside`` is of one rank's links within its domain; ``network`` of all links out of a domain for a ring,
    ``exchange`` of the same for an exchange of all with all, ``root`` of the links out of a single rank. The root's
    domain holds ``root_local`` ranks.
    """

    ranks: int
    domains: int
    root_local: int
    near: float
    far: float
    inside: float
    network: float
    exchange: float
    root: float

    @property
    def local(self) -> float:
        """Ranks in a domain."""
        return self.ranks / self.domains

    @property
    def step(self) -> float:
        """Seconds of a step in which some transfers cross domains, if any ever do."""
        return max(self.near if self.domains < self.ranks else 0.0, self.far if self.domains > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds before any byte, seconds per byte on links inside a domain, and per byte on those between domains.

    ``together``: both kinds of link are busy at the same time, so that the slower counts; else one after the other.
    """

    latency: float
    inside: float
    outside: float
    together: bool = True

    @property
    def per_byte(self) -> float:
        """Seconds per byte."""
        return max(self.inside, self.outside) if self.together else self.inside + self.outside


def bare_costs(shape: ClusterShape) -> Costs:
    """The costs that the graph itself states, without protocols and launches."""
    return Costs(
        shape.ranks,
        shape.domains,
        shape.root_local,
        shape.inside_latency,
        shape.outside_latency,
        shape.inside_bandwidth,
        shape.ring_network,
        shape.exchange_network,
        shape.root_network,
    )


def load_of(op: str, algorithm: str, costs: Costs) -> Load:
    """The terms of a collective by an algorithm of its row in the spec."""
    return _PATTERNS[op, algorithm](costs)


def _ring(costs: Costs, passes: int) -> Load:
    """Rings, one through each NIC, go around once or twice; each leaves a domain in one hop of its ranks'."""
    steps = passes * (costs.ranks - 1)
    share = steps / costs.ranks
    hops = (costs.local - 1) / costs.local if costs.domains > 1 else 1.0
    return Load(steps * costs.step, hops * share / costs.inside, share / costs.network)


_ring_half, _ring_all_reduce = partial(_ring, passes=1), partial(_ring, passes=2)


def _ring_rooted(costs: Costs) -> Load:
    """A chain from the root, or to it."""
    steps = costs.ranks - 1
    return Load(steps * costs.step, 1 / costs.inside, 1 / costs.network)


def depth(count: float) -> int:
    """Levels of a binary tree over so many, or rounds of a doubling."""
    return math.ceil(math.log2(count)) if count > 1 else 0


def _tree_latency(costs: Costs) -> float:
    return depth(costs.local) * costs.near + depth(costs.domains) * costs.far


def _chained_latency(costs: Costs) -> float:
    """NCCL's tree of several domains is a chain within each."""
    inside = depth(costs.local) if costs.domains == 1 else costs.local - 1
    return inside * costs.near + depth(costs.domains) * costs.far


def tree_share(domains: int) -> float:
    """Bytes that a domain sends per byte of a double binary tree's all_reduce: of two domains each is a root once."""
    return 1.0 if domains == 2 else 2.0


def _tree_all_reduce(costs: Costs) -> Load:
    inside = tree_share(costs.ranks) if costs.domains == 1 else 2.0
    return Load(2 * _chained_latency(costs), inside / costs.inside, tree_share(costs.domains) / costs.network)


def _tree_rooted(costs: Costs) -> Load:
    return Load(_chained_latency(costs), 1 / costs.inside, 1 / costs.network)


def _nvls(costs: Costs) -> Load:
    """The switch adds up or multicasts the data that passes: a rank's links carry all bytes once each way."""
    return Load(costs.near, 1 / costs.inside, 0.0)


def _nvls_tree(costs: Costs) -> Load:
    latency = costs.near + 2 * depth(costs.domains) * costs.far
    return Load(latency, 1 / costs.inside, tree_share(costs.domains) / costs.network)


def _halving(costs: Costs) -> Load:
    """Halve with the nearest first, so that only small pieces cross domains."""
    p, m = costs.local, costs.domains
    return Load(_tree_latency(costs), (1 - 1 / p) / costs.inside, (1 - 1 / m) / costs.exchange, together=False)


def _halving_doubling(costs: Costs) -> Load:
    """Ranks beyond a power of two hand their data over first, and get the result last."""
    half, extra = _halving(costs), 0 if math.log2(costs.ranks).is_integer() else 2
    return Load(
        2 * half.latency + extra * costs.near,
        2 * half.inside + extra / costs.inside,
        2 * half.outside,
        together=False,
    )


def _steps(costs: Costs, sizes: Iterable[tuple[int, float]]) -> Load:
    """Steps in which every rank sends a share of the bytes to the rank ``distance`` on.

    Data between domains goes over the sender's own NICs, which ``sharing`` ranks share.
    """
    n, p, latency, inside, outside = costs.ranks, costs.local, 0.0, 0.0, 0.0
    sharing = p * costs.root / costs.network if costs.domains > 1 else 1.0
    for distance, share in sizes:
        crossing = min(distance, n - distance, p) if costs.domains > 1 else 0.0
        near = share / costs.inside if crossing < p else 0.0
        far = share * max(min(crossing, sharing) / costs.root, crossing / costs.exchange)
        latency += costs.far if crossing else costs.near
        inside, outside = inside + (near if near > far else 0.0), outside + (0.0 if near > far else far)
    return Load(latency, inside, outside, together=False)


def _bruck(costs: Costs) -> Load:
    """Round k sends all pieces gathered so far to the rank 2^k on."""
    n = costs.ranks
    return _steps(costs, ((1 << k, min(1 << k, n - (1 << k)) / n) for k in range(depth(n))))


def _bruck_exchange(costs: Costs) -> Load:
    """Round k sends all pieces whose way has bit k set."""
    n = costs.ranks
    pieces = (sum(1 for way in range(n) if way >> k & 1) for k in range(depth(n)))
    return _steps(costs, ((1 << k, count / n) for k, count in enumerate(pieces)))


def _pairwise(costs: Costs) -> Load:
    return _steps(costs, ((distance, 1 / costs.ranks) for distance in range(1, costs.ranks)))


def _pat(costs: Costs) -> Load:
    """Bruck's rounds the other way round: single pieces to the farthest first."""
    n = costs.ranks
    rounds = reversed(range(depth(n)))
    return _steps(costs, ((1 << k, math.ceil((n - (1 << k)) / (2 << k)) / n) for k in rounds))


def _direct(costs: Costs) -> Load:
    """All with all at once, a piece for each."""
    n, p = costs.ranks, costs.local
    return Load(costs.step if n > 1 else 0.0, (p - 1) / n / costs.inside, p * (n - p) / n / costs.exchange)


def _direct_all_reduce(costs: Costs) -> Load:
    half = _direct(costs)
    return Load(2 * half.latency, 2 * half.inside, 2 * half.outside)


def _rooted(costs: Costs, piece: float) -> Load:
    """One rank sends a piece to each other, or gets one from each."""
    n, p = costs.ranks, costs.root_local
    return Load(costs.step if n > 1 else 0.0, (p - 1) * piece / costs.inside, (n - p) * piece / costs.root)


def _direct_pieces(costs: Costs) -> Load:
    return _rooted(costs, 1 / costs.ranks)


def _tree_pieces(costs: Costs) -> Load:
    """A binomial tree moves every piece of a subtree over the root's link in one of its rounds."""
    pieces = _direct_pieces(costs)
    return Load(_tree_latency(costs), pieces.inside, pieces.outside, together=False)


def _hierarchical(costs: Costs, passes: int) -> Load:
    """Within each domain and between the ranks of like place; of two passes the second is the way back."""
    p, m = costs.local, costs.domains
    latency = passes * (p - 1) * costs.near + passes * (m - 1) * costs.far
    return Load(latency, passes * (p - 1) / p / costs.inside, passes * (m - 1) / m / costs.network, together=False)


def _hierarchical_exchange(costs: Costs) -> Load:
    p, m = costs.local, costs.domains
    latency = (p - 1) * costs.near + (m - 1) * costs.far
    return Load(latency, (p - 1) / p / costs.inside, p * (m - 1) / m / costs.exchange, together=False)


def _hierarchical_rooted(costs: Costs) -> Load:
    """Pieces within the root's domain, each along the ranks of like place, all pieces within each domain again."""
    p, latency = costs.local, _tree_latency(costs) + depth(costs.local) * costs.near
    return Load(latency, 2 * (p - 1) / p / costs.inside, 1 / costs.network, together=False)


def _pair(costs: Costs) -> Load:
    """One rank to one other, in another domain where there are several."""
    if costs.domains > 1:
        return Load(costs.far, 0.0, 1 / costs.root)
    return Load(costs.near, 1 / costs.inside, 0.0)


_PATTERNS: dict[tuple[str, str], Callable[[Costs], Load]] = {
    ("all_reduce", "ring"): _ring_all_reduce,
    ("all_reduce", "tree"): _tree_all_reduce,
    ("all_reduce", "nvls"): _nvls,
    ("all_reduce", "nvls_tree"): _nvls_tree,
    ("all_reduce", "halving_doubling"): _halving_doubling,
    ("all_reduce", "hierarchical"): partial(_hierarchical, passes=2),
    ("all_reduce", "direct"): _direct_all_reduce,
    **{(op, "ring"): _ring_half for op in ("all_gather", "reduce_scatter")},
    **{(op, "nvls"): _nvls for op in ("all_gather", "reduce_scatter")},
    **{(op, "pat"): _pat for op in ("all_gather", "reduce_scatter")},
    **{(op, "direct"): _direct for op in ("all_gather", "reduce_scatter", "all_to_all")},
    **{(op, "hierarchical"): partial(_hierarchical, passes=1) for op in ("all_gather", "reduce_scatter")},
    ("all_gather", "bruck"): _bruck,
    ("reduce_scatter", "halving_doubling"): _halving,
    ("all_to_all", "pairwise"): _pairwise,
    ("all_to_all", "bruck"): _bruck_exchange,
    ("all_to_all", "hierarchical"): _hierarchical_exchange,
    **{(op, "ring"): _ring_rooted for op in ("broadcast", "reduce")},
    **{(op, "tree"): _tree_rooted for op in ("broadcast", "reduce")},
    **{(op, "direct"): partial(_rooted, piece=1.0) for op in ("broadcast", "reduce")},
    **{(op, "hierarchical"): _hierarchical_rooted for op in ("broadcast", "reduce")},
    **{(op, "direct"): _direct_pieces for op in ("gather", "scatter")},
    **{(op, "tree"): _tree_pieces for op in ("gather", "scatter")},
    **{(op, "direct"): _pair for op in ("send", "recv")},
    ("barrier", "ring"): _ring_all_reduce,
    ("barrier", "tree"): _tree_all_reduce,
    ("barrier", "direct"): _direct_all_reduce,
    ("monitored_barrier", "direct"): _direct_pieces,
}
