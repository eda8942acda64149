"""A power cut while a gateway answers: no event is lost, none is answered twice, none is sent twice without a word about it.

The child goes through what a message goes through, step by step, and tells after each one that the next may rely on. That an
event is finished is not told: it is on the disk at the latest when its reply is about to be sent.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from hermes.store.gateway import inbox, outbox
from hermes.store.gateway.gateway_db import GatewayDB
from hermes_state import SessionDB
from tests.faults.test_power_loss import disk_at, library, moments, recorded

__all__ = ["library"]

EVENTS, DISKS = 40, 60

CHILD = """
import os, sys
from functools import partial
from hermes.store.gateway import outbox
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.store.gateway.inbox import IncomingEvent, SourceEvent
from hermes_state import SessionDB

folder = sys.argv[2]
acks = os.open(os.path.join(folder, "told.acks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
db = SessionDB(db_path=os.path.join(folder, "state.db"), transcripts="off")
store = GatewayDB(db)
db.create_session("s", "plain")

def told(step, number, value):
    os.write(acks, f"{step} {number} {value}\\n".encode())

for number in range(EVENTS):
    incoming = IncomingEvent("k", "plain", f"e{number}", "{}", "{}", "dm", user_id="u")
    event = store.receive(incoming).id
    told("in", number, event)
    turn = db.take_turn("s", "me")
    with db.fenced("session:s", turn):
        said, _ = store.append_user_message(event, "k", "s", f"question {number}", SourceEvent(f"e{number}", ("", "")))
        told("said", number, said)
        told("replied", number, db.append_message("s", "assistant", f"answer {number}"))
    (part,) = store.finish(event, "plain", "{}", [{"text": f"answer {number}", "nonce": f"n{number}"}])
    db.release_lease("session:s", turn)
    store.write(outbox.sending, part.id)
    told("sending", number, part.id)
    store.write(outbox.sent, part.id, f"m{number}", part.chat)
    told("sent", number, part.id)
os._exit(0)
""".replace("EVENTS", str(EVENTS))


def test_whatever_the_disk_has_a_message_is_answered_and_sent_once(library: Path, folder: Path) -> None:  # noqa: F811
    run = recorded(library, folder, "full", CHILD)
    assert len(run.told) == 5 * EVENTS
    unfinished = 0
    for seed in range(DISKS):
        dice = random.Random(seed)
        (moment,) = moments(run, dice, 2)[1:]
        files = disk_at(run, moment, dice, lucky=dice.choice((0.0, 0.1, 0.5, 0.9, 1.0)))
        told = {step: dict(steps) for step, steps in run.acknowledged(moment).items()}
        try:
            unfinished += examined(folder / "possible", files, told)
        except BaseException as error:
            error.add_note(f"seed {seed}, moment {moment} of {len(run.notes)}")
            raise
    assert unfinished, "some disk must lack what was not synced, or these disks prove nothing"


def examined(folder: Path, files: dict[str, bytes], told: dict[str, dict[int, int]]) -> int:
    """Open a disk and insist on what was promised; how many events with a stored reply wait to be answered there."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with SessionDB(db_path=folder / "state.db", transcripts="off") as db:
        assert db.check() == []
        store = GatewayDB(db)
        waiting = {one.event_id: one for one in store.read(inbox.waiting)}
        unsent = {one.inbox_id: one for one in store.read(outbox.unsent)}
        rows = {row["id"]: row["content"] for row in db.get_messages("s")}
        texts = list(rows.values())
        assert len(set(texts)) == len(texts)
        for number, event in told.get("in", {}).items():
            progress = store.read(inbox.progress, "plain", f"e{number}")
            assert progress is not None, f"event {number} is lost"
            one = waiting.get(f"e{number}")
            assert (one is None) == progress[0]
            if one is None:
                assert f"answer {number}" in texts
                assert event in unsent or not progress[1]
                continue
            assert event not in unsent, f"event {number} waits, but its reply is in the outbox"
            assert number not in told.get("sending", {}), f"event {number} would be answered again"
            if number in told.get("said", {}):
                assert one.message_id == told["said"][number], f"event {number} would be said again"
            elif one.message_id is not None:
                assert rows[one.message_id] == f"question {number}"
            else:
                assert f"question {number}" not in texts
        for number, message_id in told.get("replied", {}).items():
            assert rows[message_id] == f"answer {number}"
        for number, part in told.get("sending", {}).items():
            left = unsent.get(told["in"][number])
            assert left is None or (left.id == part and left.begun_at is not None)
        for number in told.get("sent", {}):
            assert told["in"][number] not in unsent, f"the answer to {number} would be sent again"
        found = sum(1 for number in told.get("replied", {}) if f"e{number}" in waiting)
    shutil.rmtree(folder)
    return found
