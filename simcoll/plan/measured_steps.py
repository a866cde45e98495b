"""Prices the rows of a file of measured training steps, in the columns of the file that the shares were fitted on.

A blank column means what the framework does by itself. What a row says of its framework, GPU and precision in words is
looked for by their names.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
_NUMBER = re.compile(r"(?i)(?:[a-z]+ ?[=:] ?)?(\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+)?)(k)?(?: *[(].*)?")
_SPEED = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(?! ?x)(?:\b|(?=G))")
_MOST_GBPS = 100_000
_TUNED = re.compile(r"\(.*?\)|\b(?:meta|nvidia|lora|sft|peft|pretrain|instruct|chat|base)\b")
_SIZE = re.compile(r"\ba?(\d{1,6}(?:\.\d{1,3})?)([bt])\b")
_SIZE_OFF = 0.15
"""How far the stated size of a model may be off."""

_RELEASE = re.compile(r"\b(\d\d\.\d\d)")
_MONTH = re.compile(r"_(20\d\d)-?(\d\d)_")
_REPLICAS = re.compile(r"(?i)HSDP (\d{1,9}) ?x ?(\d{1,9})")
_ROUND = re.compile(r"mlperf v(\d\.\d)")
_BLANK = ("", "null", "n/a", "na", "nan", "-", "?")
_DTYPES = {
    "nvfp4": ("nvfp4", "mxfp4", "fp4"),
    "mxfp8": ("mxfp8", "fp8[-_ ]mx"),
    "fp8-rowwise": ("row-?wise",),
    "fp8": ("fp8", "float8"),
    "bf16": ("bf16", "bfloat16", "fp16", "float16", "half"),
}
"""What dtypes are called, as patterns, in the order in which they are looked for."""

_RECOMPUTE = {
    "full": ("full",),
    "selective": ("selective", "op", "core", "attn", "mla", "moe", "mlp", "layernorm"),
    "none": ("none", "no", "off", "false", "disabled"),
}


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A row as the arguments of `simcoll.plan.planning.plan`; ``gpus`` in servers of ``gpus_per_node``.

    ``clock`` is what the GPU's limit of power leaves of its usual clock. ``notes`` say what was assumed of the row.
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
    notes: tuple[str, ...] = ()

    def network(self) -> Network:
        """The cluster; raises TopologyError."""
        nodes = max(1, -(-self.gpus // self.gpus_per_node))
        return network_asked(TopologyRequest(None, self.gpu, nodes, self.gpus_per_node, None, self.nic_gbps))

    def plan(self) -> Plan:
        """The plan; raises what `simcoll.plan.planning.plan` raises."""
        return plan_of(self.model, self.layout, self.network(), self.framework, self.training, self.clock)


def measured_step(row: Mapping[str, str]) -> MeasuredStep:
    """A row of the file; raises SimcollError, one line, for what it does not say or what is not known."""
    said = _Said({key: (value or "").strip() for key, value in row.items() if isinstance(key, str)})
    family = _family(said.text("gpu"))
    framework = _framework(said.text("framework"), said.text("source"))
    sharding = said.text("sharding")
    sizes = {name: said.whole(name, 1) for name in ("tp", "pp", "cp")}
    others = math.prod(sizes.values())
    gpus = said.whole("gpus")
    per_node = min(said.whole("gpus_per_node", GPUS[family].gpus_per_node), gpus)
    dp = said.whole("dp", max(1, gpus // others))
    if dp * others != gpus and gpus % others == 0:
        said.notes.append(f"dp {dp:,} is taken as {gpus // others:,}, which the {gpus:,} GPUs are divided into")
        dp = gpus // others
    copies = _copies(sharding, dp)
    micro, batch = _batch(said, dp)
    virtual = said.whole("vp", 1) if sizes["pp"] > 1 else 1
    layout = Layout(
        dp_shard=dp // copies,
        dp_replicate=copies,
        **sizes,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        ep=said.whole("ep", 1),
        micro_batch=micro,
        global_batch=batch,
        seq_len=said.whole("seq_len", Layout().seq_len),
        dtype=_dtype(said),
        recompute=_recompute(said),
        zero=_zero(sharding, framework),
        # Other frameworks have such kernels of their own.
        compile=framework.name != "torchtitan" or "compile" in said.text("compile_or_overlap"),
    )
    if not said.text("seq_len"):
        said.notes.append(f"seq_len is not given, and taken as {layout.seq_len:,}")
    overlaps = any(word in said.text("compile_or_overlap").lower() for word in ("tp overlap", "async tp"))
    nic = said.speed("network_per_gpu_gbps") or _NIC_GBPS.get(family, 400.0)
    training = Training(adapters="lora" in said.text("model").lower(), overlaps_tensor=overlaps)
    model, clock = _model(said), _clock(said.text("gpu"), family)
    notes = tuple(said.notes)
    return MeasuredStep(said.text("id"), model, family, gpus, per_node, nic, framework, layout, training, clock, notes)


class _Said:
    """What a row says, column by column, and notes on what was made of it."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        self._cells = cells
        self.notes: list[str] = []

    def text(self, column: str) -> str:
        """The text of a column, empty where it says that there is none."""
        text = self._cells.get(column, "")
        return "" if text.lower() in _BLANK else text

    def whole(self, column: str, default: int | None = None) -> int:
        """The number of a column; of one that is blank that which stands with its name in another one."""
        text = self.text(column)
        if not text:
            beside = re.search(
                rf"(?i)\b{column} ?[=:]? ?(\d{{1,12}})\b", f"{self.text('sharding')}; {self.text('note')}"
            )
            if beside is None and default is None:
                raise LayoutError(f"{column} is not given, expected a whole number")
            if beside is None:
                return default or 1
            text = beside[1]
        found = _NUMBER.fullmatch(text)
        if found is None:
            raise LayoutError(f"{column} {text!r:.40}: expected a whole number")
        number = float(re.sub("[,_]", "", found[1])) * (1024 if found[2] else 1)
        if number != int(number) or not 0 < number < 1 << 40:
            raise LayoutError(f"{column} {text!r:.40}: expected a whole number of at least 1")
        return int(number)

    def speed(self, column: str) -> float:
        """The Gbit/s with which a column begins; 0 where it does not."""
        found = _SPEED.match(self.text(column))
        return float(found[1]) if found and 1 <= float(found[1]) <= _MOST_GBPS else 0.0

    def one_of(self, column: str, kinds: Mapping[str, tuple[str, ...]], default: str) -> str:
        """The first of the ``kinds`` of which a word is in a column; the ``default``, with a note, where none is."""
        text = self.text(column).lower()
        for name, words in kinds.items():
            if re.search(rf"(?<![a-z])(?:{'|'.join(words)})(?![a-z])", text):
                return name
        if text:
            self.notes.append(f"{column} {text!r:.40} is not known, and taken as {default}")
        return default


def _batch(said: _Said, dp: int) -> tuple[int, int]:
    """Sequences of a micro-batch and of a step; two of micro-batch, step and accumulation make the third."""
    accumulated = said.whole("grad_accum", 1)
    batch = said.whole("gbs_sequences", dp * said.whole("mbs", 1) * accumulated)
    micro = said.whole("mbs", max(1, batch // (dp * accumulated)))
    if batch % dp == 0 and batch % (dp * micro):
        taken = math.gcd(micro, batch // dp)
        said.notes.append(f"mbs {micro:,} is taken as {taken:,}, which divides the {batch // dp:,} sequences of a rank")
        micro = taken
    return micro, batch


def _model(said: _Said) -> Model:
    """The model of a name as people write it: without its maker, what stands in brackets, and how it is tuned.

    The number of its parameters, and of those that a token uses, need not be spelled as simcoll does. A version without
    its second number is that of which there is such a size.
    """
    name = said.text("model")
    plain = re.sub(_TUNED, "", name.lower().replace("_", " ")).rpartition("/")[2]
    known, spelled, family = known_models(), _letters(plain), _letters(re.sub(_SIZE, "", plain))
    for one, model in known.items():
        if spelled == _letters(one):
            return model
    if size := _SIZE.search(plain):
        stated = float(size[1]) * (1e12 if size[2] == "t" else 1e9)
        off = {one: abs(stated / model.total - 1) for one, model in known.items()}
        alike = [one for one in known if family == _letters(re.sub(_SIZE, "", one)) and off[one] < _SIZE_OFF]
        if alike:
            return known[min(alike, key=lambda one: off[one])]
    alike = [one for one in known if spelled == _letters(re.sub(r"(\d)\.\d", r"\1", one))]
    if len(alike) == 1:
        said.notes.append(f"model {name!r:.60} is taken as {alike[0]}")
        return known[alike[0]]
    by_letters = {_letters(one): one for one in known}
    near = get_close_matches(spelled, by_letters, n=4, cutoff=0.5)
    expected = " or ".join(by_letters[one] for one in near) or f"one of {', '.join(known)}"
    raise ModelError(f"model {name!r:.60}: not known, expected {expected}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def _family(name: str) -> str:
    lower = name.lower()
    # `DGXH100` and `8xH100` are H100s; the GB200 has the longer name of what looks like two.
    found = [family for family in GPUS if re.search(rf"(?:(?<![a-z])|(?<=[dh]gx)|(?<=\dx)){family}(?![0-9])", lower)]
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


def _dtype(said: _Said) -> str:
    return said.one_of("precision", _DTYPES, "bf16")


def _recompute(said: _Said) -> str:
    return said.one_of("activation_checkpointing", _RECOMPUTE, "none")


def _zero(sharding: str, framework: Framework) -> int:
    """The stage of ZeRO; where nothing is said, the optimizer alone is sharded by Megatron, all by others."""
    upper = sharding.upper()
    if "SHARD_GRAD_OP" in upper:
        return 2
    if "FSDP" in upper or "HSDP" in upper or not upper:
        return 1 if not upper and framework.name in ("megatron", "nemo") else 3
    stage = re.search(r"ZERO[- ]?([0-3])", upper)
    if stage is not None:
        return int(stage[1])
    return 1 if "OPTIMIZER" in upper or "ZERO" in upper else 0


def _copies(sharding: str, dp: int) -> int:
    """The replicas of ``HSDP 4x64``, which is 4 of 64 shards each; 1 of what is no such pair."""
    pair = _REPLICAS.search(sharding)
    return int(pair[1]) if pair and int(pair[1]) * int(pair[2]) == dp else 1


def priced_row(row: Mapping[str, str]) -> Mapping[str, object]:
    """The answer of ``simcoll plan --csv`` for a row: step time in seconds, memory in GiB, or why it is refused."""
    name = str(row.get("id") or "")
    try:
        step = measured_step(row)
        seconds, size = _priced(replace(step, id="", notes=()))
    except (SimcollError, ValueError) as error:
        return {"id": name, "refused": str(error)}
    notes = {"notes": list(step.notes)} if step.notes else {}
    return {"id": name, "step_seconds": seconds, "memory_gib": size / GIB, **notes}


@functools.lru_cache(maxsize=4096)
def _priced(step: MeasuredStep) -> tuple[float, float]:
    """Seconds and bytes of a step; large files often have a step many times."""
    found = step.plan()
    return found.step_seconds, found.memory_bytes
