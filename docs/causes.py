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

After a job that failed, [`simcoll run`](run.md) and [`simcoll verify`](verify.md) say who should act, by what evidence,
how strong that is, and whether a restart helps. The lines are the last of the report on the terminal, a table of
`report.html`, and `advice` in [`report.json`](report.md#the-advice):

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

`weak` evidence fits other causes too, and never says `no` or `without hosts` to a restart. Dry runs, simulated ranks
and jobs that ended well get no advice.

## What is read

* The records and the launcher's account: findings, exceptions, exit codes and signals.
* Kills for want of memory: `memory.events` (cgroup v2) or `memory.oom_control` (v1) of the launcher's own cgroup,
  before and after.
* The kernel's log since the job began: `/dev/kmsg`, where the kernel lets the user read it (`kernel.dmesg_restrict`).
* A kernel log that somebody saved in the folder of the records as `dmesg*`; `dmesg-HOST.txt` names the host. Write it
  by `dmesg --time-format iso`: a line without its time is weak evidence.
* What NCCL's RAS said: `ncclras*.json` in the folder, as `ncclras -f json` prints it (NCCL 2.28.7 and newer).

`simcoll run` leaves what its host's kernel said of a job that failed in `host.json` (`host-HOST-PID.json` on several
nodes), so that `simcoll verify` says the same later. Texts of the kernel's log that are understood:

* `NVRM: Xid (PCI:...): NUMBER, ...` of NVIDIA's driver, by the catalogue below;
* `SXid (PCI:...): NUMBER, Fatal, ...` of NVSwitch (NVIDIA, Fabric Manager user guide);
* `Out of memory: Killed process PID`, `Memory cgroup out of memory: Killed process PID` (Linux, mm/oom_kill.c);
* `Memory failure: ...: Sending SIGBUS to NAME:PID due to hardware memory corruption` (Linux, mm/memory-failure.c);
* `EDAC MC0: 1 UE ...`, an uncorrected error of memory (Linux, drivers/edac/edac_mc.c).

Not read: NCCL Inspector's files, which have speeds of collectives that ended and no failure; the logs of network cards
and switches, for which no format is documented that holds across vendors; counters of NVML and DCGM.

## Restarts by cause

`simcoll run --max-restarts N --restart-by-cause` judges each attempt that failed before torch's agent starts the ranks
again. It does not start them where `restart` is `no`, nor on a host that `without hosts` names: with `--nnodes MIN:MAX`
the other nodes go on without it. It says why in one line. Where nothing is known, ranks are started again, as without
the option. Ranks that are only stopped by their launcher, as others failed, are no evidence.

## Rules

They are asked in this order; the first that fits is believed. Those marked * have evidence of their own, and are told
beside another cause.

"""

_XIDS = """
## Xids

NVIDIA's [catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) says for each Xid of Ampere
and newer GPUs what to do at once (column "Immediate Action"). Those of the first two groups are faults of the machine;
those of NVLink where the line says `Fatal`, or states no severity (74). Those of the last group follow from the work
that a program gave to the GPU, or from a fault: they are quoted beside a device error, and prove nothing by themselves.
All others are passed over.

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
