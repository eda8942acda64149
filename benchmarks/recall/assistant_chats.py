"""One person's chats with an assistant, made from assistant_chats.txt, always the same: those that answer questions among five
times as many about other things, of the same subjects.

What the person said of themselves stands beside the task of a chat, which the question does not name. Some of it changes later
(`update`: the newer chat has the evidence, both are right). Written before any ranking was tuned on it.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.recall.labelled_set import BETWEEN, Chat, Question

BASE = 1_704_096_000.0  # 1 January 2024
DAY = 86_400.0
DISTRACTORS = 190


def assistant_chats() -> tuple[list[Chat], list[Question]]:
    """All chats in order of time, and all questions."""
    text = (Path(__file__).parent / "assistant_chats.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    told, asked, others = (part.strip().split("\n") for part in "\n".join(lines).split("----"))
    chats = {}
    evidence = {}
    for line in told:
        if line.startswith("="):
            key, day = line[2:].split()
            chats[key] = Chat(f"assistant-{key}", BASE + int(day) * DAY + 50_000.0)
        elif line:
            said = line[2:]
            if said.startswith("*"):
                evidence[key] = (chats[key].id, chats[key].started + BETWEEN * len(chats[key].messages))
            chats[key].messages.append(("user" if line[0] == "u" else "assistant", said.removeprefix("*")))
    questions = []
    for kind, keys, question in (line.split("|") for line in asked):
        right = [one for one in keys.split(",") if one]
        message = evidence[right[0]] if right and kind != "several" else None
        named = kind if right else "no answer"
        questions.append(Question(question, named, "en", tuple(chats[one].id for one in right), message))
    found = [*chats.values(), *_distractors([line.split("|") for line in others])]
    return sorted(found, key=lambda chat: chat.started), questions


def _distractors(exchanges: list[list[str]]) -> list[Chat]:
    """Chats of three exchanges about one subject, and now and then of another one."""
    dice = random.Random(37)
    out = []
    for number in range(DISTRACTORS):
        subject = dice.choice(exchanges)[0]
        same = [one for one in exchanges if one[0] == subject]
        some = [*dice.sample(same, 2), dice.choice(exchanges)]
        chat = Chat(f"other-{number:03}", BASE + dice.uniform(0, 270) * DAY)
        for _, question, answer in some:
            chat.messages += [("user", question), ("assistant", answer)]
        out.append(chat)
    return out
