"""The Matrix adapter against a real Synapse, with a proxy between them for what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("nio")

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Attachment, Chat
from hermes.gateway.platforms.matrix.adapter import Matrix
from tests.support.labs.matrix import Lab
from tests.support.labs.recording import Recorder, connected


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 90))


def matrix(lab: Lab, home: Path, **values: Any) -> Matrix:
    return Matrix({**lab.settings, **values}, home)


def dm(lab: Lab, who: str = "alice") -> Chat:
    return Chat(platform="matrix", chat_id=lab.chat_id("dm", who))


# ---------------------------------------------------------------------------------------------------- login


def test_check_says_who_we_are_by_password_and_by_token(lab: Lab, tmp_path: Path) -> None:
    assert run(matrix(lab, tmp_path).check()) == lab.agent.user_id
    by_token = Matrix({"homeserver": lab.homeserver, "access_token": lab.agent.token, "encryption": False}, tmp_path)
    assert run(by_token.check()) == lab.agent.user_id


def test_a_token_of_somebody_else_is_refused(lab: Lab, tmp_path: Path) -> None:
    adapter = matrix(lab, tmp_path, access_token=lab.people["bob"].token)
    with pytest.raises(PlatformRefused, match="not of @hermes"):
        run(adapter.check())


async def test_a_token_of_a_device_with_keys_of_its_own_is_refused_where_encryption_is_on(
    lab: Lab, tmp_path: Path
) -> None:
    async with connected(matrix(lab, tmp_path / "one")):
        pass
    token = json.loads((tmp_path / "one" / "matrix" / "login.json").read_text())["access_token"]
    with pytest.raises(PlatformRefused, match="made for Hermes alone"):
        await matrix(lab, tmp_path / "two", access_token=token).connect(Recorder())
    async with connected(matrix(lab, tmp_path / "two", access_token=token, encryption=False)) as link:
        assert link.identities == [lab.agent.user_id]


def test_the_same_device_is_used_again_and_a_new_one_when_the_server_has_forgotten_it(lab: Lab, tmp_path: Path) -> None:
    def device() -> str:
        run(matrix(lab, tmp_path).check())
        return str(json.loads((tmp_path / "matrix" / "login.json").read_text())["device_id"])

    first = device()
    assert device() == first
    token = json.loads((tmp_path / "matrix" / "login.json").read_text())["access_token"]
    lab.agent.http.post("/_matrix/client/v3/logout", headers={"Authorization": f"Bearer {token}"}).raise_for_status()
    assert device() != first


def test_no_server_is_unreachable_and_no_matrix_server_is_refused(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(PlatformUnreachable):
        run(matrix(lab, tmp_path, homeserver="http://127.0.0.1:9").check())
    lab.proxy.fail(1, 404, {"Content-Type": "text/html"}, "<h1>Welcome</h1>")
    with pytest.raises(PlatformRefused):
        run(matrix(lab, tmp_path).check())
    lab.proxy.fail(1, 200, {"Content-Type": "text/html"}, "<h1>Please log in to the hotel's network</h1>")
    with pytest.raises(PlatformUnreachable):
        run(matrix(lab, tmp_path).check())


# ---------------------------------------------------------------------------------------------------- receiving


async def test_messages_come_from_every_kind_of_place(lab: Lab, tmp_path: Path) -> None:
    async with connected(matrix(lab, tmp_path)) as link:
        assert link.identities == [lab.agent.user_id]
        said = lab.say("in private")
        event = await link.event("in private")
        assert (event.id, event.message_id, event.chat.type) == (said, said, "dm")
        assert (event.chat.chat_id, event.chat.name) == (lab.chat_id("dm"), "Alice")
        assert (event.sender.id, event.sender.name) == (lab.user_id("alice"), "Alice")
        lab.say("in the group", who="bob", where="group")
        event = await link.event("in the group")
        assert (event.chat.type, event.chat.name, event.addressed) == ("group", "The team", True)
        assert (event.sender.id, event.sender.name, event.chat.thread_id) == (lab.user_id("bob"), "Bob", None)
        lab.say("among people", where="group", addressed=False)
        assert not (await link.event("among people")).addressed
        lab.say("in the thread", where="thread")
        assert (await link.event("in the thread")).chat.thread_id == lab.root


def test_what_was_said_before_the_very_first_sync_is_history(lab: Lab, tmp_path: Path) -> None:
    async def heard() -> list[str]:
        async with connected(matrix(lab, tmp_path)) as link:
            lab.say("now")
            await link.event("now")
            return link.texts

    lab.say("before")
    assert run(heard()) == ["now"]
    lab.say("meanwhile")
    assert run(heard()) == ["meanwhile", "now"]


async def test_an_answer_to_a_message_of_ours_addresses_us(lab: Lab, tmp_path: Path) -> None:
    group = Chat(platform="matrix", chat_id=lab.chat_id("group"), type="group")

    def answer(text: str, to: str) -> None:
        content = {"msgtype": "m.text", "body": text, "m.relates_to": {"m.in_reply_to": {"event_id": to}}}
        lab.people["alice"].send(group.chat_id, content)

    async with connected(matrix(lab, tmp_path)):
        adapter = matrix(lab, tmp_path / "before")
        async with connected(adapter):
            mine = await adapter.send(group, "before the restart", nonce="1")
    theirs = lab.say("not ours", who="bob", where="group", addressed=False)
    async with connected(matrix(lab, tmp_path)) as link:
        answer("to you", mine)
        event = await link.event("to you")
        assert (event.chat.type, event.addressed, event.reply_to) == ("group", True, mine)
        answer("to bob", theirs)
        assert not (await link.event("to bob")).addressed


async def test_the_words_that_are_answered_are_fetched_where_the_client_does_not_repeat_them(
    lab: Lab, tmp_path: Path
) -> None:
    group = Chat(platform="matrix", chat_id=lab.chat_id("group"), type="group")

    def answer(text: str, to: str) -> str:
        content = {"msgtype": "m.text", "body": text, "m.relates_to": {"m.in_reply_to": {"event_id": to}}}
        return lab.people["alice"].send(group.chat_id, content)

    theirs = lab.say("we meet at 5", who="bob", where="group", addressed=False)
    adapter = matrix(lab, tmp_path)
    async with connected(adapter) as link:
        first = answer("when?", theirs)
        event = await link.event("when?")
        assert (event.quoted, event.reply_to) == ("we meet at 5", theirs)
        answer("> <@bob:x> we meet at 5\n\nreally?", first)  # a client that does repeat something
        assert (await link.event("really?")).quoted == "we meet at 5"
        answer("and that?", "$nothing-of-this-name")
        assert (await link.event("and that?")).quoted is None
        mine = await adapter.send(group, "It grows", nonce="1")
        await adapter.edit(group, mine, "It grows and is whole now.")
        answer("is it?", mine)
        assert (await link.event("is it?")).quoted == "It grows and is whole now."
    async with connected(matrix(lab, tmp_path)) as link:  # the server knows the newest version, too
        answer("still?", mine)
        assert (await link.event("still?")).quoted == "It grows and is whole now."


async def test_what_bots_and_we_ourselves_say_and_edits_are_no_events(lab: Lab, tmp_path: Path) -> None:
    alice, room = lab.people["alice"], lab.chat_id("dm")
    adapter = matrix(lab, tmp_path)
    async with connected(adapter) as link:
        await adapter.send(dm(lab), "my own words", nonce="own")
        said = lab.say("frist")
        new = {"msgtype": "m.text", "body": "first"}
        alice.send(
            room,
            {
                **new,
                "body": "* first",
                "m.new_content": new,
                "m.relates_to": {"rel_type": "m.replace", "event_id": said},
            },
        )
        alice.send(room, {"msgtype": "m.notice", "body": "I am a bot"})
        alice.ask(
            "PUT",
            f"/rooms/{quote(room)}/send/m.reaction/{said[1:9]}",
            json={"m.relates_to": {"rel_type": "m.annotation", "event_id": said, "key": "👍"}},
        )
        lab.say("second")
        await link.event("second")
        assert link.texts == ["frist", "second"]


async def test_an_invitation_is_accepted_and_what_was_said_right_after_it_is_heard(lab: Lab, tmp_path: Path) -> None:
    alice = lab.people["alice"]
    async with connected(matrix(lab, tmp_path)) as link:
        room = alice.create_room(lab.agent, join=False, is_direct=True)
        alice.send(room, {"msgtype": "m.text", "body": "hello at once"})
        assert (await link.event("hello at once")).chat.chat_id == room
        old = alice.create_room()
        alice.send(old, {"msgtype": "m.text", "body": "before you came"})
        alice.ask("POST", f"/rooms/{quote(old)}/invite", json={"user_id": lab.agent.user_id})
        alice.send(old, {"msgtype": "m.text", "body": "welcome"})
        await link.event("welcome")
        assert link.texts == ["hello at once", "welcome"]


async def test_invitations_stay_open_without_auto_join(lab: Lab, tmp_path: Path) -> None:
    alice = lab.people["alice"]
    async with connected(matrix(lab, tmp_path, auto_join=False)) as link:
        room = alice.create_room(lab.agent, join=False)
        lab.say("later")
        await link.event("later")
        state = alice.ask("GET", f"/rooms/{quote(room)}/state/m.room.member/{quote(lab.agent.user_id)}")
        assert state["membership"] == "invite"


async def test_all_that_was_said_while_we_were_away_comes_in_order(lab: Lab, tmp_path: Path) -> None:
    many = [f"message {number}" for number in range(130)]  # more than one sync shows, and more than a page
    async with connected(matrix(lab, tmp_path)):
        pass
    for text in many:
        lab.say(text)
    async with connected(matrix(lab, tmp_path)) as link:
        await link.event(many[-1])
        assert link.texts == many


async def test_a_file_can_be_fetched_also_after_a_restart(lab: Lab, tmp_path: Path) -> None:
    data = bytes(range(256)) * 200
    async with connected(matrix(lab, tmp_path)) as link:
        lab.attach(data, "picture.png", "image/png", text="what is this?")
        event = await link.event("what is this?")
        attachment = event.attachments[0]
        assert (attachment.kind, attachment.name, attachment.mime) == ("image", "picture.png", "image/png")
        assert attachment.size == len(data)
    adapter = matrix(lab, tmp_path)
    async with connected(adapter):
        assert await adapter.fetch(attachment) == data
        gone = Attachment(kind="file", reference={"url": "mxc://lab.test/doesnotexist"})
        with pytest.raises(SendRefused):
            await adapter.fetch(gone)


# ---------------------------------------------------------------------------------------------------- sending


async def test_nobody_edits_a_message_of_somebody_else(lab: Lab, tmp_path: Path) -> None:
    async with connected(matrix(lab, tmp_path)) as link:
        said = lab.say("in a group", where="group")
        await link.event("in a group")
        lab.change(said, "words in her mouth", who="bob", where="group")
        lab.change(said, "in this group", where="group")
        lab.take_back(said, where="group")
        await link.until(lambda: len(link.revisions) == 2)
        edit, gone = link.revisions
        assert edit.event is not None and (edit.revises, edit.event.text) == (said, "in this group")
        assert edit.event.sender.user_id == lab.user_id("alice")
        assert (gone.revises, gone.event) == (said, None)
        assert link.texts == ["in a group"]


async def test_a_message_is_formatted_and_can_be_edited(lab: Lab, tmp_path: Path) -> None:
    adapter = matrix(lab, tmp_path)
    async with connected(adapter):
        sent = await adapter.send(dm(lab), "Some **bold** words", nonce="1")
        assert lab.messages()[0]["formatted_body"] == "<p>Some <strong>bold</strong> words</p>"
        await adapter.edit(dm(lab), sent, "Other *words*")
        await adapter.send(dm(lab), "and more", nonce="2")
        assert lab.shown() == ["Other *words*", "and more"]
        assert lab.messages()[0]["formatted_body"] == "<p>Other <em>words</em></p>"


async def test_a_reply_goes_into_the_thread_and_points_to_its_question(lab: Lab, tmp_path: Path) -> None:
    adapter = matrix(lab, tmp_path)
    async with connected(adapter) as link:
        lab.say("in the thread?", where="thread")
        event = await link.event("in the thread?")
        await adapter.send(event.chat, "in the thread", nonce="1", reply_to=event.message_id)
        lab.say("outside?", where="group")
        event = await link.event("outside?")
        await adapter.send(event.chat, "outside", nonce="2", reply_to=event.message_id)
        assert lab.shown("thread") == ["in the thread"]
        assert lab.shown("group") == ["outside"]
        relation = lab.messages("group")[0]["m.relates_to"]
        assert relation == {"m.in_reply_to": {"event_id": event.message_id}}


async def test_the_same_nonce_makes_one_message_also_after_a_restart(lab: Lab, tmp_path: Path) -> None:
    sent = []
    for _ in range(2):
        adapter = matrix(lab, tmp_path)
        async with connected(adapter):
            sent += [await adapter.send(dm(lab), "only once", nonce="n") for _ in range(2)]
    assert len(set(sent)) == 1
    assert lab.shown() == ["only once"]


async def test_rate_limits_errors_and_rooms_that_are_not_ours_are_told_apart(lab: Lab, tmp_path: Path) -> None:
    adapter = matrix(lab, tmp_path)
    async with connected(adapter):
        lab.rate_limit(1.5)
        with pytest.raises(SlowDown) as slow:
            await adapter.send(dm(lab), "x", nonce="1")
        assert slow.value.retry_after == 1.5
        lab.proxy.rate_limit(7, path="/send/m.room.", body="<busy>")  # only the header says how long
        with pytest.raises(SlowDown) as slow:
            await adapter.edit(dm(lab), "$x", "x")
        assert slow.value.retry_after == 7
        lab.fail()
        with pytest.raises(PlatformUnreachable):
            await adapter.send(dm(lab), "x", nonce="1")
        lab.proxy.fail(1, 502, path="/typing/")
        with pytest.raises(PlatformUnreachable):
            await adapter.typing(dm(lab))
        with pytest.raises(SendRefused):
            await adapter.send(Chat(platform="matrix", chat_id="!nowhere:lab.test"), "x", nonce="1")
        assert await adapter.send(dm(lab), "x", nonce="1")
        assert lab.shown() == ["x"]


# ---------------------------------------------------------------------------------------------------- breaking


async def test_the_gateway_is_told_when_the_login_is_taken_away(lab: Lab, tmp_path: Path) -> None:
    async with connected(matrix(lab, tmp_path)) as link:
        token = json.loads((tmp_path / "matrix" / "login.json").read_text())["access_token"]
        lab.agent.http.post("/_matrix/client/v3/logout", headers={"Authorization": f"Bearer {token}"})
        await link.until(lambda: link.losses, "the loss is not told")
        assert isinstance(link.losses[0], PlatformRefused)
