"""Warns, while a process waits, that no process serves the store at which ``init_process_group`` is to meet.

Where torch's agent has started a rank, every rank is a client of the agent's store, and an address of the program's own
(``init_method="tcp://..."``, another MASTER_PORT) is not served: torch/distributed/rendezvous.py,
``_create_c10d_store``. All wait there without a word until the group's timeout, half an hour on Gloo.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from simcoll.core.record import Source

PATIENCE = 20.0
"""Seconds that a store may be unreachable before it is looked for; the monitor's own patience is longer."""

_CONNECT_SECONDS = 5.0

OWN_RANKS = (
    "a program that starts its ranks itself (mp.spawn) runs as `SIMCOLL_MODE=detail python script.py`: under a "
    "launcher, init_process_group takes rank, size and address from the launcher"
)


@contextmanager
def warned_if_unserved(given: Mapping[str, object], source: Source) -> Iterator[None]:
    """Watch the making of a default group: ``given`` are its arguments, ``source`` the line that makes it.

    Of many ranks that wait at one address, the one that is to be rank 0 of the launcher's rank 0 warns.
    """
    address = _address(given)
    if address is None or os.environ.get("RANK") != "0" or given.get("rank", -1) not in (-1, 0):
        yield
        return
    watch = threading.Timer(PATIENCE, _warn, (*address, source))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _address(given: Mapping[str, object]) -> tuple[str, int] | None:
    """The address of a store that no rank serves; None where a rank serves one, or none is used."""
    method = given.get("init_method") or "env://"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or given.get("store") is not None:
        return None
    try:
        stated = urlsplit(str(method))
        if stated.scheme == "tcp" and stated.hostname and stated.port:
            return stated.hostname, stated.port
        return (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) if stated.scheme == "env" else None
    except (KeyError, ValueError):
        return None


def _warn(host: str, port: int, source: Source) -> None:
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        sys.stderr.write(
            f"simcoll: rank 0 waits in init_process_group at {source.file}:{source.line} for a store at {host}:{port}, "
            f"where nobody listens (no rank serves one where a launcher does); {OWN_RANKS}\n"
        )
    except OSError:
        # Silence, or a name that is not known yet, proves nothing.
        return
