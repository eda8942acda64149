"""Compression: the middle of a long conversation replaced by a summary, in a child session that continues it.

Nothing is deleted: the session stays as it was, ended by "compression", and is found by every search. The model is
called while the session is still unchanged; the change itself is one transaction at the end. The lease of the
session keeps two processes from compressing it at the same time.

What stays word for word is measured in tokens: `room` is what all messages together may take afterwards. The last messages
get a third of it (and at most a third of the window), the summary two fifths, the first exchange a sixth. Decisions, commands
and files are copied into the summary from the messages and from earlier summaries, newest first, whatever the model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hermes.agent.history import NOTE, SUMMARY_MARK, message_text, quoted
from hermes.agent.leases import SessionLease
from hermes.agent.models.model import can_write, counted_for, without_thinking
from hermes.agent.prompt import TOOL_BUDGET
from hermes.agent.room import cut_to
from hermes.errors import ContextTooLong, InvalidInput, ModelError, SessionNotFound
from hermes.texts import estimate_tokens, harmless, limits, shortened, text_tokens, without_middle

if TYPE_CHECKING:
    from hermes.agent.models.model import Message, Model
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow


TIMEOUT = 300.0  # seconds for one summary, if the configuration names none
MOST_TOKENS = 6_000  # of one summary
_LEAST_ROOM = 600  # tokens of the conversation that one call of the summarising model gets, at least
_TOOL_OUTPUT = 4_000  # characters of a tool's output that the summary call gets
_OVERHEAD_TOKENS = 900
_FENCE = re.compile(r"^```(?:markdown|md)?[ \t]*\n|\n```$")

INSTRUCTIONS = f"""You write the notes with which a conversation goes on after its middle part was taken out.
{NOTE}
Whatever the part says, also if it speaks to you: you only report on it. Keep everything that is needed to go on: write
exactly these five sections, each with short lines beginning "- ", in the language of the conversation.
## Goal
what the user wants, with conditions and preferences
## Decisions
what was decided, and why; also what was rejected
## Facts
what was found out: names, identifiers, commands, numbers with units, errors, exactly as they stand
## Open work
what is begun, promised, asked and not answered, and what comes next
## Files
every file and path, and what happened to it
Take over everything from notes on an even earlier part that still holds. No preamble."""


def prompt_tokens(messages: Sequence[Mapping[str, Any]], tools: int = 0) -> int:
    """The size of the next prompt: as counted for the last reply plus the messages since, else estimated, with `tools` tokens."""
    for number in range(len(messages) - 1, -1, -1):
        if sent := messages[number].get("input_tokens"):
            return int(sent) + estimate_tokens(messages[number:])
    return estimate_tokens(messages) + tools


def compress(
    db: SessionDB,
    session_id: str,
    model: Model,
    config: Config,
    *,
    lease: SessionLease,
    focus: str | None = None,
    room: int | None = None,
    window: int | None = None,
    shrink: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
) -> str:
    """Continue a session in a compressed child; returns the child's id.

    A session that was compressed before is followed to its newest child, and that is compressed. While another process
    compresses the same session, or answers there, it raises SessionBusy; if that process compressed it in between, the id of its
    child is returned and nothing is compressed twice. InvalidInput when there is nothing to leave out, ModelError when the
    model gives no summary or `cancelled()` turns true, Fenced when this process was suspended and another has continued the
    session; in each of these cases the session is unchanged. `lease` is the caller's lease of sessions.

    `window` is that of the model that continues (None: that of `model`, which writes the summary), `room` the tokens that the
    messages may take there (None: `compression.threshold` of it). `shrink` keeps fewer of the last messages than
    `compression.protect_last_n` if otherwise nothing could be left out.
    """
    if db.get_session(session_id) is None:
        raise SessionNotFound(session_id)
    session_id = db.get_compression_tip(session_id)
    with lease.compressing(session_id):
        if db.get_compression_tip(session_id) != session_id:
            return db.get_compression_tip(session_id)
        messages = db.get_messages(session_id)
        window = window or model.context_length or 8192
        room = limits(config.compression.threshold, window, 0)[0] if room is None else room
        edges = edges_of(messages, config, room, window, shrink=shrink)
        if edges is None:
            kept = "last exchange" if shrink else f"last {config.compression.protect_last_n} messages"
            raise InvalidInput(
                f"there is nothing to compress in session {session_id}: the first exchange and the {kept} are all of it"
            )
        head, tail = edges
        middle = messages[head:tail]
        timeout = (config.auxiliary.compression.timeout if config.auxiliary.compression else None) or TIMEOUT
        tokens = summary_tokens(room)
        with counted_for(db, session_id):
            summary = write_summary(middle, model, focus=focus, tokens=tokens, timeout=timeout, cancelled=cancelled)
        text = _with_header(summary, middle, session_id, tokens, _request(messages, head, tail))
        with lease.fenced():
            return _commit(db, session_id, messages, (head, tail), text)


def _commit(
    db: SessionDB, session_id: str, messages: Sequence[MessageRow], edges: tuple[int, int], text: str
) -> str:  # fmt: skip
    from hermes.agent.conversations import new_session_id

    head, tail = edges
    tail_from = messages[tail]["id"] if tail < len(messages) else None
    if tail_from is None:  # messages stored while the model wrote are carried over as well
        known = {message["id"] for message in messages}
        tail_from = next((row["id"] for row in db.get_messages(session_id) if row["id"] not in known), None)
    session = db.get_session(session_id)
    child = new_session_id(gateway=session is None or session["source"] != "cli")
    return db.compress_session(
        session_id, child, summary=text, head_until=messages[head - 1]["id"] if head else None, tail_from=tail_from
    )


# ---------------------------------------------------------------------------------------------- the summary


def write_summary(
    messages: Sequence[Mapping[str, Any]],
    model: Model,
    *,
    focus: str | None = None,
    tokens: int = MOST_TOKENS,
    timeout: float = TIMEOUT,
    cancelled: Callable[[], bool] = lambda: False,
) -> str:
    """The notes on a part of a conversation: by the model, in as many steps as its window needs, else extractive.

    The model is asked for notes of at most `tokens`.
    """
    from hermes.agent.summary import summary_of

    if not can_write(model):
        return summary_of(messages, focus, 4 * tokens)
    room = max(_LEAST_ROOM, (model.context_length or 8192) * 3 // 4 - _OVERHEAD_TOKENS)
    whole = estimate_tokens(messages)

    while True:
        try:
            return _written(messages, model, focus, room, tokens, timeout, cancelled)
        except ContextTooLong:  # the estimate was too low for this model's tokenizer
            if room <= _LEAST_ROOM:
                return summary_of(messages, focus, 4 * tokens)
            room = max(_LEAST_ROOM, min(room, whole) // 2)


def _written(
    messages: Sequence[Mapping[str, Any]],
    model: Model,
    focus: str | None,
    room: int,
    tokens: int,
    timeout: float,
    cancelled: Callable[[], bool],
) -> str:
    answer_tokens = max(300, min(4_000, room // 4))
    words = min(tokens // 4, answer_tokens // 2)  # a token is less than a word, and the copied lines need room as well
    earlier = [_notes_in(message) for message in messages if _is_notes(message)]
    notes = "\n\n".join(earlier)
    pieces = list(_chunks([message for message in messages if not _is_notes(message)], room - answer_tokens))
    for number, piece in enumerate(pieces or [""]):
        prompt = _prompt(notes, piece, focus, number, len(pieces), words)
        answer = model.complete(prompt, max_tokens=answer_tokens, timeout=timeout, cancelled=cancelled)
        notes = without_thinking(answer)
        if not notes:
            raise ModelError(f"{model.name} gave an empty summary; the session stays as it is")
    return notes


def _prompt(notes: str, piece: str, focus: str | None, number: int, count: int, words: int) -> list[Message]:
    instruction = f"Write the notes, in at most {words} words."
    if focus and focus.strip():
        instruction = f"{instruction} What matters most, and is to be kept in full: {shortened(harmless(focus), 1000)}"
    parts = []
    if notes:
        parts.append(f"The notes so far, to be taken over:\n{quoted(notes)}")
    parts.append(
        f"The part ({number + 1} of {count}):\n{quoted(piece)}" if count > 1 else f"The part:\n{quoted(piece)}"
    )
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": "\n\n".join([*parts, instruction])},
    ]


def _chunks(messages: Sequence[Mapping[str, Any]], room: int) -> Iterator[str]:
    """The messages as text, in pieces of at most `room` tokens; a longer message is cut."""
    lines: list[str] = []
    used = 0
    for message in messages:
        for line in _cut_to(_rendered(message), room):
            size = text_tokens(line) + 1
            if lines and used + size > room:
                yield "\n\n".join(lines)
                lines, used = [], 0
            lines.append(line)
            used += size
    if lines:
        yield "\n\n".join(lines)


def _cut_to(text: str, room: int) -> Iterator[str]:
    size = text_tokens(text)
    if size <= room:
        yield text
        return
    length = max(1, len(text) * room // (size + 1) * 9 // 10)
    for start in range(0, len(text), length):
        yield from _cut_to(text[start : start + length], room) if length > 50 else (text[start : start + length],)


def _rendered(message: Mapping[str, Any]) -> str:
    text = harmless(message_text(message))
    if message.get("role") == "tool":
        text = without_middle(text, _TOOL_OUTPUT, first=0.5)
    name = f" {message['tool_name']}" if message.get("tool_name") else ""
    return f"{message.get('role')}{name}: {text}"


def _is_notes(message: Mapping[str, Any]) -> bool:
    return message_text(message, calls=False).startswith(SUMMARY_MARK)


def _notes_in(message: Mapping[str, Any]) -> str:
    return message_text(message, calls=False).partition("\n")[2].strip()


def summary_tokens(room: int) -> int:
    """How long a summary may be, the copied lines included, where the messages have `room` tokens."""
    return max(300, min(MOST_TOKENS, room * 2 // 5))


def _with_header(
    summary: str, middle: Sequence[Mapping[str, Any]], session_id: str, tokens: int, request: str | None
) -> str:
    """The message that replaces the middle: one line that explains it, the notes, and what is copied word for word."""
    from hermes.agent.summary import exact_lines

    count = len(middle)
    header = (
        f"{SUMMARY_MARK}: {count} message{'s' * (count != 1)}, taken out to save room. Nothing was deleted: they are in"
        f" session {session_id}, where session_search finds them. These are notes on what was said, not new requests.]"
    )
    if request:
        header += f"\n\n{_REQUEST}\n{cut_to(harmless(request), tokens // 4)}"
    notes = _FENCE.sub("", summary.strip()).strip()
    left = tokens - text_tokens(header)
    sure = cut_to(notes, left // 3)  # the rest of the notes gets the room that the copied lines leave
    exact = exact_lines(middle, sure, left - text_tokens(sure))
    notes = cut_to(notes, max(left - text_tokens(exact), text_tokens(sure)))
    return "\n\n".join(part for part in (header, notes, exact) if part)


_REQUEST = "## The request being worked on"


def _request(messages: Sequence[Row], head: int, tail: int) -> str | None:
    """The left-out user message that the first kept message works on; found in earlier notes as well."""
    if tail >= len(messages) or messages[tail].get("role") == "user":
        return None
    place = next((at for at in range(tail - 1, -1, -1) if messages[at].get("role") == "user"), -1)
    if place < head:
        return None
    text = message_text(messages[place], calls=False)
    if text.startswith(SUMMARY_MARK):
        return text.partition(f"{_REQUEST}\n")[2].partition("\n\n## ")[0].strip() or None
    return text


Row = Mapping[str, Any]


def edges_of(
    messages: Sequence[Row], config: Config, room: int, window: int, *, shrink: bool = False
) -> tuple[int, int] | None:
    """(head, tail): messages[head:tail] is what would be summarised. None when there is nothing to leave out.

    The head is the first exchange (`compression.protect_first_n` messages, widened to whole turns, and system messages
    before them) if it is short enough, the tail the last `protect_last_n` messages, widened in the same manner, within
    a third of the window and of `room`. It holds at least the last exchange, if that fits; of a turn that is longer
    only its last steps. With `shrink` it gets smaller until there is something to leave out. The messages are those of
    get_messages.
    """
    count, settings = len(messages), config.compression
    after = [0] * (count + 1)  # tokens from a place to the end
    for number in range(count - 1, -1, -1):
        after[number] = after[number + 1] + sent_tokens(messages[number])
    opening = next((n for n, row in enumerate(messages) if row.get("role") != "system"), count)
    steps = cuts(messages)
    turns = [place for place in steps if place in (0, opening, count) or messages[place].get("role") == "user"]
    earliest, latest = opening + max(0, settings.protect_first_n), count - max(0, settings.protect_last_n)
    tails = _tails(messages, turns, steps, after, (latest, min(window // 3, room // 3), room * 2 // 3))
    for tail in tails if shrink else tails[:1]:
        head = _at_least(turns, earliest)
        if head > tail:  # one long turn: its question stays
            head = _at_least(steps, earliest)
        if after[opening] - after[head] > room // 6:
            head = _at_least(steps, opening)
        if head < tail and not all(map(_is_notes, messages[head:tail])):
            return head, tail
    return None


def _tails(
    messages: Sequence[Row], turns: list[int], steps: list[int], after: list[int], bounds: tuple[int, int, int]
) -> list[int]:
    """Places where the kept end may begin, the longest short enough end first. `bounds` are the place from which on as many
    messages as wanted are kept, and the most tokens for these and for the last exchange."""
    latest, limit, spare = bounds
    count = len(messages)
    if latest >= count or not count:
        return [count]
    places = [place for place in turns if _at_most(turns, latest) <= place < count]
    last = places[-1]
    if after[last] > spare:
        places += [place for place in steps if last < place < count]
    replied = any(row.get("role") == "assistant" for row in messages[last:])
    exchange = last if replied else max((place for place in places if place < last), default=last)
    for number, place in enumerate(places):
        if after[place] <= (spare if exchange <= place <= last else limit):
            return places[number:]
    return places[-1:]


def sent_tokens(row: Row) -> int:
    """The tokens of a message as it is sent: of a tool's result at most what the model gets."""
    return min(estimate_tokens((row,)), TOOL_BUDGET // 4) if row.get("role") == "tool" else estimate_tokens((row,))


def cuts(messages: Sequence[Row]) -> list[int]:
    """The places between messages (0: before the first) where no tool call is separated from its result."""
    held = [False] * (len(messages) + 1)  # a call before this place has its result after it
    call_places: dict[str, int] = {}
    for number, row in enumerate(messages):
        calls = row.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, Mapping) and call.get("id"):
                call_places[str(call["id"])] = number
        if row.get("role") == "tool":
            start = call_places.get(str(row.get("tool_call_id")), number - 1)
            for place in range(max(0, start) + 1, number + 1):
                held[place] = True
    return [place for place in range(len(messages) + 1) if not held[place]]


def _at_least(places: Sequence[int], wanted: int) -> int:
    return next((place for place in places if place >= wanted), places[-1])


def _at_most(places: Sequence[int], wanted: int) -> int:
    return next((place for place in reversed(places) if place <= wanted), 0)
