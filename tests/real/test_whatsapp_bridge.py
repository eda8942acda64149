"""The bridge in contrib/ with the real baileys: it starts and answers without a network, and reads what baileys itself makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.node import node, npm_folder, run_script
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.thorough

CONTRIB = Path(__file__).parents[2] / "contrib" / "whatsapp-bridge"
PACKAGES = ["baileys@7.0.0-rc14", "pino@9.14.0", "qrcode-terminal@0.12.0"]
TOKEN = "0123456789abcdefghij"
ALICE = "15005550101@s.whatsapp.net"


@pytest.fixture(scope="module")
def installed() -> Path:
    return npm_folder("whatsapp-bridge", PACKAGES)


@pytest.fixture
def bridge(installed: Path, tmp_path: Path) -> Path:
    """A copy of the bridge with its packages."""
    made = tmp_path / "bridge"
    shutil.copytree(CONTRIB, made, ignore=shutil.ignore_patterns("node_modules"))
    (made / "node_modules").symlink_to(installed / "node_modules")
    return made


@pytest.fixture
def running(bridge: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client, Path]]:
    port, log = free_port(), tmp_path / "log"
    environment = {
        **os.environ, "HERMES_BRIDGE_PORT": str(port), "HERMES_BRIDGE_TOKEN": TOKEN, "HERMES_BRIDGE_SUPERVISED": "1",
        "HERMES_BRIDGE_FOLDER": str(tmp_path / "session"),
    }  # fmt: skip
    words = [node(), "--require", str(Path(__file__).with_name("offline.cjs")), str(bridge / "bridge.js")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        )
        headers = {"Authorization": f"Bearer {TOKEN}"}
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=20
            ) as client:
                yield process, client, log
        finally:
            process.kill()
            process.wait()


def answer(ask: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> Any:
    """The bridge's answer, once it gives one."""

    def answered() -> Any:
        with suppress(httpx.ConnectError):
            return ask()

    return until(answered, log.read_text, unless=lambda: process.poll() is not None)


def test_it_starts_and_answers_without_a_network(
    running: tuple[subprocess.Popen[bytes], httpx.Client, Path], tmp_path: Path
) -> None:
    process, client, log = running
    status = answer(lambda: client.get("/status"), process, log).json()
    assert (status["protocol"], status["state"]) == (1, "starting")
    assert client.get("/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/events", params={"wait": "0"}).json() == {"events": [], "ack": "", "state": "starting"}
    message = {"chat": ALICE, "text": "hello", "nonce": "n"}
    assert client.post("/send", json=message).status_code == 503
    assert client.post("/media", params={"chat": ALICE, "nonce": "m", "kind": "file"}, content=b"x").status_code == 503
    assert client.post("/typing", json={"chat": ALICE}).status_code == 503
    assert client.get("/sent", params={"nonce": "n"}).json() == {"sent": False}  # so it may be sent again
    assert client.post("/send", content=b"{").status_code == 400
    assert [client.get(path).status_code for path in ("/media/x", "/nothing")] == [404, 404]
    # baileys reports the end, and is started again
    until(lambda: log.read_text().count("next try in") >= 2, log.read_text, unless=lambda: process.poll() is not None)
    assert client.get("/status").json()["state"] == "starting"
    assert (tmp_path / "session").stat().st_mode & 0o777 == 0o700
    assert process.stdin is not None
    process.stdin.close()  # the gateway has ended
    assert process.wait(120) == 0


def kinds(installed: Path) -> list[str]:
    """The kinds of content that WhatsApp's description of a message has."""
    text = (installed / "node_modules" / "baileys" / "WAProto" / "index.d.ts").read_text()
    found = re.search(r"^ {4}interface IMessage \{(.*?)^ {4}\}", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return re.findall(r"^ {8}(\w+)\??:", found[1], re.MULTILINE)


FILES = [
    {"name": "a.png", "kind": "image", "mime": "image/png"}, {"name": "a.gif", "kind": "image", "mime": "image/gif"},
    {"name": "a.mp4", "kind": "video", "mime": "video/mp4"}, {"name": "a.txt", "kind": "file", "mime": "text/plain"},
]  # fmt: skip


@pytest.fixture
def read(installed: Path, bridge: Path, tmp_path: Path) -> dict[str, Any]:
    given = {"bridge": str(bridge), "folder": str(tmp_path), "kinds": kinds(installed), "files": FILES}
    found: dict[str, Any] = run_script(installed, Path(__file__).with_name("bridge_side.mjs"), given)
    return found


def test_what_baileys_makes_is_read(read: dict[str, Any]) -> None:
    events = read["events"]
    for event in filter(None, events.values()):
        assert (event["sender"], event["name"], event["timestamp"]) == (ALICE, "Alice", 1_800_000_000)
    assert {name: event and event["type"] for name, event in events.items() if not event or event["type"] != "message"} == {
        "edit": "edit", "delete": "delete", "reaction": None, "pin": None, "disappearing messages": None, "keys": None,
    }  # fmt: skip
    assert (events["edit"]["target"], events["edit"]["text"]) == ("A1", "hello!")
    assert events["delete"]["target"] == "A1"
    texts = {name: event["text"] for name, event in events.items() if event and event["type"] == "message"}
    assert texts == {
        "text": "hello", "mention": "@1 hi", "location": "Location: Berlin (1, 2)", "contact": "Contact: Ada, +49 1",
        "poll": "Poll: Which? (a, b)", "document": "see", "image": "look", "video": "", "voice": "", "round video": "",
        "picture to see once": "", "event": "Event: Party, at home, 2027-01-15T08:00:00.000Z",
        "invitation": "Invitation to a group: Friends, join us", "row of a list": "Tea", "button": "Yes", "older button": "No",
        "disappearing text": "disappears", "quote": "disappears", "quote by a location": "Location: (1, 2)",
        "group": "disappears", "keys and a text": "hi", "forward": "/new", "forwarded picture": "yes",
    }  # fmt: skip
    files = {name: event["files"][0]["kind"] for name, event in events.items() if event and "files" in event}
    assert files == {
        "document": "file", "image": "image", "video": "video", "voice": "audio", "round video": "video",
        "picture to see once": "image", "forwarded picture": "image",
    }  # fmt: skip
    assert {name for name, event in events.items() if event and event.get("forwarded")} == {
        "forward",
        "forwarded picture",
    }
    assert events["mention"]["mentions"] == ["1@s.whatsapp.net"]
    for name in ("quote", "quote by a location"):
        assert events[name]["quoted"] == {"id": "A1", "sender": ALICE, "text": "before"}
    assert events["group"]["chat"] == "120363041234567890@g.us" and read["stored"] is True
    assert all(ours == theirs for ours, theirs in read["numbers"])


def test_no_kind_of_message_is_dropped_without_a_word(read: dict[str, Any]) -> None:
    """Everything a person may write is a text or a file; the other kinds that WhatsApp exchanges are named here."""
    dropped = {name for name, is_read in read["kinds"].items() if not is_read}
    assert dropped == {
        "senderKeyDistributionMessage", "fastRatchetKeySenderKeyDistributionMessage", "protocolMessage", "messageContextInfo",
        "stickerSyncRmrMessage", "pollUpdateMessage", "pollResultSnapshotMessage", "keepInChatMessage", "pinInChatMessage",
        "encReactionMessage", "encEventResponseMessage", "secretEncryptedMessage", "placeholderMessage", "albumMessage",
        "callLogMesssage", "bcallMessage", "scheduledCallEditMessage", "limitSharingMessage", "statusMentionMessage",
        "groupStatusMentionMessage", "statusNotificationMessage",
        "chat", "call", "messageHistoryBundle", "messageHistoryNotice", "statusAddYours", "eventCoverImage",
    }  # fmt: skip


def test_what_the_bridge_sends_is_taken(read: dict[str, Any]) -> None:
    written, group, me = read["written"], "120363041234567890@g.us", "15550783881:7@s.whatsapp.net"
    assert [written[one["name"]] for one in FILES] == [
        "imageMessage", "documentMessage", "videoMessage", "documentMessage",
    ]  # fmt: skip
    for chat, sender in ((ALICE, ALICE), (group, ALICE), (group, me)):
        found = written[f"{chat} {sender}"]
        assert (found["stanzaId"], found["text"]) == ("A1", "before")
        assert found["participant"].partition("@")[0].partition(":")[0] == sender.partition("@")[0].partition(":")[0]
