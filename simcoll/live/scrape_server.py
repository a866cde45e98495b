"""Answers Prometheus over HTTP on threads of this process; a client that says or reads nothing keeps none of them long.

It needs prometheus_client (``pip install 'simcoll[metrics]'``), whose own server waits for such a client for ever.
"""

from __future__ import annotations

import io
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

_TIMEOUT_SECONDS = 10.0
"""A client that sends or takes nothing for this time is given up."""


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_SECONDS

    def log_message(self, *said: Any) -> None:
        """A scrape is nothing to be told."""

    def get_stderr(self) -> Any:
        """Where wsgiref writes that a client has gone."""
        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *client: Any) -> None:
        """A client that has gone, or stopped halfway, is nothing to be told."""


def serve(host: str, port: int, registry: CollectorRegistry) -> int:
    """Begin to answer; returns the port. Raises OSError, UnicodeError or ValueError for an address that is none."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind: type[_Server] = type("_ServerOfFamily", (_Server,), {"address_family": family})
    server: _Server = make_server(str(address[0]), port, make_wsgi_app(registry), kind, _Handler)
    threading.Thread(target=server.serve_forever, name="simcoll scrapes", daemon=True).start()
    return server.server_port
