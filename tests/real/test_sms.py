"""Twilio's own reading of Twilio: its OpenAPI document (by prism) and its library for Node (npm twilio) on the other side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn")

from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Listening
from hermes.gateway.events import Chat
from hermes.gateway.platforms.sms import Sms
from tests.gateway.platforms import conftest as fixtures
from tests.support.labs import sms as stub
from tests.support.labs.recording import connected
from tests.support.labs.sms import Lab
from tests.support.node import npm_file, npm_folder, run_script
from tests.support.ports import free_port
from tests.support.prism import checked_by

pytestmark = pytest.mark.thorough

ACCOUNT, MESSAGES = "/2010-04-01/Accounts/{Sid}.json", "/2010-04-01/Accounts/{AccountSid}/Messages.json"
MEDIA = "/2010-04-01/Accounts/{AccountSid}/Messages/{MessageSid}/Media.json"
SERVICE = "MG" + "0a" * 16
ALICE = Chat(platform="sms", chat_id="+15005550101")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Twilio's description of the requests we make."""
    whole: dict[str, Any] = json.loads(
        npm_file("@twilio/cli-core@9.0.0", "src/services/twilio-api/twilio_api_v2010.json").read_text()
    )
    whole["paths"] = {path: whole["paths"][path] for path in (ACCOUNT, MESSAGES, MEDIA)}
    for path in (MESSAGES, MEDIA):  # a page's addresses are without a host, in Twilio's examples and at Twilio
        page = whole["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
        for name in ("uri", "first_page_uri", "next_page_uri", "previous_page_uri"):
            page[name].pop("format", None)
    return whole


lab, place = fixtures.lab, fixtures.place


@pytest.fixture(scope="module")
def prism(place: Lab, document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with checked_by(document, place.address, tmp_path_factory.mktemp("prism")) as address:
        yield address


def adapter(lab: Lab, home: Path, **values: Any) -> Sms:
    made = Sms({**lab.settings, **values}, home)
    made.webhook_place = Listening(port=free_port())
    return made


def twilio(**given: Any) -> dict[str, Any]:
    """The answer of npm twilio."""
    folder = npm_folder("twilio", ["twilio@6.2.0"])
    answer: dict[str, Any] = run_script(
        folder, Path(__file__).with_name("sms_side.mjs"), {"sid": stub.SID, "token": stub.TOKEN, **given}
    )
    return answer


@pytest.mark.parametrize("sender", [{}, {"messaging_service_sid": SERVICE, "phone_number": ""}])
async def test_what_we_send_is_what_twilios_openapi_allows(
    lab: Lab, prism: str, tmp_path: Path, sender: dict[str, str], document: dict[str, Any]
) -> None:
    sms = adapter(lab, tmp_path, base_url=prism, **sender)
    async with connected(sms):
        texts = ["hello", "**Grüße** & 50 % + 1 = ¿?", "😀 ж" * 100, "x" * 670]
        sids = [await sms.send(ALICE, text, nonce=str(number)) for number, text in enumerate(texts)]
    assert len(set(sids)) == 4 and lab.shown()[:2] == ["hello", "Grüße & 50 % + 1 = ¿?"]
    form = document["paths"][MESSAGES]["post"]["requestBody"]["content"]["application/x-www-form-urlencoded"]["schema"]
    assert {name for one in lab._sent for name in one} <= form["properties"].keys()  # prism takes unknown names
    assert form["properties"].keys() >= stub._PARAMETERS


@pytest.mark.parametrize(
    "wrong", [{"account_sid": "AC1"}, {"account_sid": "AC" + "x" * 32}, {"messaging_service_sid": "MG1"}]
)
def test_ids_that_twilios_openapi_refuses_are_refused_before_anything_is_sent(
    lab: Lab, tmp_path: Path, wrong: dict[str, str]
) -> None:
    with pytest.raises(PlatformRefused, match=next(iter(wrong))):
        adapter(lab, tmp_path, **wrong).validate()


FORMS: list[dict[str, Any]] = [
    {"Body": "hello"},
    {"Body": "Grüße ☃ 😀 + & = % \n two lines"},
    {"Body": "", "NumMedia": "0", "ToCity": ""},
    {"Body": "twice", "Extra": ["b", "a", "b"]},
]


PUBLIC, OTHER, SIX = "https://hermes.example.org", "https://hermes.example.org:8443", "https://[2001:db8::1]"
CASES: list[tuple[str | None, str | None]] = [  # what the gateway knows as its address, and what is signed
    (None, None), (PUBLIC, PUBLIC), (PUBLIC, f"{PUBLIC}:443"), ("http://hermes.example.org", "http://hermes.example.org:80"),
    (OTHER, PUBLIC), (OTHER, OTHER), (f"{SIX}:8443", SIX), (SIX, f"{SIX}:443"),
]  # fmt: skip


def form(number: int) -> dict[str, Any]:
    """A message as Twilio posts it."""
    ids = {"MessageSid": f"SM{number:032x}", "AccountSid": stub.SID}
    return {**ids, "From": "+15005550101", "To": stub.NUMBER, **FORMS[number]}


@pytest.fixture(scope="module")
def port() -> int:
    """The gateway's port, where its address is its own."""
    return free_port()


@pytest.fixture(scope="module")
def signatures(port: int) -> dict[str | None, list[str]]:
    """By address, what npm twilio signs; its own check has accepted each at the address that the gateway knows."""
    addresses, local = list({signs for _, signs in CASES}), f"http://127.0.0.1:{port}"
    wanted = [
        {"url": f"{signs or local}/sms", "fields": form(number)} for signs in addresses for number in range(len(FORMS))
    ]
    made = iter(twilio(sign=wanted)["signatures"])
    found = {signs: [next(made) for _ in FORMS] for signs in addresses}
    checks = [
        {"url": f"{public or local}/sms", "fields": form(number), "signature": sign}
        for public, signs in CASES
        for number, sign in enumerate(found[signs])
    ]
    assert set(twilio(check=checks)["valid"]) == {True}
    return found


async def posted(sms: Sms, fields: dict[str, Any], signature: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        url, headers = f"http://127.0.0.1:{sms.webhook_place.port}/sms", {"X-Twilio-Signature": signature}
        return (await client.post(url, data=fields, headers=headers)).status_code


@pytest.mark.parametrize(("public", "signs"), CASES)
async def test_what_twilios_library_signs_is_accepted_and_a_changed_body_is_not(
    lab: Lab, tmp_path: Path, port: int, signatures: dict[str | None, list[str]], public: str | None, signs: str | None
) -> None:
    """Twilio's library accepts the address with and without its port; both signatures occur."""
    sms = adapter(lab, tmp_path)
    sms.webhook_place = Listening(port=free_port() if public else port, public_url=public)
    async with connected(sms) as link:
        good = [await posted(sms, form(at), sign) for at, sign in enumerate(signatures[signs])]
        bad = [await posted(sms, {**form(at), "Body": "changed"}, sign) for at, sign in enumerate(signatures[signs])]
        good, bad, texts = good, bad, link.texts
    assert good == [200] * len(FORMS) and bad == [403] * len(FORMS)
    assert texts == [one["Body"] for one in FORMS]
