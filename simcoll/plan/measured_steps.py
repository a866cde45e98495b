"""Prices the rows of a file of measured training steps, in the columns of the file that the shares were fitted on.

A blank column means what the framework does by itself. What a row says of its framework, GPU and precision in words is
looked for by their names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from simcoll.errors import SimcollError
from simcoll.plan.layout import Layout, LayoutError, Training
from simcoll.plan.memory import GIB
from simcoll.plan.model import Model
from simcoll.plan.model_files import ModelError, known_models
from simcoll.plan.network import Network, network_asked
from simcoll.plan.planning import Plan, plan_of
from simcoll.plan.rates import Framework
from simcoll.topology.hardware import GPUS
from simcoll.topology.request import TopologyRequest

_NIC_GBPS = {"a100": 200.0, "b300": 800.0, "gb300": 800.0, "l40s": 200.0}
"""Gbit/s of a GPU's own NIC in the makers' servers of each family; 400 of all others."""

_USUAL_WATTS = {"a100": 400, "h100": 700, "h200": 700, "b200": 1000, "b300": 1100}
"""The limits of power of the makers' SXM cards."""

_WATTS = re.compile(r"(?<!\d)(\d{3,4}) ?w\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_RELEASE = re.compile(r"\b(\d\d\.\d\d)")
_MONTH = re.compile(r"_(20\d\d)-?(\d\d)_")
_REPLICAS = re.compile(r"(?i)HSDP (\d{1,9}) ?x ?(\d{1,9})")
_ROUND = re.compile(r"mlperf v(\d\.\d)")
_RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A row as the arguments of `simcoll.plan.planning.plan`; ``gpus`` in servers of ``gpus_per_node``.

    ``clock`` is what the GPU's limit of power leaves of its usual clock.
    """

    id: str
    model: Model
    gpu: str
    gpus: int
    gpus_per_node: int
    nic_gbps: float
    framework: Framework
    layout: Layout
    training: Training
    clock: float

    def network(self) -> Network:
        """The cluster; raises TopologyError."""
        nodes = max(1, -(-self.gpus // self.gpus_per_node))
        return network_asked(TopologyRequest(None, self.gpu, nodes, self.gpus_per_node, None, self.nic_gbps))

    def plan(self) -> Plan:
        """The plan; raises what `simcoll.plan.planning.plan` raises."""
        return plan_of(self.model, self.layout, self.network(), self.framework, self.training, self.clock)


def measured_step(row: Mapping[str, str]) -> MeasuredStep:
    """A row of the file; raises SimcollError, one line, for what it does not say or what is not known."""
    said = {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}
    family = _family(said.get("gpu", ""))
    gpus = _whole(said, "gpus")
    per_node = min(_whole(said, "gpus_per_node", GPUS[family].gpus_per_node), gpus)
    others = math.prod(_whole(said, name, 1) for name in ("tp", "pp", "cp"))
    dp, micro = _whole(said, "dp", max(1, gpus // others)), _whole(said, "mbs", 1)
    framework = _framework(said.get("framework", ""), said.get("source", ""))
    virtual = _whole(said, "vp", 1)
    stages = _whole(said, "pp", 1)
    sharding = said.get("sharding", "")
    copies = _copies(sharding, dp)
    layout = Layout(
        dp_shard=dp // copies,
        dp_replicate=copies,
        tp=_whole(said, "tp", 1),
        pp=stages,
        virtual_stages=virtual if stages > 1 else 1,
        schedule="interleaved" if virtual > 1 and stages > 1 else "1f1b",
        cp=_whole(said, "cp", 1),
        ep=_whole(said, "ep", 1),
        micro_batch=micro,
        global_batch=_whole(said, "gbs_sequences", dp * micro * _whole(said, "grad_accum", 1)),
        seq_len=_whole(said, "seq_len"),
        dtype=_dtype(said.get("precision", "")),
        recompute=_recompute(said.get("activation_checkpointing", "")),
        zero=_zero(sharding),
        # Other frameworks have such kernels of their own.
        compile=framework.name != "torchtitan" or "compile" in said.get("compile_or_overlap", ""),
    )
    overlaps = any(word in said.get("compile_or_overlap", "").lower() for word in ("tp overlap", "async tp"))
    name = said.get("model", "")
    nic = _NIC_GBPS.get(family, 400.0)
    training = Training(adapters="lora" in name.lower(), overlaps_tensor=overlaps)
    model, clock = _model(name), _clock(said["gpu"], family)
    return MeasuredStep(said.get("id", ""), model, family, gpus, per_node, nic, framework, layout, training, clock)


def _model(name: str) -> Model:
    """The model of a name as people write it: without what stands in brackets, and without how it is tuned.

    Behind a name that has none, the number of its parameters may stand.
    """
    plain = re.sub(r"\(.*?\)|\b(?:lora|sft|peft|pretrain|instruct|chat|base)\b", "", name.lower().replace("_", " "))
    spelled = _letters(plain)
    for known, model in known_models().items():
        if spelled in (_letters(known), f"{_letters(known)}{model.total / 1e9:.0f}b"):
            return model
    by_letters = {_letters(known): known for known in known_models()}
    near = get_close_matches(spelled, by_letters, n=4, cutoff=0.5)
    expected = " or ".join(by_letters[one] for one in near) or f"one of {', '.join(known_models())}"
    raise ModelError(f"model {name!r:.60}: not known, expected {expected}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def _family(name: str) -> str:
    lower = name.lower()
    found = [family for family in GPUS if re.search(rf"(?<![a-z]){family}(?![0-9])", lower)]
    if not found:
        raise LayoutError(f"gpu {name!r:.60}: not known, expected one of {', '.join(GPUS)}")
    return max(found, key=len)


def _clock(name: str, family: str) -> float:
    """A chip's power grows with its clock and the square of its voltage, which grows with the clock."""
    watts, usual = _WATTS.search(name.lower()), _USUAL_WATTS.get(family)
    return min(1.0, int(watts[1]) / usual) ** (1 / 3) if watts and usual else 1.0


def _framework(name: str, source: str) -> Framework:
    lower = name.lower()
    release = _RELEASE.search(lower)
    if "megatron" in lower:
        return Framework("megatron", release[1] if release else "")
    if "foundry" in lower or "composer" in lower:
        return Framework("llm-foundry")
    if "mlperf" in lower or "nemo" in lower:
        # Many submitters name the container of another program; the round says which year's software it was.
        submitted = _ROUND.search(lower)
        return Framework("nemo", submitted[1] if submitted else "")
    month = _MONTH.search(source)
    return Framework("torchtitan", f"{month[1]}.{month[2]}" if month else "")


def _dtype(precision: str) -> str:
    lower = precision.lower()
    kinds = (
        ("nvfp4", ("fp4",)),
        ("mxfp8", ("mxfp8", "fp8-mx")),
        ("fp8-rowwise", ("rowwise",)),
        ("fp8", ("fp8", "float8")),
    )
    for name, words in kinds:
        if any(word in lower for word in words):
            return name
    return "bf16"


def _recompute(text: str) -> str:
    first = text.lower().split(" ")[0].strip(",;")
    return first if first in _RECOMPUTE else "none"


def _zero(sharding: str) -> int:
    upper = sharding.upper()
    if "SHARD_GRAD_OP" in upper:
        return 2
    if "FSDP" in upper or "HSDP" in upper or not upper:
        return 3
    return 1 if "OPTIMIZER" in upper or "ZERO" in upper else 0


def _copies(sharding: str, dp: int) -> int:
    """The replicas of ``HSDP 4x64``, which is 4 of 64 shards each; 1 of what is no such pair."""
    pair = _REPLICAS.search(sharding)
    return int(pair[1]) if pair and int(pair[1]) * int(pair[2]) == dp else 1


def _whole(said: Mapping[str, str], column: str, default: int | None = None) -> int:
    text = said.get(column, "")
    found = _NUMBER.fullmatch(text)
    if found is None:
        if text.lower() not in ("", "null", "n/a", "-"):
            raise LayoutError(f"{column} {text!r:.40}: expected a whole number")
        if default is None:
            raise LayoutError(f"{column} is not given, expected a whole number")
        return default
    number = float(text)
    if number != int(number) or not 0 < number < 1 << 40:
        raise LayoutError(f"{column} {text!r:.40}: expected a whole number of at least 1")
    return int(number)


def priced_row(row: Mapping[str, str]) -> Mapping[str, object]:
    """The answer of ``simcoll plan --csv`` for a row: step time in seconds, memory in GiB, or why it is refused."""
    name = str(row.get("id") or "")
    try:
        found = measured_step(row).plan()
    except (SimcollError, ValueError) as error:
        return {"id": name, "refused": str(error)}
    return {"id": name, "step_seconds": found.step_seconds, "memory_gib": found.memory_bytes / GIB}
