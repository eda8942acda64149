"""Work with an assistant: short sessions about software and a few other things, questions about them, and everyday requests
("push it to main") for which recall should give nothing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.recall.labelled_set import APART, BASE, Chat, Question


def work() -> tuple[list[Chat], list[Question]]:
    """The sessions in order of time, and the questions with the requests."""
    chats: list[Chat] = []
    asked: list[Question] = []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        mark, _, text = line.partition(" ")
        if mark == "=":
            chats.append(Chat(text, BASE + APART * len(chats), []))
        elif mark in "<>":
            chats[-1].messages.append(("user" if mark == ">" else "assistant", text))
        elif mark == "?":
            question, _, title = text.partition("\t")
            asked.append(Question(question, "work", "en", (title,), None))
        elif mark == "!":
            asked.append(Question(text, "request", "", (), None))
    return chats, asked
