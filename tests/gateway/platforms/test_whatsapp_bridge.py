"""WhatsApp through a bridge: the process and its life, pairing, acknowledgement, LIDs, and the JavaScript bridge in contrib/."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import PlatformRefused, SendRefused
from hermes.gateway.events import Chat, Event, OutgoingFile, Revision
from hermes.gateway.platforms.whatsapp.adapter import WhatsApp
from hermes.gateway.platforms.whatsapp.bridge import BridgeReader
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.recording import Recorder, connected
from tests.support.labs.whatsapp_bridge import GROUP, TOKEN, Lab
from tests.support.ports import free_port

ROOT = Path(__file__).parents[3]
CONTRIB = ROOT / "contrib" / "whatsapp-bridge"
COMMAND = f"env PYTHONPATH={ROOT} {sys.executable} -m tests.support.labs.whatsapp_bridge"
ALICE = "15005550101"
DM = Chat(platform="whatsapp", chat_id=ALICE)


@pytest.fixture
def lab(place: Lab) -> Iterator[Lab]:
    place.reset()
    place.bridge.state = "connected"
    yield place
    assert place.problems() == []


class Started(Lab):
    """The settings of a lab whose bridge the gateway starts."""

    def __init__(self, command: str) -> None:
        self._command = command

    @property
    def settings(self) -> dict[str, Any]:
        return {"mode": "bridge", "bridge_command": self._command}


def folder_of(home: Path, *, scanned: bool) -> Path:
    folder = home / "whatsapp" / "session"
    folder.mkdir(parents=True)
    if scanned:
        (folder / "scanned").touch()
    return folder


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


# ------------------------------------------------------------------------------------------------ the process


def test_the_gateway_starts_a_bridge_restarts_it_and_ends_it(model: Echo, hermes_home: Path) -> None:
    folder = folder_of(hermes_home, scanned=True)

    def shown() -> str:
        return "\n".join(file.read_text() for file in folder.glob("sent-*"))

    with running(Started(COMMAND), model):
        first = int((folder / "pid").read_text())
        (folder / "say").write_text("hello\n")
        until(lambda: "echo: hello" in shown())
        os.kill(first, signal.SIGKILL)
        until(lambda: int((folder / "pid").read_text() or 0) not in (0, first))
        second = int((folder / "pid").read_text())
        (folder / "say").write_text("hello\nagain\n")  # the new one reports the first again
        until(lambda: "echo: again" in shown())
        assert shown().count("echo: hello") == 1
    until(lambda: not lives(second))


HOLDER = """
import asyncio, sys
from pathlib import Path
from hermes.gateway.platforms.whatsapp.adapter import WhatsApp
from tests.support.labs.recording import Recorder

async def live():
    await WhatsApp({"mode": "bridge", "bridge_command": sys.argv[1]}, Path(sys.argv[2])).connect(Recorder())
    print("connected", flush=True)
    await asyncio.sleep(600)

asyncio.run(live())
"""


def test_a_killed_gateway_leaves_no_bridge_behind(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, scanned=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, COMMAND, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "connected\n"
        holder.kill()
    until(lambda: not lives(int((folder / "pid").read_text())))


def test_a_bridge_does_not_get_our_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-precious")
    script = tmp_path / "bridge.sh"
    script.write_text(f"env > {tmp_path}/seen; exec {COMMAND}")
    folder_of(tmp_path, scanned=True)
    assert asyncio.run(WhatsApp(Started(f"sh {script}").settings, tmp_path).check()) == "+15550783881"
    seen = (tmp_path / "seen").read_text()
    assert "HERMES_BRIDGE_TOKEN=" in seen and "PATH=" in seen
    assert "sk-precious" not in seen


async def test_a_bridge_that_is_not_paired_is_refused_with_the_command_that_pairs_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, scanned=False)
    adapter = WhatsApp(Started(COMMAND).settings, tmp_path)
    with pytest.raises(PlatformRefused, match="hermes gateway setup whatsapp"):
        await adapter.connect(Recorder())
    until(lambda: not lives(int((folder / "pid").read_text())))


def test_pairing_shows_the_code_and_ends_when_it_is_scanned(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, scanned=False)
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if "█" in text:
            (folder / "scanned").touch()

    assert asyncio.run(WhatsApp(Started(COMMAND).settings, tmp_path).login(show)) == {}
    assert [text for text in shown if "█" in text] == ["█▀▀▀█ a code"]
    assert shown[-1] == "Paired with +15550783881."
    assert asyncio.run(WhatsApp(Started(COMMAND).settings, tmp_path).check()) == "+15550783881"
    assert not lives(int((folder / "pid").read_text()))


async def test_a_second_bridge_for_the_same_number_is_not_started(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, scanned=True)
    async with connected(WhatsApp(Started(COMMAND).settings, tmp_path)):
        first = (folder / "pid").read_text()
        assert await WhatsApp(Started(COMMAND).settings, tmp_path).check() == "a bridge that is already running"
        assert (folder / "pid").read_text() == first


def test_a_command_that_does_not_exist_and_a_wrong_token_are_named(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(PlatformRefused, match="bridge_command can't be run"):
        asyncio.run(WhatsApp(Started("/nonexistent/bridge --x").settings, tmp_path).check())
    with pytest.raises(PlatformRefused, match="does not accept bridge_token"):
        asyncio.run(WhatsApp({**lab.settings, "bridge_token": "wrong"}, tmp_path).check())


# ------------------------------------------------------------------------------------------------ messages


async def test_a_bridge_that_was_logged_out_is_reported(lab: Lab, tmp_path: Path) -> None:
    link = Recorder()
    async with connected(WhatsApp(lab.settings, tmp_path), link):
        lab.bridge.state = "logged_out"
        lab.bridge.report({})
        await link.until(lambda: link.losses)
        assert "not paired" in str(link.losses[0])


async def test_a_message_is_not_sent_twice_when_its_answer_was_lost(lab: Lab, tmp_path: Path) -> None:
    adapter = WhatsApp(lab.settings, tmp_path)
    async with connected(adapter, Recorder()):
        assert await adapter.was_sent(DM, nonce="n") is False
        first = await adapter.send(DM, "hello", nonce="n")
        assert await adapter.was_sent(DM, nonce="n") is True
        assert await adapter.send(DM, "hello", nonce="n") == first
        lab.bridge.refusals = [(400, "no such chat", {})]
        with pytest.raises(SendRefused, match="no such chat"):
            await adapter.send(DM, "hello", nonce="m")
    assert lab.shown() == ["hello"]


def test_a_reply_quotes_its_question(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        number = lab.say("**hello**")
        until(lambda: lab.shown() == ["echo: *hello*"])
        assert lab.bridge.sent[0]["quote"] == {"id": number, "sender": f"{ALICE}@s.whatsapp.net", "text": "**hello**"}


# ------------------------------------------------------------------------------------------------ people


def told(**more: Any) -> dict[str, Any]:
    jid = f"{ALICE}@s.whatsapp.net"
    return {
        "type": "message",
        "id": "3A1",
        "chat": jid,
        "sender": jid,
        "text": "hi",
        "timestamp": 1_700_000_000,
        **more,
    }


def test_a_lid_and_a_number_are_one_person(tmp_path: Path) -> None:
    folder, lid = folder_of(tmp_path, scanned=True), "999888777666555"
    (folder / f"lid-mapping-{ALICE}.json").write_text(json.dumps(lid))
    (folder / f"lid-mapping-{lid}_reverse.json").write_text(json.dumps(ALICE))
    reader = BridgeReader(tmp_path)
    by_lid = reader.read(told(chat=f"{lid}@lid", sender=f"{lid}:3@lid"))
    by_number = reader.read(told(sender=f"{ALICE}:12@s.whatsapp.net"))
    assert isinstance(by_lid, Event) and isinstance(by_number, Event)
    assert by_lid == by_number
    assert (by_lid.sender.user_id, by_lid.sender.id, by_lid.chat.chat_id) == (f"+{ALICE}", ALICE, ALICE)
    unknown = reader.read(told(chat="111222333444555@lid", sender="111222333444555@lid"))
    assert isinstance(unknown, Event)
    assert (unknown.sender.id, unknown.chat.chat_id) == ("111222333444555@lid",) * 2  # no number, and not taken for one
    assert reader.address(unknown.chat.chat_id) == "111222333444555@lid"
    assert reader.address("+15005550101") == reader.address(ALICE) == f"{ALICE}@s.whatsapp.net"


def test_nobody_changes_what_another_has_written(tmp_path: Path) -> None:
    reader = BridgeReader(tmp_path)
    first = reader.read(told(chat=GROUP))
    forged = reader.read(told(chat=GROUP, sender="15005550103@s.whatsapp.net", type="delete", target="3A1", id="3A2"))
    own = reader.read(told(chat=GROUP, type="delete", target="3A1", id="3A3"))
    assert isinstance(first, Event) and isinstance(forged, Revision) and isinstance(own, Revision)
    assert own.revises == first.id != forged.revises


def test_our_own_messages_broadcasts_and_channels_are_left_out(tmp_path: Path) -> None:
    reader = BridgeReader(tmp_path)
    reader.is_us("15550783881:7@s.whatsapp.net", "201122334455667:7@lid")
    for more in ({"sender": "15550783881@s.whatsapp.net"}, {"sender": "201122334455667@lid", "chat": GROUP},
                 {"chat": "status@broadcast"}, {"chat": "1@newsletter"}):  # fmt: skip
        assert reader.read(told(**more)) is None
    quoting = reader.read(told(chat=GROUP, quoted={"id": "x", "sender": "201122334455667@lid", "text": "y"}))
    assert isinstance(quoting, Event) and quoting.addressed and quoting.quoted == "y"
    other = reader.read(told(chat=GROUP, mentions=["15005550102@s.whatsapp.net"]))
    assert isinstance(other, Event) and not other.addressed


_JSON = anything("id", "sender", "text", "mime", "size", "name", floats=True)
_FIELDS = [
    "id", "chat", "sender", "text", "mentions", "quoted", "files", "target", "emoji", "timestamp", "name", "type",
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=4), st.sampled_from(["message", "edit", "delete", "reaction"]), _JSON
)  # fmt: skip
def test_no_event_of_a_bridge_raises(more: dict[str, Any], kind: str, other: Any) -> None:
    reader = BridgeReader(Path("/nonexistent"))
    reader.read(other)
    found = reader.read({**told(type=kind, target="3A0", emoji="👍"), **more})
    assert found is None or isinstance(found, Event | Revision)


# ------------------------------------------------------------------------------------------------ the bridge in contrib/

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
BAILEYS = """
import fs from 'node:fs'
import { EventEmitter } from 'node:events'
export const BufferJSON = { replacer: (_, value) => value, reviver: (_, value) => value }
export const proto = { Message: { fromObject: content => content } }
export const DisconnectReason = { loggedOut: 401, restartRequired: 515 }
export const normalizeMessageContent = content => content?.ephemeralMessage?.message || content
export const downloadMediaMessage = async message => Buffer.from(message.message.documentMessage.stored)
export const useMultiFileAuthState = async folder => ({ state: { folder }, saveCreds: () => {} })
export default function makeWASocket ({ auth }) {
  const ev = new EventEmitter()
  const sock = { ev, user: undefined, readMessages: async () => {}, sendPresenceUpdate: async () => {} }
  let said = 0
  sock.sendMessage = async (chat, content, options) => {
    const shown = Object.fromEntries(Object.entries(content).map(([key, value]) => [key, Buffer.isBuffer(value) ? value.toString() : value]))
    fs.appendFileSync(`${auth.folder}/out`, JSON.stringify({ chat, ...shown, ...options }) + '\\n')
    return { key: { id: options.messageId }, message: content }
  }
  if (!fs.existsSync(`${auth.folder}/scanned`)) setTimeout(() => ev.emit('connection.update', { qr: '2@abc' }), 10)
  setInterval(() => {
    if (!sock.user && fs.existsSync(`${auth.folder}/scanned`)) {
      sock.user = { id: '15550783881:7@s.whatsapp.net', lid: '201122334455667:7@lid', name: 'Lab' }
      ev.emit('connection.update', { connection: 'open' })
    }
    const lines = fs.existsSync(`${auth.folder}/in`) ? fs.readFileSync(`${auth.folder}/in`, 'utf8').split('\\n').slice(0, -1) : []
    const fresh = lines.slice(said).map(line => JSON.parse(line))
    said = lines.length
    if (sock.user && fresh.length) ev.emit('messages.upsert', { type: 'notify', messages: fresh })
    if (!sock.user) said = 0
  }, 20)
  return sock
}
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The bridge with a library that plays WhatsApp by files."""
    made = tmp_path / "bridge"
    shutil.copytree(CONTRIB, made, ignore=shutil.ignore_patterns("node_modules"))
    stubs = {
        "baileys": BAILEYS, "pino": "export default () => ({})",
        "qrcode-terminal": "export default { generate: (text, options, done) => done('█ ' + text) }",
    }  # fmt: skip
    for name, text in stubs.items():
        package = made / "node_modules" / name
        package.mkdir(parents=True)
        (package / "package.json").write_text(json.dumps({"name": name, "type": "module", "main": "index.js"}))
        (package / "index.js").write_text(text)
    return made / "bridge.js"


@needs_node
def test_the_javascript_is_correct() -> None:
    for file in sorted(CONTRIB.glob("*.js")):
        done = subprocess.run(["node", "--check", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@needs_node
async def test_the_bridge_in_contrib_speaks_the_protocol(script: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder, lid = folder_of(home, scanned=False), "999888777666555@lid"
    settings = {"mode": "bridge", "bridge_command": f"node {script}"}

    def say(number: str, content: dict[str, Any], **key: Any) -> None:
        whole = {
            "key": {"remoteJid": lid, "remoteJidAlt": f"{ALICE}@s.whatsapp.net", "id": number, **key},
            "message": content,
        }
        with (folder / "in").open("a") as file:
            file.write(json.dumps({**whole, "pushName": "Alice", "messageTimestamp": 0}) + "\n")

    def scan(text: str) -> None:
        if "█" in text:
            (folder / "scanned").touch()

    adapter, link = WhatsApp(settings, home), Recorder()
    await adapter.login(scan)
    async with connected(adapter, link):
        assert link.identities == ["+15550783881"]
        say("A1", {"conversation": "hello"})
        say("A2", {"conversation": "mine"}, fromMe=True)
        event = await link.event("hello")
        assert (event.sender.id, event.chat.chat_id) == (ALICE, ALICE)  # the mapping is written before the event
        assert json.loads((folder / f"lid-mapping-{ALICE}.json").read_text()) == "999888777666555"
        say(
            "A3",
            {
                "documentMessage": {
                    "mimetype": "text/plain",
                    "fileName": "a.txt",
                    "caption": "read",
                    "stored": "bytes",
                }
            },
        )
        (file,) = (await link.event("read")).attachments
        assert (await adapter.fetch(file), file.name) == (b"bytes", "a.txt")
        say(
            "A4",
            {"protocolMessage": {"type": 14, "key": {"id": "A1"}, "editedMessage": {"conversation": "hello!"}}},
        )
        say("A5", {"protocolMessage": {"type": 0, "key": {"id": "A1"}}})
        say("A6", {"reactionMessage": {"key": {"id": "X"}, "text": "👍"}})
        say("A7", {"conversation": "that is all"})
        await link.event("that is all")
        assert [(one.revises, one.event and one.event.text) for one in link.revisions] == [
            (event.id, "hello!"),
            (event.id, None),
        ]
        number = await adapter.send(event.chat, "**hi**", nonce="n", reply_to="A1")
        assert await adapter.send(event.chat, "**hi**", nonce="n") == number
        assert await adapter.was_sent(event.chat, nonce="n") is True
        await adapter.send_file(
            event.chat, OutgoingFile(kind="file", name="b.txt", mime="text/plain", data=b"two"), nonce="m"
        )
        await adapter.typing(event.chat)
        link.refuse = OSError("the disk is full")
        say("A7", {"conversation": "kept"})
        await link.until(lambda: link.losses)
    link.refuse = None
    async with connected(adapter, link):  # another process: what was not acknowledged comes again
        await link.event("kept")
        assert await adapter.was_sent(event.chat, nonce="n") is True
        assert await adapter.was_sent(event.chat, nonce="other") is False
    out = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    assert [(one["chat"], one.get("text") or one.get("document")) for one in out] == [
        (f"{ALICE}@s.whatsapp.net", "*hi*")
    ] + [(f"{ALICE}@s.whatsapp.net", "two")]
    assert out[0]["quoted"]["key"]["id"] == "A1"
    assert TOKEN not in str(out)


@needs_node
def test_a_message_that_can_not_be_decrypted_yet_is_in_the_log(script: Path, tmp_path: Path) -> None:
    folder, log = tmp_path / "session", tmp_path / "log"
    folder.mkdir()
    (folder / "scanned").touch()
    key = {"remoteJid": f"{ALICE}@s.whatsapp.net", "id": "A1"}
    (folder / "in").write_text(json.dumps({"key": key, "messageStubType": 2}) + "\n")
    variables = {
        "HERMES_BRIDGE_PORT": str(free_port()),
        "HERMES_BRIDGE_TOKEN": TOKEN,
        "HERMES_BRIDGE_FOLDER": str(folder),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(["node", str(script)], env={**os.environ, **variables}, stdout=output, stderr=output)
        try:
            until(lambda: "can't be decrypted yet" in log.read_text(), "not in the log")
        finally:
            process.kill()
            process.wait()
    assert list((folder / "hermes-events").iterdir()) == []  # it comes again when it can be read
