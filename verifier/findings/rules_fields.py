"""Rules about what every rank must state alike: SC101 to SC105, SC107, SC110."""

from __future__ import annotations

from simcoll.verifier.findings.rule import Rule

OP_MISMATCH = Rule(
    "SC101",
    "op-mismatch",
    "Make every rank of the group call the same collective here; look for a branch on the rank or on local data.",
    means="The ranks of a group are at the same position of their sequence of collectives, but call different ones.",
    harm=(
        "Each rank waits for messages that no rank sends, or takes those of another collective for its own: a hang, "
        "an abort, or wrong data."
    ),
    example=("if rank == 2:\n    dist.broadcast(x, src=0)\nelse:\n    dist.all_reduce(x)"),
    remedy=(
        "Compare the source lines of the sides. Usually a branch depends on the rank or on local data (an early "
        "stop, an empty batch), or one rank has skipped a call and is now one ahead."
    ),
)

SIZE_MISMATCH = Rule(
    "SC102",
    "size-mismatch",
    "Make the element counts agree: pad or gather the sizes first if the data is uneven.",
    means=(
        "A rank sends a different number of elements than the other expects; or the ranks state different counts "
        "where all must move equally much."
    ),
    harm="Gloo aborts the process, NCCL hangs or reads past the buffer. Neither says which rank has the wrong tensor.",
    example=("x = torch.ones(10 if rank == 3 else 8)\ndist.all_reduce(x)"),
    remedy=(
        "Often the last batch is smaller on one rank, or a model was built with a different configuration. Pad to a "
        "common size, or exchange the sizes first and use a collective that takes uneven sizes."
    ),
)

DTYPE_MISMATCH = Rule(
    "SC103",
    "dtype-mismatch",
    "Convert the tensor to one dtype on every rank before the collective.",
    means="The ranks pass tensors of different element types to one collective.",
    harm=(
        "Bytes of one type are read as another. If the sizes differ, the backend may abort; if they agree (int32 and "
        "float32), the result is silently wrong."
    ),
    example=("x = torch.ones(10, dtype=torch.float64 if rank == 1 else torch.float32)\ndist.all_reduce(x)"),
    remedy=(
        "Look for autocast, a checkpoint in another precision, or a Python number turned into a tensor on one rank "
        "only."
    ),
)

REDUCE_OP_MISMATCH = Rule(
    "SC104",
    "reduce-op-mismatch",
    "Pass the same reduce op on every rank.",
    means="The ranks ask for different reductions (sum, max, avg, ...) in one collective.",
    harm=(
        "No backend checks this. Each rank applies its own op to the data that it receives, so the result is a "
        "mixture that depends on the algorithm, and may differ between ranks."
    ),
    example=("op = dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM\ndist.all_reduce(x, op=op)"),
    remedy="Take the op from one place, not from a branch on the rank or on the local configuration.",
)

ROOT_MISMATCH = Rule(
    "SC105",
    "root-mismatch",
    "Give every rank the same src or dst; with group ranks (group_src, group_dst) mind which numbering is meant.",
    means="The ranks name different roots (src of broadcast and scatter, dst of reduce and gather).",
    harm="Two ranks believe that they are the root, or none does. The job hangs, or some ranks keep stale data.",
    example="dist.broadcast(x, src=0 if rank < 2 else 1)",
    remedy=(
        "Compute the root once, from values that are equal on every rank. In a subgroup, src and dst are global ranks."
    ),
)

DEVICE_MISMATCH = Rule(
    "SC107",
    "device-mismatch",
    "Move the tensor to the same device type on every rank.",
    means=(
        "Some ranks pass a CPU tensor, others a tensor on an accelerator. Device numbers need not agree; device types "
        "must."
    ),
    harm="In a group with several backends, the ranks enter different backends and wait for each other for ever.",
    example=('x = torch.ones(10, device="cpu" if rank == 1 else "cuda")\ndist.all_reduce(x)'),
    remedy="Look for a tensor that was created without device= on one path, such as a metric or a flag.",
)

COALESCED_MISMATCH = Rule(
    "SC110",
    "coalesced-contents-mismatch",
    "Coalesce the same tensors, in the same order, on every rank.",
    means="One call carries several tensors, and the ranks disagree about their number, order, sizes or types.",
    harm=(
        "The tensors are packed one after the other, so all tensors after the first difference are combined with the "
        "wrong counterpart, silently if the totals agree."
    ),
    example=("tensors = [a, b] if rank else [b, a]\ndist.all_reduce_coalesced(tensors)"),
    remedy=(
        "Build the list from something that is ordered and equal on every rank. The usual causes are sets, "
        "dictionaries filled in a different order, and parameters without gradient on one rank."
    ),
)

LAYOUT_MISMATCH = Rule(
    "SC108",
    "layout-mismatch",
    "Call .contiguous() (or .to(memory_format=...)) alike on every rank before the collective.",
    means=(
        "The ranks' tensors have the same shape but a different order in memory, for example channels_last on one "
        "rank and contiguous on the others; or they are sparse on some ranks and dense on the others."
    ),
    harm=(
        "A collective works on memory, element by element. Ranks whose memory order differs sum elements that do not "
        "belong together, which gives wrong numbers without an error. Sparse against dense hangs, because the backend "
        "runs a different algorithm."
    ),
    example=(
        "x = torch.randn(8, 3, 32, 32)\n"
        "if rank == 1:\n"
        "    x = x.to(memory_format=torch.channels_last)\n"
        "dist.all_reduce(x)"
    ),
    remedy=(
        "Bring the tensor into one memory format on every rank. Look for a model converted with channels_last on "
        "some ranks only, for tensors that were transposed without .contiguous(), and for embeddings with sparse=True."
    ),
)

SHAPE_MISMATCH = Rule(
    "SC109",
    "shape-mismatch",
    "Give every rank the same shape: equal element counts are not enough to pair the right elements.",
    means=(
        "The ranks' tensors have the same number of elements but different shapes, for example [20, 10] and [10, 20]."
    ),
    harm=(
        "The backend sees only the count and proceeds, so it combines elements that do not belong together. A "
        "flattened view of the same tensor keeps the order and is only a warning."
    ),
    example=("x = torch.ones(20, 10)\nif rank == 2:\n    x = x.t().contiguous()\ndist.all_reduce(x)"),
    remedy=(
        "Find the rank that transposes or reshapes its tensor. If one rank passes a flattened view on purpose, "
        "flatten it on every rank."
    ),
)

SPLIT_MISMATCH = Rule(
    "SC106",
    "split-mismatch",
    "Exchange the split sizes first (all_to_all of the counts) and build output_split_sizes from what arrives.",
    means="In an all-to-all with splits, a rank sends a peer a different number of elements than that peer expects.",
    harm=(
        "The receiver's parts are shifted: it takes rows that were meant for the next peer, waits for rows that never "
        "come, or the process aborts."
    ),
    example=("splits = [1, 3] if rank == 0 else [2, 2]\ndist.all_to_all_single(out, x, [2, 2], splits)"),
    remedy=(
        "input_split_sizes[j] on rank i must equal output_split_sizes[i] on rank j. In a mixture-of-experts layer, "
        "the counts must be exchanged after routing, not assumed."
    ),
)

FIELD_RULES = (
    OP_MISMATCH,
    SIZE_MISMATCH,
    DTYPE_MISMATCH,
    REDUCE_OP_MISMATCH,
    ROOT_MISMATCH,
    DEVICE_MISMATCH,
    COALESCED_MISMATCH,
    SPLIT_MISMATCH,
    LAYOUT_MISMATCH,
    SHAPE_MISMATCH,
)
