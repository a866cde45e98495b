"""What docs/security.md claims, where it can be checked: no code from data, no network, harmless text, files' modes."""

from __future__ import annotations

import ast
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from simcoll.blackbox import BlackBoxWriter, Slot
from simcoll.core.record import Group, Source, State
from simcoll.proof.connections import connect_links
from simcoll.spec.call import Buffer, Call
from tests.release.test_packaging import ROOT, SOURCES

FORBIDDEN = {"eval", "exec", "compile", "pickle.loads", "pickle.load", "pickle.Unpickler", "marshal.loads"}
FORBIDDEN |= {"os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load", "numpy.load"}
FORBIDDEN |= {"shelve.open"}
PERMITTED = {
    # Objects of simulated ranks, which are one process.
    "backends/simulated/object_calls.py": {"pickle.loads"},
    # Syntax alone: what is compiled is not run.
    "simcoll/launch/preconditions.py": {"compile"},
    # Tables of the readers that simcoll has started, by an unpickler that knows a few types.
    "simcoll/blackbox/reader_wire.py": {"pickle.Unpickler"},
    # Objects that ranks of one dry run send each other, in a folder of that run: torch unpickles them in the real run.
    "simcoll/dryrun/rank/sent_values.py": {"pickle.loads"},
    # Results and exceptions of processes that simcoll has forked itself, over their pipes,
    # and frames for their tracebacks: a line of simcoll's own.
    "simcoll/testing/gloo_rank.py": {"pickle.loads", "compile", "exec"},
}
"""Where shipped modules do it all the same, and why nothing that is read from outside gets there."""

NETWORK = {"urllib.request", "http.client", "http.server", "ftplib", "smtplib", "xmlrpc.client", "requests", "ssl"}
HOSTILE = "a\x1b]0;owned\x07\x1b[31mred\u202eevil\r\n::error::x"

WATCHED = """
import sys
from pathlib import Path

def refuse(event, arguments):
    if event.startswith(("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "subprocess.",
                         "os.system", "os.exec", "os.posix_spawn", "pickle.find_class", "urllib.")):
        sys.stderr.write(f"REFUSED {event} {arguments}")
        sys.stderr.flush()
        __import__("os")._exit(99)

from simcoll.cli import main
import numpy
sys.addaudithook(refuse)
sys.exit(main(sys.argv[1:]))
"""


def spelled(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{spelled(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def imported(tree: ast.Module) -> dict[str, str]:
    """The full names of what a module imports under another one: ``np`` is numpy."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def used(text: str) -> set[str]:
    """The full names of what a module calls, or derives a class from."""
    tree = ast.parse(text)
    known, found = imported(tree), set()
    for node in ast.walk(tree):
        for name in [node.func] if isinstance(node, ast.Call) else node.bases if isinstance(node, ast.ClassDef) else []:
            first, dot, rest = spelled(name).partition(".")
            found.add(known.get(first, first) + dot + rest)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nnp.load(path)",
        "from pickle import loads as read\nread(text)",
        "import os\nos.system(text)",
        "import pickle\nclass Reader(pickle.Unpickler): pass",
    ],
)
def test_what_is_forbidden_is_known_by_any_name(text: str) -> None:
    assert FORBIDDEN & used(text)


def test_no_shipped_module_runs_what_it_reads() -> None:
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        assert FORBIDDEN & used(text) == PERMITTED.get(name, set()), name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                assert "shell" not in {keyword.arg for keyword in node.keywords}, f"{name}:{node.lineno}: a shell"
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module}
                assert modules & NETWORK == set(), f"{name}:{node.lineno}"


def test_what_is_permitted_is_shipped() -> None:
    assert PERMITTED.keys() <= {path.relative_to(ROOT).as_posix() for path in SOURCES}


def record(folder: Path, name: str = "train.py") -> None:
    """One all_reduce that two ranks make differently, with texts of a rank's own choosing."""
    for rank, reduce_op in enumerate(("sum", "max")):
        box = BlackBoxWriter(folder / f"rank{rank:05d}.simcoll", rank=rank, world_size=2, mode="record", records=16)
        tensor = Buffer((4,), "float32")
        call = Call("all_reduce", "allreduce", (tensor,), (tensor,), reduce_op=reduce_op)
        group = box.group(Group("0", name, (0, 1)))
        ticket = box.schedule(Slot(group, 1, box.signature(call), box.source(Source(name, 3, name, name))))
        box.advance(ticket, State.COMPLETED)
        box.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("verify", ".", "--html", "page.html", "--sarif", "s.sarif"), 3),
        (("estimate", "all_reduce", "--bytes", "1GiB", "--gpu", "h100", "--nodes", "2"), 0),
        (("topology", "show", "dgx-h100"), 0),
        (("rules", "SC104"), 0),
        (("simulate", "SC104"), 3),
        (("demo",), 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands_that_read_start_nothing_and_connect_nowhere(arguments, code, tmp_path):
    """Python's own audit events: sockets, programs, and names looked up by an unpickler."""
    record(tmp_path)
    command = [sys.executable, "-c", WATCHED, *arguments]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr[-500:]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--plain",), ("--json",), ("--timeline",)], ids=str)
def test_names_from_records_reach_no_terminal_as_commands(options, tmp_path):
    record(tmp_path, HOSTILE)
    command = [sys.executable, "-m", "simcoll", "verify", ".", "--sarif", "s.sarif", *options]
    environment = os.environ | {"FORCE_COLOR": "", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 3, done.stderr
    for text in (done.stdout, done.stderr, (tmp_path / "s.sarif").read_text()):
        assert not {"\x1b", "\x07", "\r"} & set(text)
        assert not any(line.startswith("::error::") for line in text.splitlines())
    if "--json" in options:
        json.loads(done.stdout)
    else:
        assert "\u202e" not in done.stdout


def test_records_are_as_private_as_the_user_has_asked(tmp_path):
    before = os.umask(0o077)
    try:
        record(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


class Rendezvous:
    """A store in this process; whoever reads where a rank listens goes there first, as an attacker."""

    def __init__(self, attack) -> None:
        self._values: dict[str, str] = {}
        self._said = threading.Condition()
        self._attack = attack

    def set(self, key: str, value: str) -> None:
        # Before any rank can know of the address: the attacker is always first.
        self._attack(json.loads(value))
        with self._said:
            self._values[key] = value
            self._said.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key].encode()

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._said:
            if not self._said.wait_for(lambda: all(key in self._values for key in keys), timeout.total_seconds()):
                raise RuntimeError("timeout")


def flood(port: int, payload: bytes, count: int, kept: list[socket.socket]) -> None:
    for _ in range(count):
        link = socket.create_connection(("127.0.0.1", port), timeout=10)
        kept.append(link)
        try:
            link.sendall(payload)
        except OSError:
            continue


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0", b"\xff" * 65536, struct.pack("<16sQ", b"\0" * 16, 1 << 63), b"GET / HTTP/1.1\r\n\r\n" * 1000],
    ids=["silent", "one byte", "64 KiB", "a huge rank", "another protocol"],
)
def test_strangers_at_the_port_of_a_rank_keep_nobody_from_meeting(payload):
    """More of them than may be unintroduced at once; what they send is never kept beyond a handshake's 25 bytes."""
    kept: list[socket.socket] = []
    ports: list[int] = []

    def attack(document) -> None:
        ports.append(document["addresses"][0][1])
        flood(ports[-1], payload, 100, kept)

    store = Rendezvous(attack)
    found: dict[int, dict[int, socket.socket]] = {}

    def meet(rank: int) -> None:
        found[rank] = connect_links(store, rank, [1 - rank], timedelta(seconds=60))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ports) == 1
    assert len(kept) == 100
    found[0][1].setblocking(True)
    found[1][0].sendall(b"word")
    assert found[0][1].recv(4) == b"word"
    for link in (*kept, found[0][1], found[1][0]):
        link.close()
    # Once the ranks have met, nobody listens there any more.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]), timeout=10)
