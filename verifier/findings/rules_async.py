"""Rules about what happens to a call beside its peers: SC402, and SC501 to SC504."""

from __future__ import annotations

from simcoll.verifier.findings.finding import Severity
from simcoll.verifier.findings.rule import Rule

NON_MEMBER_CALL = Rule(
    "SC402",
    "non-member-call",
    "Guard the call: only members of a group may use it.",
    means=(
        "A rank calls a collective on a group to which it does not belong. It is a warning if the group's members "
        "make the same call and the rank goes on unharmed: some programs do this on purpose, and let torch return "
        "nothing. It is an error if no member makes the call, or if the rank then fails or a member waits for ever."
    ),
    harm="torch only warns and returns; the tensor keeps its old contents and the program goes on with them.",
    example=("evens = dist.new_group([0, 2])\ndist.all_reduce(x, group=evens)  # ranks 1 and 3 as well"),
    remedy="Keep the group on its members only, or test dist.get_rank(group) >= 0 before the call.",
)

WORK_NEVER_WAITED = Rule(
    "SC501",
    "work-never-waited",
    "Keep the returned work and call wait() before the tensor is used.",
    means=(
        "An asynchronous call brings this rank a result, and the program ended normally without ever waiting for it: "
        "no wait(), no is_completed() that returned True, no synchronize(), no future, and for a GPU no synchronize() "
        "of the device. Not reported are sends, barriers, results that the program dropped together with the work, "
        "and a last pending call if earlier calls from the same line were waited for. It is an error if another rank "
        "waits for ever for a message because the program dropped the work of its send or receive: on Gloo the "
        "message is lost with it."
    ),
    harm="The result may be read before it is complete, and an error of the call is never seen.",
    example=("dist.all_reduce(x, async_op=True)\nprint(x.sum())"),
    remedy="Call wait() on the work, or make the call synchronous.",
    severity=Severity.WARNING,
)

BUFFER_CHANGED = Rule(
    "SC502",
    "buffer-changed-in-flight",
    "Wait for the work before writing to the tensor.",
    means=(
        "The program wrote to a tensor of an asynchronous call before it had waited for the call. It is an error if "
        "the write is known to have come before the data was sent (the call had not been launched), a warning "
        "otherwise. Writes are detected by the tensor's version counter, on tensors that fill their storage; not "
        "detected are writes through .data or numpy, to one of several views of a buffer, and to a pure output."
    ),
    harm="Some ranks receive the old contents, some the new ones, some a mixture.",
    example=("work = dist.all_reduce(x, async_op=True)\nx.zero_()\nwork.wait()"),
    remedy="Move the write after wait(), or work on a copy.",
)

BUFFERS_OVERLAP = Rule(
    "SC503",
    "buffers-overlap-in-flight",
    "Give each collective in flight memory of its own.",
    means=(
        "A call uses memory that an earlier asynchronous call, for which nobody has waited yet, still uses, and at "
        "least one of them writes there. It is an error if both write and the first was still running, a warning "
        "otherwise. Calls of one group that run in order on one stream (NCCL), and disjoint parts of one buffer, are "
        "not reported."
    ),
    harm="The result depends on which call finishes first.",
    example=("a = dist.all_reduce(x[:6], async_op=True)\nb = dist.all_reduce(x[4:], async_op=True)"),
    remedy="Wait for the first before the second starts, or copy the shared part.",
)

DDP_PARAMETER_MISMATCH = Rule(
    "SC504",
    "ddp-parameter-mismatch",
    "Build the same model on every rank before wrapping it.",
    means=(
        "The modules given to DistributedDataParallel differ between ranks in number, order, shape or dtype of their "
        "parameters, or in which of them require a gradient. Parameters that the module excludes "
        "(_ddp_params_and_buffers_to_ignore) are not compared, nor are models built with init_sync=False. Different "
        "names alone are not reported, as long as the sequence of shapes and dtypes is the same."
    ),
    harm=(
        "Gradients of different parameters are summed, or the first backward pass hangs. torch compares sizes with "
        "rank 0 only: the other ranks raise, and rank 0 waits for them."
    ),
    example=("model = nn.Linear(8, 8, bias=rank != 1)\nmodel = DistributedDataParallel(model)"),
    remedy=(
        "Look for a branch on the rank in the model's construction, or for a different configuration file on one host."
    ),
)

FLIGHT_RULES = (NON_MEMBER_CALL, WORK_NEVER_WAITED, BUFFER_CHANGED, BUFFERS_OVERLAP, DDP_PARAMETER_MISMATCH)
