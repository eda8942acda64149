"""Webhooks of five platforms on one port, and a person who has seen a genuine request of each, but none of the secrets.

Whatever they change in it, nothing is stored and no one is answered; and the genuine request is taken as before.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("cryptography")

from hermes.gateway.platforms.bluebubbles import BlueBubbles
from hermes.gateway.runner import Gateway
from hermes.store.gateway import inbox
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs import bluebubbles, sms, teams, whatsapp
from tests.support.labs.base import until
from tests.support.ports import free_port

PROOFS = {  # the header, or the parameter, that proves a request
    "sms": "X-Twilio-Signature",
    "whatsapp": "X-Hub-Signature-256",
    "teams": "Authorization",
    "bluebubbles": "?token",
}


@dataclass(frozen=True)
class Delivery:
    """A request."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def with_header(self, name: str, *values: str) -> Delivery:
        others = [one for one in self.headers if one[0].lower() != name.lower()]
        return replace(self, headers=(*others, *((name, value) for value in values)))

    def with_parameter(self, name: str, *values: str) -> Delivery:
        parts = urlsplit(self.path)
        query = {**parse_qs(parts.query), name: list(values)}
        return replace(self, path=f"{parts.path}?{urlencode(query, doseq=True)}")

    def proof(self, name: str) -> str:
        if name.startswith("?"):
            return parse_qs(urlsplit(self.path).query)[name[1:]][0]
        return next(value for key, value in self.headers if key.lower() == name.lower())

    def with_proof(self, name: str, *values: str) -> Delivery:
        return self.with_parameter(name[1:], *values) if name.startswith("?") else self.with_header(name, *values)


class Wire:
    """In the place of a lab's deliveries: keeps what would be sent."""

    def __init__(self) -> None:
        self.seen: list[Delivery] = []
        self.statuses: list[int] = []

    def post(self, url: str, *, name: str = "", **request: Any) -> None:
        made = httpx.Request("POST", url, **request)
        path = made.url.raw_path.decode()
        skipped = ("host", "content-length")
        headers = tuple((name, value) for name, value in made.headers.items() if name not in skipped)
        self.seen.append(Delivery(path, headers, made.read()))

    def close(self) -> None:
        pass


class Scene:
    """The gateway, its labs, and their deliveries."""

    def __init__(self, labs: dict[str, Any], gateway: Gateway, port: int) -> None:
        self.labs, self.gateway, self.port = labs, gateway, port

    def delivery(self, platform: str, text: str) -> Delivery:
        """The genuine request for a message, not sent."""
        lab = self.labs[platform]
        lab.say(text)
        if platform == "sms":  # the gateway asks its list for what it missed
            lab._said.clear()
        return lab._deliveries.seen[-1]  # type: ignore[no-any-return]

    def send(self, one: Delivery, *, chunked: bool = False, method: str = "POST") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, one.path, skip_accept_encoding=True)
        for name, value in one.headers:
            connection.putheader(name, value)
        connection.putheader(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(one.body)))))
        connection.endheaders()
        try:
            parts = [one.body[at : at + 7] for at in range(0, len(one.body), 7)] if chunked else [one.body]
            for part in parts:
                connection.send(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
            if chunked:
                connection.send(b"0\r\n\r\n")
            return connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError):
            return 0
        finally:
            connection.close()

    def stored(self, text: str) -> bool:
        """Whether a message was taken in, by now or for later."""
        waiting = [one.event for one in self.gateway.store.read(inbox.waiting)]
        return text in str(waiting) or bool(self.gateway.db.search_messages(text))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    port, home = free_port(), tmp_path_factory.mktemp("forged") / "home"
    kinds = [sms.Lab, whatsapp.Lab, teams.Lab, bluebubbles.Lab]
    labs = {kind.platform: kind() for kind in kinds}
    for lab in labs.values():
        lab._deliveries.close()
        lab.listens_at, lab._deliveries = port, Wire()
    quiet = {"brake": {"per_minute": 0}}
    with Echo() as model, pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlueBubbles, "look_again", 3600.0)  # it would ask its server for what it was not sent
        with running(list(labs.values()), model, home, gateway=quiet) as gateway:
            yield Scene(labs, gateway, port)
    for lab in labs.values():
        lab.close()


def test_the_genuine_one_is_answered_also_in_chunks(scene: Scene) -> None:
    for platform, lab in scene.labs.items():
        one = scene.delivery(platform, f"genuine{platform}")
        assert scene.send(one, chunked=True) == 200, platform
        until(lambda lab=lab: any("genuine" in text for text in lab.shown()), platform)
        before = len(lab.shown())
        assert scene.send(one) in (200, 403)  # again: nothing comes of it
        other = scene.delivery(platform, f"after{platform}")
        assert scene.send(other) == 200
        until(lambda lab=lab: any("after" in text for text in lab.shown()), platform)
        assert len(lab.shown()) == before + 1, (platform, lab.shown())


@pytest.mark.parametrize("platform", PROOFS)
def test_a_request_without_its_proof_is_refused(scene: Scene, platform: str) -> None:
    word, name = f"forged{platform}", PROOFS[platform]
    one = scene.delivery(platform, word)
    proof = one.proof(name)
    others = {
        other: scene.delivery(other, "something else").proof(PROOFS[other]) for other in PROOFS if other != platform
    }  # right, for another platform
    forged = {
        "none": one.with_proof(name),
        "empty": one.with_proof(name, ""),
        "cut": one.with_proof(name, proof[:-1]),
        "longer": one.with_proof(name, proof + proof[-1:]),
        "another first": one.with_proof(name, ("y" if proof[0] == "x" else "x") + proof[1:]),
        "not ASCII": one.with_proof(name, "é" + proof),
        "a wrong one last": one.with_parameter(name[1:], proof, "x")
        if "?" in name
        else one.with_header(name, "x", proof),
        **{f"that of {other}": one.with_proof(name, found) for other, found in others.items()},
    }
    if platform != "bluebubbles":  # its proof is the address alone
        begins = one.body[:1]
        forged["another body"] = replace(one, body=one.body.replace(begins, begins + b"AAAA", 1))
        forged["no body"] = replace(one, body=b"")
    if platform == "teams":  # its proof is of the service and the time, as long as TLS keeps it
        del forged["another body"], forged["no body"]
    for what, request in forged.items():
        for chunked in (False, True):
            status = scene.send(request, chunked=chunked)
            assert status in (403, 400, 401), (what, status)
    for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert scene.send(forged["none"], method=method) in (403, 405), method
    assert not scene.stored(word)


@pytest.mark.parametrize("platform", PROOFS)
def test_a_request_at_another_platforms_path_is_refused(scene: Scene, platform: str) -> None:
    word = f"astray{platform}"
    one = scene.delivery(platform, word)
    ours = urlsplit(one.path).path
    for path in [f"/{other}" for other in PROOFS if other != platform] + ["/webhooks/x", "/", f"{ours}/x", f"/x{ours}"]:
        assert scene.send(replace(one, path=one.path.replace(ours, path, 1))) in (403, 404, 400, 503), path
    assert not scene.stored(word)


@pytest.mark.parametrize("platform", PROOFS)
def test_a_body_without_end_is_not_read(scene: Scene, platform: str) -> None:
    one = scene.delivery(platform, f"huge{platform}")
    huge = replace(one, body=one.body + b" " * 11_000_000)
    assert scene.send(huge) in (413, 403, 0)
    assert not scene.stored(f"huge{platform}")


@pytest.mark.parametrize(
    "kind", ["application/json", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]
)
@pytest.mark.parametrize("platform", PROOFS)
def test_the_declared_type_changes_nothing(scene: Scene, platform: str, kind: str) -> None:
    word = f"typed{platform}{len(kind)}"
    lab = scene.labs[platform]
    one = scene.delivery(platform, word).with_header("Content-Type", kind)
    assert scene.send(one.with_proof(PROOFS[platform], "x")) == 403
    assert not scene.stored(word)
    assert scene.send(one) == 200
    until(lambda: any(word in text for text in lab.shown()))
