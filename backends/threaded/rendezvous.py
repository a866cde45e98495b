"""The rendezvous of ranks that are threads: in-memory stores, whatever address or store their program names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed import distributed_c10d

from simcoll.backends.threaded.c10d_tables import TorchRank, torch_ranks
from simcoll.backends.threaded.store import RankStore
from simcoll.core.patches import Patches


def accept_default_group(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` that accepts once an implicit default group as the one that the program asks for."""

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = torch_ranks.here
        if rank is None or rank.initialising:
            return initialise(*args, **kwargs)
        if rank.default_group_is_implicit and rank.tables.default_pg is not None:
            rank.default_group_is_implicit = False
            return None
        rank.initialising = True
        try:
            return initialise(*args, **kwargs)
        finally:
            rank.initialising = False
            rank.lives += 1

    return init_process_group


def with_rank_store(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` with the ranks' store in place of the one that the program names."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = torch_ranks.here
        if rank is None:
            return initialise(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        number, size = _place(rank, given)
        if not 0 <= number < size:
            raise ValueError(f"rank {number} of {size}: expected a rank below the world size, from 0")
        given |= {"rank": number, "world_size": size, "store": rank.stores["life", rank.lives], "init_method": None}
        given.pop("device_id", None)
        return initialise(**given)

    return init_process_group


def _place(rank: TorchRank, given: Mapping[str, Any]) -> tuple[int, int]:
    """The rank and world size that a call declares, or else those of the launcher."""
    query = parse_qs(urlsplit(given.get("init_method") or "").query)
    number, size = given.get("rank", -1), given.get("world_size", -1)
    number = int(query["rank"][0]) if "rank" in query else number
    size = int(query["world_size"][0]) if "world_size" in query else size
    return (rank.rank if number in (-1, None) else number), (rank.world.size if size in (-1, None) else size)


def replace_stores(patches: Patches) -> None:
    """Replace the stores that a program makes by the ranks' own: a wait in another one would keep the turn."""
    names: dict[str, Callable[..., Any]] = {"TCPStore": _tcp_store, "FileStore": _file_store, "rendezvous": _rendezvous}
    for module in (dist, distributed_c10d):
        for name, own in names.items():
            patches.wrap(module, name, functools.partial(_for_ranks, own=own))


def _for_ranks(original: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        rank = torch_ranks.here
        return original(*args, **kwargs) if rank is None else own(rank, *args, **kwargs)

    return make


def _tcp_store(rank: TorchRank, host_name: str, port: int = 0, *args: Any, **kwargs: Any) -> RankStore:
    return rank.stores["tcp", port]


def _file_store(rank: TorchRank, file_name: str, *args: Any, **kwargs: Any) -> RankStore:
    return rank.stores["file", str(file_name)]


def _rendezvous(rank: TorchRank, url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[RankStore, int, int]]:
    given = dict(zip(("rank", "world_size"), args, strict=False)) | kwargs | {"init_method": url}
    yield (rank.stores["rendezvous", url], *_place(rank, given))
