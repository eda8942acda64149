"""Many chats at once through a gateway in a process of its own: what came of it, how fast, and at what cost in memory."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox, outbox, routes
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.plain import PlainLab
from tests.support.waiting import until

AT_ONCE = 400  # messages that wait for their answer at one time


@dataclass
class Outcome:
    """The measurements of a run."""

    chats: int
    messages: int
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of the gateway's process
    written: int = 0  # bytes it handed to the disk
    memory: list[float] = field(default_factory=list)  # MB, as the run went on
    kills: int = 0
    wrong: list[str] = field(default_factory=list)  # chats where something is missing, twice, or in the wrong order

    @property
    def each(self) -> float:
        """Milliseconds of the gateway's processor time a message."""
        return self.cpu / self.messages * 1000

    @property
    def kilobytes(self) -> float:
        """The kilobytes that the gateway writes to the disk for each message."""
        return self.written / self.messages / 1000

    @property
    def rate(self) -> float:
        """Messages answered in a second."""
        return self.messages / self.seconds

    @property
    def growth(self) -> float:
        """The memory of the last third of the run, as a multiple of the middle third's."""
        third = len(self.memory) // 3
        middle, last = self.memory[third : 2 * third], self.memory[2 * third :]
        return (sum(last) / len(last)) / (sum(middle) / len(middle)) if middle else 1.0


def chat_of(number: int) -> dict[str, str]:
    return {"chat_id": f"c{number}", "type": "dm"}


def load(
    gateway: GatewayProcess,
    lab: PlainLab,
    *,
    chats: int,
    messages: int,
    at_once: int = AT_ONCE,
    kill_every: float | None = None,
    seed: int = 1,
    timeout: float = 1800.0,
) -> Outcome:
    """Say so many messages in so many chats and wait for all answers; kill the gateway every few seconds, if wanted.

    It is killed when 20 more are answered, never sooner: with `kill_every` 0 the clock plays no part in how often.
    """
    dice, outcome = random.Random(seed), Outcome(chats, messages)
    with gateway:
        _run(gateway, lab, dice, outcome, at_once, kill_every, timeout)
    outcome.wrong = wrong(gateway.home, lab, chats, messages)
    return outcome


def _run(
    gateway: GatewayProcess,
    lab: PlainLab,
    dice: random.Random,
    outcome: Outcome,
    at_once: int,
    kill_every: float | None,
    timeout: float,
) -> None:
    chats, messages = outcome.chats, outcome.messages
    begun = sampled = time.monotonic()
    cpu_before, written_before = gateway.cpu(), gateway.written()
    next_kill = begun + (kill_every or 0.0)
    said = since = 0
    while len(lab.messages) < messages:
        now = time.monotonic()
        assert now - begun < timeout, f"{len(lab.messages)} of {messages} answered after {timeout:g} s"
        # before more is said: however late this process looks, no more than `at_once` are answered since it last did
        far_enough = since + 20 <= len(lab.messages) < messages * 0.95
        if kill_every is not None and now >= next_kill and far_enough:
            outcome.cpu += gateway.cpu() - cpu_before
            outcome.written += gateway.written() - written_before
            gateway.kill()
            gateway.start()
            cpu_before, written_before = 0.0, 0
            outcome.kills += 1
            since = len(lab.messages)
            next_kill = time.monotonic() + dice.uniform(0.5, 1.5) * kill_every
        while said < messages and said - len(lab.messages) < at_once:
            lab.say(f"n{said // chats}", chat=chat_of(said % chats))
            said += 1
        if now - sampled > 0.2:
            sampled = now
            outcome.memory.append(gateway.memory())
        time.sleep(0.005)
    outcome.seconds = time.monotonic() - begun
    outcome.cpu += gateway.cpu() - cpu_before
    outcome.written += gateway.written() - written_before
    assert gateway.stop() == 0, gateway.output()


def wrong(home: Path, lab: PlainLab, chats: int, messages: int) -> list[str]:
    """The faults of a run: on the platform, and in the record."""
    found = []
    shown: dict[str, list[str]] = {}
    for one in lab.messages.values():
        shown.setdefault(one["place"][0], []).append(one["text"])
    with SessionDB(home / "state.db") as db:
        store = GatewayDB(db)
        sessions = {route.key.rpartition(":")[2]: route.session_id for route in store.read(routes.bound)}
        for number in range(min(chats, messages)):
            chat = f"c{number}"
            said = [f"n{n}" for n in range((messages - number + chats - 1) // chats)]
            if shown.get(chat) != [f"echo: {text}" for text in said]:
                found.append(f"{chat} on the platform: {shown.get(chat)}")
            rows = db.get_messages(sessions.get(chat) or "")
            if [row["content"] for row in rows if row["role"] == "user"] != said:
                found.append(f"{chat} in the record")
        found += [str(problem) for problem in db.check()]
        found += [f"{len(left)} left" for left in (store.read(inbox.waiting), store.read(outbox.unsent)) if left]
    return found


WORDS = "this is message {}, which says about as much as people say at once: some ten or fifteen words"


def one_by_one(gateway: GatewayProcess, lab: PlainLab, *, length: int, chats: int, messages: int) -> Outcome:
    """The cost of a message in a conversation of about this length, when nothing else happens at the same time.

    Each message is said when the one before it was answered; the chats take turns. They grow by twice `messages` / `chats`.
    """
    outcome = Outcome(chats, messages)
    with gateway:
        for number in range(chats):
            _exchange(lab, number, "the first")
        assert gateway.stop() == 0, gateway.output()
        _lengthen(gateway.home, length)
        gateway.start()
        for number in range(chats):  # so that everything is loaded
            _exchange(lab, number, "one more")
        begun, cpu, written_before = time.monotonic(), gateway.cpu(), gateway.written()
        for n in range(messages):
            _exchange(lab, n % chats, str(n))
        outcome.seconds = time.monotonic() - begun
        outcome.cpu, outcome.written = gateway.cpu() - cpu, gateway.written() - written_before
        assert gateway.stop() == 0, gateway.output()
    return outcome


def _exchange(lab: PlainLab, chat: int, which: str) -> None:
    before = len(lab.messages)
    lab.say(WORDS.format(which), chat=chat_of(chat))
    until(lambda: len(lab.messages) > before, f"an answer to {which}")


def _lengthen(home: Path, length: int) -> None:
    """Have every conversation of a stopped gateway hold so many messages, two of which were said already."""
    said = [{"role": role, "content": WORDS.format(n)} for n in range(length // 2) for role in ("user", "assistant")]
    with SessionDB(home / "state.db") as db:
        for route in GatewayDB(db).read(routes.bound):
            db.replace_messages(route.session_id or "", said)
        db.catch_up()  # what it costs to index them is no message's
