"""Every rule by its code.

SC101 to SC110 are about fields that every rank must state alike, SC201 to SC204 about the ranks that come and their
order, SC301 to SC401 about send and receive and about groups, SC402 and SC501 to SC504 about a call beside its peers,
SC601 to SC801 about single ranks and the job as a whole, SC901 to SC906 about the values that collectives carry and
keep equal, and that ranks train on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simcoll.verifier.findings.finding import Rule, Severity

INVALID_ARGUMENT = Rule(
    "SC601",
    "invalid-argument",
    "Correct the call at the named line; the text says what is wrong with it.",
    means=(
        "One rank's own call is wrong, independent of the other ranks: torch.distributed or the backend refused it, or "
        "the backend accepts it and gives wrong results. Gloo assumes that the tensor of all_reduce, broadcast, reduce "
        "and scatter, and the output of reduce_scatter and all_to_all_single, is contiguous, even if it has gaps (m[:, "
        "0], x[::2]) or repeats elements (expand); scatter, reduce_scatter (lists) and all_to_all_single copy in the "
        "order of memory. Mode detail raises before such a call runs."
    ),
    harm=(
        "A rank whose call is refused fails or goes on without it, and the others wait for that rank. A tensor with "
        "gaps gets wrong values, and its neighbours in memory are overwritten."
    ),
    example=("outs = [torch.empty(4) for _ in range(world_size - 1)]\ndist.all_gather(outs, x)  # one output too few"),
    remedy=(
        "Read the exception. If only some ranks are refused, compare how they build the arguments; if the backend "
        "cannot do the call at all, use another one. In place of a tensor with gaps pass a contiguous copy, and copy "
        "the result back."
    ),
)

RANK_FAILED = Rule(
    "SC701",
    "rank-failed",
    "Fix this failure first: what other ranks report after it is usually its consequence.",
    means="This is the first failure of the job: an uncaught exception, an exit code, or a signal.",
    harm="The other ranks lose their peer. Their errors come later, print more, and point at the wrong place.",
    example=('if rank == 1:\n    raise ValueError("bad record in shard 17")\ndist.all_reduce(x)'),
    remedy=(
        "Go to the named line. If it was a signal: SIGKILL often comes from the kernel's out-of-memory killer (see "
        "dmesg), SIGSEGV and SIGABRT come from native code."
    ),
)

RANK_EXITED_EARLY = Rule(
    "SC702",
    "rank-exited-early",
    "Let every rank make the same number of collective calls before it ends.",
    means=(
        "A rank ended normally while other ranks of its groups still had collectives to make with it. If most ranks "
        "of the group had ended, the ranks that went on are the culprits: they made a call too many."
    ),
    harm="The others' connections break, or they wait for the timeout.",
    example=("for batch in batches[: 10 if rank == 1 else 12]:\n    dist.all_reduce(batch)"),
    remedy="Uneven data is the usual cause: use a sampler that pads or drops, or DistributedDataParallel's join().",
)

STRAGGLER = Rule(
    "SC801",
    "straggler",
    "Look at what this rank does between its collectives: data loading, logging, a slower device.",
    means="One rank regularly comes last to its collectives. The report states the time that the other ranks lost.",
    harm="Every collective starts when the last rank comes, so the whole job is as slow as this rank.",
    example=(
        "for batch in batches:\n    if rank == 3:\n        time.sleep(0.1)  # a slow disk\n    dist.all_reduce(batch)"
    ),
    remedy="Compare the host, the device clocks and the input pipeline of that rank with another one.",
    severity=Severity.WARNING,
)

NON_FINITE_INPUT = Rule(
    "SC901",
    "non-finite-input",
    "Look at what this rank computed before the call; with --values all this is the first call that carried it.",
    means=(
        "A rank put NaN or an infinity into a collective, and no collective before had brought it any. The parameter "
        "whose gradient it is, or which of several tensors, is named where that is known. Ranks that only "
        "pass on what they received are not named. Not reported are infinities in a minimum or maximum, infinities "
        "that are only moved, NaNs that stand for missing numbers (a metric without a value, gathered and not "
        "calculated with), the same number of infinities of one sign on every rank (a mask), overflows that a "
        "program with loss scaling recovers from, and steps that the program leaves out on all ranks. Needs --values; "
        "with --values sample the call is the first of those that were checked."
    ),
    harm="One call later the value is on every rank, and nothing shows where it came from.",
    example=("loss = torch.zeros(1)\nif rank == 2:\n    loss /= 0  # the mean over no sample\ndist.all_reduce(loss)"),
    remedy=(
        "Check the inputs of that rank: an empty batch, a division by zero, a logarithm of zero, a learning rate that "
        "is too high. torch.autograd.set_detect_anomaly names the operation."
    ),
)

REPLICAS_DIFFER = Rule(
    "SC902",
    "replicas-differ",
    "Take the rank in the minority out of the job, or find what writes to its tensor, before anything else.",
    means=(
        "A collective gives every rank the same bits, and the ranks hold different ones. The culprits are the ranks "
        "whose result does not follow from the inputs; if that is not known, the ranks in the minority. The rule needs "
        "--values."
    ),
    harm="The replicas of the model diverge unnoticed: each rank trains a different model.",
    example=(
        "work = dist.all_reduce(x, async_op=True)\ntime.sleep(0.5)\nif rank == 1:\n    x.numpy()[0] += 1\nwork.wait()"
    ),
    remedy=(
        "Something changed the result on that rank: a write through numpy or another thread while the call was in "
        "flight, a device with faulty memory, a link that corrupts data. If it returns on one host whatever the "
        "program does, test its hardware."
    ),
)

WRONG_RESULT = Rule(
    "SC903",
    "wrong-result",
    "Compare the inputs and the result of this call on another backend, or with NCCL_ALGO and NCCL_PROTO set.",
    means=(
        "The result of a collective does not follow from its inputs. Moved elements and reductions of integers are "
        "compared exactly, sums and averages of floats within a bound on their rounding errors. The rule needs "
        "--values."
    ),
    harm="The job goes on with wrong numbers that look right.",
    example=(
        "work = dist.reduce(x, dst=0, async_op=True)\ntime.sleep(0.5)\n"
        "if rank == 0:\n    x.numpy()[0] += 1\nwork.wait()"
    ),
    remedy=(
        "Look for writes to the tensors while the call was in flight, which SC502 cannot see through numpy or from "
        "other threads. Then suspect the backend, the link or the device: repeat the call with known inputs on the "
        "named hosts."
    ),
)

PARAMETERS_DRIFTED = Rule(
    "SC904",
    "parameters-drifted",
    "Find what this rank did to the named parameter in the named step that the others did not.",
    means=(
        "Ranks hold different bits of a parameter, a buffer or an optimizer's state that must be equal: that of a "
        "DistributedDataParallel model when a forward pass begins that synchronises gradients, or a DTensor that is "
        "replicated over a dimension of its mesh, after a step of its optimizer. The finding names the first step, the "
        "first tensor and the ranks in the minority. A model is not judged if its program steps without synchronising "
        "gradients (no_sync, set_requires_all_reduce), or if it has a communication hook that is not known to give "
        "every rank the same gradients. The rule needs --values; with --values sample the step is the first of those "
        "that were looked at."
    ),
    harm=(
        "Each rank trains a different model. The gradients of these models are still averaged, so the loss falls more "
        "slowly, or rises, and a checkpoint has the weights of rank 0 alone."
    ),
    example=(
        "torch.manual_seed(rank)\nmodel = DistributedDataParallel(nn.Linear(8, 1), init_sync=False)\n"
        "model(torch.rand(4, 8)).sum().backward()"
    ),
    remedy=(
        "If the ranks differ before the first step, they began with different weights: let the constructor broadcast "
        "them, or load the same checkpoint everywhere. If they differ after a step, something changed the weights or "
        "the optimizer's settings on one rank only, such as a learning rate that follows the rank's own loss, a weight "
        "that is clipped or loaded under `if rank == 0`, a forward pass through model.module."
    ),
    unplayed="its ranks make calls, and have no model, and no optimizer that changes it",
)

SAME_DATA = Rule(
    "SC905",
    "same-data",
    "Give each data-parallel rank its own part of the data, by a DistributedSampler or a seed with the rank in it.",
    means=(
        "Data-parallel ranks train on the same batches: the input of a DistributedDataParallel model, or of the root "
        "of FSDP's fully_shard, is equal on these ranks in three steps in a row, and changes in each step. A batch "
        "that stays the same is not reported, nor one in which no tensor has eight elements that differ, nor passes in "
        "evaluation or without a step of an optimizer between them. Ranks in one smaller group, or in one row of "
        "another dimension of the mesh (tensor, context, pipeline parallelism), may share their input. The rule needs "
        "--values."
    ),
    harm=("The job pays for many ranks and learns as much as one would: the effective batch is that of one rank."),
    example=(
        "torch.manual_seed(0)\nmodel = DistributedDataParallel(nn.Linear(8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n    model(torch.rand(4, 8)).sum().backward()\n    optimizer.step()"
    ),
    remedy=(
        "Without a sampler every rank reads the whole data set in the order of its seed: pass "
        "sampler=DistributedSampler(dataset) to the DataLoader, and call set_epoch. If batches are drawn at random, "
        "add the rank to the seed after the model is built, or let DistributedDataParallel broadcast the model. With "
        "tensor parallelism, choose the part of the data by the rank in the data-parallel group, not by the global "
        "rank."
    ),
    severity=Severity.WARNING,
    unplayed="its ranks make calls, and have no model that they feed",
)

RANDOM_STATE = Rule(
    "SC906",
    "random-state",
    "Seed the ranks that share these activations alike; draw numbers of their own only for what each has alone.",
    means=(
        "Activations that ranks have to hold alike became different where each of these ranks drew random numbers from "
        "generators in different states: dropout on what a tensor-parallel layer gives to all its ranks, with a seed "
        "for each rank. That they have to be alike is known where the program makes a DTensor of them that is "
        "replicated over a dimension of its mesh, or takes them out of one, as the layers of parallelize_module do. "
        "Reported if it happened in two steps, and the activations were equal at the place before. Needs --values."
    ),
    harm=(
        "Each rank computes its part of another network. The sums that tensor parallelism makes of these parts are "
        "those of none, and layers that are kept whole get different gradients and drift apart."
    ),
    example=(
        "model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))\n"
        'parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel(), "3": ColwiseParallel()})\n'
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\ntorch.manual_seed(rank)\n"
        "for _ in range(3):\n    model(torch.ones(2, 8)).sum().backward()\n    optimizer.step()"
    ),
    remedy=(
        "Call torch.manual_seed with the rank in the data-parallel group, not with the global rank. Dropout inside the "
        "parts that each rank has alone may draw from a generator of its own, whose state is saved and set again "
        "around it (torch.random.fork_rng)."
    ),
    unplayed="its ranks make calls, and have no activations, and no generator of random numbers",
)

VALUE_RULES = (NON_FINITE_INPUT, REPLICAS_DIFFER, WRONG_RESULT, PARAMETERS_DRIFTED, SAME_DATA, RANDOM_STATE)

JOB_RULES = (INVALID_ARGUMENT, RANK_FAILED, RANK_EXITED_EARLY, STRAGGLER)


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
        "of the device. The rule does not report sends, barriers, results that the program dropped with the work and "
        "does not name in a later line, by themselves or by a list, a dict or an object that holds them, or a last "
        "pending call if earlier calls from the same line were waited for. A barrier that the same function makes next "
        "counts as the wait, unless a line between the two reads the result. It is an error if another rank waits for "
        "ever for a message because the program dropped the work of its send or receive: on Gloo the message is lost "
        "with the work. A result that is waited for is reported too if a line between the call and the first use of "
        "its work, in the same block of the program, computes with it; views of it, its shape and its passing on to "
        "functions are not."
    ),
    harm="The result may be read before it is complete, and an error of the call is never seen.",
    example=("dist.all_reduce(x, async_op=True)\nprint(x.sum())"),
    remedy="Call wait() on the work, or make the call synchronous.",
    severity=Severity.WARNING,
    loses_data=True,
)

BUFFER_CHANGED = Rule(
    "SC502",
    "buffer-changed-in-flight",
    "Wait for the work before writing to the tensor.",
    means=(
        "The program wrote to a tensor of an asynchronous call before it had waited for the call. It is an error if "
        "the write is known to have come before the data was sent (the call had not been launched), a warning "
        "otherwise. Writes are detected by the tensor's version counter, on tensors that fill their storage. In detail "
        "mode, other tensors in CPU memory, such as slices of a flat buffer, are detected by their contents: those "
        "that the call only sends until the wait, those that it also writes to until its launch. Buffers that only "
        "receive are watched on Gloo with CPU tensors, in calls that are not coalesced: there it is known which "
        "versions the backend counts itself. A write to one is a warning, as the result may arrive before or after "
        "it. Not detected are writes through .data or numpy to a tensor that fills its storage, writes to a slice in "
        "which a result arrives, and reads of a result before the wait, unless another call reads it (SC503)."
    ),
    harm=(
        "Some ranks receive the old contents, some the new ones, some a mixture. What was written to a buffer that "
        "receives is overwritten, or overwrites the result."
    ),
    example=("work = dist.all_reduce(x, async_op=True)\nx.zero_()\nwork.wait()"),
    remedy="Move the write after wait(), or work on a copy.",
    loses_data=True,
)

BUFFERS_OVERLAP = Rule(
    "SC503",
    "buffers-overlap-in-flight",
    "Give each collective in flight, and each output of one, memory of its own.",
    means=(
        "A call uses memory that an earlier asynchronous call, for which nobody has waited yet, still uses, and at "
        "least one of them writes there. It is an error if both write and the first was still running, a warning "
        "otherwise. Calls of one group that run in order on one stream (NCCL), and disjoint parts of one buffer, are "
        "not reported. Two uses of memory within one call are errors too: outputs that share memory ([t] * "
        "world_size), and an output that shares memory with an input which the backend reads after it has begun to "
        "write (on Gloo all_to_all_single in place, reduce_scatter into another rank's part)."
    ),
    harm="The result depends on which call, or which rank's part, comes first.",
    example=("a = dist.all_reduce(x[:6], async_op=True)\nb = dist.all_reduce(x[4:], async_op=True)"),
    remedy="Wait for the first before the second starts, copy the shared part, or make a tensor for each output.",
    loses_data=True,
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


MEMBERSHIP_MISMATCH = Rule(
    "SC401",
    "group-membership-mismatch",
    "Call new_group on every rank, with the same ranks, in the same order.",
    means=(
        "Ranks created a group with different members, created groups in a different order, or some did not create it; "
        "or they have created unequally many groups before, by which torch names the next one. "
        "It is a warning if only the members created the group and the job ended well: later groups would have other "
        "numbers on the members than on other ranks."
    ),
    harm=(
        "Names and connections of groups are derived from the order of creation, so the ranks use different "
        "connections and wait for each other until a timeout."
    ),
    example=(
        "if rank < 2:\n    first = dist.new_group([0, 1])\neverybody = dist.new_group()\ndist.barrier(group=everybody)"
    ),
    remedy=(
        "Create all groups on all ranks in the same order, including groups that a rank does not belong to; or use "
        "use_local_synchronization=True, which involves the members only."
    ),
)

P2P_SIZE_MISMATCH = Rule(
    "SC301",
    "p2p-size-mismatch",
    "Give send and recv tensors of one size; send the size first if it varies.",
    means="A message has a different number of elements than the buffer that receives it.",
    harm=(
        "Gloo aborts the receiving process if the buffer is too small (SIGABRT, without a Python traceback), and "
        "fills a part of it silently if it is too large; NCCL hangs or truncates."
    ),
    example=("if rank == 0:\n    dist.send(torch.ones(10), dst=1)\nelse:\n    dist.recv(torch.empty(8), src=0)"),
    remedy="Agree on the shape beforehand, or send it before the data.",
)

P2P_DTYPE_MISMATCH = Rule(
    "SC302",
    "p2p-dtype-mismatch",
    "Convert to one dtype before the send, and allocate the receive buffer with it.",
    means=(
        "Sender and receiver of a message name different element types. Raw bytes (uint8) that fill the buffer "
        "exactly, and complex numbers received as real ones, are assumed to be intended."
    ),
    harm="The received bytes are read as numbers of another type, which gives wrong values without an error.",
    example=(
        "if rank == 0:\n"
        "    dist.send(torch.ones(8, dtype=torch.int32), dst=1)\n"
        "else:\n"
        "    dist.recv(torch.empty(8), src=0)"
    ),
    remedy="Look for autocast on one pipeline stage only, and for a default dtype that was changed.",
)

P2P_TAG_MISMATCH = Rule(
    "SC303",
    "p2p-tag-mismatch",
    "Use the same tag on both ends.",
    means=(
        "One rank waits for its message to be received, or has sent it without waiting; the other waits for a message "
        "from it, and only the tags differ."
    ),
    harm=(
        "Each rank waits for a partner that is already waiting, until the timeout. NCCL ignores tags and matches "
        "messages in order."
    ),
    example=("if rank == 0:\n    dist.send(x, dst=1, tag=1)\nelse:\n    dist.recv(x, src=0, tag=2)"),
    remedy=(
        "Derive tags from one formula on both ends, such as the micro-batch number. If each rank makes the other's "
        "call later, the order is wrong instead: receive in the order of sending, or use isend and irecv."
    ),
)

P2P_UNMATCHED = Rule(
    "SC304",
    "p2p-unmatched",
    "Add the missing half, or remove the one that is left over.",
    means="A send has no receive, or a receive has no send, and the other rank can no longer make it.",
    harm=(
        "A receive waits for ever, and so does a send on Gloo, whatever its size; an isend that is never waited for "
        "is lost without an error (a warning)."
    ),
    example=("if rank == 0:\n    dist.recv(x, src=1)  # rank 1 never sends"),
    remedy=(
        "Count both ends: usually one of the loops runs once more than the other, or a group rank was given where a "
        "global rank is expected."
    ),
    loses_data=True,
)

MESSAGE_RACE = Rule(
    "SC305",
    "message-race",
    "Name the source of every receive that matters, or give the two kinds of messages different tags.",
    means=(
        "A receive from any source took one message and could have taken another one, which a later receive needs: "
        "that receive names its sender, or has its size or dtype. In this run the messages came in the right order."
    ),
    harm=(
        "If the messages arrive in another order, the later receive waits until the timeout, or a message ends in the "
        "wrong buffer. Such a job fails once in a hundred runs, or on another cluster only."
    ),
    example=(
        "if rank == 0:\n    dist.recv(x)  # any source: rank 2's message, or rank 1's\n    dist.recv(y, src=1)\n"
        "else:\n    dist.send(x, dst=0)"
    ),
    remedy=(
        "Receive from named sources, or use a tag of its own for each kind of message, so that no receive can take "
        "what another one waits for. A barrier between the two kinds works too. Messages on which the program decides "
        "after it has seen who sent the first one are not reported."
    ),
    severity=Severity.WARNING,
    loses_data=True,
)

PAIR_RULES = (
    P2P_SIZE_MISMATCH,
    P2P_DTYPE_MISMATCH,
    P2P_TAG_MISMATCH,
    P2P_UNMATCHED,
    MESSAGE_RACE,
    MEMBERSHIP_MISMATCH,
)


MISSING_RANK = Rule(
    "SC201",
    "missing-rank",
    "Look where the missing rank is instead: it must make this call too, or the others must not.",
    means=(
        "Some ranks wait in a collective to which another rank of the group has not come in time, although it has not "
        "failed. If no launcher or monitor watched the job, the ranks' own records must show how long they waited; if "
        "all known ranks have come, and the call still does not end, no culprit is named."
    ),
    harm=(
        "The waiting ranks are stuck until the group's timeout, half an hour by default; then they fail, and their "
        "errors point at the network."
    ),
    example=("if rank == 1:\n    batch = batches.get()  # its loader has ended: nothing comes\ndist.all_reduce(loss)"),
    remedy=(
        "The report says where the missing rank is. If it skips the call, call it on every rank. If it is only slow "
        "(it evaluates, saves, downloads), raise the group's timeout, or make the other ranks wait explicitly. If its "
        "record just ends and there is no launcher's account of it, it may have been killed: see its host's log "
        "(dmesg)."
    ),
)

CALL_SKIPPED = Rule(
    "SC202",
    "call-skipped",
    "Make the call on every rank, or on none.",
    means=(
        "Compared with the other ranks' calls, one rank's sequence lacks a call (skipped) or has one too many "
        "(extra). The calls after it match again, shifted by one. Calls that look alike are distinguished by their "
        "source lines, if these leave no doubt; otherwise the report names the range of calls among which one is "
        "missing."
    ),
    harm=(
        "Every later call of that rank meets a different call of its peers: wrong data if the calls look alike, and a "
        "hang at the end when one call is left over."
    ),
    example=(
        "for loss, norm in steps:\n"
        "    if loss.isfinite():  # not so on rank 2, in one step\n"
        "        dist.all_reduce(loss)\n"
        "    dist.all_reduce(norm)"
    ),
    remedy=(
        "Look at the line where the other ranks made the call that this rank did not make. The usual cause is a "
        "continue, an early return or an exception handler around it."
    ),
)

ORDER_SWAPPED = Rule(
    "SC203",
    "order-swapped",
    "Issue the collectives of a group in one order on every rank.",
    means=(
        "Two ranks make the same calls on one group in a different order. If the calls look alike to the backend, "
        "only their source lines show the exchange, or the callers of a helper that makes both; then it is a warning, "
        "and reported only if most ranks agree on the order."
    ),
    harm=(
        "Collectives carry no names: the first call of one rank meets the first call of the other. If the calls look "
        "alike, the tensors are exchanged silently."
    ),
    example=(
        "def add_up():\n"
        "    dist.all_reduce(loss)\n"
        "\n"
        "\n"
        "def count():\n"
        "    dist.all_reduce(samples)\n"
        "\n"
        "\n"
        "for step in [count, add_up] if rank == 2 else [add_up, count]:\n"
        "    step()"
    ),
    remedy=(
        "Iterate over something that has the same order on every rank; sort keys. Do not make collectives of one "
        "group from several threads."
    ),
)

DEADLOCK_CYCLE = Rule(
    "SC204",
    "deadlock-cycle",
    "Break the cycle: order the calls alike on every rank, or make one of them asynchronous.",
    means=(
        "Each rank of a cycle waits for the next one, in a collective of some group or in a send or receive, and the "
        "last waits for the first."
    ),
    harm="None of them can ever go on, and waiting for the timeout does not help.",
    example=(
        "if rank == 0:\n"
        "    dist.all_reduce(x, group=a)\n"
        "    dist.all_reduce(x, group=b)\n"
        "else:\n"
        "    dist.all_reduce(x, group=b)\n"
        "    dist.all_reduce(x, group=a)"
    ),
    remedy=(
        "Use the groups in the same order on all ranks that share them. For exchanges between neighbours use "
        "batch_isend_irecv."
    ),
)

ORDER_RULES = (MISSING_RANK, CALL_SKIPPED, ORDER_SWAPPED, DEADLOCK_CYCLE)


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
        "belong together, and a broadcast arrives permuted: wrong numbers without an error. Sparse against dense "
        "hangs, because the backend runs a different algorithm."
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


_ALL = (
    *FIELD_RULES,
    *ORDER_RULES,
    *PAIR_RULES,
    *FLIGHT_RULES,
    *JOB_RULES,
    *VALUE_RULES,
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.code: rule for rule in sorted(_ALL, key=lambda rule: rule.code)})
"""All rules, by code, in the order of the codes."""
