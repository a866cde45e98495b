"""The measured nccl-tests rows in ``data/``, each series with the cluster that it was measured on."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from simcoll.topology.clusters import ClusterArguments

ROWS = Path(__file__).parent / "data" / "nccl_tests_measured.csv"

_FAMILIES = ("gb300", "gb200", "b200", "h200", "h100", "a100")
_FABRICS = {"EFA": "efa", "TCPXO": "tcpxo", "TCPX": "tcpx", "RoCE": "roce"}
_NICS = re.compile(r"(\d+)x(\d+)G")


@dataclass(frozen=True, slots=True)
class Series:
    """Sizes and measured seconds of one collective on one cluster, and who measured them."""

    provider: str
    hardware: str
    op: str
    cluster: ClusterArguments
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def name(self) -> str:
        """For a table."""
        return f"{self.hardware}, {self.cluster['nodes']} x {self.cluster['gpus_per_node']}, {self.op}"


def all_series() -> list[Series]:
    """Every series, in the order of the file."""
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    same = itemgetter("source", "hardware", "nodes", "gpus_per_node", "nic", "collective")
    return [_series(list(group)) for _, group in groupby(rows, key=same)]


def _series(rows: list[dict[str, str]]) -> Series:
    first = rows[0]
    sizes = tuple(int(row["bytes"]) for row in rows)
    seconds = tuple(float(row["time_us"]) * 1e-6 for row in rows)
    return Series(_provider(first), first["hardware"], first["collective"], _cluster(first), sizes, seconds)


def _provider(row: dict[str, str]) -> str:
    """Who ran the machines: what two tables of one page share is no independent evidence."""
    words = row["hardware"].split()
    return "DGX Cloud" if words[0] == "DGX" else words[0]


def _cluster(row: dict[str, str]) -> ClusterArguments:
    """A server without a network still has the NICs that it needs for none."""
    family = next(family for family in _FAMILIES if family in row["hardware"].lower())
    fabric = next((name for word, name in _FABRICS.items() if word in row["nic"]), "ib")
    gpus, found = int(row["gpus_per_node"]), _NICS.search(row["nic"])
    nics, gbps = (int(found[1]), float(found[2])) if found else (gpus, 400.0)
    return ClusterArguments(
        gpu=family,
        nodes=int(row["nodes"]),
        gpus_per_node=gpus,
        nics_per_node=nics,
        nic_gbps=gbps,
        fabric=fabric,
    )
