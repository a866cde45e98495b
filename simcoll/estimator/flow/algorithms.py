"""Which function makes the schedule of each row and algorithm of the table of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from simcoll.errors import TopologyError
from simcoll.estimator.flow import exchange_schedules as exchange
from simcoll.estimator.flow import hierarchical_schedules as host
from simcoll.estimator.flow import ring_schedules as ring
from simcoll.estimator.flow import tree_schedules as tree
from simcoll.estimator.flow.layout import Layout
from simcoll.estimator.flow.schedule import Schedule
from simcoll.spec.collectives import COLLECTIVES

Builder = Callable[[Layout, float, int], Schedule]

_BUILDERS: Mapping[tuple[str, str], Builder] = MappingProxyType(
    {
        ("all_reduce", "ring"): ring.all_reduce,
        ("all_reduce", "tree"): tree.all_reduce,
        ("all_reduce", "halving_doubling"): exchange.halving_doubling_all_reduce,
        ("all_reduce", "hierarchical"): host.all_reduce,
        ("all_reduce", "nvls"): host.nvls_all_reduce,
        ("all_reduce", "nvls_tree"): host.nvls_tree,
        ("all_reduce", "direct"): exchange.direct_all_reduce,
        ("broadcast", "ring"): ring.broadcast,
        ("broadcast", "tree"): tree.broadcast,
        ("broadcast", "hierarchical"): host.broadcast,
        ("broadcast", "direct"): exchange.from_root,
        ("reduce", "ring"): ring.reduce,
        ("reduce", "tree"): tree.reduce,
        ("reduce", "hierarchical"): host.reduce,
        ("reduce", "direct"): exchange.to_root,
        ("all_gather", "ring"): ring.all_gather,
        ("all_gather", "bruck"): exchange.bruck_all_gather,
        ("all_gather", "pat"): exchange.pat_all_gather,
        ("all_gather", "hierarchical"): host.all_gather,
        ("all_gather", "nvls"): host.nvls_all_gather,
        ("all_gather", "direct"): exchange.direct_all_gather,
        ("gather", "direct"): exchange.direct_gather,
        ("gather", "tree"): tree.gather,
        ("scatter", "direct"): exchange.direct_scatter,
        ("scatter", "tree"): tree.scatter,
        ("reduce_scatter", "ring"): ring.reduce_scatter,
        ("reduce_scatter", "halving_doubling"): exchange.halving_doubling_reduce_scatter,
        ("reduce_scatter", "pat"): exchange.pat_reduce_scatter,
        ("reduce_scatter", "hierarchical"): host.reduce_scatter,
        ("reduce_scatter", "nvls"): host.nvls_reduce_scatter,
        ("reduce_scatter", "direct"): exchange.direct_reduce_scatter,
        ("all_to_all", "pairwise"): exchange.pairwise_all_to_all,
        ("all_to_all", "direct"): exchange.direct_all_to_all,
        ("all_to_all", "bruck"): exchange.bruck_all_to_all,
        ("all_to_all", "hierarchical"): host.all_to_all,
        ("barrier", "tree"): tree.all_reduce,
        ("barrier", "ring"): ring.all_reduce,
        ("barrier", "direct"): exchange.direct_all_gather,
        ("monitored_barrier", "direct"): exchange.meet_at_root,
        ("send", "direct"): exchange.message,
        ("recv", "direct"): exchange.message,
    }
)


def algorithms(op: str) -> tuple[str, ...]:
    """The algorithms that the table has for a collective; raises TopologyError for one that it does not have."""
    try:
        return COLLECTIVES[op].schedules
    except KeyError:
        raise TopologyError(f"op is {op!r}, expected one of {', '.join(COLLECTIVES)}") from None


def schedule(op: str, algorithm: str, layout: Layout, size: float, root: int = 0) -> Schedule:
    """What the algorithm sends; pipelines in one chunk (`TransferStep.split`).

    ``size`` is nccl-tests' size in bytes, ``root`` a place in the group. Raises TopologyError for an algorithm that the
    row does not have, or that needs another topology.
    """
    if algorithm not in algorithms(op):
        raise TopologyError(f"algorithm of {op} is {algorithm!r}, expected one of {', '.join(algorithms(op))}")
    if not 0 <= root < layout.size:
        raise TopologyError(f"root is {root}, expected the place of a rank in the group, 0 to {layout.size - 1}")
    if layout.size == 1:
        return ()
    return _BUILDERS[op, algorithm](layout, size, root)
