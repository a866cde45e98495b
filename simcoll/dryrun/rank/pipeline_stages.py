"""The tensor metadata that pipeline stages send each other before they begin, through files in a dry run.

A stage gets the shapes of its inputs from the stage before it. Ranks of a dry run write this metadata to the
run's folder, where those that run later or at the same time find it; a stage whose neighbour does not run takes the
metadata of another one. The gradients of its outputs have the metadata of its outputs.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from simcoll.core.patches import Patches

_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 60.0


def stage_name(rank: int, stage: int) -> str:
    """The file with the metadata that a rank sends to a stage."""
    return f"rank{rank:05d}.stage{stage:05d}"


class StageMetadata:
    """The metadata that this rank's stages send, and those that others have written."""

    def __init__(self, folder: Path, rank: int, is_running: Callable[[int], bool]) -> None:
        self._folder = folder
        self._rank = rank
        self._is_running = is_running
        self._published: list[dict[str, Any]] | None = None

    def publish(self, metas: Any, stage: int) -> None:
        """Write the metadata for a stage, if they are of plain tensors."""
        try:
            self._published = [_as_document(meta) for meta in metas]
        except AttributeError:
            return
        path = self._folder / stage_name(self._rank, stage)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(self._published), encoding="utf-8")
        beside.replace(path)

    def read(self, source: int, stage: int) -> list[dict[str, Any]]:
        """The metadata for a stage from rank ``source``; raises RuntimeError where no rank has written any."""
        path = self._folder / stage_name(source, stage)
        until = time.monotonic() + (_PATIENCE_SECONDS if source < self._rank else 0)
        while not path.exists() and time.monotonic() < until and self._is_running(source):
            time.sleep(_LOOK_SECONDS)
        if path.exists():
            return _read(path)
        if self._published is not None:
            return self._published
        if others := sorted(self._folder.glob("rank*.stage*[0-9]")):
            return _read(others[0])
        raise RuntimeError(
            f"rank {self._rank}: stage {stage} of a pipeline asks rank {source} for the shapes of its inputs, and that "
            f"rank is not part of this dry run; run it too, or give PipelineStage its input_args"
        )


def _as_document(meta: Any) -> dict[str, Any]:
    if hasattr(meta, "placements"):
        raise AttributeError("the metadata of a DTensor has a mesh")
    dtype = str(meta.dtype).removeprefix("torch.")
    return {"shape": [*meta.shape], "stride": [*meta.stride], "dtype": dtype, "requires_grad": meta.requires_grad}


def _read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


_PACKAGE: Final = "torch.distributed.pipelining"
_STAGE: Final = f"{_PACKAGE}.stage"


def share_stage_metadata(patches: Patches, metadata: StageMetadata) -> None:
    """Let pipeline stages use ``metadata``, if those of this torch send each other metadata, when they are imported.

    simcoll does not import them: that registers an operator, which the package that they come from registers too.
    """
    share = functools.partial(_share, patches, metadata)
    if _STAGE in sys.modules:
        share()
    else:
        sys.meta_path.insert(0, _Import(share))


class _Import:
    """Finds the module of pipeline stages as Python does, and calls a function when it has been imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of that module; None for any other."""
        if name != _STAGE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                self._then()

            setattr(spec.loader, "exec_module", execute_and_tell)  # noqa: B010  # mypy has methods stay as they are
        return spec


def _share(patches: Patches, metadata: StageMetadata) -> None:
    base: Any = importlib.import_module(_STAGE).PipelineStage
    kinds: Any = importlib.import_module(f"{_PACKAGE}._utils")
    if not hasattr(base, "_recv_meta") or not hasattr(kinds, "_StageForwardMeta"):
        return
    send, receive = base._send_meta, base._recv_meta

    @functools.wraps(send)
    def send_meta(self: Any, meta: Any, stage_index: int) -> None:
        if isinstance(meta, kinds._StageForwardMeta):
            metadata.publish(meta.forward_metas, stage_index)
        send(self, meta, stage_index)

    @functools.wraps(receive)
    def receive_meta(self: Any, stage_index: int) -> Any:
        receive(self, stage_index)
        if stage_index > self.stage_index:
            return kinds._StageBackwardMeta(kinds._derive_grad_metas(self._stage_meta.outputs))
        published = metadata.read(self._resolve_peer_global_rank(stage_index), self.stage_index)
        return kinds._StageForwardMeta(tuple(_from_document(kinds._TensorMeta, one) for one in published))

    patches.replace(base, "_send_meta", send_meta)
    patches.replace(base, "_recv_meta", receive_meta)


def _from_document(kind: Any, document: dict[str, Any]) -> Any:
    return kind(
        shape=torch.Size(document["shape"]),
        stride=tuple(document["stride"]),
        dtype=getattr(torch, document["dtype"]),
        requires_grad=document["requires_grad"],
    )
