"""Summaries made from the text of the conversation itself, for when no model can write them.

A summary has the five parts that a model would write (goal, decisions, facts, open work, files); it quotes sentences and
lists every particular (file, identifier, number) that the quoted sentences don't contain, as far as there is room.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from hermes.agent.language import (
    DECISION,
    OPEN,
    QUESTION,
    UNANSWERED,
    content_words,
    facts,
    files,
    paragraphs,
    sentences,
)
from hermes.agent.recall.history_text import SUMMARY_MARK, message_text
from hermes.texts import harmless, shortened, text_tokens

MOST = 12_000  # characters of a summary
LEAST = 1_500
SENTENCE = 320
COMMAND = 600  # characters of a command line; a longer one is a program, which belongs into a file
SECTIONS = ("Goal", "Decisions", "Facts", "Open work", "Files")


class _Notes:
    """The findings by section, each line once."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[str, None]] = {name: {} for name in ("Focus", *SECTIONS)}
        self.particulars: dict[str, None] = {}  # facts in messages of people and models, then of tools
        self.from_tools: dict[str, None] = {}
        self.other: dict[str, None] = {}  # other sentences of the user; included while there is room
        self.commands: dict[str, int] = {}  # command lines and how often each was used, the latest last

    def add(self, section: str, line: str) -> None:
        line = shortened(" ".join(line.split()), SENTENCE)
        if line and (section == "Focus" or not any(line in self.lines[name] for name in SECTIONS[1:])):
            self.lines[section][line] = None

    def use(self, command: str, times: int = 1) -> None:
        if command and len(command) <= COMMAND:
            self.commands[command] = self.commands.pop(command, 0) + times


def summary_of(messages: Sequence[Mapping[str, Any]], focus: str | None = None, most: int = MOST) -> str:
    """The content of the messages, in sections; at most `most` characters, growing with the input; never empty.

    Summaries of earlier parts among the messages are included, section by section. Sentences about `focus` come first.
    """
    notes, total = _noted(messages, content_words(focus) if focus else set())
    return _composed(notes, min(most, MOST, max(LEAST, LEAST + total * 3 // 4)), focus, len(messages))


def exact_lines(messages: Sequence[Mapping[str, Any]], summary: str, most: int) -> str:
    """The user's messages, decisions, commands, open work and files that a model's summary lacks, in `most` tokens.

    Decisions come in any words, so that short messages of the user are kept whole, as many as there is room for, the newest
    first. Of the commands, those that were used several times come first, then the latest. Such lines
    of earlier summaries are kept.
    """
    notes, _ = _noted(messages, None)
    found: dict[str, list[str]] = {
        name: [line for line in notes.lines[name] if line not in summary] for name in SECTIONS
    }
    found[_SAID] = [line for line in notes.other if line not in summary]
    newest = list(notes.commands)[::-1]
    found["Commands"] = sorted(newest, key=lambda command: -min(notes.commands[command], 2))
    ranked = {name: lines if name == "Commands" else lines[::-1] for name, lines in found.items()}
    ranked[_SAID].sort(key=lambda line: (bool(QUESTION.search(line)), not (DECISION.search(line) or OPEN.search(line))))
    kept: dict[str, set[str]] = {name: set() for name in (_SAID, "Decisions", "Commands", "Open work", "Files")}
    left = most - _HEADING * len(kept)
    for name, share in _EXACT_ORDER:
        room = int(left * share)
        for line in ranked[name]:
            size = text_tokens(line) + 2
            if size <= room and line not in kept[name]:
                kept[name].add(line)
                room, left = room - size, left - size
    parts = []
    for name in kept:
        lines = [line for line in found[name] if line in kept[name]]
        if name == "Commands":
            lines = [command.replace("\n", "\n  ") + _times(notes.commands[command]) for command in lines]
        listed = ", ".join(lines) if name == "Files" else "\n".join(f"- {line}" for line in lines)
        if lines:
            parts.append(f"## {name}{_EXACTLY}\n{listed}")
    return "\n\n".join(parts)


def _noted(messages: Sequence[Mapping[str, Any]], wanted: set[str] | None) -> tuple[_Notes, int]:
    """The facts in the messages (none if `wanted` is None), and how many characters the messages have."""
    notes = _Notes()
    total = 0
    for number, message in enumerate(messages):
        text = harmless(message_text(message))
        total += len(text)
        if text.startswith(SUMMARY_MARK):
            _take_over(notes, text)
        elif message.get("role") == "tool":
            if wanted is not None:
                _note_output(notes, text[:4000])
        elif message.get("role") != "system":
            _note_message(notes, message, text[:40_000], _reply_to(messages, number), wanted)
            for command in commands(message):
                notes.use(command)
    return notes, total


def commands(message: Mapping[str, Any]) -> Iterator[str]:
    """The command lines in a message, as they are: those that its tool calls run, and those in blocks of shell code."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        try:
            values = json.loads(call["function"]["arguments"])
            command = values.get("command") or values.get("cmd")
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        if isinstance(command, list):
            words = [str(word) for word in command]
            command = words[2] if len(words) == 3 and words[1] in ("-c", "-lc") else shlex.join(words)
        if isinstance(command, str):
            yield harmless(command).strip()
    for block in _SHELL.findall(harmless(message_text(message, calls=False))):
        lines = [block] if "<<" in block else re.split(r"(?<!\\)\n", block)  # a line may go on, or hold a document
        prompted = any(line.lstrip().startswith("$ ") for line in lines)
        for line in map(str.strip, lines):
            if line and not line.startswith("#") and (line.startswith("$ ") or not prompted):
                yield line.removeprefix("$ ")


def _note_message(notes: _Notes, message: Mapping[str, Any], text: str, reply: str, wanted: set[str] | None) -> None:
    """Sort the sentences of one message into the sections."""
    for path in files(text):
        notes.lines["Files"][path] = None
    spoken = harmless(message_text(message, calls=False))[:40_000]
    prose, code = paragraphs(spoken)
    statements = [sentence for line in prose for sentence in sentences(line)]
    whole = " ".join(statements)
    short = message.get("role") == "user" and len(whole) <= 2 * SENTENCE and len(content_words(whole)) > 1
    if wanted is None and short and not all(map(QUESTION.search, statements)):
        notes.other[whole] = None
        statements = [sentence for sentence in statements if QUESTION.search(sentence)]
    if message.get("role") == "user" and statements and not notes.lines["Goal"]:
        goal = ""
        for sentence in statements:
            if goal and len(goal) + len(sentence) > SENTENCE:
                break
            goal = f"{goal} {sentence}".strip()
        notes.add("Goal", goal)
    open_questions = _open_questions(message, statements, reply)
    for sentence in statements:
        if wanted and wanted & content_words(sentence):
            notes.add("Focus", sentence)
        if sentence in open_questions or OPEN.search(sentence):
            notes.add("Open work", sentence)
        elif DECISION.search(sentence) and not QUESTION.search(sentence):
            notes.add("Decisions", sentence)
        else:
            if wanted is not None and next(facts(sentence), None) is not None:
                notes.add("Facts", sentence)
            elif message.get("role") == "user" and content_words(sentence):
                notes.other[shortened(" ".join(sentence.split()), SENTENCE)] = None
    if wanted is None:
        return
    for fact in facts("\n".join([*prose, *code]) if code else spoken):
        notes.particulars[fact] = None
    for fact in facts(text[len(spoken) :]):
        notes.from_tools[fact] = None


def _reply_to(messages: Sequence[Mapping[str, Any]], number: int) -> str:
    """The next text of the other role, "" when there is none."""
    other = "assistant" if messages[number].get("role") == "user" else "user"
    for following in range(number + 1, len(messages)):
        if messages[following].get("role") == other:
            text = message_text(messages[following], calls=False)
            if text.strip():
                return text[:4000]
    return ""


def _open_questions(message: Mapping[str, Any], statements: Sequence[str], reply: str) -> set[str]:
    """The questions of a message that the reply does not address."""
    questions = [sentence for sentence in statements if QUESTION.search(sentence)]
    if not questions or not reply:
        return set(questions)
    opening = " ".join(sentences(" ".join(paragraphs(reply[:2000])[0]))[:2])
    if UNANSWERED.search(opening):
        return set(questions)
    if message.get("role") == "user":
        return set()
    answered = content_words(reply)
    short = len(reply) < 60  # "yes, please" answers what was asked
    return {question for question in questions if not short and not answered & content_words(question)}


def _note_output(notes: _Notes, text: str) -> None:
    """Note names and numbers of a tool's output, and fewer of them than from messages."""
    for name in (*islice(files(text), 20), *islice(facts(text), 20)):
        notes.from_tools[name] = None


def _take_over(notes: _Notes, text: str) -> None:
    """Add the lines of an earlier summary to the same sections."""
    section = "Facts"
    listed = text.partition(f"## Commands{_EXACTLY}\n- ")[2].partition("\n\n## ")[0]
    for line in listed.split("\n- "):
        found = _TIMES.fullmatch(line)
        notes.use((found[1] if found else line).replace("\n  ", "\n"), int(found[2]) if found else 1)
    for line in text.replace(listed, "").split("\n")[1:]:
        heading = line.strip().lstrip("#*").strip().removesuffix(_EXACTLY).rstrip(":*").strip()
        known = next((name for name in (*SECTIONS, _SAID) if heading.casefold() == name.casefold()), None)
        if known is not None:
            section = known
            continue
        line = re.sub(r"^\s*[-*•]\s+", "", line).strip()
        if not line or line.startswith("#"):
            continue
        if section == "Files" and ", " in line:
            for path in line.split(", "):
                notes.lines["Files"][path.strip("` ")] = None
        elif line.startswith(_ALSO):
            for fact in line.removeprefix(_ALSO).split(" · "):
                notes.particulars[fact.strip()] = None
        elif section == _SAID:
            notes.other[line] = None
        else:
            notes.lines[section][shortened(line, 2 * SENTENCE)] = None


_ALSO = "Also mentioned: "
_EXACTLY = ", word for word"
_SAID = "Said by the user"
_TIMES = re.compile(r"(?s)(.*)  # used (\d+) times")
# By importance, each with its largest share of the room that is left; what the others leave is for the user's words.
_EXACT_ORDER = ((_SAID, 0.7), ("Commands", 0.7), ("Decisions", 0.6), ("Open work", 0.6), ("Files", 0.7), (_SAID, 1.0))
_HEADING = 10  # tokens
_SHELL = re.compile(
    r"(?ims)^[ \t]*```[ \t]*(?:sh|bash|zsh|fish|shell|console|terminal|shell-session|powershell)[ \t]*\n(.*?)^[ \t]*```"
)
# The priority of the sections when there is not room for all, and the largest share of each.
_ORDER = (("Goal", 0.3), ("Open work", 0.35), ("Decisions", 0.5), ("Files", 0.4), ("Focus", 0.5))


def _composed(notes: _Notes, room: int, focus: str | None, count: int) -> str:
    kept: dict[str, list[str]] = {name: [] for name in ("Focus", *SECTIONS)}
    left = room - 120  # the headings
    for section, share in _ORDER:
        left -= _fill(kept[section], notes.lines[section], min(left, int(left * share) + 200))
    listed = "\n".join(line for lines in kept.values() for line in lines)
    missing = [fact for fact in notes.particulars if fact not in listed]
    facts_room = max(0, left - min(left * 3 // 4, sum(len(fact) + 3 for fact in missing)))
    left -= _fill(kept["Facts"], notes.lines["Facts"], facts_room)
    listed += "\n" + "\n".join(kept["Facts"])
    also: list[str] = []
    for fact in [*islice(notes.particulars, 3000), *islice(notes.from_tools, 1000)]:
        if fact not in listed and len(fact) > 1 and len(fact) + 3 <= left:
            also.append(fact)
            left -= len(fact) + 3
            listed += "\n" + fact
    left -= _fill(kept["Facts"], (line for line in notes.other if line not in listed), left - len(_ALSO) - 3)
    if also:
        kept["Facts"].append(_ALSO + " · ".join(also))
    parts = []
    for name in ("Goal", "Focus", "Decisions", "Facts", "Open work", "Files"):
        heading = f"Focus: {shortened(' '.join((focus or '').split()), 80)}" if name == "Focus" else name
        if name == "Files" and kept[name]:
            parts.append(f"## {heading}\n{', '.join(kept[name])}")
        elif kept[name] or name != "Focus":
            parts.append(f"## {heading}\n" + ("\n".join(f"- {line}" for line in kept[name]) or "- none found"))
    text = "\n\n".join(parts)
    return text if any(kept.values()) else f"{text}\n\n({count} messages without words to quote)"


def _times(count: int) -> str:
    return f"  # used {count} times" if count > 1 else ""


def _fill(target: list[str], lines: Iterable[str], room: int) -> int:
    """Add lines while there is room; returns the number of characters. Of long lists the first and the last stay."""
    lines = list(lines)
    used = 0
    chosen: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda index: min(index, len(lines) - 1 - index)):
        if used + len(lines[index]) + 3 <= room:
            used += len(lines[index]) + 3
            chosen.add(index)
    target += [lines[index] for index in sorted(chosen)]
    return used
