"""A listener on loopback that receives what Prefect's `custom-webhook` blocks send."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Received:
    """One request: its JSON."""

    body: dict[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.body)


@dataclass
class Webhooks:
    """What has been received so far."""

    port: int
    received: list[Received] = field(default_factory=list)

    def wait_for(self, condition: Callable[[Received], bool], timeout_s: float = 90) -> Received:
        deadline = time.monotonic() + timeout_s
        while not (found := [one for one in self.received if condition(one)]):
            assert time.monotonic() < deadline, [one.text[:300] for one in self.received]
            time.sleep(0.2)
        return found[0]


@contextmanager
def listen() -> Iterator[Webhooks]:
    """Listen on a free port of loopback."""
    got = Webhooks(0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.received.append(Received(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    got.port = listener.server_port
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        yield got
    finally:
        listener.shutdown()
        listener.server_close()
