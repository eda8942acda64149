"""Fits a conversation into the model's window: what is sent, what is cut for sending, and when it is compressed.

A conversation is compressed before a call when it exceeds its share of the window (`compression.threshold`), and when the
endpoint refuses it as too long. Where leaving out its middle is not enough, messages are cut for sending.

Only the copy that is sent is cut; the record keeps every message whole. Long texts keep their beginning and their end, and
between them how much is missing. A call's arguments stay valid JSON: the texts in them are cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from operator import is_not
from typing import TYPE_CHECKING, Any

from hermes.agent.models.model import REASONING, Message
from hermes.agent.turn import Event, Followed, Notice
from hermes.errors import ContextTooLong, Fenced, HermesError, ModelRefused
from hermes.texts import (
    PER_ATTACHMENT,
    content_text,
    estimate_tokens,
    is_attachment,
    limits,
    text_tokens,
    without_middle,
)

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.models.model import Message, Model
    from hermes.agent.turn_session import TurnSession


LEAST = 40  # tokens of a message: cut further, it would be useless
UNSEEN = "the model takes no {}s"
UNFIT = "it does not fit into the model's window"


def fitted(messages: list[Message], room: int) -> tuple[list[Message], int]:
    """The messages in `room` tokens, as far as that is possible, and how many of them were cut: the longest ones, to one length.

    Attachments are left out only where the texts would not fit beside them. The system prompt stays whole.
    """
    sizes = [estimate_tokens((message,)) for message in messages]
    if sum(sizes) <= room:
        return messages, 0
    files = [PER_ATTACHMENT * attachments_in(message) for message in messages]
    prompt = sum(size for size, message in zip(sizes, messages, strict=True) if message.get("role") == "system")
    texts = [
        0 if message.get("role") == "system" else size - held
        for message, size, held in zip(messages, sizes, files, strict=True)
    ]
    cap = max(_cap(texts, room - prompt - sum(files)), 0 if any(files) else LEAST)
    if cap < LEAST:
        sent, _ = fitted([without_attachments(message, UNFIT) for message in messages], room)
    else:
        sent = [
            message if text <= cap else shortened(message, cap + held)
            for message, text, held in zip(messages, texts, files, strict=True)
        ]
    return sent, sum(map(is_not, messages, sent))


def longest_part(messages: Sequence[Message], tools: int) -> str:
    """The part of a prompt that takes the most room, with its tokens (`tools` are those of the tools)."""
    parts = [(tools, "the description of the tools")]
    for number, message in enumerate(messages):
        role = message.get("role")
        name = "the system prompt" if role == "system" else f"message {number} of {len(messages) - 1} ({role})"
        parts.append((estimate_tokens((message,)), name))
    tokens, name = max(parts)
    return f"{name}, about {tokens:,} tokens"


def _cap(sizes: Sequence[int], room: int) -> int:
    """The length to which the longest have to be cut so that all together take `room`."""
    for number, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - number)
        if size > share:
            return share
        room -= size
    return max(sizes, default=0)


def shortened(message: Message, tokens: int) -> Message:
    """A message in about `tokens`: without its reasoning, then with its long texts cut in the middle."""
    slim = {name: value for name, value in message.items() if name not in REASONING}
    if estimate_tokens((slim,)) <= tokens:
        return slim
    sizes: list[int] = []

    def measure(text: str) -> str:
        sizes.append(text_tokens(text))
        return ""

    bare = estimate_tokens((_rewritten(slim, measure),))
    cap = _cap(sizes, max(0, tokens - bare))
    return _rewritten(slim, lambda text: cut_to(text, cap))


def cut_to(text: str, tokens: int) -> str:
    """The text in at most `tokens`, cut in the middle; a few more if they are not enough to say what is missing."""
    size, kept = text_tokens(text), text
    length = len(text)
    while size > tokens and length > 40:
        length = min(length * 9 // 10, length * tokens // size)
        kept = without_middle(text, max(length, 40))
        size = text_tokens(kept)
    return kept


def without_attachments(message: Message, why: str) -> Message:
    """A message with a note in place of each picture, recording or file; as plain text, which every endpoint accepts."""
    content = message.get("content")
    if not attachments_in(message) or not isinstance(content, list):
        return message
    from hermes.agent.prompt import left_out

    return {
        **message,
        "content": content_text([left_out(part, why) if is_attachment(part) else part for part in content]),
    }


def attachments_in(message: Message) -> int:
    """How many parts of a message are pictures, recordings or files."""
    content = message.get("content")
    return sum(map(is_attachment, content)) if isinstance(content, list) else 0


def _rewritten(message: Message, cut: Callable[[str], str]) -> dict[str, Any]:
    """A copy of a message with each of its texts passed through `cut`."""
    out = {**message, "content": _each_text(message.get("content"), cut)}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_cut_call(call, cut) for call in calls]
    return out


def _each_text(value: Any, cut: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, list):
        return [_each_text(item, cut) for item in value]
    if isinstance(value, dict) and not is_attachment(value):
        return {name: item if name == "type" else _each_text(item, cut) for name, item in value.items()}
    return value


def _cut_call(call: Any, cut: Callable[[str], str]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    raw = function.get("arguments") if isinstance(function, dict) else None
    if function is None or not isinstance(raw, str):
        return call
    try:
        values = json.loads(raw)
    except ValueError:
        values = {"arguments": raw}
    arguments = json.dumps(_each_text(values, cut), ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


ALWAYS_FITS = 6_000  # characters


class Room:
    """Fits the conversation of an agent into the window of the model that answers."""

    def __init__(self, agent: Agent, session: TurnSession, cancelled: Callable[[], bool]) -> None:
        self._agent, self._session, self._cancelled = agent, session, cancelled
        self._settled = 0  # the size of the prompt from which on another compression before the call is worth it
        self._ceiling: int | None = None  # tokens of the messages, in this turn, after the endpoint refused more
        self._blind: Model | None = None  # a model that refused a picture
        self._toolless: Model | None = None  # a model whose window has no room for the tools
        self._uncompressed = False  # whether compressing failed in this turn
        self._cut = 0  # how many messages were cut for the model in this turn
        self._blind_reported = False  # whether the user knows that pictures of this turn were left out

    @property
    def _model(self) -> Model:
        return self._agent.model

    def begin_turn(self) -> None:
        """Reset the state of the last turn."""
        self._ceiling, self._uncompressed, self._cut, self._blind_reported = None, False, 0, False

    def tokens(self, most: int | None = None) -> int:
        """How many tokens the messages may take once they are compressed (`most`: with the system prompt)."""
        row = self._agent.db.get_session(self._agent.session_id)
        prompt = text_tokens((row and row["system_prompt"]) or "")
        fixed = prompt + self._tool_tokens()
        room = self._limits(fixed)[0] - fixed
        return room if most is None else min(room, most - prompt)

    def _limits(self, fixed: int) -> tuple[int, int]:
        return limits(self._agent.config.compression.threshold, self._model.context_length, fixed)

    def schemas(self) -> list[dict[str, Any]]:
        """The tools as they are offered to the model: none where they leave no room for the conversation."""
        offered = self._model.calls_tools and self._toolless is not self._model
        return [tool.schema() for tool in self._agent.tools.values()] if offered else []

    def _tool_tokens(self) -> int:
        return estimate_tokens((), self.schemas())

    def messages(self) -> Generator[Event, None, list[Message]]:
        """The messages to send, cut if they would not fit; a notice about that comes once a turn."""
        messages, most = self._session.messages(), self._ceiling
        if self._blind is self._model:
            if not self._blind_reported and any(map(attachments_in, messages)):
                self._blind_reported = True
                yield Notice(f"{self._model.name} takes no pictures; what you attached was left out.")
            messages = [without_attachments(message, UNSEEN) for message in messages]
        if most is None:
            if hasattr(self._model, "unread") or self._session.is_short(ALWAYS_FITS):  # it chooses what it reads
                return messages
            most = self._limits(0)[1] - self._tool_tokens()
        messages, cut = fitted(messages, most)
        if cut > self._cut:
            self._cut = cut
            which = "A message is" if cut == 1 else f"{cut} messages are"
            yield Notice(
                f"{which} too long for {self._model.name} and cut in the middle for it; the record keeps the whole text."
            )
        return messages

    def make(self) -> Generator[Event, None, bool]:
        """Compress before the call when the conversation exceeds its share of the context window.

        Not again before it has grown by half of its room, unless it would have to be cut. Returns whether the
        conversation continues in another session.
        """
        if not self._agent.config.compression.enabled or self._model.kind == "extractive":  # it reads only the question
            return False
        if self._ceiling is None and self._session.is_short(ALWAYS_FITS):  # the server need not be asked for its window
            return False
        from hermes.agent.compress import prompt_tokens

        messages, tools = self._session.messages(), self._tool_tokens()
        soft, hard = self._limits(tools + estimate_tokens(messages[:1]))
        if self._ceiling is not None:
            hard = self._ceiling + tools
        to_cut = estimate_tokens(messages) + tools > hard
        if not to_cut and prompt_tokens(messages, tools) <= max(soft, self._settled):
            return False
        followed = yield from self._compress(shrink=to_cut)
        self._settled = prompt_tokens(self._session.messages(), tools) + self.tokens() // 2
        return followed

    def shrink(self, refused: list[Message], error: ContextTooLong) -> Generator[Event, None, bool]:
        """Shorten what the endpoint refused as too long; raises the error, with the longest part, if that is not possible.

        Returns whether the conversation continues in another session.
        """
        size, tools = estimate_tokens(refused), self._tool_tokens()
        self._ceiling = size * 2 // 3
        if (yield from self._compress(shrink=True)):
            return True
        if estimate_tokens(fitted(refused, self._ceiling)[0]) < size:
            return False
        if tools > self._model.context_length // 3:
            self._toolless, self._ceiling = self._model, None
            yield Notice(f"The tools don't fit into the window of {self._model.name}; it answers without them.")
            return False
        raise ContextTooLong(
            f"{str(error).rstrip('.')}; the longest part is {longest_part(refused, tools)}: use a model with a larger window"
            + ("" if self._agent.config.compression.enabled else ", or /compress")
        ) from error

    def leave_out_pictures(self, refused: list[Message], error: ModelRefused) -> None:
        """Send this model notes in place of pictures from now on; raises the error if pictures are not its cause."""
        if not error.pictures or not any(map(attachments_in, refused)):
            raise error
        self._blind = self._model

    def _compress(self, *, shrink: bool) -> Generator[Event, None, bool]:
        """Continue in a compressed child; False when that is not possible, and then nothing has changed."""
        agent, config = self._agent, self._agent.config
        if not config.compression.enabled or self._uncompressed:
            return False
        from hermes.agent.compress import compress, edges_of
        from hermes.agent.models.choice import auxiliary_model

        old, window, room = agent.session_id, self._model.context_length, self.tokens(self._ceiling)
        if edges_of(self._session.history, config, room, window, shrink=shrink) is None:
            return False
        yield Notice("Context limit reached; compressing the conversation… (nothing is deleted)")
        try:
            with agent.lease.fenced():
                child = compress(
                    agent.db, old, auxiliary_model(config, "compression", self._model), config,
                    room=room, window=window, shrink=shrink, cancelled=self._cancelled, lease=agent.lease,
                )  # fmt: skip
        except Fenced:
            raise
        except HermesError as error:
            self._uncompressed = True
            yield Notice(f"The conversation could not be compressed ({error}); it continues uncompressed.")
            return False
        if child == old:
            return False
        self._session.go_to(child)
        yield Followed(old, child)
        return True
