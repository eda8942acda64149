"""Teams: tokens of the Bot Framework, keys that change, services, channels, proactive messages, texts, and whatever may be posted."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")
pytest.importorskip("cryptography")

from hermes.errors import PlatformUnreachable, SendRefused
from hermes.gateway.events import CHANNEL, DM, Attachment, Chat, Event, OutgoingFile, Revision
from hermes.gateway.platforms.teams.adapter import LONGEST, Teams, length, shown, understood
from hermes.gateway.platforms.teams.client import (
    FILE_HOSTS,
    SERVICE_HOSTS,
    Connector,
    Offers,
    PublishedKeys,
    claims,
    is_allowed,
)
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs import teams as lab_module
from tests.support.labs.base import until
from tests.support.labs.teams import APP_ID, APP_SECRET, BOT, LARGEST, Lab, published, signed

DIRECT = Chat(platform="teams", chat_id="a:alice")


# ---------------------------------------------------------------------------------------------- who may post


def test_only_the_bot_framework_may_post(lab: Lab, model: Echo) -> None:
    url = f"http://127.0.0.1:{lab.listens_at}/teams"
    now = int(time.time())
    with running(lab, model) as gateway:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        forged = {**next(iter(lab._said.values())), "id": "1", "text": "forged"}

        def posted(token: str | None, activity: dict[str, Any] = forged) -> int:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            return httpx.post(url, content=json.dumps(activity), headers=headers).status_code

        good = lab.proof()
        for token in (
            None, "..", "x", good[:-4] + "AAAA", good.rpartition(".")[0] + ".", lab.proof(aud="another app"), lab.proof(iss="https://evil.example"),
            lab.proof(exp=now - 400), lab.proof(nbf=now + 400), lab.proof(exp="soon"), lab.proof(serviceurl="https://smba.trafficmanager.net/amer/"),
            signed({"iss": "https://api.botframework.com", "aud": APP_ID, "exp": now + 60, "serviceurl": lab.service}, 1),
        ):  # fmt: skip
            assert posted(token) == 403
        assert posted(good, {**forged, "serviceUrl": "https://evil.example/"}) == 403
        assert posted(good, {**forged, "channelId": "webchat"}) == 403
        elsewhere = "https://evil.example/"
        assert posted(lab.proof(serviceurl=elsewhere), {**forged, "serviceUrl": elsewhere}) == 403
        assert gateway.db.search_messages("forged") == []
        skewed = {**forged, "id": "2", "text": "a clock may be five minutes wrong"}
        assert posted(lab.proof(exp=now - 200), skewed) == 200
        until(lambda: len(lab.shown()) == 2)


async def test_unsigned_and_symmetric_tokens_are_refused() -> None:
    keys = PublishedKeys(lambda: _given([published()]))
    content = {"iss": "https://api.botframework.com", "aud": APP_ID, "nbf": 0, "exp": 2_000_000_000}
    good = signed(content)
    assert await claims(f"Bearer {good}", APP_ID, keys) == content
    assert await claims(f"bearer {good}", APP_ID, keys) == content
    for algorithm in ("none", "HS256", "RS512", None):
        assert await claims(f"Bearer {signed(content, alg=algorithm)}", APP_ID, keys) is None
    bare = ".".join([*good.split(".")[:2], ""])
    assert await claims(f"Bearer {bare}", APP_ID, keys) is None
    now = int(time.time())
    for late, accepted in ((-200, True), (-400, False)):
        assert (await claims(f"Bearer {signed({**content, 'exp': now + late})}", APP_ID, keys) is not None) is accepted
    for number, more in enumerate(({"endorsements": ["webchat"]}, {"endorsements": None}, {"kty": "EC"}, {"n": "!"})):
        unfit = PublishedKeys(lambda more=more: _given([published(**more)]))  # type: ignore[misc]
        assert await claims(f"Bearer {good}", APP_ID, unfit) is None, number


async def _given(keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return keys


@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda data: "Bearer " + ".".join([data.hex()] * 3)))
def test_whatever_stands_in_the_header_is_refused(header: str) -> None:
    async def scenario() -> None:
        assert await claims(header, APP_ID, PublishedKeys(lambda: _given([published()]))) is None

    asyncio.run(scenario())


async def test_a_new_key_is_read_when_it_is_used_and_strangers_cause_few_requests(lab: Lab) -> None:
    now = [0.0]
    connector = _connector(lab)
    keys = PublishedKeys(lambda: connector.keys(lab.settings["metadata_url"]), clock=lambda: now[0])
    assert await keys.get("key0") is not None
    lab.published = [published(1)]
    for _ in range(5):
        assert await keys.get("key1") is None
    assert lab.keys_read == 1
    now[0] = 61.0
    assert await keys.get("key1") is not None
    assert await keys.get("key0") is None
    assert lab.keys_read == 2
    now[0] += 25 * 3600
    assert await keys.get("key1") is not None
    assert lab.keys_read == 3
    await connector.close()


def _connector(lab: Lab, secret: str = APP_SECRET) -> Connector:
    return Connector(APP_ID, secret, f"{lab.address}/{lab_module.TENANT}/oauth2/v2.0/token", ("127.0.0.1",))


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("https://smba.trafficmanager.net/emea/", True), ("https://europe.botframework.com", True), ("https://smba.infra.gcc.teams.microsoft.com", True),
     ("http://smba.trafficmanager.net/", False), ("https://evil.example/", False), ("https://botframework.com.evil.example", False),
     ("https://evilbotframework.com", False), ("https://smba.trafficmanager.net@evil.example/", False), ("https://[", False), ("", False),
     ("http://localhost:1/", True), ("ftp://localhost/", False)],
)  # fmt: skip
def test_the_token_goes_to_known_hosts_only(address: str, allowed: bool) -> None:
    assert is_allowed(address, SERVICE_HOSTS, ("localhost",)) is allowed


async def test_files_are_fetched_from_known_hosts_only(lab: Lab) -> None:
    assert is_allowed("https://contoso-my.sharepoint.com/personal/x", FILE_HOSTS, ())
    connector = _connector(lab)
    for url in ("https://evil.example/x", "file:///etc/passwd", "http://169.254.169.254/latest"):
        for open_to_all in (True, False):
            with pytest.raises(SendRefused):
                await connector.file(url, open_to_all=open_to_all)
    await connector.close()


# ---------------------------------------------------------------------------------------------- sending


async def test_an_expired_token_is_renewed_once_for_many_messages(lab: Lab) -> None:
    connector = _connector(lab)
    await connector.login()
    lab.token = "another"
    body = {"type": "message", "textFormat": "markdown", "text": "x"}
    await asyncio.gather(*(connector.activity("POST", lab.service, "a:alice", body) for _ in range(10)))
    assert (lab.tokens_issued, len(lab.sent)) == (2, 10)
    await connector.close()


async def test_a_conversation_is_reached_after_a_restart_without_a_message(
    lab: Lab, model: Echo, hermes_home: Path
) -> None:
    with running(lab, model):
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
    adapter = Teams(lab.settings, hermes_home)
    adapter._api = _connector(lab)
    await adapter.send(DIRECT, "good morning", nonce="1")
    with pytest.raises(SendRefused, match="write to the bot there first"):
        await adapter.send(Chat(platform="teams", chat_id="a:unknown"), "x", nonce="2")
    await adapter.disconnect()
    with pytest.raises(PlatformUnreachable):
        await adapter.send(DIRECT, "x", nonce="3")
    assert lab.shown() == ["echo: hello", "good morning"]


def test_a_post_in_a_channel_is_answered_below_it(lab: Lab, model: Echo) -> None:
    with running(lab, model, platforms={"teams": {"require_mention": True}}) as gateway:
        post = lab.say("hello", where="channel")
        until(lambda: len(lab.sent) == 1)
        (answer,) = lab.sent.values()
        assert answer["conversation"].endswith(f";messageid={post}")
        lab.say("not for the agent", where="group", addressed=False)
        lab.say("and this", where="group")
        until(lambda: lab.shown("group") == ["echo: and this"])
        assert gateway.db.search_messages('"not for the agent"') == []


def test_a_file_is_uploaded_when_its_person_accepts_it(lab: Lab, model: Echo, tmp_path: Path) -> None:
    lab.consents = False
    (tmp_path / "list.txt").write_text("one")
    with running(lab, model, display={"busy": "queue"}):
        lab.say(f'call=send_file {{"path": "{tmp_path}/list.txt"}}')
        until(lambda: any(one["attachments"] for one in lab.sent.values()))
        (offer,) = [one["attachments"][0] for one in lab.sent.values() if one["attachments"]]
        context = offer["content"]["acceptContext"]
        until(lambda: any("the tool said" in text for text in lab.shown()))
        before = len(lab.sent)

        def told() -> list[str]:
            return [one["text"] for one in list(lab.sent.values())[before:]]

        lab.consent("a:bob", context, "list.txt")  # who was not offered it
        until(lambda: told() == ["This file is no longer offered. Please ask for it again."])
        lab.consent("a:alice", context, "list.txt", uploadUrl="https://evil.example/upload")
        until(lambda: len(told()) == 2)
        assert "nothing is uploaded" in told()[1]
        lab.consent("a:alice", context, "list.txt")
        until(lambda: lab.sent_files() == [("list.txt", b"one", "")])
        lab.consent("a:alice", context, "list.txt")  # a second time
        until(lambda: len(told()) == 4)
        assert "no longer offered" in told()[3]
        assert lab.sent_files() == [("list.txt", b"one", "")]


def test_a_declined_file_is_forgotten_and_groups_get_pictures_only() -> None:
    offers = Offers()
    file = OutgoingFile(kind="file", name="a.txt", mime="text/plain", data=b"x")
    context = offers.attachment(DIRECT, file, "1")["content"]["acceptContext"]
    assert offers.answered(DIRECT, {"action": "decline", "context": context}) is None
    with pytest.raises(SendRefused, match="no longer offered"):
        offers.answered(DIRECT, {"action": "accept", "context": context})
    group = Chat(platform="teams", chat_id="19:g", type="group")
    with pytest.raises(SendRefused, match="personal chats only"):
        offers.attachment(group, file, "2")
    with pytest.raises(SendRefused, match="no empty files"):
        offers.attachment(DIRECT, OutgoingFile(kind="file", name="a", mime="", data=b""), "3")
    picture = OutgoingFile(kind="image", name="a.png", mime="image/png", data=b"png")
    assert offers.attachment(group, picture, "4")["contentUrl"] == "data:image/png;base64,cG5n"


# ---------------------------------------------------------------------------------------------- texts and activities


@pytest.mark.parametrize(
    ("text", "sent"),
    [("<at>Bob</at> look", "&lt;at>Bob&lt;/at> look"), ("a < b", "a < b"), ("one\ntwo\n\nthree", "one  \ntwo\n\nthree"),
     ("![dot](https://x.org/a.png)", "[dot](https://x.org/a.png)"), ("<https://x.org>", "<https://x.org>"),
     ("```html\n<b>\n</b>\n```", "```html\n<b>\n</b>\n```"), ("| a | b |\n|---|---|\n| 1 | 2 |", "```\n| a | b |\n|---|---|\n| 1 | 2 |\n```")],
)  # fmt: skip
def test_markdown_as_teams_shows_it(text: str, sent: str) -> None:
    assert shown(text) == sent


def _request(text: str) -> int:
    body = {"type": "message", "textFormat": "markdown", "text": shown(text), "id": "1" * 40}
    wide = len(shown(text).encode("utf-16-le"))
    return max(wide, len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()))


PIECES = [
    "a", '"', "\\", "\n", "a\n", "<a", "é", "漢", "🎉", "\t", "\x01", "![", "a|b\n-|-\n\n", "|\n-|-\n", "```\n", "`",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_a_message_is_as_long_as_it_is_measured_at_most(text: str) -> None:
    assert _request(text) - _request("") <= length(text) + 16
    assert length(text + text) == 2 * length(text)


@pytest.mark.parametrize("piece", PIECES)
def test_the_longest_text_fits_into_a_message(piece: str) -> None:
    assert _request(piece * (LONGEST // length(piece))) <= LARGEST


def activity(**more: Any) -> dict[str, Any]:
    return {
        "type": "message", "id": "5", "conversation": {"id": "19:c@thread.tacv2;messageid=4", "conversationType": "channel"},
        "from": {"id": "29:a", "aadObjectId": "aad", "name": "Alice"}, "recipient": {"id": BOT}, "text": "hi",
        "timestamp": "2026-01-02T03:04:05.678Z", **more,
    }  # fmt: skip


def test_a_mention_is_taken_out_and_a_thread_named() -> None:
    mention = {"type": "mention", "mentioned": {"id": BOT}, "text": "<at>Hermes</at>"}
    event = understood(activity(text="<at>Hermes</at>&nbsp;ask <at>Bob</at>", entities=[mention]), {"service": "s"})
    assert isinstance(event, Event)
    assert (event.text, event.addressed, event.id) == ("ask @Bob", True, "19:c@thread.tacv2:5")
    assert (event.chat.type, event.chat.chat_id, event.chat.thread_id) == (CHANNEL, "19:c@thread.tacv2", "4")
    assert (event.sender.id, event.sender.user_id, event.reply_context) == ("aad", "29:a", {"service": "s"})
    assert event.sent_at == pytest.approx(1767323045.678)
    plain = understood(activity(), {})
    assert isinstance(plain, Event)
    assert plain.addressed is False
    direct = understood(activity(conversation={"id": "a:1", "conversationType": "personal"}), {})
    assert isinstance(direct, Event)
    assert (direct.addressed, direct.chat.type) == (True, DM)


@pytest.mark.parametrize(
    ("content", "quoted"),
    [('{"messageId": "9", "messagePreview": "the answer"}', ("9", "the answer")), ({"messageId": "9", "messagePreview": "x"}, ("9", "x")),
     ("{", (None, None)), (None, (None, None))],
)  # fmt: skip
def test_a_quoted_text_is_known(content: Any, quoted: tuple[str | None, str | None]) -> None:
    event = understood(activity(attachments=[{"contentType": "messageReference", "content": content}]), {})
    assert isinstance(event, Event)
    assert ((event.reply_to, event.quoted), event.attachments) == (quoted, ())


FORWARD = '<blockquote itemtype="http://schema.skype.com/Forward">{}</blockquote>'
MENTION = '<span itemscope itemtype="http://schema.skype.com/Mention" itemid="0">Hermes</span>'


@pytest.mark.parametrize(
    ("page", "own", "forwarded"),
    [
        (FORWARD.format("<p>yes</p>"), "", "yes"),
        ("<p>see below</p>" + FORWARD.format("<p>/new</p><br><blockquote><p>a &lt; b</p></blockquote>more"), "see below", "/new\n\na < b\n\nmore"),
        (f"<p>{MENTION}&nbsp;what now?</p>" + FORWARD.format("<p>ask <at>Bob</at></p>"), "what now?", "ask @Bob"),
        (FORWARD.format("<p>yes") + "<p>", "", "yes"),
        (FORWARD.replace("blockquote", "div").format("<p>yes</p>"), "", "yes"),
    ],
)  # fmt: skip
def test_a_forwarded_text_is_not_the_senders(page: str, own: str, forwarded: str) -> None:
    entities = [{"type": "mention", "mentioned": {"id": BOT}, "text": "<at>Hermes</at>"}]
    attachments = [{"contentType": "text/html", "content": page}]
    event = understood(activity(text="yes", attachments=attachments, entities=entities), {})
    assert isinstance(event, Event) and event.forwarded is not None
    assert (event.text, event.forwarded.text, event.attachments) == (own, forwarded, ())


@pytest.mark.parametrize(
    "more", [{"from": {"id": BOT}}, {"from": {"id": "29:x", "role": "bot"}}, {"type": "conversationUpdate"}, {"type": "invoke"}, {"id": ""}]
)  # fmt: skip
def test_programs_and_notices_are_not_answered(more: dict[str, Any]) -> None:
    assert understood(activity(**more), {}) is None


any_json = anything("id", "type", "mentioned", "text", "contentType", "content", "x")
names = st.sampled_from(
    [
        "type", "id", "conversation", "from", "recipient", "text", "textFormat", "entities", "attachments",
        "timestamp", "replyToId",
    ]
)  # fmt: skip


@given(st.dictionaries(names, any_json), st.sampled_from(["message", "messageUpdate", "messageDelete"]))
def test_whatever_is_posted_is_read_or_skipped(more: dict[str, Any], kind: str) -> None:
    found = understood({**activity(type=kind), **more}, {"service": "s"})
    assert found is None or isinstance(found, Event | Revision)


def test_a_deleted_message_stays_deleted_when_its_deletion_is_undone(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        number = lab.say("the albatross")
        until(lambda: lab.shown() == ["echo: the albatross"])
        lab.take_back(number)
        lab.restore(number)
        lab.say("the bittern")
        until(lambda: lab.shown() == ["echo: the albatross", "echo: the bittern"])
        (row,) = gateway.db.list_sessions_rich(source="teams")
        said = [one["content"] for one in gateway.db.get_messages(row["id"]) if one["role"] == "user"]
        assert said == ["the bittern"]


def test_a_picture_needs_our_token_and_a_file_does_not() -> None:
    listed = [
        {"contentType": "image/*", "contentUrl": "https://smba.trafficmanager.net/v3/attachments/1/views/original"},
        {"contentType": "application/vnd.microsoft.teams.file.download.info", "name": "a.txt", "content": {"downloadUrl": "https://c.sharepoint.com/x"}},
        {"contentType": "text/html", "content": "<p>"}, {"contentType": "application/vnd.microsoft.card.hero", "contentUrl": "https://x"},
    ]  # fmt: skip
    event = understood(activity(attachments=listed), {})
    assert isinstance(event, Event)
    assert [(one.kind, one.mime, one.reference["open"]) for one in event.attachments] == [
        ("image", "image/png", False),
        ("file", "text/plain", True),
    ]
    assert all(isinstance(one, Attachment) for one in event.attachments)
