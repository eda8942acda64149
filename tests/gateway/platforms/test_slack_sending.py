"""Slack: what is said there, how it looks, what Slack refuses, and files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Attachment, Chat, OutgoingFile
from hermes.gateway.platforms import adapter_class
from tests.support.labs.slack import ARCHIVED, FOREIGN, Lab
from tests.support.labs.slack_scenes import chat, connected, fresh_lab, made, one_workspace  # noqa: F401

# ------------------------------------------------------------------------------------------------ speaking


async def test_markdown_goes_out_as_a_block_that_slack_renders(lab: Lab) -> None:
    text = "# Plan\n\n**bold** and `code`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nif a < b: pass\n```"
    async with connected(lab) as (adapter, _):
        ts = await adapter.send(chat(lab), text, nonce="1")
    said = lab.state.messages[-1]
    assert (said.ts, said.blocks) == (ts, [{"type": "markdown", "text": text}])
    assert "if a &lt; b" in said.text
    assert lab.shown()[0].startswith("Plan\n\nbold and code")


async def test_a_thread_gets_its_messages(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        thread = await adapter.create_thread(chat(lab, "channel"), "Trip <to> Rome & @here")
        await adapter.send(thread, "first", nonce="1")
        await adapter.send(chat(lab, "channel"), "beside it", nonce="2")
    assert lab.threads() == ["Trip <to> Rome & @here"]
    assert lab.shown("channel", thread=thread.thread_id or "") == ["first"]
    assert lab.shown("channel") == ["Trip <to> Rome & @here", "beside it"]


async def test_a_message_slack_does_not_render_goes_out_plain(lab: Lab) -> None:
    text = "**bold** <!channel>\n" + "x" * 3_900
    async with connected(lab) as (adapter, _):
        lab.refuse("invalid_blocks")
        ts = await adapter.send(chat(lab), text, nonce="1")
        assert lab.shown() == [text]
        lab.refuse("msg_blocks_too_long")
        await adapter.edit(chat(lab), ts, text + "!")
        assert lab.shown() == [text + "!"]


async def test_the_longest_text_fits_whatever_is_in_it(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        longest = adapter.capabilities.longest
        for piece in ("&", "<", "@here ", "<!here", "😀", "汉", "a\n"):
            text = (piece * longest)[:longest]
            ts = await adapter.send(chat(lab), text, nonce="1")
            await adapter.edit(chat(lab), ts, text)
            assert lab.shown()[-1] == text.strip()


async def test_nothing_said_pings_anybody(lab: Lab) -> None:
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


async def test_thinking_is_shown_in_a_thread_until_the_first_word(lab: Lab) -> None:
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


# ------------------------------------------------------------------------------------------------ trouble


async def test_too_many_requests_say_how_long_to_wait(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        for attempt in (adapter.send(chat(lab), "a", nonce="1"), adapter.edit(chat(lab), "1.1", "b")):
            lab.rate_limit(7)
            with pytest.raises(SlowDown) as slow:
                await attempt
            assert slow.value.retry_after == 7
        await adapter.send(chat(lab), "c", nonce="2")
    assert lab.shown() == ["c"]


async def test_a_server_error_is_worth_another_try_and_is_tried_once(lab: Lab) -> None:
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


@pytest.mark.parametrize(
    ("where", "word"), [(ARCHIVED, "archived"), (FOREIGN, "invite"), ("C000", "gone"), ("", "channel_not_found")]
)
async def test_a_chat_that_takes_no_messages_refuses_them(lab: Lab, where: str, word: str) -> None:
    async with connected(lab) as (adapter, _):
        with pytest.raises(SendRefused, match=word):
            await adapter.send(Chat(platform="slack", chat_id=where), "a", nonce="1")
        with pytest.raises(SendRefused):
            await adapter.create_thread(Chat(platform="slack", chat_id=where), "a")
        with pytest.raises(SendRefused):
            await adapter.edit(Chat(platform="slack", chat_id=where), "1.1", "a")


async def test_a_missing_right_is_named(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        lab.refuse("missing_scope", needed="chat:write")
        with pytest.raises(PlatformRefused, match="chat:write"):
            await adapter.send(chat(lab), "a", nonce="1")
        lab.refuse("token_revoked")
        with pytest.raises(PlatformRefused, match="bot_token"):
            await adapter.send(chat(lab), "a", nonce="1")


# ------------------------------------------------------------------------------------------------ files


async def test_a_file_is_an_attachment_whose_bytes_can_be_had(lab: Lab) -> None:
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


async def test_of_a_shared_file_the_event_has_the_id_alone(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        lab.attach(
            b"bytes", "cat.png", "image/png", url_private="", url_private_download="", file_access="check_file_info"
        )
        (file,) = (await link.heard())[0].attachments
        assert await adapter.fetch(file) == b"bytes"


async def test_deleted_files_are_no_attachments(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.attach(b"", "gone.png", "image/png", text="see", mode="tombstone")
        assert (await link.heard())[0].attachments == ()


async def test_the_token_goes_to_no_other_host(lab: Lab) -> None:
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


async def test_a_login_page_is_not_taken_for_the_file(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        lab.attach(b"bytes", "cat.png", "image/png")
        (file,) = (await link.heard())[0].attachments
        lab.answer_next("file", lambda: web.Response(status=302, headers={"Location": "/login"}))
        with pytest.raises(SendRefused, match="files:read"):
            await adapter.fetch(file)


async def test_trouble_with_files_has_the_same_names_as_elsewhere(lab: Lab) -> None:
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
    for_methods = {
        "chat:write",
        "commands",
        "files:read",
        "files:write",
        "im:write",
        "users:read",
    }  # send, /hermes, fetch, open, name
    for_names = {f"{place}:read" for place in ("channels", "groups", "im", "mpim")}  # conversations.info
    assert scopes == {*needed.values(), *for_methods, *for_names}


async def test_a_file_is_uploaded_then_shared_and_a_missing_scope_refuses_that_file_alone(lab: Lab) -> None:
    file = OutgoingFile(kind="file", name="<a> & b.txt", mime="text/plain", data=b"one")
    async with connected(lab) as (adapter, _):
        thread = await adapter.create_thread(chat(lab, "channel"), "Trip")
        await adapter.send_file(thread, file, caption="for <!channel> & you", nonce="1")
        shared = lab.state.shared[-1]
        assert shared[1:4] == (thread.thread_id, "<a> & b.txt", b"one")
        assert "&amp; you" in shared[4] and "<!channel>" not in shared[4]
        lab.refuse("missing_scope", method="files.getUploadURLExternal", needed="files:write")
        with pytest.raises(SendRefused, match="files:write"):
            await adapter.send_file(chat(lab), file, nonce="2")
        lab.refuse("internal_error", method="files.completeUploadExternal")
        with pytest.raises(PlatformUnreachable):
            await adapter.send_file(chat(lab), file, nonce="3")
