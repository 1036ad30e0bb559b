"""A Hugging Face hub on loopback: one repository, as much of its HTTP API as `hf download` asks for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REPO = "org/model"
_COMMIT = "a" * 40


@contextlib.contextmanager
def serve_hub(files: dict[str, bytes], hang_after_bytes: int | None = None) -> Iterator[str]:
    """Serve a repository until the block ends.

    Args:
        files: by name.
        hang_after_bytes: after how many bytes of its largest file the server sends no more, and does not close either.

    Yields:
        The endpoint, for HF_ENDPOINT.
    """
    ended = threading.Event()
    largest = max(files, key=lambda name: len(files[name]))

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, format: str, *args: object) -> None:
            return

        def _answer(self, with_body: bool) -> None:
            path = urlsplit(self.path).path
            if path.startswith(f"/api/models/{REPO}/tree/"):
                tree = [{"type": "file", "path": n, "size": len(d), "oid": _etag(d)} for n, d in files.items()]
                self._json(tree)
            elif path.startswith(f"/api/models/{REPO}"):
                siblings = [{"rfilename": name} for name in files]
                self._json(
                    {"id": REPO, "modelId": REPO, "sha": _COMMIT, "siblings": siblings, "private": False, "tags": []}
                )
            elif path.startswith(f"/{REPO}/resolve/") and (name := path.split("/", 5)[5]) in files:
                self._file(name, with_body)
            else:
                self._head(404, {"X-Error-Code": "EntryNotFound", "Content-Length": "0"})

        def _file(self, name: str, with_body: bool) -> None:
            data, first = files[name], 0
            if (wanted := self.headers.get("Range", "")).startswith("bytes="):
                first = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers = {
                "ETag": f'"{_etag(data)}"',
                "X-Repo-Commit": _COMMIT,
                "Accept-Ranges": "bytes",
                "Content-Type": "application/octet-stream",
                "Content-Length": str(len(data) - first),
            }
            if first:
                headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
            self._head(206 if first else 200, headers)
            if not with_body:
                return
            end = len(data)
            if hang_after_bytes is not None and name == largest:
                end = max(first, min(end, hang_after_bytes))
            self.wfile.write(data[first:end])
            self.wfile.flush()
            if end < len(data):
                ended.wait()

        def _json(self, data: object) -> None:
            body = json.dumps(data).encode()
            self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
            if self.command == "GET":
                self.wfile.write(body)

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
