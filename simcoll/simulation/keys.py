"""Every key of a scenario file: what it takes and what it means. The parser knows no others.

`docs/scenarios.md` has these tables, and a test holds them against what the parser reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its name, the form of its value, what it means. ``needed`` keys have no default."""

    name: str
    form: str
    meaning: str
    needed: bool = False


_RANKS = 'ranks: `2`, `[0, 3]` or `"0-3,7"`'
_SHAPE = "shape: `[20, 10]`, or `8` for `[8]`"
_ROWS = "list of whole numbers"

_STATED = (
    Key("op", "text", "a function of torch.distributed, or an action: one of the [ops](#ops)", needed=True),
    Key("shape", _SHAPE, "shape of the tensor: of one rank's part where ranks have parts (default `[4]`)"),
    Key("shapes", "list of shapes", "several tensors, for `all_reduce_coalesced`"),
    Key("dtype", "text", "dtype of the tensors (default `float32`)"),
    Key("device", "text", "device type that the call states, such as `cuda` (default `cpu`; simulated only)"),
    Key("order", "list, or `channels_last`", "memory order: the dimensions, outermost first (default row-major)"),
    Key("reduce_op", "text", "`sum` (default), `avg`, `product`, `min`, `max`, `band`, `bor`, `bxor`"),
    Key("root", "group rank", "who sends a broadcast or scatter, who gets a reduce or gather (default 0)"),
    Key("peer", "group rank", 'the other end of a message; `"+1"` is the next rank of the group, `"any"` any source'),
    Key("tag", "whole number", "tag of a message (default 0)"),
    Key("input_splits", _ROWS, "rows for each rank (`all_to_all_single`)"),
    Key("output_splits", _ROWS, "rows from each rank (`all_to_all_single`)"),
    Key("parts", _ROWS, "rows of each tensor of a list, where they are uneven or too few"),
    Key("buffer", "name", "the named buffer that the call uses: its input, or what it fills"),
    Key("output", "name", "the named buffer that a call with an input and an output fills"),
    Key("async", "true or false", 'return at once; wait with `op = "wait"` (default false)'),
    Key("group", "name", "the group of the call (default: all ranks)"),
    Key("seconds", "number", "how long `compute` takes"),
)

OVERRIDABLE = frozenset(key.name for key in _STATED)
"""Keys of a call that some ranks may state otherwise."""

KEYS: Mapping[str, tuple[Key, ...]] = MappingProxyType(
    {
        "": (
            Key("title", "text", "one line that says what happens"),
            Key("description", "text", "more about it"),
            Key("ranks", "whole number", "how many ranks the job has", needed=True),
            Key("sends", "text", "`synchronous` (default): a send ends with its receive; `buffered`; `either`"),
            Key("seed", "whole number", "seed of the schedule (default 0)"),
            Key("buffers", "tables", "tensors with a name"),
            Key("groups", "tables", "process groups, made by all ranks at the start, in this order"),
            Key("calls", "tables", "what the ranks call, in this order", needed=True),
            Key("faults", "tables", "what goes wrong, applied in this order"),
            Key("topology", "table", "the cluster; gives virtual time"),
            Key("expect", "table", "what is to be found; `--check` compares"),
        ),
        "buffers": (
            Key("name", "text", "by which calls name it", needed=True),
            Key("shape", _SHAPE, "its shape (default `[4]`); not with `of`"),
            Key("dtype", "text", "its dtype (default `float32`); not with `of`"),
            Key("of", "name", "another buffer, of whose memory it is a part"),
            Key("rows", "`[first, end]`", "which rows of `of` it has: from `first` up to, without, `end`"),
        ),
        "groups": (
            Key("name", "text", "by which calls name it", needed=True),
            Key("ranks", _RANKS, "its members, as global ranks", needed=True),
            Key("made_by", _RANKS, "the ranks that make it (default: all)"),
            Key("variants", "tables", "ranks that make it with other members"),
        ),
        "groups.variants": (
            Key("on", _RANKS, "the ranks that state otherwise", needed=True),
            Key("ranks", _RANKS, "the members that they state", needed=True),
        ),
        "calls": (
            Key("name", "text", "by which waits and faults name it"),
            Key("ranks", _RANKS, "the global ranks that make the call (default: the members of its group)"),
            *_STATED,
            Key("call", "name", "the asynchronous calls that `wait` waits for (default: all that are open)"),
            Key("parameters", "tables", "the parameters of the model that `parameters` states"),
            Key("repeat", "whole number", "with nested `calls`: how often they are made"),
            Key("calls", "tables", "the calls of a `repeat`"),
            Key("overrides", "tables", "what some ranks state otherwise"),
        ),
        "calls.parameters": (
            Key("name", "text", "its name", needed=True),
            Key("shape", _SHAPE, "its shape", needed=True),
            Key("dtype", "text", "its dtype (default `float32`)"),
            Key("trained", "true or false", "whether it requires a gradient (default true)"),
        ),
        "calls.overrides": (
            Key("ranks", _RANKS, "the global ranks that state otherwise", needed=True),
            *(Key(key.name, key.form, "as in the call") for key in _STATED),
            Key("parameters", "tables", "as in the call"),
        ),
        "faults": (
            Key("kind", "text", "one of the [kinds](#kinds-of-faults)", needed=True),
            Key("ranks", _RANKS, "the global ranks on which it happens"),
            Key("call", "name or op", "at which call: its `name`, or its `op`"),
            Key("at", "whole number", "in place of `call`: the number of the rank's call, counted from 1"),
            Key("iteration", "whole number", "at which of these calls of the rank, counted from 1 (default: all)"),
            Key("exception", "text", "`crash`: the type of the exception (default `RuntimeError`)"),
            Key("message", "text", "`crash`: its text"),
            Key("exit_code", "whole number", "`exit`: the exit code (default 0)"),
            Key("seconds", "number", "`slow-rank`: how long the rank computes before each of the calls"),
            Key("between", "`[rank, rank]`", "`slow-link`: the two global ranks whose path is slow, both ways"),
            Key("factor", "number", "`slow-link`: what is left of the bandwidth, 0.1 for a tenth (default 1)"),
            Key("latency", "number", "`slow-link`: seconds that each link of the path takes longer (default 0)"),
            *(
                Key(name, form, f"`{kind}`: what the rank states")
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
            Key("preset", "text", "a name that `simcoll topology list` shows"),
            Key("file", "text", "a topology file, relative to the scenario"),
            Key("gpu", "text", "`h100` and the like, as `--gpu` on the command line"),
            Key("nodes", "whole number", "number of servers"),
            Key("gpus_per_node", "whole number", "GPUs of a server"),
            Key("nics_per_node", "whole number", "NICs of a server"),
            Key("nic_gbps", "number", "Gbit/s of one NIC"),
            Key("fabric", "text", "`ib`, `roce`, `efa`, `tcpx` or `tcpxo`"),
            Key("nvlink_domain", "whole number", "GPUs that NVLink joins"),
        ),
        "expect": (
            Key(
                "findings", "list of codes, or tables", "all findings, in order; an empty list says that there is none"
            ),
            Key("seconds", "number", "virtual time from start to end; needs a topology"),
            Key("within", "number", "by which part `seconds` may be off (default 0.01)"),
        ),
        "expect.findings": (
            Key("code", "text", "`SC104` and the like", needed=True),
            Key("culprits", _RANKS, "the culprits; `[]` says that no majority names one"),
            Key("ranks", _RANKS, "the ranks that the finding concerns"),
            Key("sequence", "whole number", "the number of the collective in its group, counted from 1"),
            Key("group", "name", "the group; `world` is that of all ranks"),
            Key("severity", "text", "`error` or `warning`"),
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
        "slow-rank": (frozenset({"seconds"}), "the rank computes before each of its calls, or before those named"),
        "slow-link": (frozenset({"between", "factor", "latency"}), "a path of the topology is slow (simulated only)"),
        **{
            f"wrong-{name.replace('_', '-')}": (frozenset({name}), f"the rank states another `{name}`")
            for name in ("op", "shape", "dtype", "reduce_op", "root", "peer", "tag", "group")
        },
        "wrong-splits": (frozenset({"input_splits", "output_splits"}), "the rank states other splits"),
    }
)
"""Each kind of fault: the keys that it takes beside those that say where, and what it does."""
