"""The long dialogues: pairs of people who write to each other over eight months, in English, made from events.txt and
small_talk.txt, always the same.

Twenty-four sessions a pair, all pairs in one store. Every event happens to many people with other particulars, and a person is
named only where the other one greets them, so a question ("Which race did Nora run?") is answered by one message of one session
among hundreds that share its words. Written before any ranking was tuned on it; a third of the questions is set aside.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.recall.labelled_set import BETWEEN, Chat, Question

BASE = 1_672_560_000.0  # 1 January 2023
DAY = 86_400.0
SESSIONS = 24
PAIRS = (
    ("Nora", "Felix"), ("Caleb", "Ines"), ("Priscilla", "Omar"), ("Dana", "Theo"), ("Yusuf", "Marian"), ("Greta", "Simon"),
    ("Beatrix", "Louis"), ("Ravi", "Colette"), ("Hector", "Wilma"), ("Tessa", "Igor"),
)  # fmt: skip
MONTHS = "January February March April May June July August September October November December".split()


def _blocks(name: str) -> list[list[str]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [block.split("\n") for block in "\n".join(lines).split("\n\n")]


def dialogues(pairs: int = len(PAIRS), *, speakers: bool = False) -> tuple[list[Chat], list[Question]]:
    """All sessions in order of time, and all questions. `speakers`: each message begins with the name of who wrote it, as in a
    group chat. More pairs than there are names get numbers: only to make a store larger."""
    dice = random.Random(23)
    chats: list[Chat] = []
    asked: list[Question] = []
    for number in range(pairs):
        names = PAIRS[number % len(PAIRS)]
        if number >= len(PAIRS):
            names = (f"{names[0]}{number}", f"{names[1]}{number}")
        mine, questions = _dialogue(dice, number, names, speakers)
        chats += mine
        asked += questions
    return sorted(chats, key=lambda chat: chat.started), asked


def _dialogue(
    dice: random.Random, number: int, names: tuple[str, str], speakers: bool
) -> tuple[list[Chat], list[Question]]:
    events = [block for block in _blocks("events.txt") if len(block) > 4]
    openings, talk, closings = _blocks("small_talk.txt")
    order = dice.sample(range(len(events)), len(events))
    happens = [(events[one], place % 2) for place, one in enumerate(order[:-4])]  # the last four happen to neither
    chats: list[Chat] = []
    asked: list[Question] = []
    for part in range(SESSIONS):
        day = (10 * part + dice.randrange(8) + 3 * number % 7) * DAY
        chat = Chat(f"pair-{number:03}-{part:02}", BASE + day + 3600.0 * dice.randrange(8, 22))
        first = dice.randrange(2)
        _say(chat, first, dice.choice(openings), names, speakers)
        some = happens[part * len(happens) // SESSIONS : (part + 1) * len(happens) // SESSIONS]
        remarks: list[tuple[list[str], int] | str] = [*some, *dice.sample(talk, dice.randrange(3, 6))]
        dice.shuffle(remarks)
        for remark in remarks:
            if isinstance(remark, str):
                who = dice.randrange(2)
                for at, text in enumerate(remark.split("|")):
                    _say(chat, (who + at) % 2, text, names, speakers)
            else:
                asked += _happened(dice, chat, *remark, names, speakers)
        _say(chat, 1 - first, dice.choice(closings), names, speakers)
        chats.append(chat)
    for one in order[-4:]:
        fact, *_ = events[one][4].split("|")
        asked.append(Question(fact.format(n=names[one % 2]), "no answer", "en", (), None))
    return chats, asked


def _happened(
    dice: random.Random, chat: Chat, event: list[str], who: int, names: tuple[str, str], speakers: bool
) -> list[Question]:
    """Tell an event in a session; the questions that it answers."""
    _, *slots = event[0].split("|")
    values = dict(zip("vw", (dice.choice(slot.split(";")) for slot in slots), strict=False))
    known = {"n": names[who], "o": names[1 - who], **values}
    place = len(chat.messages)
    for at, text in enumerate(event[1:4]):
        _say(chat, (who + at) % 2, text, names, speakers, values)
    fact, other, when = (question.format(**known) for question in event[4].split("|"))
    answer = (chat.id, chat.started + BETWEEN * place)
    month = datetime.fromtimestamp(chat.started, UTC)
    at_month = fact.rstrip("?") + f" in {MONTHS[month.month - 1]} {month.year}?"
    return [
        Question(fact, "fact", "en", (chat.id,), answer), Question(other, "paraphrase", "en", (chat.id,), answer),
        Question(when, "when", "en", (chat.id,), answer), Question(at_month, "time", "en", (chat.id,), answer),
    ]  # fmt: skip


def _say(
    chat: Chat, who: int, text: str, names: tuple[str, str], speakers: bool, values: dict[str, str] | None = None
) -> None:
    said = text.format(n=names[who], o=names[1 - who], **(values or {}))
    said = said[:1].upper() + said[1:]
    chat.messages.append((("user", "assistant")[who], f"{names[who]}: {said}" if speakers else said))
