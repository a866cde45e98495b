"""Writes docs/causes.md anew from the rules and tables of verifier/causes: ``python docs/causes.py``."""

from __future__ import annotations

import inspect
from pathlib import Path

from simcoll.verifier.causes.exceptions import ERRNOS
from simcoll.verifier.causes.rules import RULE_LIST, CauseRule
from simcoll.verifier.causes.xids import XIDS, XidClass

TARGET = Path(__file__).with_name("causes.md")

_HEAD = """# Who should act

Written by `python docs/causes.py` from `verifier/causes/`; a test compares the two.

After a job that failed, [`simcoll run`](run.md) and [`simcoll verify`](verify.md) state who should act, on what
evidence, how strong the evidence is, and whether a restart helps. The statement is the last part of the report on the
terminal, a table of `report.html`, and `advice` in [`report.json`](report.md#the-advice):

<!-- not run: it takes a GPU that fails -->
```text
  cause     a machine (rank 5 on node-3), strong evidence
  evidence  kernel log of node-3: Xid 79, GPU has fallen off the bus: NVRM: Xid (PCI:0000:3b:00): 79, ...
            SC701: rank 5 raised AcceleratorError: CUDA error: unspecified launch failure
  restart   yes, without node-3
```

| cause | who acts |
|---|---|
| `program` | who writes the program: the same ranks would do the same again |
| `rank` | who knows that rank's data, or its process: it did what the others did not |
| `machine` | who runs the machines |
| `network` | who runs the network |
| `unknown` | nobody yet: the evidence does not say |

`weak` evidence fits other causes too; it never leads to the restart `no` or `without hosts`. Dry runs, simulated ranks
and jobs that ended well get no advice.

## What is read

* The records and the launcher's account: findings, exceptions, exit codes and signals.
* Kills for lack of memory: `memory.events` (cgroup v2) or `memory.oom_control` (v1) of the launcher's own cgroup,
  before and after. The first also counts how often its own limit was why (`oom`); the second counts kills alone.
* The kernel's log since the job began: `/dev/kmsg`, where the kernel lets the user read it (`kernel.dmesg_restrict`).
  Its records are told from older ones by their numbers, since its clock drifts.
* Nodes that share no folder with node 0, and were lost while the job ran ([nodes](run.md)).
* A kernel log that somebody saved in the folder of the records as `dmesg*`; `dmesg-HOST.txt` names the host. Save it
  with `dmesg --time-format iso`: a line without a time is weak evidence.
* What NCCL's RAS said: `ncclras*.json` in the folder, as `ncclras -f json` prints it (NCCL 2.28.7 and newer).

After a failed job, `simcoll run` writes what its host's kernel reported to `host.json` (`host-HOST-PID.json` on several
nodes), so that `simcoll verify` gives the same statement later. These texts of the kernel's log are understood:

* `NVRM: Xid (PCI:...): NUMBER, ...` of NVIDIA's driver, by the catalogue below;
* `SXid (PCI:...): NUMBER, Fatal, ...` of NVSwitch (NVIDIA, Fabric Manager user guide);
* `Out of memory: Killed process PID`, `Memory cgroup out of memory: Killed process PID` (Linux, mm/oom_kill.c);
* `Memory failure: ...: Sending SIGBUS to NAME:PID due to hardware memory corruption` (Linux, mm/memory-failure.c);
* `EDAC MC0: 1 UE ...`, an uncorrected error of memory (Linux, drivers/edac/edac_mc.c).

Three sources are not read: NCCL Inspector's files, which have speeds of collectives that ended and no failure; the logs
of network cards and switches, which have no documented format common to all vendors; counters of NVML and DCGM.

## Restarts by cause

`simcoll run --max-restarts N --restart-by-cause` judges each attempt that failed before torch's agent starts the ranks
again. It does not start them where `restart` is `no`, nor on a host that `without hosts` names: with `--nnodes MIN:MAX`
the other nodes go on without it. It says why in one line. If the cause is not known, ranks are started again, as
without the option. Ranks that their launcher stopped because others had failed are no evidence.

## Rules

The rules are asked in this order; the first that fits is believed. Each row states the evidence, and behind a colon the
cause, its strength and the restart (`unknown` if none is stated). Rules marked * have evidence of their own and are
also reported beside another cause.

"""

_XIDS = """
## Xids

NVIDIA's [catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) says for each Xid of Ampere
and newer GPUs what to do at once (column "Immediate Action"). Xids of the first two groups are faults of the machine.
Xids of NVLink are faults of the machine if the line says `Fatal`, or states no severity (74). Xids of the last group
follow from the work that a program gave to the GPU, or from a fault: they are quoted beside a device error and prove
nothing by themselves. All other Xids are ignored.

| the catalogue says | Xids |
|---|---|
"""

_ERRORS = """
## Errors of the operating system

| error | cause | strength | restart |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rules = "".join(map(_row, RULE_LIST))
    xids = "".join(map(_xids, XidClass))
    errors = "".join(
        f"| {one.why} | {one.cause.value} | {one.strength.value} | {one.restart.value} |\n" for one in ERRNOS.values()
    )
    return f"{_HEAD}| rule | fits where |\n|---|---|\n{rules}{_XIDS}{xids}{_ERRORS}{errors}"


def _row(rule: CauseRule) -> str:
    said = " ".join((inspect.getdoc(rule.find) or "").split())
    return f"| {rule.name}{' *' if rule.beside else ''} | {said} |\n"


def _xids(kind: XidClass) -> str:
    mine = [f"{number} ({name})" for number, (other, name) in sorted(XIDS.items()) if other is kind]
    return f"| {kind.value} | {', '.join(mine)} |\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
