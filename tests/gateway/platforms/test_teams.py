"""Teams: whose requests are taken, tokens, where conversations are served, threads, edits, formatting, whatever is sent."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")
pytest.importorskip("cryptography")

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Listening, utf16_units
from hermes.gateway.events import CHANNEL, Attachment, Chat, Event, OutgoingFile, Reaction, Revision
from hermes.gateway.platforms.http import HttpApi
from hermes.gateway.platforms.teams import Teams
from hermes.gateway.platforms.teams.client import Connector, is_storage
from hermes.gateway.platforms.teams.files import Offers
from hermes.gateway.platforms.teams.formatting import for_teams, length
from hermes.gateway.platforms.teams.identity import Gatekeeper, Keys, is_signed_by, parts
from hermes.gateway.platforms.teams.incoming import Reader
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.recording import Recorder, connected
from tests.support.labs.teams import APP_ID, Lab, token
from tests.support.labs.teams import CHANNEL as TEAM_CHANNEL


@pytest.fixture(scope="module")
def place() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


@pytest.fixture
def lab(place: Lab) -> Iterator[Lab]:
    place.reset()
    yield place
    assert place.problems() == []


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


# ------------------------------------------------------------------------------------------ whose requests are taken

# RFC 7515, appendix A.2
RFC_KEY = {
    "kty": "RSA", "e": "AQAB",
    "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMs"
         "D1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdV"
         "MTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
}  # fmt: skip
RFC_TOKEN = (
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ."
    "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQ"
    "jbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqt"
    "FZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
)


def test_signatures_are_checked_as_in_rfc_7515() -> None:
    found = parts(RFC_TOKEN)
    assert found is not None
    header, claims, signed, signature = found
    assert (header, claims["iss"]) == ({"alg": "RS256"}, "joe")
    assert is_signed_by(RFC_KEY, signed, signature)
    assert not is_signed_by(RFC_KEY, signed + b"x", signature)
    assert not is_signed_by(RFC_KEY, signed, signature[:-1] + b"x")


FORGED: dict[str, dict[str, Any]] = {
    "a key that is not published": {"number": 1},
    "a published name, but another key": {"number": 1, "header": {"kid": "key-0"}},
    "another issuer": {"iss": "https://sts.windows.net/x/"},
    "another bot": {"aud": "other"},
    "an expired token": {"exp": int(time.time()) - 400},
    "a token of the future": {"nbf": int(time.time()) + 400},
    "a token without an end": {"exp": None},
    "another service": {"serviceurl": "https://smba.trafficmanager.net/other/"},
    "no service": {"serviceurl": None},
    "no algorithm": {"header": {"alg": "none"}},
    "a symmetric algorithm": {"header": {"alg": "HS256"}},
}


def test_only_the_bot_framework_is_heard(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        url = f"http://127.0.0.1:{lab.listens_at}/teams"
        activity = lab.activity("message", "alice", "dm", text="forged", textFormat="plain")
        for what, options in FORGED.items():
            given = f"Bearer {token(lab.service, **options)}"
            assert httpx.post(url, json=activity, headers={"Authorization": given}).status_code == 403, what
        for given in ("", "Bearer", "Bearer x.y.z", "Basic YTpi", f"Bearer {token(lab.service)[:-8]}"):
            assert httpx.post(url, json=activity, headers={"Authorization": given}).status_code == 403
        genuine = {"Authorization": f"Bearer {token(lab.service)}"}
        other = {**activity, "channelId": "directline"}  # for which the key does not vouch
        assert httpx.post(url, json=other, headers=genuine).status_code == 403
        assert httpx.post(url, content=b"[1", headers=genuine).status_code == 403
        near = f"Bearer {token(lab.service, exp=int(time.time()) - 60)}"
        assert httpx.post(url, json={**activity, "text": "late"}, headers={"Authorization": near}).status_code == 200
        until(lambda: lab.shown() == ["echo: late"])
        assert gateway.db.search_messages("forged") == []


def test_new_keys_are_found_and_a_flood_of_unknown_ones_fetches_nothing(lab: Lab) -> None:
    async def tried() -> None:
        now = [1000.0]
        api = HttpApi("keys", "", timeout=5)
        gatekeeper = Gatekeeper(Keys(api, f"{lab.base}/openid", lambda: now[0]), APP_ID)
        body = json.dumps({"serviceUrl": lab.service, "channelId": "msteams"}).encode()

        async def admitted(number: int) -> bool:
            return await gatekeeper.admits(f"Bearer {token(lab.service, number)}", body)

        assert await admitted(0) and lab.fetches == 1
        for _ in range(5):
            assert not await admitted(1)
        assert lab.fetches == 1
        lab.keys = [1]
        now[0] += 301
        assert await admitted(1) and lab.fetches == 2
        assert not await admitted(0)
        await api.close()

    asyncio.run(tried())


def test_without_the_keys_nothing_is_taken_nor_refused_for_good(lab: Lab, tmp_path: Path) -> None:
    async def tried() -> None:
        api = HttpApi("keys", "", timeout=5)
        gatekeeper = Gatekeeper(Keys(api, f"{lab.base}/nowhere"), APP_ID)
        with pytest.raises((PlatformUnreachable, SendRefused)):  # answered 503: the platform sends it again
            await gatekeeper.admits(f"Bearer {token(lab.service)}", b"{}")
        await api.close()

    asyncio.run(tried())


# ------------------------------------------------------------------------------------------ the bot's own token


def test_a_token_that_expires_is_renewed_once_for_many(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url):
        lab.say("before")
        until(lambda: lab.shown() == ["echo: before"])
        assert len(lab.tokens) == 1
        lab.valid.clear()  # revoked in mid-run
        for who in ("alice", "bob"):
            lab.say("after", who=who)
            lab.say("after", who=who, where="group")
        until(lambda: len(lab.shown("group")) == 2 and lab.shown(who="bob") and len(lab.shown()) == 2, 30)
        assert lab.unauthorized
    assert len(lab.tokens) == 2


def test_many_requests_wait_for_one_login_and_it_is_renewed_before_its_end(lab: Lab) -> None:
    async def tried() -> None:
        values, now = lab.settings, [0.0]
        url = f"{values['login_url']}/{values['tenant_id']}/oauth2/v2.0/token"
        api = Connector("Teams", app_id=APP_ID, password=values["app_password"], token_url=url, timeout=5)
        api._clock = lambda: now[0]
        assert len(set(await asyncio.gather(*(api.token() for _ in range(20))))) == 1
        assert len(lab.tokens) == 1
        now[0] = 3299
        await api.token()
        assert len(lab.tokens) == 1
        now[0] = 3301  # its last five minutes
        await asyncio.gather(*(api.token() for _ in range(20)))
        assert len(lab.tokens) == 2
        await api.close()

    asyncio.run(tried())


def test_a_wrong_password_is_named_and_not_shown(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(PlatformRefused, match="does not accept app_id") as caught:
        asyncio.run(Teams({**lab.settings, "app_password": "wrong-and-secret"}, tmp_path).check())
    assert "wrong-and-secret" not in str(caught.value)
    assert asyncio.run(Teams(lab.settings, tmp_path).check()) == f"bot {APP_ID}"


@pytest.mark.parametrize(
    ("address", "ours"),
    [
        ("https://smba.trafficmanager.net/emea/v3/x", True), ("https://europe.api.botframework.com/x", True),
        ("https://smba.infra.gcc.teams.microsoft.com/x", True), ("http://own.example:8080/x", True),
        ("https://evil.trafficmanager.net/x", False), ("http://smba.trafficmanager.net/x", False),
        ("https://smba.trafficmanager.net@evil.example/x", False), ("https://evilbotframework.com/x", False),
        ("https://smba.trafficmanager.net.evil.example", False), ("http://own.example/x", False), ("//own.example", False),
        ("https://smba.trafficmanager.net:8443/", False), ("https://[", False), ("", False),
    ],
)  # fmt: skip
def test_the_token_goes_to_microsoft_alone(address: str, ours: bool) -> None:
    api = Connector("Teams", app_id="x", password="y", token_url="", own="http://own.example:8080/teams")
    assert api.is_service(address) is ours


@pytest.mark.parametrize(
    ("address", "stored"),
    [("https://contoso.sharepoint.com/x?tempauth=1", True), ("https://contoso-my.sharepoint.com/x", True),
     ("http://contoso.sharepoint.com/x", False), ("https://sharepoint.com.evil.example/", False), ("https://169.254.169.254/", False)],
)  # fmt: skip
def test_files_come_from_sharepoint_alone(address: str, stored: bool) -> None:
    assert is_storage(address) is stored


def test_a_file_elsewhere_is_not_fetched(lab: Lab, tmp_path: Path) -> None:
    async def tried() -> None:
        adapter = Teams(lab.settings, tmp_path)
        adapter._api = adapter._made()
        with pytest.raises(SendRefused, match="not stored at"):
            await adapter.fetch(Attachment(kind="file", reference={"url": "http://169.254.169.254/latest"}))
        await adapter.disconnect()

    asyncio.run(tried())
    assert lab.tokens == []


# ------------------------------------------------------------------------------------------ conversations


def test_where_a_conversation_is_served_is_known_after_a_restart(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        added = lab.activity("conversationUpdate", "alice", "group", membersAdded=[{"id": f"28:{APP_ID}"}])
        before = len(lab.deliveries.statuses)
        lab.deliver(added)
        until(lambda: lab.deliveries.statuses[before:] == [200])
        home = gateway.connections["teams"].adapter.home
    kept = json.loads((home / "teams_conversations.json").read_text())
    assert kept[lab.chat_id("group")] == {"service_url": lab.service.rstrip("/"), "type": "group"}

    async def sent() -> None:
        adapter = Teams(lab.settings, home)
        adapter._api = adapter._made()
        await adapter.send(Chat(platform="teams", chat_id=lab.chat_id("group")), "good morning", nonce="1")
        await adapter.send(Chat(platform="teams", chat_id=lab.chat_id("dm")), "by the default", nonce="2")
        await adapter.disconnect()

    asyncio.run(sent())
    assert (lab.shown("group"), lab.shown()) == (["good morning"], ["by the default"])


def test_a_file_of_conversations_that_is_broken_is_made_again(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "teams_conversations.json").write_text("[1")
    adapter = Teams(lab.settings, tmp_path)
    adapter._api = adapter._made()
    adapter._remember(lab.activity("message", "alice", "dm"), logging.getLogger("tests"))
    assert Teams(lab.settings, tmp_path)._service(Chat(platform="teams", chat_id="a:1alice")) == lab.service.rstrip("/")
    asyncio.run(adapter.disconnect())


def test_a_file_of_conversations_that_cannot_be_written_stops_no_message(
    lab: Lab, model: Echo, hermes_home: Path
) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        blocked = gateway.connections["teams"].adapter.home / "teams_conversations.new"
        blocked.mkdir()
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        blocked.rmdir()
        lab.say("again")
        until(lambda: lab.shown() == ["echo: hello", "echo: again"])
        assert "a:1alice" in json.loads(blocked.with_suffix(".json").read_text())


def test_an_answer_in_a_channel_is_in_the_thread_of_its_post(lab: Lab, model: Echo, hermes_home: Path) -> None:
    lab.reply_in_thread = True
    with running(lab, hermes_home, model.base_url):
        post = lab.say("hello", where="channel")
        until(lambda: lab.shown("channel"))
        (answer,) = lab._posts.values()
        assert answer["place"] == f"{TEAM_CHANNEL};messageid={post}"


def test_a_refused_message_is_not_sent_again_and_a_conflict_is(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        lab.refuses = (403, "BotNotInConversationRoster")
        lab.say("hello")
        until(lambda: gateway.store.mail_counts().get("teams", {}).get("failed"), 30)
        lab.refuses = (412, "PreconditionFailed")
        lab.say("again")
        until(lambda: lab.shown() == ["echo: again"], 30)


def test_a_lost_answer_may_have_been_sent(lab: Lab, tmp_path: Path) -> None:
    async def sent() -> None:
        adapter = Teams(lab.settings, tmp_path)
        adapter._api = adapter._made()
        lab.lost_answers = 1
        with pytest.raises(PlatformUnreachable) as caught:
            await adapter.send(Chat(platform="teams", chat_id=lab.chat_id("dm")), "once", nonce="1")
        assert caught.value.maybe_sent
        await adapter.disconnect()

    asyncio.run(sent())


def test_a_full_store_is_not_acknowledged_and_nothing_is_lost(lab: Lab, tmp_path: Path) -> None:
    """The vendor may not send again: the message is handed over until it is stored."""

    async def tried() -> None:
        adapter, link = Teams(lab.settings, tmp_path), Recorder()
        assert lab.listens_at is not None
        adapter.webhook_place = Listening(port=lab.listens_at)
        link.refuse = OSError("disk full")
        before = len(lab.deliveries.statuses)
        async with connected(adapter, link):
            lab.say("persist")
            await link.until(lambda: (tmp_path / "teams_conversations.json").exists())
            assert lab.deliveries.statuses[before:] == []
            link.refuse = None
            await link.event("persist")
            await link.until(lambda: lab.deliveries.statuses[before:] == [200])

    asyncio.run(tried())


def test_a_file_is_uploaded_when_it_is_allowed_and_forgotten_when_not(
    lab: Lab, model: Echo, hermes_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("private")
    with running(lab, hermes_home, model.base_url, display={"busy": "queue"}) as gateway:
        kept = gateway.connections["teams"].adapter.home / "teams_files"
        lab.say(f'call=send_file {{"path": "{tmp_path}/note.txt"}}')
        until(lambda: lab.sent_files() == [("note.txt", b"private", "")], 30)
        until(lambda: list(kept.iterdir()) == [], 10)
        lab.allows = False
        lab.say(f'call=send_file {{"path": "{tmp_path}/note.txt"}}')
        until(lambda: len(lab._stored) == 2, 30)
        until(lambda: list(kept.iterdir()) == [], 10)
        lab.say(f'call=send_file {{"path": "{tmp_path}/note.txt"}}', where="group")
        until(lambda: gateway.store.mail_counts().get("teams", {}).get("failed"), 30)
    assert len(lab.sent_files()) == 1


def test_an_answer_to_an_offer_names_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    offers = Offers(tmp_path / "teams_files")
    for context in (None, {}, {"offer": "../secret"}, {"offer": 1}, {"offer": "a" * 32}, "x"):
        assert offers.get(context) is None
    card = offers.add("nonce", OutgoingFile(kind="file", name="a", mime="text/plain", data=b"abc"))
    found = offers.get(card["content"]["acceptContext"])
    assert found is not None and found[1] == b"abc"
    offers.tidy()
    assert offers.get(card["content"]["acceptContext"]) is not None
    os.utime(tmp_path / "teams_files" / found[0], (0, 0))
    offers.tidy()
    assert offers.get(card["content"]["acceptContext"]) is None


# ------------------------------------------------------------------------------------------ activities


def read(**changes: Any) -> Any:
    activity = {
        "type": "message", "id": "17", "from": {"id": "29:x", "aadObjectId": "ABC", "name": "Ann"}, "text": "hello",
        "conversation": {"id": "19:g@thread.v2", "conversationType": "groupChat"}, **changes,
    }  # fmt: skip
    return Reader(APP_ID, thread_replies=True).understood(activity)


def test_mentions_become_names_and_ours_is_left_out() -> None:
    ours = {"type": "mention", "mentioned": {"id": f"28:{APP_ID.upper()}"}, "text": "<at>Hermes</at>"}
    other = {"type": "mention", "mentioned": {"id": "29:bob"}, "text": "<at>Bob B</at>"}
    event = read(text="<at>Hermes</at> ask <at>Bob B</at> about a<b", entities=[ours, other])
    assert (event.text, event.addressed) == ("ask @Bob B about a<b", True)
    assert not read(text="ask <at>Bob B</at>", entities=[other]).addressed
    assert event.sender.id == "abc"
    assert event.id == "19:g@thread.v2:17"


def test_a_quoted_message_is_told() -> None:
    copy = '<blockquote itemscope itemtype="http://schema.skype.com/Reply" itemid="99"><strong>Bob</strong><p itemprop="preview">one &amp; two</p></blockquote><p>why?</p>'  # fmt: skip
    event = read(text="why?", attachments=[{"contentType": "text/html", "content": copy}])
    assert (event.reply_to, event.quoted, event.attachments) == ("99", "one & two", ())


def test_our_own_messages_and_services_are_not_events() -> None:
    assert read(**{"from": {"id": f"28:{APP_ID}"}}) is None
    for kind in ("conversationUpdate", "installationUpdate", "typing", "invoke", "event", "endOfConversation"):
        assert read(type=kind) is None
    assert read(**{"from": {"id": "28:another"}}).sender.is_bot


def test_a_channel_has_threads() -> None:
    talk = {"id": "19:c@thread.tacv2;messageid=5", "conversationType": "channel"}
    event = read(conversation=talk)
    assert (event.chat.chat_id, event.chat.thread_id, event.chat.type) == ("19:c@thread.tacv2", "5", CHANNEL)
    assert read(conversation=talk, type="messageDelete").revises == event.id


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "type", "mentioned", "contentType", "content", "text"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
names = st.sampled_from(
    "id from conversation text textFormat entities attachments channelData timestamp reactionsAdded replyToId value".split()
)
kinds = st.sampled_from(["message", "messageUpdate", "messageDelete", "messageReaction", "invoke"])


@given(kinds, st.dictionaries(names, anything))
def test_whatever_is_sent_is_read_or_skipped(kind: str, more: dict[str, Any]) -> None:
    found = read(type=kind, **more)
    assert found is None or isinstance(found, Event | Revision | Reaction)


@given(st.text(max_size=80) | st.lists(st.text("ab.=-_", max_size=9), min_size=3, max_size=3).map(".".join))
def test_whatever_is_given_as_a_token_is_refused(given_token: str) -> None:
    async def refused() -> bool:
        gatekeeper = Gatekeeper(Keys(HttpApi("keys", ""), "http://127.0.0.1:1"), APP_ID)
        return await gatekeeper.admits(f"Bearer {given_token}", b"{}")

    assert not asyncio.run(refused())


# ------------------------------------------------------------------------------------------ formatting


@pytest.mark.parametrize(
    ("markdown", "there"),
    [
        ("one\ntwo\n\nthree", "one  \ntwo\n\nthree"),
        ("a <at>Bob</at> <b>c</b> 1<2", "a &lt;at>Bob&lt;/at> &lt;b>c&lt;/b> 1<2"),
        ("`<b>` and ``a`<b>``", "`<b>` and ``a`<b>``"),
        ("```html\n<b>\n\n![x](y)\n```\nend", "```html\n<b>\n\n![x](y)\n```\nend"),
        ("![a dot](http://x/y.png) ![](http://z)", "[a dot](http://x/y.png) [image](http://z)"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\nend", "```\n| a | b |\n|---|---|\n| 1 | 2 |\n```\nend"),
        ("# Head\ntext", "# Head\ntext"),
        ("see <https://x.example/a>", "see https://x.example/a"),
    ],
)
def test_markdown_is_written_for_teams(markdown: str, there: str) -> None:
    assert for_teams(markdown) == there


@given(st.text("ab<>`~!|-[]( \n😀#", max_size=60))
def test_a_text_is_not_longer_than_it_is_measured(text: str) -> None:
    tables = text.count("|")  # fences around tables are covered by the margin below the vendor's limit
    assert utf16_units(for_teams(text)) <= length(text) + 8 * tables
    assert for_teams(text).count("\n") >= text.count("\n")
