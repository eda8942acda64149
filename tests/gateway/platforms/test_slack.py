"""The Slack adapter against a small Slack on real sockets: who is heard, what is said, and what happens when it breaks."""

from __future__ import annotations

import asyncio
import logging
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Attachment, Chat, Event
from hermes.gateway.platforms import adapter_class
from tests.support.labs.slack import ARCHIVED, BOT, FOREIGN, STRANGE, Lab


class Recorder:
    """A gateway that notes everything."""

    def __init__(self) -> None:
        self.log = logging.getLogger("test.slack")
        self.events: list[Event] = []
        self.identities: list[str] = []
        self.errors: list[Exception] = []
        self.before_keeping: Callable[[Event], Awaitable[None]] | None = None

    async def received(self, event: Event) -> None:
        if self.before_keeping is not None:
            await self.before_keeping(event)
        self.events.append(event)

    def connected(self, identity: str) -> None:
        self.identities.append(identity)

    def lost(self, error: Exception) -> None:
        self.errors.append(error)

    async def heard(self, count: int = 1) -> list[Event]:
        """The events, once there are so many."""
        await eventually(lambda: len(self.events) >= count, lambda: f"{len(self.events)} of {count} events")
        return self.events


async def eventually(condition: Callable[[], Any], what: Callable[[], str] = lambda: "") -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    try:
        await asyncio.wait_for(wait(), 15)
    except TimeoutError:
        raise AssertionError(what() or "it did not come true") from None


@pytest.fixture(scope="module")
def workspace() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def lab(workspace: Lab) -> Iterator[Lab]:
    workspace.reset()
    yield workspace
    assert workspace.problems() == []


def made(lab: Lab, **settings: Any) -> Any:
    return adapter_class("slack")(lab.settings | settings, Path("."))


@asynccontextmanager
async def connected(lab: Lab, **settings: Any) -> AsyncIterator[tuple[Any, Recorder]]:
    adapter, link = made(lab, **settings), Recorder()
    await adapter.connect(link)
    try:
        yield adapter, link
    finally:
        await adapter.disconnect()


def own_threads() -> set[str]:
    """The threads that run, but for the event loop's pool, which idles until the loop ends."""
    return {one.name for one in threading.enumerate() if not one.name.startswith("asyncio_")}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def chat(lab: Lab, where: str = "dm", thread: str | None = None) -> Chat:
    return Chat(
        platform="slack", chat_id=lab.chat_id(where), type="dm" if where == "dm" else "channel", thread_id=thread
    )


# ------------------------------------------------------------------------------------------------ coming and going


def test_it_says_who_it_is_when_it_has_connected(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            assert link.identities == ["@hermes"]
            assert link.errors == []

    run(scene())


def test_checking_tries_both_tokens_and_receives_nothing(lab: Lab) -> None:
    async def scene() -> None:
        lab.say("hello?")
        before = lab.server.connections
        assert await made(lab).check() == "@hermes"
        assert lab.server.connections == before
        assert [method for method, _ in lab.state.calls] == ["auth.test", "apps.connections.open"]

    run(scene())


@pytest.mark.parametrize("wrong", ["bot_token", "app_token"])
def test_a_wrong_token_is_refused_by_name_and_not_repeated(
    lab: Lab, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        caplog.set_level(logging.DEBUG)
        for attempt in ("check", "connect"):
            adapter = made(lab, **{wrong: "xoxb-secret-of-mine"})
            with pytest.raises(PlatformRefused, match=wrong) as refused:
                await (adapter.check() if attempt == "check" else adapter.connect(Recorder()))
            assert "secret-of-mine" not in str(refused.value)
            await adapter.disconnect()
        assert "secret-of-mine" not in caplog.text

    run(scene())


def test_a_token_that_is_no_bots_is_refused(lab: Lab) -> None:
    async def scene() -> None:
        person = {"ok": True, "user": "alice", "user_id": lab.user_id("alice")}
        lab.answer_next("auth.test", lambda: web.json_response(person))
        with pytest.raises(PlatformRefused, match="xoxb"):
            await made(lab).check()

    run(scene())


def test_nobody_at_that_address_is_worth_another_try(lab: Lab) -> None:
    async def scene() -> None:
        with pytest.raises(PlatformUnreachable):
            await made(lab, base_url="http://127.0.0.1:9/api/").connect(Recorder())

    run(scene())


def test_nothing_is_left_running_after_it_left(lab: Lab) -> None:
    async def scene() -> None:
        threads = own_threads()
        others = asyncio.all_tasks()
        stuck = asyncio.Event()
        async with connected(lab) as (adapter, link):

            async def never(event: Event) -> None:
                stuck.set()
                await asyncio.Event().wait()

            link.before_keeping = never
            lab.say("hello")
            await asyncio.wait_for(stuck.wait(), 15)
            async with asyncio.timeout(5):
                await adapter.disconnect()
            await adapter.disconnect()
            assert asyncio.all_tasks() == others
            assert link.errors == []
        assert own_threads() == threads
        await eventually(lambda: not lab.server._sockets, lambda: "a connection is still open")

    run(scene())


# ------------------------------------------------------------------------------------------------ hearing


@pytest.mark.parametrize(
    ("where", "type", "name"),
    [
        ("dm", "dm", "Alice A."),
        ("group", "group", "alice, bob, hermes"),
        ("channel", "channel", "#general"),
        ("private", "channel", "#secret"),
        ("thread", "channel", "#general"),
    ],
)
def test_a_message_is_heard_in_every_kind_of_place(lab: Lab, where: str, type: str, name: str) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            ts = lab.say("is 1 < 2 & 3 > 2?", where=where)
            event = (await link.heard())[0]
        assert event.text == "is 1 < 2 & 3 > 2?"
        assert (event.chat.type, event.chat.name, event.chat.chat_id) == (type, name, lab.chat_id(where))
        assert (event.chat.thread_id is not None) == (where == "thread")
        assert (event.sender.user_id, event.sender.name) == (lab.user_id("alice"), "Alice A.")
        assert (event.id, event.message_id, event.sent_at) == (f"{event.chat.chat_id}:{ts}", ts, float(ts))
        assert event.addressed

    run(scene())


def test_a_mention_in_a_channel_comes_twice_and_is_one_event(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.say("hello", where="channel")
            first, second = await link.heard(2)
        assert first == second

    run(scene())


def test_without_a_mention_nobody_addresses_us_in_a_channel(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.say("just between us", where="channel", addressed=False)
            lab.say("and us", where="group", addressed=False)
            assert [event.addressed for event in await link.heard(2)] == [False, False]

    run(scene())


def test_in_a_thread_of_ours_no_mention_is_needed(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, link):
            mine = await adapter.create_thread(chat(lab, "channel"), "Plans")
            lab.say("go on", where="channel", addressed=False, thread=mine.thread_id)
            lab.say("do you hear?", where="thread", addressed=False)
            root = (await link.heard(2))[1].chat
            await adapter.send(root, "Yes.", nonce="1")
            lab.say("good", where="thread", addressed=False)
            assert [event.addressed for event in await link.heard(3)] == [True, False, True]
            assert link.events[0].chat.thread_id == mine.thread_id

    run(scene())


def test_a_thread_that_hangs_on_our_message_is_ours_after_a_restart_too(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            mine = await adapter.create_thread(chat(lab, "channel"), "Plans")
        async with connected(lab) as (_, link):
            lab.say("go on", where="channel", addressed=False, thread=mine.thread_id)
            assert (await link.heard())[0].addressed

    run(scene())


def test_the_message_a_thread_hangs_on_is_not_in_it(lab: Lab) -> None:
    async def scene() -> None:
        root = {"type": "app_mention", "channel": lab.chat_id("channel"), "user": "UALICE001", "ts": "5.000001"}
        async with connected(lab) as (_, link):
            lab.announce(root | {"thread_ts": "5.000001", "text": f"<@{BOT}> let us talk"})
            event = (await link.heard())[0]
        assert (event.chat.thread_id, event.chat.type, event.text) == (None, "channel", "let us talk")

    run(scene())


def test_what_changes_or_bots_say_is_no_event_and_is_acknowledged(lab: Lab) -> None:
    async def scene() -> None:
        common = {
            "type": "message",
            "channel": lab.chat_id("dm"),
            "channel_type": "im",
            "ts": "1.1",
            "user": "UALICE001",
        }
        async with connected(lab) as (adapter, link):
            for extra in (
                {"subtype": "message_changed", "hidden": True, "message": {"text": "new"}},
                {"subtype": "message_deleted"},
                {"subtype": "channel_join", "text": "joined"},
                {"subtype": "bot_message", "bot_id": "B1", "user": None},
                {"bot_id": "B1", "text": "beep"},
                {"user": BOT, "text": "me"},
                {"user": "USLACKBOT", "text": "tip of the day"},
            ):
                lab.announce(common | extra)
            lab.announce({"type": "reaction_added", "user": "UALICE001", "item": {"channel": "C1", "ts": "1.1"}})
            await adapter.send(chat(lab), "said by us", nonce="1")
            lab.say("said by Alice")
            await eventually(lambda: len(lab.state.acknowledged) == 10)
            assert [event.text for event in link.events] == ["said by Alice"]

    run(scene())


def test_people_channels_and_links_are_spelled_as_they_were_typed(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.say_raw(
                f"<@{BOT}> ask <@UBOB00001> in <#C1|random>, <!here>: <http://example.com|example.com> or"
                " <https://a.example/x?a=1&amp;b=2> or <https://b.example|this one>",
                where="channel",
            )
            assert (await link.heard())[0].text == (
                "ask @Bob B. in #random, @here: example.com or https://a.example/x?a=1&b=2 or [this one](https://b.example)"
            )

    run(scene())


def test_names_are_asked_for_once(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            for number in range(5):
                lab.say(f"hello {number}", where="channel", addressed=False)
                lab.say(f"hello {number}")
            await link.heard(10)
        asked = [method for method, _ in lab.state.calls]
        assert (asked.count("users.info"), asked.count("conversations.info")) == (1, 1)

    run(scene())


def test_a_message_is_heard_also_where_slack_tells_no_names(lab: Lab) -> None:
    async def scene() -> None:
        lab.refuse("missing_scope", method="users.info", needed="users:read")
        lab.answer_next("conversations.info", lambda: web.Response(status=500))
        async with connected(lab) as (_, link):
            lab.say("hello", where="group", addressed=False)
            event = (await link.heard())[0]
        assert (event.text, event.sender.name, event.chat.name, event.chat.type) == ("hello", None, None, "group")

    run(scene())


# ------------------------------------------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("title My trip", "/title My trip"),
        ("sessions", "/sessions"),
        ("", "/help"),
        ("is 1 < 2 & 3?", "is 1 < 2 & 3?"),
        ("!title x", "/title x"),
    ],
)
def test_the_native_command_becomes_one_of_ours(lab: Lab, typed: str, text: str) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.slash(typed, where="channel")
            event = (await link.heard())[0]
        assert (event.text, event.chat.type, event.chat.name, event.sender.name) == (
            text,
            "channel",
            "#general",
            "Alice A.",
        )

    run(scene())


def test_a_command_that_has_our_name_for_it_is_that_command(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.slash("My trip", command="/title")
            event = (await link.heard())[0]
        assert (event.text, event.chat.type, event.chat.chat_id) == ("/title My trip", "dm", lab.chat_id("dm"))

    run(scene())


@pytest.mark.parametrize("where", [STRANGE, FOREIGN])
def test_a_command_typed_where_we_are_not_is_answered_as_a_direct_message(lab: Lab, where: str) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.slash("status", chat=where)
            event = (await link.heard())[0]
        assert (event.chat.type, event.chat.chat_id) == ("dm", lab.chat_id("dm"))

    run(scene())


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("!title My trip", "/title My trip"),
        ("!Help", "/Help"),
        (" /title x", "/title x"),
        ("!important news", "!important news"),
        ("!", "!"),
        ("!!title", "!!title"),
    ],
)
def test_a_bang_and_the_word_of_a_command_are_a_command(lab: Lab, typed: str, text: str) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.say(typed, where="thread")
            assert (await link.heard())[0].text == text

    run(scene())


# ------------------------------------------------------------------------------------------------ keeping


def test_an_event_is_acknowledged_only_when_it_is_kept(lab: Lab) -> None:
    async def scene() -> None:
        kept = asyncio.Event()
        async with connected(lab) as (_, link):

            async def slowly(event: Event) -> None:
                await kept.wait()

            link.before_keeping = slowly
            lab.say("hello")
            lab.say("from elsewhere", who="bob")
            await eventually(lambda: len(lab.state.unacknowledged) == 2)
            assert lab.state.acknowledged == []
            kept.set()
            await eventually(lambda: len(lab.state.acknowledged) == 2)

    run(scene())


def test_what_could_not_be_kept_is_sent_again_with_the_same_id(lab: Lab) -> None:
    async def scene() -> None:
        seen: list[str] = []
        async with connected(lab) as (_, link):

            async def fails_once(event: Event) -> None:
                seen.append(event.id)
                if len(seen) == 1:
                    raise OSError("the disk is full")

            link.before_keeping = fails_once
            lab.say("hello")
            await eventually(lambda: seen)
            assert lab.state.acknowledged == []
            lab.send_again()
            await eventually(lambda: lab.state.acknowledged)
        assert seen[0] == seen[1] == link.events[0].id

    run(scene())


def test_what_was_not_acknowledged_comes_again_after_a_restart(lab: Lab) -> None:
    async def scene() -> None:
        seen: list[str] = []
        async with connected(lab) as (_, link):

            async def never(event: Event) -> None:
                seen.append(event.id)
                await asyncio.Event().wait()

            link.before_keeping = never
            lab.say("do not forget me")
            await eventually(lambda: seen)
        lab.say("said while nobody was there")
        async with connected(lab) as (_, link):
            events = await link.heard(2)
            await eventually(lambda: len(lab.state.acknowledged) == 2)
        assert seen[0] in {event.id for event in events}
        assert {event.text for event in events} == {"do not forget me", "said while nobody was there"}

    run(scene())


def test_a_redelivered_event_has_the_same_id(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            message = lab.say("hello")
            await link.heard(1)
            lab.redeliver(message)
            first, second = await link.heard(2)
        assert first == second

    run(scene())


def test_events_of_one_chat_are_kept_in_the_order_they_come(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            held = asyncio.Event()

            async def first_is_slow(event: Event) -> None:
                if event.text == "0":
                    await held.wait()

            link.before_keeping = first_is_slow
            for number in range(20):
                lab.say(str(number))
            lab.say("other", who="bob")
            assert [event.text for event in await link.heard(1)] == ["other"]
            held.set()
            await link.heard(21)
            assert [event.text for event in link.events[1:]] == [str(number) for number in range(20)]

    run(scene())


def test_events_out_of_order_keep_their_times(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.hold()
            for number in range(5):
                lab.say(str(number))
            lab.release(backwards=True)
            events = await link.heard(5)
        assert [event.text for event in sorted(events, key=lambda one: one.sent_at or 0)] == list("01234")

    run(scene())


# ------------------------------------------------------------------------------------------------ speaking


def test_markdown_goes_out_as_a_block_that_slack_renders(lab: Lab) -> None:
    async def scene() -> None:
        text = "# Plan\n\n**bold** and `code`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nif a < b: pass\n```"
        async with connected(lab) as (adapter, _):
            ts = await adapter.send(chat(lab), text, nonce="1")
        said = lab.state.messages[-1]
        assert (said.ts, said.blocks) == (ts, [{"type": "markdown", "text": text}])
        assert "if a &lt; b" in said.text
        assert lab.shown()[0].startswith("Plan\n\nbold and code")

    run(scene())


def test_an_edit_replaces_the_text(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            ts = await adapter.send(chat(lab), "Thi", nonce="1")
            await adapter.edit(chat(lab), ts, "This is **it**" + "." * 3_900)
        assert [shown.rstrip(".") for shown in lab.shown()] == ["This is it"]

    run(scene())


def test_a_thread_gets_its_messages(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            thread = await adapter.create_thread(chat(lab, "channel"), "Trip <to> Rome & @here")
            await adapter.send(thread, "first", nonce="1")
            await adapter.send(chat(lab, "channel"), "beside it", nonce="2")
        assert lab.threads() == ["Trip <to> Rome & @here"]
        assert lab.shown("channel", thread=thread.thread_id or "") == ["first"]
        assert lab.shown("channel") == ["Trip <to> Rome & @here", "beside it"]

    run(scene())


def test_a_message_slack_does_not_render_goes_out_plain(lab: Lab) -> None:
    async def scene() -> None:
        text = "**bold** <!channel>\n" + "x" * 3_900
        async with connected(lab) as (adapter, _):
            lab.refuse("invalid_blocks")
            ts = await adapter.send(chat(lab), text, nonce="1")
            assert lab.shown() == [text]
            lab.refuse("msg_blocks_too_long")
            await adapter.edit(chat(lab), ts, text + "!")
            assert lab.shown() == [text + "!"]

    run(scene())


def test_the_longest_text_fits_whatever_is_in_it(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            longest = adapter.capabilities.longest
            for piece in ("&", "<", "@here ", "<!here", "😀", "汉", "a\n"):
                text = (piece * longest)[:longest]
                ts = await adapter.send(chat(lab), text, nonce="1")
                await adapter.edit(chat(lab), ts, text)
                assert lab.shown()[-1] == text.strip()

    run(scene())


def test_nothing_said_pings_anybody(lab: Lab) -> None:
    async def scene() -> None:
        for text in (
            "<!channel> hi",
            "`<!HERE>`",
            "<!subteam^S123|@all> <@UBOB00001>",
            "@everyone @here",
            "<<!channel>",
        ):
            async with connected(lab) as (adapter, _):
                await adapter.send(chat(lab, "channel"), text, nonce="1")
            assert "@here" not in lab.state.messages[-1].text
        assert lab.state.pings == []

    run(scene())


def test_thinking_is_shown_in_a_thread_until_the_first_word(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, link):
            lab.say("hello", where="thread")
            thread = (await link.heard(2))[0].chat
            await adapter.typing(thread)
            assert lab.typed("thread") == 1
            await adapter.send(thread, "Hm", nonce="1")
            await adapter.typing(thread)
            await adapter.typing(chat(lab))
            assert lab.typed("thread") == 1
            lab.say("and?", where="thread")
            await link.heard(4)
            lab.refuse("missing_scope", method="assistant.threads.setStatus", needed="chat:write")
            await adapter.typing(thread)
            await adapter.typing(thread)
            assert lab.typed("thread") == 2

    run(scene())


# ------------------------------------------------------------------------------------------------ trouble


def test_too_many_requests_say_how_long_to_wait(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            for attempt in (adapter.send(chat(lab), "a", nonce="1"), adapter.edit(chat(lab), "1.1", "b")):
                lab.rate_limit(7)
                with pytest.raises(SlowDown) as slow:
                    await attempt
                assert slow.value.retry_after == 7
            await adapter.send(chat(lab), "c", nonce="2")
        assert lab.shown() == ["c"]

    run(scene())


def test_a_server_error_is_worth_another_try_and_is_tried_once(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            lab.fail()
            with pytest.raises(PlatformUnreachable):
                await adapter.send(chat(lab), "a", nonce="1")
            lab.refuse("internal_error")
            with pytest.raises(PlatformUnreachable):
                await adapter.send(chat(lab), "a", nonce="1")
            lab.answer_next("send", lambda: web.Response(text="{half", content_type="application/json"))
            with pytest.raises(PlatformUnreachable):
                await adapter.send(chat(lab), "a", nonce="1")
        assert lab.shown() == []
        assert [method for method, _ in lab.state.calls].count("chat.postMessage") == 3

    run(scene())


def test_a_message_whose_answer_is_lost_is_not_sent_twice_behind_our_back(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            lab.lose_answers()
            with pytest.raises(PlatformUnreachable):
                await adapter.send(chat(lab), "once", nonce="1")
        assert lab.shown() == ["once"]

    run(scene())


@pytest.mark.parametrize(
    ("where", "word"), [(ARCHIVED, "archived"), (FOREIGN, "invite"), ("C000", "gone"), ("", "channel_not_found")]
)
def test_a_chat_that_takes_no_messages_refuses_them(lab: Lab, where: str, word: str) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            with pytest.raises(SendRefused, match=word):
                await adapter.send(Chat(platform="slack", chat_id=where), "a", nonce="1")
            with pytest.raises(SendRefused):
                await adapter.create_thread(Chat(platform="slack", chat_id=where), "a")
            with pytest.raises(SendRefused):
                await adapter.edit(Chat(platform="slack", chat_id=where), "1.1", "a")

    run(scene())


def test_a_missing_right_is_named(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, _):
            lab.refuse("missing_scope", needed="chat:write")
            with pytest.raises(PlatformRefused, match="chat:write"):
                await adapter.send(chat(lab), "a", nonce="1")
            lab.refuse("token_revoked")
            with pytest.raises(PlatformRefused, match="bot_token"):
                await adapter.send(chat(lab), "a", nonce="1")

    run(scene())


def test_a_cut_connection_is_reported_once_and_can_be_taken_up_again(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, link):
            lab.drop()
            await eventually(lambda: link.errors)
            assert isinstance(link.errors[0], PlatformUnreachable)
            lab.say("are you there?")
            await adapter.connect(link)
            assert [event.text for event in await link.heard()] == ["are you there?"]
            assert (len(link.errors), link.identities) == (1, ["@hermes", "@hermes"])

    run(scene())


def test_a_connection_that_no_longer_answers_is_found_dead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr("hermes.gateway.platforms.slack.connection._HEARTBEAT", 0.1)
        lab.state.deaf = True
        async with connected(lab) as (_, link):
            await eventually(lambda: link.errors)
            assert isinstance(link.errors[0], PlatformUnreachable)

    run(scene())


@pytest.mark.parametrize("reason", ["refresh_requested", "warning"])
def test_when_slack_renews_a_connection_nothing_is_lost_and_nobody_is_told_of_a_loss(lab: Lab, reason: str) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            for number in range(30):
                lab.say(str(number))
                if number in (5, 15):
                    before = lab.server.connections
                    lab.refresh(reason)
                    await eventually(lambda before=before: lab.server.connections > before)
            await link.heard(30)
            await eventually(lambda: len(lab.server._sockets) == 1)
            assert link.errors == []
            assert {event.text for event in link.events} == {str(number) for number in range(30)}
            lab.say("still there?")
            await eventually(lambda: link.events[-1].text == "still there?")

    run(scene())


def test_turning_socket_mode_off_is_said_as_such(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.refresh("link_disabled")
            await eventually(lambda: link.errors)
            assert isinstance(link.errors[0], PlatformRefused)
            assert "Socket Mode" in str(link.errors[0])

    run(scene())


def test_a_renewal_that_fails_is_a_loss(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.refuse("internal_error", method="apps.connections.open")
            lab.refresh()
            await eventually(lambda: link.errors)
            assert isinstance(link.errors[0], PlatformUnreachable)
            await eventually(lambda: not lab.server._sockets)
            assert len(link.errors) == 1

    run(scene())


def test_a_connection_that_does_not_open_is_worth_another_try_and_its_ticket_is_told_nobody(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        caplog.set_level(logging.DEBUG)
        stale = {"ok": True, "url": f"ws://127.0.0.1:{lab.server.port}/link?ticket=ticket-of-mine"}
        lab.answer_next("apps.connections.open", lambda: web.json_response(stale))
        adapter = made(lab)
        with pytest.raises(PlatformUnreachable) as failed:
            await adapter.connect(Recorder())
        assert "ticket-of-mine" not in str(failed.value) + caplog.text
        assert failed.value.__suppress_context__

    run(scene())


def test_no_token_and_no_text_of_people_is_in_the_log(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        caplog.set_level(logging.DEBUG)
        async with connected(lab) as (adapter, link):
            lab.say("very private words")
            await link.heard()
            ts = await adapter.send(chat(lab), "an answer", nonce="1")
            await adapter.edit(chat(lab), ts, "another")
            lab.rate_limit(1)
            with pytest.raises(SlowDown):
                await adapter.send(chat(lab), "an answer", nonce="2")
            lab.drop()
            await eventually(lambda: link.errors)
        for secret in (lab.server.bot_token, lab.server.app_token, "very private words", "ticket="):
            assert secret not in caplog.text
            assert secret not in str(link.errors)
        assert lab.server.bot_token not in repr(link.events)

    run(scene())


# ------------------------------------------------------------------------------------------------ files


def test_a_file_is_an_attachment_whose_bytes_can_be_had(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, link):
            for name, mime, kind in (
                ("cat.png", "image/png", "image"),
                ("note.m4a", "audio/mp4", "audio"),
                ("clip.mp4", "video/mp4", "video"),
                ("plan.pdf", "application/pdf", "file"),
                ("page.html", "text/html", "file"),
            ):
                lab.attach(b"bytes of " + name.encode(), name, mime, text="look")
                event = (await link.heard(len(link.events) + 1))[-1]
                (file,) = event.attachments
                assert (file.kind, file.name, file.mime, file.size) == (
                    kind,
                    name,
                    mime,
                    len(b"bytes of " + name.encode()),
                )
                assert event.text == "look"
                assert await adapter.fetch(file) == b"bytes of " + name.encode()

    run(scene())


def test_a_file_is_fetched_after_a_restart_too(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.attach(b"bytes", "cat.png", "image/png")
            (file,) = (await link.heard())[0].attachments
        adapter = made(lab)
        assert await adapter.fetch(file) == b"bytes"
        await adapter.disconnect()

    run(scene())


def test_of_a_shared_file_the_event_has_the_id_alone(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, link):
            lab.attach(
                b"bytes", "cat.png", "image/png", url_private="", url_private_download="", file_access="check_file_info"
            )
            (file,) = (await link.heard())[0].attachments
            assert await adapter.fetch(file) == b"bytes"

    run(scene())


def test_deleted_files_are_no_attachments(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.attach(b"", "gone.png", "image/png", text="see", mode="tombstone")
            assert (await link.heard())[0].attachments == ()

    run(scene())


def test_the_token_goes_to_no_other_host(lab: Lab) -> None:
    async def scene() -> None:
        here, there = lab.server.port, lab.server.other_port
        other = f"http://127.0.0.1:{there}/elsewhere/x"
        async with connected(lab) as (adapter, link):
            lab.attach(b"bytes", "cat.png", "image/png", url_private_download=other)
            (file,) = (await link.heard())[0].attachments
            with pytest.raises(SendRefused, match="cat.png"):
                await adapter.fetch(file)
            lab.answer_next("file", lambda: web.Response(status=302, headers={"Location": other}))
            lab.attach(b"bytes", "dog.png", "image/png")
            (file,) = (await link.heard(2))[1].attachments
            with pytest.raises(SendRefused):
                await adapter.fetch(file)
            for address in (f"http://127.0.0.1:{here}@127.0.0.1:{there}/elsewhere/x", "https://files.slack.com/x", ""):
                with pytest.raises(SendRefused):
                    await adapter.fetch(Attachment(kind="file", reference={"url": address, "id": "F999"}))
        assert lab.state.elsewhere == []

    run(scene())


def test_slacks_own_hosts_are_trusted_and_lookalikes_are_not() -> None:
    adapter = adapter_class("slack")({"bot_token": "xoxb-1", "app_token": "xapp-1"}, Path("."))
    trusted = adapter._trusted  # type: ignore[attr-defined]
    assert trusted("https://files.slack.com/files-pri/T1-F1/cat.png")
    assert trusted("https://acme.enterprise.slack.com/files-pri/T1-F1/cat.png")
    for address in (
        "http://files.slack.com/x",
        "https://evilslack.com/x",
        "https://slack.com.evil.example/x",
        "https://files.slack.com@evil.example/x",
        "https://evil.example/files.slack.com",
        "file:///etc/passwd",
        "",
    ):
        assert not trusted(address), address


def test_a_login_page_is_not_taken_for_the_file(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, link):
            lab.attach(b"bytes", "cat.png", "image/png")
            (file,) = (await link.heard())[0].attachments
            lab.answer_next("file", lambda: web.Response(status=302, headers={"Location": "/login"}))
            with pytest.raises(SendRefused, match="files:read"):
                await adapter.fetch(file)

    run(scene())


def test_trouble_with_files_has_the_same_names_as_elsewhere(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (adapter, link):
            lab.attach(b"bytes", "cat.png", "image/png")
            (file,) = (await link.heard())[0].attachments
            lab.answer_next("file", lambda: web.Response(status=429, headers={"Retry-After": "5"}))
            with pytest.raises(SlowDown) as slow:
                await adapter.fetch(file)
            assert slow.value.retry_after == 5
            lab.answer_next("file", lambda: web.Response(status=502))
            with pytest.raises(PlatformUnreachable):
                await adapter.fetch(file)
            lab.answer_next("file", lambda: web.Response(status=302, headers={"Location": ""}), times=9)
            with pytest.raises(SendRefused):
                await adapter.fetch(file)
            with pytest.raises(SendRefused, match="file_not_found"):
                await adapter.fetch(Attachment(kind="file", reference={"id": "F999", "url": ""}))

    run(scene())


# ------------------------------------------------------------------------------------------------ the guide


def test_the_manifest_of_the_guide_has_every_event_and_right_that_is_used() -> None:
    page = (Path(__file__).parents[3] / "docs/guide/platforms/slack.md").read_text()
    manifest = yaml.safe_load(textwrap.dedent(page.partition("```yaml\n")[2].partition("```")[0]))
    assert manifest["settings"]["socket_mode_enabled"]
    events = manifest["settings"]["event_subscriptions"]["bot_events"]
    scopes = set(manifest["oauth_config"]["scopes"]["bot"])
    needed = {"app_mention": "app_mentions:read"} | {
        f"message.{place}": f"{place}:history" for place in ("channels", "groups", "im", "mpim")
    }
    assert set(events) == set(needed)
    for_methods = {"chat:write", "commands", "files:read", "im:write", "users:read"}  # send, /hermes, fetch, open, name
    for_names = {f"{place}:read" for place in ("channels", "groups", "im", "mpim")}  # conversations.info
    assert scopes == {*needed.values(), *for_methods, *for_names}


def test_the_guide_tells_every_setting() -> None:
    page = (Path(__file__).parents[3] / "docs/guide/platforms/slack.md").read_text()
    for setting in adapter_class("slack").settings:
        assert setting.name in page
        assert str(setting.variable) in page
