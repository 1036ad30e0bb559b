"""A listener on loopback that receives what notification blocks send, in plain HTTP and as the proxy of fixed hosts.

Slack's and PagerDuty's blocks talk to fixed hosts over TLS, Teams' to its own. A server that is started with `env` sends
such requests through this proxy, which ends the TLS with a certificate of an authority of its own. Blocks and server are
Prefect's, unchanged; nothing leaves the machine.
"""

from __future__ import annotations

import datetime
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOSTS = ("hooks.slack.com", "events.pagerduty.com", "prod-1.westus.logic.azure.com")


@dataclass
class Received:
    """One request: the host that it was for, its path and its JSON."""

    host: str
    path: str
    body: dict[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.body)


@dataclass
class Webhooks:
    """What has been received so far, and the environment of a server that is to reach the fixed hosts here."""

    port: int
    env: dict[str, str]
    received: list[Received] = field(default_factory=list)

    def of(self, host: str) -> list[Received]:
        return [one for one in self.received if one.host == host]

    def wait_for(self, condition: Callable[[Received], bool], timeout_s: float = 90) -> Received:
        deadline = time.monotonic() + timeout_s
        while not (found := [one for one in self.received if condition(one)]):
            assert time.monotonic() < deadline, [one.text[:300] for one in self.received]
            time.sleep(0.2)
        return found[0]


@contextmanager
def listen(folder: Path) -> Iterator[Webhooks]:
    """Listen on a free port of loopback; the certificates lie in the folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificates(folder))
    got = Webhooks(0, {})

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        host = "loopback"

        def do_CONNECT(self) -> None:
            host = self.path.partition(":")[0]
            if host not in HOSTS:
                self.send_error(403)
                return
            self.send_response(200)
            self.end_headers()
            self.host = host
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)  # type: ignore[assignment]
            self.close_connection = False

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.received.append(Received(self.host, self.path, body))
            refused = self.path.startswith("/broken")
            status = 500 if refused else 202 if self.host in HOSTS[1:] else 200
            answer = b"ok"
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def finish(self) -> None:
            super().finish()
            self.connection.close()  # that of the TLS, where there is one

        def log_message(self, *_: Any) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    got.port = listener.server_port
    got.env.update(
        HTTPS_PROXY=f"http://127.0.0.1:{got.port}", NO_PROXY="127.0.0.1,localhost",
        REQUESTS_CA_BUNDLE=str(folder / "authority.pem"),
    )  # fmt: skip
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        yield got
    finally:
        listener.shutdown()
        listener.server_close()


def _certificates(folder: Path) -> tuple[str, str]:
    """Make an authority and a certificate for the hosts; returns the paths of certificate and key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def made(subject: str, key: Any, issuer_key: Any, more: list[tuple[Any, bool]]) -> x509.Certificate:
        builder = x509.CertificateBuilder(
            name("tests of cachewatch"), name(subject), key.public_key(), x509.random_serial_number(),
            now - datetime.timedelta(days=1), now + datetime.timedelta(days=2),
        )  # fmt: skip
        for extension, critical in more:
            builder = builder.add_extension(extension, critical)
        return builder.sign(issuer_key, hashes.SHA256())

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    authority = made(
        "tests of cachewatch", authority_key, authority_key,
        [
            (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True),
            (x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), False),
        ],
    )  # fmt: skip
    leaf = made(
        HOSTS[0], key, authority_key,
        [
            (x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
        ],
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    (folder / "authority.pem").write_bytes(authority.public_bytes(pem))
    (folder / "leaf.pem").write_bytes(leaf.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "leaf.pem"), str(folder / "key.pem")
