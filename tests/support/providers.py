"""All providers of models on one socket: a proxy that answers itself, with their names in its certificate.

    with Providers() as world: run("model", "use", "anthropic/claude-x", env=world.variables)

The program connects to https://api.anthropic.com as it does everywhere: HTTPS_PROXY leads here, and SSL_CERT_FILE makes it
trust the certificate. `asked` has every request, with the host it was for.
"""

from __future__ import annotations

import datetime
import json
import re
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hermes.agent.models.servers import PROVIDERS


class Asked(NamedTuple):
    host: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Providers:
    def __init__(self, folder: Path) -> None:
        self.asked: list[Asked] = []
        self.status = 200
        self.models = ["models/one", "text-embedding-1"]
        certificate = _certificate(folder)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)
        self._server = socket.create_server(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.variables = {"HTTPS_PROXY": address, "https_proxy": address, "SSL_CERT_FILE": str(certificate)}
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Providers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._client, args=(client,), daemon=True).start()

    def _client(self, client: socket.socket) -> None:
        with suppress(OSError, ValueError), client:
            host = _head(client)[0].split(" ")[1].partition(":")[0]
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with self._tls.wrap_socket(client, server_side=True) as inside:
                first, headers = _head(inside)
                body = b""
                while len(body) < int(headers.get("content-length", 0)):
                    body += inside.recv(65_536)
                path = first.split(" ")[1]
                self.asked.append(Asked(host, path, headers, json.loads(body or b"{}")))
                inside.sendall(self._answer(path))

    def _answer(self, path: str) -> bytes:
        if self.status != 200:
            kind, text = "application/json", json.dumps({"error": {"message": "as the test says"}})
        elif path.endswith("/models"):
            kind, text = "application/json", json.dumps({"data": [{"id": name} for name in self.models]})
        else:
            end = {"choices": [{"delta": {"content": "OK"}, "finish_reason": "stop"}]}
            kind, text = "text/event-stream", f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"
        head = f"HTTP/1.1 {self.status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        return (head + text).encode()


def _head(client: socket.socket) -> tuple[str, dict[str, str]]:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        some = client.recv(1)
        if not some:
            raise ValueError("the client went away")
        data += some
    first, _, rest = data.decode().partition("\r\n")
    return first, {name.lower(): value for name, value in re.findall(r"^([^:]+): *(.*?)\r$", rest, re.MULTILINE)}


def _certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "the providers of a test")])
    hosts = [x509.DNSName(urlsplit(one.base_url).hostname or "") for one in PROVIDERS.values()]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "providers.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path
