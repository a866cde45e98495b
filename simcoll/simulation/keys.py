"""Every key of a scenario file: the form of its value and its meaning. The reader refuses all others.

The tables of `docs/scenarios.md` are made from these, and a test compares them with what the reader reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ScenarioKey:
    """One key: its name, the form of its value, its meaning. ``needed`` keys have no default."""

    name: str
    form: str
    meaning: str
    needed: bool = False


_RANKS = 'ranks: `2`, `[0, 3]` or `"0-3,7"`'
_SHAPE = "shape: `[20, 10]`, or `8` for `[8]`"
_ROWS = "list of whole numbers"

_CALL_KEYS = (
    ScenarioKey("op", "text", "a function of torch.distributed, or an action: one of the [ops](#ops)", needed=True),
    ScenarioKey("shape", _SHAPE, "shape of the tensor: of one rank's part where ranks have parts (default `[4]`)"),
    ScenarioKey("shapes", "list of shapes", "several tensors, for `all_reduce_coalesced`"),
    ScenarioKey("dtype", "text", "dtype of the tensors (default `float32`)"),
    ScenarioKey("device", "text", "device type that the call states, such as `cuda` (default `cpu`; simulated only)"),
    ScenarioKey(
        "order", "list, or `channels_last`", "memory order: the dimensions, outermost first (default row-major)"
    ),
    ScenarioKey("reduce_op", "text", "`sum` (default), `avg`, `product`, `min`, `max`, `band`, `bor`, `bxor`"),
    ScenarioKey("root", "group rank", "who sends a broadcast or scatter, who gets a reduce or gather (default 0)"),
    ScenarioKey(
        "peer", "group rank", 'the other end of a message; `"+1"` is the next rank of the group, `"any"` any source'
    ),
    ScenarioKey("tag", "whole number", "tag of a message (default 0)"),
    ScenarioKey("input_splits", _ROWS, "rows for each rank (`all_to_all_single`)"),
    ScenarioKey("output_splits", _ROWS, "rows from each rank (`all_to_all_single`)"),
    ScenarioKey("parts", _ROWS, "rows of each tensor of a list, where they are uneven or too few"),
    ScenarioKey("buffer", "name", "the named buffer that the call uses: its input, or what it fills"),
    ScenarioKey("output", "name", "the named buffer that a call with an input and an output fills"),
    ScenarioKey("async", "true or false", 'return at once; wait with `op = "wait"` (default false)'),
    ScenarioKey("group", "name", "the group of the call (default: all ranks)"),
    ScenarioKey("seconds", "number", "how long `compute` takes"),
)


KEYS: Mapping[str, tuple[ScenarioKey, ...]] = MappingProxyType(
    {
        "": (
            ScenarioKey("title", "text", "one line that says what happens"),
            ScenarioKey("description", "text", "more about it"),
            ScenarioKey("ranks", "whole number", "how many ranks the job has", needed=True),
            ScenarioKey("sends", "text", "`synchronous` (default): a send ends with its receive; `buffered`; `either`"),
            ScenarioKey("seed", "whole number", "seed of the schedule (default 0)"),
            ScenarioKey("values", "text", "whose values are checked: `off` (default), `sample` or `all` calls'"),
            ScenarioKey("buffers", "tables", "tensors with a name"),
            ScenarioKey("groups", "tables", "process groups, made by all ranks at the start, in this order"),
            ScenarioKey("calls", "tables", "what the ranks call, in this order", needed=True),
            ScenarioKey("faults", "tables", "what goes wrong, applied in this order"),
            ScenarioKey("topology", "table", "the cluster; gives virtual time"),
            ScenarioKey("expect", "table", "what is to be found; `--check` compares"),
        ),
        "buffers": (
            ScenarioKey("name", "text", "by which calls name it", needed=True),
            ScenarioKey("shape", _SHAPE, "its shape (default `[4]`); not with `of`"),
            ScenarioKey("dtype", "text", "its dtype (default `float32`); not with `of`"),
            ScenarioKey("of", "name", "another buffer, of whose memory it is a part"),
            ScenarioKey("rows", "`[first, end]`", "which rows of `of` it has: from `first` up to, without, `end`"),
        ),
        "groups": (
            ScenarioKey("name", "text", "by which calls name it", needed=True),
            ScenarioKey("ranks", _RANKS, "its members, as global ranks", needed=True),
            ScenarioKey("made_by", _RANKS, "the ranks that make it (default: all)"),
            ScenarioKey("variants", "tables", "ranks that make it with other members"),
        ),
        "groups.variants": (
            ScenarioKey("on", _RANKS, "the ranks that state otherwise", needed=True),
            ScenarioKey("ranks", _RANKS, "the members that they state", needed=True),
        ),
        "calls": (
            ScenarioKey("name", "text", "by which waits and faults name it"),
            ScenarioKey("ranks", _RANKS, "the global ranks that make the call (default: the members of its group)"),
            *_CALL_KEYS,
            ScenarioKey("call", "name", "the asynchronous calls that `wait` waits for (default: all that are open)"),
            ScenarioKey("parameters", "tables", "the parameters of the model that `parameters` states"),
            ScenarioKey("repeat", "whole number", "with nested `calls`: how often they are made"),
            ScenarioKey("calls", "tables", "the calls of a `repeat`"),
            ScenarioKey("overrides", "tables", "what some ranks state otherwise"),
        ),
        "calls.parameters": (
            ScenarioKey("name", "text", "its name", needed=True),
            ScenarioKey("shape", _SHAPE, "its shape", needed=True),
            ScenarioKey("dtype", "text", "its dtype (default `float32`)"),
            ScenarioKey("trained", "true or false", "whether it requires a gradient (default true)"),
        ),
        "calls.overrides": (
            ScenarioKey("ranks", _RANKS, "the global ranks that state otherwise", needed=True),
            *(ScenarioKey(key.name, key.form, "as in the call") for key in _CALL_KEYS),
            ScenarioKey("parameters", "tables", "as in the call"),
        ),
        "faults": (
            ScenarioKey("kind", "text", "one of the [kinds](#kinds-of-faults)", needed=True),
            ScenarioKey("ranks", _RANKS, "the global ranks on which it happens"),
            ScenarioKey("call", "name or op", "at which call: its `name`, or its `op`"),
            ScenarioKey("at", "whole number", "in place of `call`: the number of the rank's call, counted from 1"),
            ScenarioKey(
                "iteration", "whole number", "at which of these calls of the rank, counted from 1 (default: all)"
            ),
            ScenarioKey("exception", "text", "`crash`: the type of the exception (default `RuntimeError`)"),
            ScenarioKey("message", "text", "`crash`: its text"),
            ScenarioKey("exit_code", "whole number", "`exit`: the exit code (default 0)"),
            ScenarioKey("seconds", "number", "`slow-rank`: how long the rank computes before each of the calls"),
            ScenarioKey("between", "`[rank, rank]`", "`slow-link`: the two global ranks whose path is slow, both ways"),
            ScenarioKey("factor", "number", "`slow-link`: what is left of the bandwidth, 0.1 for a tenth (default 1)"),
            ScenarioKey(
                "latency", "number", "`slow-link`: seconds that each link of the path takes longer (default 0)"
            ),
            *(
                ScenarioKey(name, form, f"`{kind}`: what the rank states")
                for kind, name, form in (
                    ("wrong-op", "op", "text"),
                    ("wrong-shape", "shape", _SHAPE),
                    ("wrong-dtype", "dtype", "text"),
                    ("wrong-reduce-op", "reduce_op", "text"),
                    ("wrong-root", "root", "group rank"),
                    ("wrong-peer", "peer", "group rank"),
                    ("wrong-tag", "tag", "whole number"),
                    ("wrong-group", "group", "name"),
                    ("wrong-splits", "input_splits", _ROWS),
                    ("wrong-splits", "output_splits", _ROWS),
                )
            ),
        ),
        "topology": (
            ScenarioKey("preset", "text", "a name that `simcoll topology list` shows"),
            ScenarioKey("file", "text", "a topology file, relative to the scenario"),
            ScenarioKey("gpu", "text", "`h100` and the like, as `--gpu` on the command line"),
            ScenarioKey("nodes", "whole number", "number of servers"),
            ScenarioKey("gpus_per_node", "whole number", "GPUs of a server"),
            ScenarioKey("nics_per_node", "whole number", "NICs of a server"),
            ScenarioKey("nic_gbps", "number", "Gbit/s of one NIC"),
            ScenarioKey("fabric", "text", "`ib`, `roce`, `efa`, `tcpx` or `tcpxo`"),
            ScenarioKey("nvlink_domain", "whole number", "GPUs that NVLink joins"),
        ),
        "expect": (
            ScenarioKey(
                "findings", "list of codes, or tables", "all findings, in order; an empty list says that there is none"
            ),
            ScenarioKey("seconds", "number", "virtual time from start to end; needs a topology"),
            ScenarioKey("within", "number", "by which part `seconds` may be off (default 0.01)"),
        ),
        "expect.findings": (
            ScenarioKey("code", "text", "`SC104` and the like", needed=True),
            ScenarioKey("culprits", _RANKS, "the culprits; `[]` says that no majority names one"),
            ScenarioKey("ranks", _RANKS, "the ranks that the finding concerns"),
            ScenarioKey("sequence", "whole number", "the number of the collective in its group, counted from 1"),
            ScenarioKey("group", "name", "the group; `world` is that of all ranks"),
            ScenarioKey("severity", "text", "`error` or `warning`"),
        ),
    }
)
"""The keys of each table; ``calls.overrides`` are the tables of the list ``overrides`` in one of ``calls``."""

KINDS: Mapping[str, tuple[frozenset[str], str]] = MappingProxyType(
    {
        "crash": (frozenset({"exception", "message"}), "the rank raises an exception in place of the call"),
        "exit": (frozenset({"exit_code"}), "the rank ends in place of the call"),
        "hang": (frozenset[str](), "the rank never makes the call, nor anything after it, and does not end"),
        "skip": (frozenset[str](), "the rank leaves the call out"),
        "extra": (frozenset[str](), "the rank makes the call twice"),
        "swap": (frozenset[str](), "the rank makes the call after its next one"),
        "nan-input": (frozenset[str](), "the rank's input has an element that is no number; needs floats"),
        "bad-result": (frozenset[str](), "the rank gets a result with a wrong element; needs `values`"),
        "slow-rank": (frozenset({"seconds"}), "the rank computes before each of its calls, or before those named"),
        "slow-link": (frozenset({"between", "factor", "latency"}), "a path of the topology is slow (simulated only)"),
        **{
            f"wrong-{name.replace('_', '-')}": (frozenset({name}), f"the rank states another `{name}`")
            for name in ("op", "shape", "dtype", "reduce_op", "root", "peer", "tag", "group")
        },
        "wrong-splits": (frozenset({"input_splits", "output_splits"}), "the rank states other splits"),
    }
)
"""Each kind of fault: the keys that it takes beside those for its place, and its effect."""
