"""Who should act, on real Gloo ranks: a job is killed, stopped, starved of memory, parted; and restarts by cause."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.gloo]

# The agent's store keeps the addresses of the first attempt, and plain Gloo stumbles over them: a store each.
HEAD = """
import os, signal, sys
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, flush=True)
if attempt:
    ranks = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(f"store{attempt}", ranks), rank=rank, world_size=ranks)
else:
    dist.init_process_group("gloo")
t = torch.ones(4)
dist.all_reduce(t)
"""


def command(folder: Path, body: str, *options: object, ranks: int = 2) -> list[str]:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(body))
    own = [sys.executable, "-m", "simcoll", "run", "--nproc-per-node", ranks, "--out", folder / "out"]
    return [*map(str, own), *map(str, options), str(path)]


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_")} | more


def run(folder: Path, body: str, *options: object, before: str = "", ranks: int = 2) -> tuple[Any, str, str]:
    """The advice, and what the job printed; ``before`` is shell that is run before the command, in its process."""
    called = command(folder, body, *options, ranks=ranks)
    if before:
        called = ["sh", "-c", f'{before}\nexec "$@"', "sh", *called]
    job = subprocess.run(called, cwd=folder, env=environment(), capture_output=True, text=True, timeout=180)
    return advice_in(folder), job.stdout, job.stderr


def advice_in(folder: Path) -> Any:
    return json.loads((folder / "out" / "report.json").read_text())["advice"]


def told(advice: dict[str, Any]) -> tuple[str, ...]:
    return tuple(advice[name] for name in ("rule", "cause", "strength", "restart"))


def test_a_mismatch_is_not_restarted(tmp_path: Path) -> None:
    body = "dist.all_reduce(t, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)"
    advice, out, err = run(tmp_path, body, "--max-restarts", 2, "--restart-by-cause")
    assert told(advice) == ("calls disagree", "program", "strong", "no")
    assert (out.count("attempt 0"), out.count("attempt 1")) == (2, 0)
    assert "simcoll: the ranks are not started again; cause: program (strong evidence: " in err
    assert out.rstrip().splitlines()[-1].strip() == "restart   no: it would fail again"


def test_a_mismatch_on_two_nodes_is_restarted_on_neither(tmp_path: Path) -> None:
    body = "dist.all_reduce(t, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)"
    with socket.create_server(("127.0.0.1", 0)) as door:
        meet = f"127.0.0.1:{door.getsockname()[1]}"
    nodes = ["--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", meet, "--rdzv-id", "two-nodes"]
    called = command(tmp_path, body, *nodes, "--max-restarts", 2, "--restart-by-cause", ranks=1)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    jobs = [subprocess.Popen(called, cwd=tmp_path, env=environment(), **pipes) for _ in range(2)]
    said = [job.communicate(timeout=120)[0] for job in jobs]
    assert ["simcoll: the ranks are not started again; cause: program" in one for one in said] == [True, True], said
    assert ["attempt 1" in one for one in said] == [False, False]
    assert told(advice_in(tmp_path)) == ("calls disagree", "program", "strong", "no")


def test_a_rank_that_fails_once_is_restarted(tmp_path: Path) -> None:
    body = """
    if not attempt and rank == 1:
        raise ValueError("bad record")
    dist.all_reduce(t)
    dist.destroy_process_group()
    """
    advice, out, err = run(tmp_path, body, "--max-restarts", 2, "--restart-by-cause")
    assert advice is None
    assert (out.count("attempt 1"), out.count("attempt 2")) == (2, 0)
    assert "simcoll: the ranks are started again; cause: rank (weak evidence: " in err


def test_the_second_attempt_is_judged_by_itself(tmp_path: Path) -> None:
    body = """
    if not attempt:
        os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else dist.all_reduce(t)
    dist.all_reduce(t[: rank + 1])
    """
    advice, out, _ = run(tmp_path, body, "--max-restarts", 5, "--restart-by-cause")
    assert told(advice) == ("calls disagree", "program", "strong", "no")
    assert (out.count("attempt 1"), out.count("attempt 2")) == (2, 0)


def test_without_the_option_it_is_restarted_as_torchrun_does(tmp_path: Path) -> None:
    _, out, _ = run(tmp_path, "raise NameError('x')", "--max-restarts", 1)
    assert out.count("attempt 1") == 2


def test_a_killed_rank(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else dist.all_reduce(t)"
    advice, _, _ = run(tmp_path, body)
    assert advice["rule"] == "ended from outside"
    assert (advice["cause"], advice["ranks"]) == ("unknown", [1])
    assert "rank 1 was killed by SIGKILL" in advice["evidence"][0]["text"]
    account = json.loads((tmp_path / "out" / "host.json").read_text())
    assert advice["restart"] == ("yes" if account["oom_kills"] == 0 and not account["kernel"] else "unknown")


def test_an_exception_on_one_rank(tmp_path: Path) -> None:
    body = """
    if rank == 1:
        open("/dev/full", "w").write("x" * 100_000)
    dist.all_reduce(t)
    """
    advice, _, _ = run(tmp_path, body)
    assert told(advice) == ("told by the exception", "machine", "strong", "no")
    assert advice["ranks"] == [1]


def test_a_limit_of_memory(tmp_path: Path) -> None:
    body = """
    import resource
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        torch.ones(16 << 30, dtype=torch.uint8)
    dist.all_reduce(t)
    """
    advice, _, _ = run(tmp_path, body)
    assert told(advice) == ("told by the exception", "program", "strong", "no")


def test_a_crash(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGSEGV) if rank == 1 else dist.all_reduce(t)"
    assert told(run(tmp_path, body)[0]) == ("crash", "rank", "weak", "unknown")


def test_a_process_that_is_stopped(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else dist.all_reduce(t)"
    advice, _, _ = run(tmp_path, body, "--stall", 3)
    assert told(advice) == ("stopped process", "rank", "strong", "yes")
    assert advice["ranks"] == [1]


@pytest.fixture
def memory_limit(tmp_path: Path) -> Iterator[str]:
    """Shell that moves its process into a memory cgroup of 1.25 GiB."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for base, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            v1 = file.endswith("bytes")
            if v1 != ("memory" in controllers.split(",")) or (not v1 and controllers):
                continue
            group = Path(base) / path.lstrip("/") / f"simcoll-test-{os.getpid()}"
            with contextlib.suppress(OSError):
                group.mkdir()
                (group / file).write_text(str(1280 << 20))
                with contextlib.suppress(OSError):
                    (group / "memory.swap.max").write_text("0")
                yield f"echo $$ > {group}/cgroup.procs"
                group.rmdir()
                return
    pytest.skip("no memory cgroup can be made here")


def test_a_rank_that_is_killed_for_memory(memory_limit: str, tmp_path: Path) -> None:
    body = """
    if rank == 1:
        kept = []
        while len(kept) < 64:
            kept.append(torch.ones(64 << 20, dtype=torch.uint8))
    dist.all_reduce(t)
    """
    advice, _, _ = run(tmp_path, body, before=memory_limit)
    assert told(advice) == ("killed for memory", "program", "strong", "no")
    assert advice["ranks"] == [1]
    assert "memory cgroup of" in " ".join(one["source"] for one in advice["evidence"])


def test_hosts_that_lose_each_other(tmp_path: Path) -> None:
    """Two network namespaces with names of their own; the link between them goes down while a rank waits."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("needs root, for network namespaces")
    holders, jobs = [], []
    try:
        for number in (0, 1):
            made = ["unshare", "--net", "--uts", "sh", "-c", f"hostname host{number}; echo ready; exec sleep 300"]
            holder = subprocess.Popen(made, stdout=subprocess.PIPE, text=True)
            holders.append(holder)
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                pytest.skip("network namespaces cannot be made here")
        inside = [["nsenter", "--target", str(one.pid), "--net", "--uts"] for one in holders]
        link = ["ip", "link", "add", "veth0", "netns", str(holders[0].pid), "type", "veth", "peer", "name", "veth0"]
        subprocess.run([*link, "netns", str(holders[1].pid)], check=True)
        for number, enter in enumerate(inside):
            address = ["ip", "address", "add", f"10.77.0.{number + 1}/24", "dev", "veth0"]
            for step in (address, ["ip", "link", "set", "veth0", "up"], ["ip", "link", "set", "lo", "up"]):
                subprocess.run([*enter, *step], check=True)
        body = """
        import time
        from datetime import timedelta
        group = dist.new_group(timeout=timedelta(seconds=8))
        dist.all_reduce(t, group=group)
        open(os.path.join(os.environ["SIMCOLL_OUT"], f"ready{rank}"), "w").close()
        while not os.path.exists(os.path.join(os.environ["SIMCOLL_OUT"], "parted")):
            time.sleep(0.1)
        dist.all_reduce(t, group=group)
        """
        nodes = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--master-port", 29511, "--mode", "record"]
        for number, enter in enumerate(inside):
            called = [*enter, *command(tmp_path, body, *nodes, "--node-rank", number, ranks=1)]
            env = environment(GLOO_SOCKET_IFNAME="veth0", SIMCOLL_OUT=str(tmp_path / "out"))
            jobs.append(subprocess.Popen(called, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        deadline = time.monotonic() + 90
        while not all((tmp_path / "out" / f"ready{rank}").exists() for rank in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        subprocess.run([*inside[1], "ip", "link", "set", "veth0", "down"], check=True)
        (tmp_path / "out" / "parted").touch()
        said = [job.communicate(timeout=120)[0] for job in jobs]
    finally:
        for process in (*jobs, *holders):
            process.kill()
            process.communicate()
    advice = advice_in(tmp_path)
    assert told(advice)[:2] == ("lost connections", "network"), said
