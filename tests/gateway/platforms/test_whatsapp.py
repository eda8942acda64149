"""WhatsApp by the Cloud API: verification, signatures, replays, the 24-hour window, statuses, media, people, bad deliveries."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")

from hermes.errors import PlatformUnreachable, SlowDown
from hermes.gateway.adapter import Listening
from hermes.gateway.events import Chat, Event, OutgoingFile
from hermes.gateway.platforms._shared.listener import is_signed
from hermes.gateway.platforms.whatsapp.adapter import DeliveryReader, WhatsApp, formatted, one_line
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.recording import Recorder, connected
from tests.support.labs.whatsapp import GROUP, NUMBER_ID, TEMPLATE, TOKEN, WORD, Lab

ALICE = "15005550101"


def made(lab: Lab, home: Path, **more: Any) -> WhatsApp:
    adapter = WhatsApp({**lab.settings, **more}, home)
    adapter.webhook_place = Listening(port=lab.listens_at or 0)
    return adapter


def old(lab: Lab, days: float) -> dict[str, Any]:
    return {"timestamp": str(int(time.time() - days * 86400))}


# ------------------------------------------------------------------------------------------------ the webhook


def test_the_signature_is_hmac_sha256_of_the_raw_body() -> None:
    wanted = (
        "1e2f213fff320baba2bdea43cda0fef307cc4dc832059b91cd2f03592c997662"  # of `openssl dgst -sha256 -hmac secret`
    )
    assert is_signed("secret", '{"a":"ü"}'.encode(), f"sha256={wanted}")
    assert not is_signed("secret", b'{"a": "\\u00fc"}', f"sha256={wanted}")  # the same JSON, other bytes


def test_the_console_verifies_the_address(lab: Lab, model: Echo) -> None:
    address = f"http://127.0.0.1:{lab.listens_at}/whatsapp"
    asked = {"hub.mode": "subscribe", "hub.verify_token": WORD, "hub.challenge": "1158201444"}
    with running(lab, model), httpx.Client(trust_env=False) as client:
        assert client.get(address, params=asked).text == "1158201444"
        for wrong in ({"hub.verify_token": "x"}, {"hub.verify_token": "ü"}, {"hub.mode": "unsubscribe"}):
            refused = client.get(address, params={**asked, **wrong})
            assert (refused.status_code, refused.text) == (403, "")
        assert client.get(address).status_code == 403


async def test_a_delivery_with_several_messages_is_acknowledged_when_all_are_stored(lab: Lab, tmp_path: Path) -> None:
    link = Recorder()

    lab.statuses.clear()
    async with connected(made(lab, tmp_path), link):
        link.refuse = OSError("the disk is full")
        lab.deliver(
            lab.value(messages=[_text("1", "one"), _text("2", "two")]), lab.value(messages=[_text("3", "three")])
        )
        await link.until(lambda: lab.statuses[-2:] == [503, 503])
        link.refuse = None
        await link.until(lambda: lab.statuses[-1:] == [200])
        assert link.texts == ["one", "two", "three"]


def _text(number: str, text: str) -> dict[str, Any]:
    stamp = str(int(time.time()))
    return {"from": ALICE, "id": f"wamid.{number}", "timestamp": stamp, "type": "text", "text": {"body": text}}


def test_a_message_older_than_a_week_is_a_replay(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        for when in (old(lab, 8), {"timestamp": "soon"}, {"timestamp": None}, {"timestamp": [1]}, old(lab, -9)):
            lab.say("replayed", **when)
        number = lab.say("late", **old(lab, 6.9))
        until(lambda: lab.shown() == ["echo: late"])
        gateway.store.forget_mail(7)  # what the gateway does every day
        lab.redeliver(number)
        lab.say("after")
        until(lambda: lab.shown() == ["echo: late", "echo: after"])
        assert gateway.db.search_messages("replayed") == []


def test_deliveries_for_another_number_are_not_answered(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        value = lab.value(messages=[_text("other", "for another")])
        lab.deliver({**value, "metadata": {"display_phone_number": "1", "phone_number_id": "999"}})
        until(lambda: "another number (999)" in str(gateway.store.statuses()), str(gateway.store.statuses()))
        lab.say("mine")
        until(lambda: lab.shown() == ["echo: mine"])
        assert gateway.db.search_messages("another") == []


# ------------------------------------------------------------------------------------------------ the 24 hours


@pytest.mark.parametrize("later", [False, True], ids=["at once", "by a status"])
def test_after_24_hours_the_template_is_sent(lab: Lab, model: Echo, later: bool) -> None:
    settings = {"whatsapp": {**lab.settings, "template": TEMPLATE, "allowed_users": [ALICE]}}
    with running(lab, model, platforms=settings):
        lab.closed, lab.told_later = {ALICE}, later
        lab.say("**hello**\n\nthere")
        until(lambda: lab.shown())
        lab.closed = set()
        lab.say("again")
        until(lambda: lab.shown() == ["Your assistant: echo: hello there", "echo: again"], str(lab.shown()))


@pytest.mark.parametrize("later", [False, True], ids=["at once", "by a status"])
def test_without_a_template_the_refusal_is_shown_to_the_owner(
    lab: Lab, model: Echo, later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with running(lab, model) as gateway:
        lab.closed, lab.told_later = {ALICE}, later
        lab.say("hello")
        until(lambda: "template" in str(gateway.store.statuses()), str(gateway.store.statuses()))
        assert "24 hours" in caplog.text or "Re-engagement" in caplog.text
        assert lab.shown() == []


async def test_a_long_text_goes_by_several_templates_and_none_twice(lab: Lab, tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(400))
    adapter = made(lab, tmp_path, template=TEMPLATE)
    async with connected(adapter, Recorder()):
        lab.closed, lab.breaks_at = {ALICE}, 2
        with pytest.raises(PlatformUnreachable):
            await adapter.send(Chat(platform="whatsapp", chat_id=ALICE), text, nonce="n")
        await adapter.send(Chat(platform="whatsapp", chat_id=ALICE), text, nonce="n")
    parts = [one.removeprefix("Your assistant: ") for one in lab.shown()]
    assert len(parts) == 4
    assert "".join(parts) == text


def test_an_undelivered_message_is_reported_with_the_reason(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        lab.fails(lab.sent[0]["id"], 131026, "Message undeliverable")
        until(lambda: "Message undeliverable (code 131026)" in str(gateway.store.statuses()))
        lab.deliver(lab.value(errors=[{"code": 131042, "title": "Business eligibility payment issue"}]))
        until(lambda: "payment issue (code 131042)" in str(gateway.store.statuses()))


# ------------------------------------------------------------------------------------------------ login and limits


def test_an_expired_token_is_named(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        lab.token = "EAAJBanother"
        lab.say("again")
        until(lambda: "has expired" in str(gateway.store.statuses()), str(gateway.store.statuses()))
        assert TOKEN not in str(gateway.store.statuses())
    lab.token = "EAAJBrenewed"
    renewed = {"whatsapp": {**lab.settings, "access_token": "EAAJBrenewed", "allowed_users": [ALICE]}}
    with running(lab, model, platforms=renewed):
        until(lambda: lab.shown() == ["echo: hello", "echo: again"])


@pytest.mark.parametrize("code", [4, 80007, 130429, 131048, 131056])
async def test_rate_limits_are_waited_for_as_meta_asks(lab: Lab, tmp_path: Path, code: int) -> None:
    adapter, waits = made(lab, tmp_path), []
    async with connected(adapter, Recorder()):
        lab.limit_code = code
        lab.rate_limit(1, times=4)
        for _ in range(4):
            with pytest.raises(SlowDown) as refused:
                await adapter.send(Chat(platform="whatsapp", chat_id=ALICE), "hi", nonce="n")
            waits.append(refused.value.retry_after)
        await adapter.send(Chat(platform="whatsapp", chat_id=ALICE), "hi", nonce="n")
    assert waits == [1, 4, 16, 64]


# ------------------------------------------------------------------------------------------------ people


def test_a_plus_sign_is_no_other_person(lab: Lab, model: Echo) -> None:
    settings = {"whatsapp": {**lab.settings, "allowed_users": [f"+{ALICE}"]}}
    with running(lab, model, platforms=settings, owner=[]):
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])


def test_a_person_who_hides_their_number_stays_the_same_person(lab: Lab, model: Echo) -> None:
    scoped = "US.13491208655302741918"
    with running(lab, model) as gateway:
        lab.say("with my number", from_user_id=scoped)
        until(lambda: lab.shown() == ["echo: with my number"])
        hidden = {"id": "wamid.hidden", "from_user_id": scoped, "timestamp": str(int(time.time()))}
        lab.deliver(lab.value(messages=[{**hidden, "type": "text", "text": {"body": "without it"}}]))
        until(lambda: lab.shown() == ["echo: with my number", "echo: without it"])
        (row,) = gateway.db.list_sessions_rich(source="whatsapp")
        assert row["user_id"] == ALICE
        stranger = {**hidden, "id": "wamid.stranger", "from_user_id": "DE.99999999999999999999"}
        lab.deliver(lab.value(messages=[{**stranger, "type": "text", "text": {"body": "never with a number"}}]))
        until(lambda: any(one.get("recipient") == "DE.99999999999999999999" for one in lab.sent), "no pairing code")


def _payload(value: dict[str, Any]) -> dict[str, Any]:
    change = {"value": value, "field": "messages"}
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [change]}]}


# ------------------------------------------------------------------------------------------------ content


def test_what_people_send_becomes_text(lab: Lab, tmp_path: Path) -> None:
    where = {"latitude": 47.37, "longitude": 8.54, "name": "Main station", "address": "Bahnhofplatz"}
    card = {"name": {"formatted_name": "Ann Lee"}, "phones": [{"phone": "+1 500"}]}
    told = {"code": 131051, "title": "Message type unknown"}
    for message, text in (
        ({"type": "location", "location": where}, f"[location: {json.dumps(where)}]"),
        ({"type": "contacts", "contacts": [card]}, f"[contacts: {json.dumps([card])}]"),
        ({"type": "button", "button": {"text": "Yes", "payload": "p"}}, "Yes"),
        ({"type": "unsupported", "errors": [told]}, "[a message of a kind that WhatsApp does not pass on: unsupported; "
         "Message type unknown (code 131051)]"),
    ):  # fmt: skip
        whole = {key: value for key, value in _text("1", "").items() if key != "text"} | message
        (event,) = DeliveryReader(NUMBER_ID, tmp_path).read(_payload(lab.value(messages=[whole]))).items
        assert isinstance(event, Event)
        assert event.text == text


def test_a_reply_quotes_its_question_and_a_quotation_reaches_the_agent(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        number = lab.say("the blue heron")
        until(lambda: lab.shown())
        assert lab.sent[0]["context"] == {"message_id": number}
        lab.say("what about it?", context={"from": "15550783881", "id": number})
        until(lambda: len(lab.shown()) == 2)
        assert "the blue heron" in str(model.requests[-1]["messages"][-1])


async def test_a_quotation_that_whatsapp_does_not_know_is_left_out(lab: Lab, tmp_path: Path) -> None:
    adapter = made(lab, tmp_path)
    async with connected(adapter, Recorder()):
        await adapter.send(Chat(platform="whatsapp", chat_id=ALICE), "hi", nonce="n", reply_to="wamid.gone")
        await adapter.send(Chat(platform="whatsapp", chat_id=ALICE), "ho", nonce="m", reply_to="not of here")
    assert [("context" in one, one["text"]["body"]) for one in lab.sent] == [(False, "hi"), (False, "ho")]


async def test_typing_also_marks_the_message_as_read_and_is_not_repeated_too_often(lab: Lab, tmp_path: Path) -> None:
    adapter, link = made(lab, tmp_path), Recorder()
    async with connected(adapter, link):
        chat = Chat(platform="whatsapp", chat_id=ALICE)
        await adapter.typing(chat)  # nobody has written
        number = lab.say("hello")
        await link.event("hello")
        for _ in range(3):
            await adapter.typing(chat)
        assert [(one["status"], one["message_id"]) for one in lab.typings] == [("read", number)]


@pytest.mark.parametrize(
    ("mime", "size", "kind"),
    [("image/png", 10, "image"), ("image/webp", 10, "document"), ("image/png", 5_000_001, "document"), ("text/csv", 9, "document"),
     ("audio/ogg", 10, "audio"), ("video/mp4", 10, "video"), ("application/pdf", 10, "document")],
)  # fmt: skip
async def test_a_file_is_sent_as_whatsapp_takes_it(lab: Lab, tmp_path: Path, mime: str, size: int, kind: str) -> None:
    data = b"x" * size
    adapter = made(lab, tmp_path)
    async with connected(adapter, Recorder()):
        file = OutgoingFile(kind="file", name="a.bin", mime=mime, data=data)
        await adapter.send_file(Chat(platform="whatsapp", chat_id=ALICE), file, caption="**look**", nonce="n")
    assert lab.sent[-1]["type"] == kind
    assert lab.sent_files() == [("a.bin", data, "" if kind == "audio" else "*look*")]
    assert lab.shown() == (["*look*"] if kind == "audio" else [])


def test_the_token_goes_to_meta_alone(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.attach(b"the word is Zebra", "a.txt", "text/plain", text="read")
        until(lambda: any("Zebra" in text for text in lab.shown()))
        stored = [login for path, login in lab.logins if path.startswith("/stored/")]
        assert stored == [f"Bearer {TOKEN}"]
    from hermes.gateway.platforms.whatsapp.cloud import GraphApi

    api = GraphApi("https://graph.facebook.com", TOKEN, "v24.0")
    assert [api._is_trusted(one) for one in (
        "https://lookaside.fbsbx.com/whatsapp_business/attachments/?mid=1", "http://lookaside.fbsbx.com/x", "https://evil.example/x",
        "https://fbsbx.com.evil.example/x", "https://graph.facebook.com@evil.example/x", "http://graph.facebook.com/x",
    )] == [True, False, False, False, False, False]  # fmt: skip


def test_a_group_is_answered_in_the_group(lab: Lab, model: Echo) -> None:
    settings = {"whatsapp": {**lab.settings, "require_mention": True, "allowed_users": [ALICE]}}
    with running(lab, model, platforms=settings):
        lab.say("not for you", where="group", addressed=False)
        lab.say("hello", where="group")
        until(lambda: lab.shown("group") == ["echo: hello"])
        assert lab.sent[-1]["recipient_type"] == "group" and lab.sent[-1]["to"] == GROUP
        lab.say("and this", where="group", addressed=False, context={"from": "15550783881", "id": lab.sent[-1]["id"]})
        until(lambda: lab.shown("group")[-1].endswith("and this"))


# ------------------------------------------------------------------------------------------------ formatting


@pytest.mark.parametrize(
    ("markdown", "text"),
    [("**bold** and *italic* and ~~gone~~ and `code`", "*bold* and _italic_ and ~gone~ and `code`"),
     ("***both***", "_*both*_"), ("# Title\n\ntext", "*Title*\n\ntext"), ("un**believ**able", "unbelievable"),
     ("**two\nlines**", "*two*\n*lines*"), ("> quoted **bold\n> on**", "> quoted *bold*\n> *on*"), ("**a * b**", "a * b"),
     ("- one\n- two", "- one\n- two"), ("```py\nx = 1\n```", "```\nx = 1\n```"), ("[here](https://x.org)", "here (https://x.org)"),
     ("**bold `code` bold**", "*bold* `code` *bold*"), ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"),
     ("a\x00b", "a\ufffdb"), ("***", "———")],
)  # fmt: skip
def test_markdown_becomes_whatsapps_marks(markdown: str, text: str) -> None:
    assert formatted(markdown) == text


@given(st.text(alphabet=st.sampled_from("ab *_~`\n>-#[]()1.|"), max_size=80))
def test_no_text_is_lost_or_too_long_by_formatting(markdown: str) -> None:
    assert bool(formatted(markdown).strip()) == bool(markdown.strip())
    longer = markdown * 60
    assert len(formatted(longer[:4096])) <= 4096
    assert not any(one in one_line(markdown) for one in ("\n", "\t", "    "))


# ------------------------------------------------------------------------------------------------ bad deliveries

_JSON = anything(
    "from",
    "id",
    "timestamp",
    "type",
    "text",
    "body",
    "image",
    "context",
    "errors",
    "code",
    "reaction",
    "edit",
    "message",
    "original_message_id",
    "interactive",
    "list_reply",
    "contacts",
    "phones",
    "group_id",
    "from_user_id",
    floats=True,
)
_KINDS = [
    "text", "image", "reaction", "edit", "revoke", "interactive", "contacts", "location", "system", "button", "new",
]  # fmt: skip
_MESSAGE = st.builds(
    lambda kind, inside, more: {**_text("1", ""), "type": kind, kind: inside, **more},
    st.sampled_from(_KINDS), _JSON, st.dictionaries(st.sampled_from(["from", "id", "timestamp", "context", "group_id"]), _JSON, max_size=2),
)  # fmt: skip


@given(
    st.lists(_MESSAGE | _JSON, max_size=3),
    st.lists(st.fixed_dictionaries({"status": st.just("failed"), "errors": _JSON, "id": _JSON}) | _JSON, max_size=2),
    _JSON,
)
def test_no_delivery_raises(messages: list[Any], statuses: list[Any], other: Any) -> None:
    reader = DeliveryReader(NUMBER_ID, Path("/nonexistent"))
    value = {"metadata": {"phone_number_id": NUMBER_ID, "display_phone_number": "1"}, "messages": messages}
    for payload in (other, _payload({**value, "statuses": statuses, "errors": other, "contacts": other})):
        for one in reader.read(payload).items:
            assert one.id
