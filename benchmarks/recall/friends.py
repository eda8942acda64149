"""Six pairs of friends, made from friends.txt and friends_talk.txt, always the same: nearly everything said happens once.

Fifteen sessions a pair of sixteen turns and more, all in one store. The dialogues of events.txt tell the same events of many
people; here a question has one answer, in other words than the question, among small talk that shares words with it. Two kinds
of near misses: about a thing neither of a pair has, and about the right thing with the other one's name. Written before any
ranking was tuned on it; a third of the questions is set aside.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime

from benchmarks.recall.dialogues import DAY, MONTHS, _blocks
from benchmarks.recall.labelled_set import BETWEEN, Chat, Question

BASE = 1_680_336_000.0  # 1 April 2023
SESSIONS, TURNS = 15, 16


def friends(*, speakers: bool = True) -> tuple[list[Chat], list[Question]]:
    """All sessions in order of time, and all questions. `speakers`: each message begins with the name of who wrote it."""
    dice = random.Random(31)
    chats: list[Chat] = []
    asked: list[Question] = []
    for number, block in enumerate(_blocks("friends.txt")):
        names = block[0].split()
        moments = [line.split("|") for line in block[1:] if not line.startswith("other|")]
        mine, evidence = _sessions(dice, number, names, [(who, said) for who, said, *_ in moments], speakers)
        chats += mine
        for place, (_, _, *questions) in enumerate(moments):
            asked += [_question(one, place, evidence) for one in questions]
            if place % 3 == 0 and questions[0].startswith("fact") and any(name in questions[0] for name in names):
                asked.append(_swapped(questions[0], names))
        near = [line.split("|")[1] for line in block[1:] if line.startswith("other|")]
        asked += [Question(one, "near: a thing", "en", (), None) for one in near]
    return sorted(chats, key=lambda chat: chat.started), asked


def _sessions(
    dice: random.Random, number: int, names: list[str], moments: list[tuple[str, str]], speakers: bool
) -> tuple[list[Chat], list[tuple[str, float]]]:
    """The sessions of a pair, and where each moment's evidence stands: both lives run through all of them."""
    openings, talk, closings = _blocks("friends_talk.txt")
    of = {who: [place for place, one in enumerate(moments) if one[0] == who] for who in "ab"}
    when = {place: at * SESSIONS // len(mine) for mine in of.values() for at, place in enumerate(mine)}
    evidence: list[tuple[str, float]] = [("", 0.0)] * len(moments)
    chats = []
    for part in range(SESSIONS):
        started = BASE + (16 * part + dice.randrange(12)) * DAY + 3600.0 * dice.randrange(8, 22)
        chat = Chat(f"friends-{number}-{part:02}", started)
        told = [place for place, session in when.items() if session == part]
        remarks: list[int | str] = [*told]
        turns = 2 + sum(moments[place][1].count(" // ") + 1 for place in told)
        for remark in dice.sample(talk, len(talk)):
            if turns < TURNS:
                remarks.append(remark)
                turns += remark.count("|") + 1
        dice.shuffle(remarks)
        first = dice.randrange(2)
        _say(chat, first, dice.choice(openings), names, speakers)
        for remark in remarks:
            if isinstance(remark, str):
                who, said = dice.randrange(2), remark.split("|")
            else:
                who, said = "ab".index(moments[remark][0]), moments[remark][1].split(" // ")
            for at, text in enumerate(said):
                if not isinstance(remark, str) and text.startswith("*"):
                    evidence[remark] = (chat.id, chat.started + BETWEEN * len(chat.messages))
                _say(chat, (who + at) % 2, text.removeprefix("*"), names, speakers)
        _say(chat, 1 - first, dice.choice(closings), names, speakers)
        chats.append(chat)
    return chats, evidence


def _question(line: str, place: int, evidence: list[tuple[str, float]]) -> Question:
    kind, _, text = line.partition(": ")
    text, _, places = text.partition("@")
    session, at = evidence[place]
    if places:
        right = {evidence[int(one)][0]: None for one in places.split(",")}
        return Question(text, kind, "en", tuple(right), None)
    month = datetime.fromtimestamp(at, UTC)
    return Question(text.format(m=f"{MONTHS[month.month - 1]}"), kind, "en", (session,), evidence[place])


def _swapped(line: str, names: list[str]) -> Question:
    """The same question about the other one of the two, to whom it did not happen."""
    text = line.partition(": ")[2]
    one, other = names if names[0] in text else names[::-1]
    return Question(text.replace(one, other), "near: a person", "en", (), None)


def _say(chat: Chat, who: int, text: str, names: list[str], speakers: bool) -> None:
    said = text.format(o=names[1 - who])
    chat.messages.append((("user", "assistant")[who], f"{names[who]}: {said}" if speakers else said))
