"""Encrypted Matrix rooms on a real Synapse: the adapter on one side, a plain nio client as the person on the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.platforms import conftest as fixtures
from tests.support.waiting import until_async

pytest.importorskip("nio")
pytest.importorskip("vodozemac")

from nio import AsyncClient, AsyncClientConfig, MegolmEvent, ToDeviceMessage
from nio.crypto import decrypt_attachment, encrypt_attachment

from hermes.errors import PlatformUnreachable, SendRefused
from hermes.gateway.events import Chat, OutgoingFile, as_json
from hermes.gateway.platforms.matrix.adapter import Matrix
from hermes.gateway.platforms.matrix.client import MatrixClient, SavedState, log_in
from tests.support.labs.matrix import Lab, Person
from tests.support.labs.recording import connected
from tests.support.sizes import some

lab, place = fixtures.lab, fixtures.place


def encrypted_room(lab: Lab, *others: Person) -> Chat:
    state = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
    room = lab.people["alice"].create_room(lab.agent, *others, initial_state=[state])
    return Chat(platform="matrix", chat_id=room)


class Phone:
    """Alice's own client, with keys of its own."""

    def __init__(self, person: Person, port: int, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.nio = AsyncClient(
            f"http://127.0.0.1:{port}", person.user_id, store_path=str(folder), config=AsyncClientConfig()
        )
        self.password = person.password
        self.heard: list[dict[str, Any]] = []  # contents of what others said, as it was decrypted
        self.unread = 0

    async def sync(self) -> None:
        """One look at the server, with everything encryption needs."""
        answer = await self.nio.sync(timeout=100)
        for info in answer.rooms.join.values():
            for event in info.timeline.events:
                if event.sender != self.nio.user_id and event.source["type"].startswith("m.room."):
                    self.unread += isinstance(event, MegolmEvent)
                    if event.source["type"] == "m.room.message":
                        self.heard.append(event.source["content"])
        if self.nio.should_upload_keys:
            await self.nio.keys_upload()
        if self.nio.should_query_keys:
            await self.nio.keys_query()
        await self.nio.send_to_device_messages()

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        await until_async(condition, lambda: f"{what}: {self.heard}", pause=lambda _: self.sync())

    async def say(self, chat: Chat, content: str | dict[str, Any]) -> str:
        whole = {"msgtype": "m.text", "body": content} if isinstance(content, str) else content
        sent = await self.nio.room_send(chat.chat_id, "m.room.message", whole, ignore_unverified_devices=True)
        return str(sent.event_id)


@asynccontextmanager
async def phone(lab: Lab, folder: Path) -> AsyncIterator[Phone]:
    made = Phone(lab.people["alice"], lab.synapse.port, folder)
    await made.nio.login(made.password)
    try:
        await made.sync()
        made.heard.clear()  # what was said to alice in other tests
        made.unread = 0
        yield made
    finally:
        await made.nio.close()


def matrix(lab: Lab, home: Path, **values: Any) -> Matrix:
    return Matrix({**lab.settings, **values}, home)


async def test_a_conversation_in_an_encrypted_room(lab: Lab, tmp_path: Path) -> None:
    chat = encrypted_room(lab)
    adapter = matrix(lab, tmp_path / "home")
    async with connected(adapter) as link, phone(lab, tmp_path / "alice") as alice:
        said = await alice.say(chat, "can you read this?")
        event = await link.event("can you read this?")
        assert (event.id, event.chat.type, event.sender.name) == (said, "dm", "Alice")
        await adapter.typing(chat)
        sent = await adapter.send(event.chat, "Yes, **all** of it", nonce="1", reply_to=said)
        assert await adapter.send(event.chat, "Yes, **all** of it", nonce="1") == sent
        await alice.until(lambda: alice.heard, "the answer does not come")
        assert alice.heard[0]["formatted_body"] == "<p>Yes, <strong>all</strong> of it</p>"
        assert alice.heard[0]["m.relates_to"] == {"m.in_reply_to": {"event_id": said}}
        await adapter.edit(event.chat, sent, "Yes")
        await alice.until(lambda: len(alice.heard) > 1, "the edit does not come")
        assert alice.heard[1]["m.new_content"]["body"] == "Yes"
        assert alice.heard[1]["m.relates_to"] == {"rel_type": "m.replace", "event_id": sent}
        assert (len(alice.heard), alice.unread) == (2, 0)


async def test_the_server_sees_nothing_of_it(lab: Lab, tmp_path: Path) -> None:
    chat = encrypted_room(lab)
    adapter = matrix(lab, tmp_path / "home")
    async with connected(adapter):
        await adapter.send(chat, "between you and me", nonce="1")
    requests = [request for request in lab.proxy.requests if "/send/" in request.path]
    assert requests
    assert all("m.room.encrypted" in request.path for request in requests)
    assert b"between you" not in b"".join(request.body for request in lab.proxy.requests)


async def test_a_file_for_an_encrypted_room_is_encrypted_and_sent_once(lab: Lab, tmp_path: Path) -> None:
    chat, data = encrypted_room(lab), b"%PDF the plan of the treasure" * 50
    file = OutgoingFile(kind="file", name="Schatzkarte für Anna.pdf", mime="application/pdf", data=data)
    adapter = matrix(lab, tmp_path / "home")
    async with connected(adapter) as link, phone(lab, tmp_path / "alice") as alice:
        await alice.say(chat, "send it")
        await link.event("send it")
        sent = await adapter.send_file(chat, file, caption="**here**", nonce="f")
        assert await adapter.send_file(chat, file, caption="**here**", nonce="f") == sent
        await alice.until(lambda: alice.heard, "the file does not come")
        (content,) = alice.heard
        assert (content["msgtype"], content["filename"], content["body"]) == ("m.file", file.name, "**here**")
        assert content["formatted_body"] == "<p><strong>here</strong></p>" and "url" not in content
        about = content["file"]
        stored = lab.people["alice"].download(about["url"])
        assert decrypt_attachment(stored, about["key"]["k"], about["hashes"]["sha256"], about["iv"]) == data
    requests = list(lab.proxy.requests)
    seen = b"".join(one.path.encode() + one.body for one in requests)
    assert any("/upload" in one.path for one in requests)
    assert b"treasure" not in seen and b"Schatzkarte" not in seen and b"application/pdf" not in seen


async def test_an_encrypted_file_is_decrypted_also_after_a_restart(lab: Lab, tmp_path: Path) -> None:
    chat = encrypted_room(lab)
    data = bytes(range(256)) * 50
    sealed, keys = encrypt_attachment(data)
    url = lab.people["alice"].upload(sealed, "secret.pdf", "application/octet-stream")
    content = {
        "msgtype": "m.file",
        "body": "read this",
        "filename": "plan.pdf",
        "file": {**keys, "url": url, "v": "v2"},
        "info": {"mimetype": "application/pdf", "size": len(data)},
    }
    async with connected(matrix(lab, tmp_path / "home")) as link, phone(lab, tmp_path / "alice") as alice:
        await alice.say(chat, content)
        attachment = (event := await link.event("read this")).attachments[0]
        assert (attachment.name, attachment.mime, attachment.kind) == ("plan.pdf", "application/pdf", "file")
        assert keys["key"]["k"] not in as_json(event)
    again = matrix(lab, tmp_path / "home")
    async with connected(again):
        assert await again.fetch(attachment) == data


async def test_keys_and_messages_of_the_time_we_were_away_are_there_after_a_restart(lab: Lab, tmp_path: Path) -> None:
    chat = encrypted_room(lab)
    async with phone(lab, tmp_path / "alice") as alice:
        async with connected(matrix(lab, tmp_path / "home")) as link:
            await alice.sync()
            await alice.say(chat, "one")
            await link.event("one")
        await alice.say(chat, "two")  # the key is that of "one": it must have been kept
        alice.nio.invalidate_outbound_session(chat.chat_id)
        await alice.say(chat, "three")  # a new key, sent while we were away
        adapter = matrix(lab, tmp_path / "home")
        async with connected(adapter) as link:
            await link.event("three")
            assert link.texts == ["two", "three"]
            await adapter.send(chat, "all read", nonce="1")
            await alice.until(lambda: alice.heard, "the answer does not come")
            assert (alice.heard[0]["body"], alice.unread) == ("all read", 0)


async def test_a_message_without_its_key_waits_for_it_also_over_a_restart(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chat = encrypted_room(lab)
    async with phone(lab, tmp_path / "alice") as alice:
        async with connected(matrix(lab, tmp_path / "home")) as link:
            await alice.nio.joined_members(chat.chat_id)
            await alice.until(lambda: _device(alice.nio, tmp_path / "home", lab), "the device is not known")
            device = _device(alice.nio, tmp_path / "home", lab)
            alice.nio.blacklist_device(device)
            await alice.nio.share_group_session(chat.chat_id, ignore_unverified_devices=True)
            key = alice.nio.olm.outbound_group_sessions[chat.chat_id]
            room_key = {
                "algorithm": "m.megolm.v1.aes-sha2",
                "room_id": chat.chat_id,
                "session_id": key.id,
                "session_key": key.session_key,
            }
            await alice.say(chat, "which key?")
            await link.until(lambda: "can't be decrypted yet" in caplog.text, "nobody says so")
        alice.nio.unblacklist_device(device)
        await alice.nio.keys_claim({lab.agent.user_id: [device.id]})
        session = alice.nio.olm.session_store.get(device.curve25519)
        sealed = alice.nio.olm._olm_encrypt(session, device, "m.room_key", room_key)
        async with connected(matrix(lab, tmp_path / "home")) as link:
            assert link.texts == []
            await alice.nio.to_device(ToDeviceMessage("m.room.encrypted", lab.agent.user_id, device.id, sealed))
            event = await link.event("which key?")
            assert (event.chat.chat_id, event.sender.name) == (chat.chat_id, "Alice")
        async with connected(matrix(lab, tmp_path / "home")) as link:
            lab.say("and now?")
            await link.event("and now?")
            assert "which key?" not in link.texts


def _device(client: AsyncClient, home: Path, lab: Lab) -> Any:
    """The adapter's device, as alice's client knows it."""
    ours = json.loads((home / "matrix" / "login.json").read_text())["device_id"]
    known = client.device_store.active_user_devices(lab.agent.user_id)
    return next((one for one in known if one.id == ours), None)


@pytest.mark.parametrize("path", some(["/keys/claim", "/sendToDevice/", "/joined_members", "/keys/query"], 2))
async def test_a_key_that_could_not_be_shared_is_shared_before_the_next_try(
    lab: Lab, tmp_path: Path, path: str
) -> None:
    chat = encrypted_room(lab)
    adapter = matrix(lab, tmp_path / "home")
    async with phone(lab, tmp_path / "alice") as alice, connected(adapter):
        lab.proxy.fail(1, 500, path=path)
        try:
            await adapter.send(chat, "hello", nonce="1")
        except PlatformUnreachable:
            await asyncio.wait_for(adapter.send(chat, "hello", nonce="1"), 10)
        else:
            assert path == "/keys/query"  # asked for before, in peace
        await alice.until(lambda: alice.heard or alice.unread, "the message does not come")
        assert ([content["body"] for content in alice.heard], alice.unread) == (["hello"], 0)


async def test_nothing_is_sent_unencrypted_into_an_encrypted_room(lab: Lab, tmp_path: Path) -> None:
    chat = encrypted_room(lab)
    adapter = matrix(lab, tmp_path / "home", encryption=False)
    async with connected(adapter) as link:
        with pytest.raises(SendRefused, match="encrypted"):
            await adapter.send(chat, "in the clear", nonce="1")
        lab.say("and here?")
        await link.event("and here?")
    assert lab.proxy.count("/send/m.room.message") == 0


async def test_a_new_device_of_a_person_can_read_on(lab: Lab, tmp_path: Path) -> None:
    chat = encrypted_room(lab)
    adapter = matrix(lab, tmp_path / "home")
    async with connected(adapter) as link, phone(lab, tmp_path / "first") as first:
        await adapter.send(chat, "to the first", nonce="1")
        await first.until(lambda: first.heard, "the first does not hear")
        async with phone(lab, tmp_path / "second") as second:
            await second.say(chat, "I have a new phone")
            await link.event("I have a new phone")
            await adapter.send(chat, "to both", nonce="2")
            await second.until(lambda: {"msgtype": "m.text", "body": "to both", "m.mentions": {}} in second.heard, "no")
            await first.until(lambda: len(first.heard) > 1, "the first does not hear on")


async def test_an_upload_of_keys_that_broke_off_is_finished_after_a_restart(lab: Lab, tmp_path: Path) -> None:
    chat = encrypted_room(lab)
    memory = SavedState(tmp_path / "home", lab.homeserver)
    client = MatrixClient(lab.homeserver, lab.settings["user_id"], str(memory.keys))
    await log_in(client, lab.settings, memory)
    upload = asyncio.create_task(client.tend_keys())
    while not lab.proxy.count("/keys/upload"):
        await asyncio.sleep(0)
    upload.cancel()  # the server has the keys, and we never heard of it: as a kill at this moment
    await client.close()
    async with phone(lab, tmp_path / "alice") as alice, connected(matrix(lab, tmp_path / "home")) as link:
        await alice.say(chat, "are your keys whole?")
        await link.event("are your keys whole?")
