"""The position of a request in the record: at the end of a session, at an earlier point of one, or in a new one.

A request that names a session continues it. A client that sends the whole conversation is recognised
by its digest, which covers the user, the instructions and the tools too: an answered message is never stored again.
If the session has continued since (the user edited a message, or wanted another answer), a branch begins at that point; it
has the messages before it by reference. A conversation that is not recognised is a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.models.model import Message, Model
from hermes.agent.prompt import system_prompt
from hermes.agent.tool_calls import read_call
from hermes.agent.turn_session import Also
from hermes.serve.api.requests import ApiRequest
from hermes.serve.http_messages import ApiError
from hermes.store.api.session_db import Transactions
from hermes.store.gateway.gateway_db import GatewayDB

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB


SOURCE = "api-server"
_LOOKS = 500  # how many earlier points of a conversation are looked up; more than any client sends
_INSTRUCTIONS = "\n\n# Instructions of the program you talk through\n"


@dataclass(slots=True, frozen=True)
class RecordPosition:
    """A point in the record, and the caller's messages after it."""

    session_id: str | None = None  # None: a new session
    after: int | None = None  # the message after which a branch begins; None: at the end of the session
    missing: tuple[Message, ...] = ()  # messages from elsewhere; stored before the turn
    is_stored: bool = False  # the new message is stored already, unanswered: an earlier try failed

    @property
    def continues(self) -> bool:
        """Whether the session itself continues."""
        return self.session_id is not None and self.after is None


def last_id(db: SessionDB, session_id: str) -> int:
    """The id of the last message a session shows; 0 when there is none."""
    rows = db.get_messages(session_id)
    return rows[-1]["id"] if rows else 0


class RequestSessions:
    """Finds and creates positions. Every method waits for the store: not for an event loop."""

    def __init__(self, db: SessionDB, config: Config, home: Path) -> None:
        self._db, self._config, self._home = db, config, home
        self._aliases = GatewayDB(db)

    # ------------------------------------------------------------------------------------------ finding

    def find(self, ask: ApiRequest, *, aside: bool = False, tried: bool = True) -> RecordPosition:
        """The position of a request. ApiError 404 for an unknown session, 400 for an unknown response.

        `aside`: the recognised session is in use; the request continues in a branch beside it. `tried`: an earlier try of
        the same request that has no answer is continued.
        """
        if ask.session_id is not None:
            if self._db.get_session(ask.session_id) is None:
                raise ApiError(404, f"no session has the id {ask.session_id!r}", code="session_not_found")
            return RecordPosition(self._db.get_compression_tip(ask.session_id))
        if ask.previous is not None:
            found = self._at(f"response:{ask.previous}", tuple(ask.history), aside)
            if found is None:
                raise ApiError(
                    400, f"Previous response with id {ask.previous!r} not found.", code="previous_response_not_found",
                    param="previous_response_id",
                )  # fmt: skip
            return found
        return self._recognised(ask, aside, tried and not aside) or RecordPosition(missing=tuple(ask.history))

    def _recognised(self, ask: ApiRequest, aside: bool, tried: bool) -> RecordPosition | None:
        names = ask.names()
        earlier = self._at(f"unanswered:{names[-1]}", (), aside) if tried else None
        if earlier is not None and earlier.continues:
            return RecordPosition(earlier.session_id, is_stored=True)
        history = ask.history
        for number in range(len(history), max(0, len(history) - _LOOKS), -1):
            if history[number - 1]["role"] != "assistant":
                continue
            found = self._at(f"chat:{names[number - 1]}", tuple(history[number:]), aside)
            if found is not None:
                return found
        return None

    def _at(self, alias: str, missing: tuple[Message, ...], aside: bool) -> RecordPosition | None:
        """The position an alias stands for, if it still exists."""
        noted = self._aliases.get_alias(alias)
        session_id, _, number = (noted or "").rpartition("@")
        if not number.isdigit() or self._db.get_session(session_id) is None:
            return None
        tip = self._db.get_compression_tip(session_id)
        if last_id(self._db, tip) == int(number):
            return RecordPosition(tip, int(number) if aside else None, missing)
        if any(row["id"] == int(number) for row in self._db.get_messages(session_id)):
            return RecordPosition(session_id, int(number), missing)
        return None

    def chain(self, session_id: str) -> str:
        """A name that a session keeps when it is compressed: the first session of that chain."""
        return self._db.get_compression_chain(session_id)[0]

    # ------------------------------------------------------------------------------------------ creating

    def open(
        self, place: RecordPosition, ask: ApiRequest, model: Model, tools: Sequence[str], cwd: Path, new_id: str
    ) -> None:
        """Store all earlier messages, in the session in which a request is answered: `new_id` where it begins here."""
        db = self._db
        session_id = place.session_id
        if session_id is None:
            session_id = new_id
            about = {"kind": model.kind, "provider": model.provider, "base_url": model.base_url}
            prompt = system_prompt(self._config, self._home, cwd, tools=set(tools) if model.calls_tools else set())
            db.create_session(
                session_id, SOURCE, model=model.name, cwd=str(cwd), system_prompt=_with(prompt, ask.instructions),
                model_config={key: value for key, value in about.items() if value is not None},
            )  # fmt: skip
        elif place.after is not None:
            session_id = db.branch_session(session_id, new_id, at_message=place.after)
        if place.session_id is not None:
            self._instruct(session_id, ask.instructions)
        for message in place.missing:
            self.store(session_id, message)
        if not place.is_stored:
            for result in ask.results:
                self.store(session_id, result)

    def _instruct(self, session_id: str, instructions: str | None) -> None:
        """Put the caller's current instructions into the session's prompt; without any, the old ones stay."""
        row = None if instructions is None else self._db.get_session(session_id)
        before = None if row is None else row["system_prompt"]
        if before is not None:  # else the turn makes a prompt
            prompt = _with(before.partition(_INSTRUCTIONS)[0], instructions)
            self._db.update_system_prompt(session_id, prompt)

    def store(self, session_id: str, message: Message) -> None:
        """Store a message from elsewhere."""
        row = {name: message.get(name) for name in ("role", "content", "tool_calls", "tool_call_id")}
        if message["role"] == "tool":
            row["tool_name"] = self._name_of(session_id, message["tool_call_id"])
        Transactions(self._db).store_message(session_id, row)

    def _name_of(self, session_id: str, call_id: str) -> str | None:
        """The tool that a call was for."""
        rows = self._db.get_messages(session_id)
        raw = [call for row in rows if isinstance(row["tool_calls"], list) for call in row["tool_calls"]]
        calls = [read_call(call, {}) for call in raw if isinstance(call, dict)]
        return next((call.name or None for call in reversed(calls) if call.id == call_id), None)

    # ------------------------------------------------------------------------------------------ remembering

    def keep_question(self, ask: ApiRequest, session_id: str, content: str | list[Any], also: Also) -> int:
        """Store the user's message together with the note that it waits for an answer: a repeated request finds it there."""
        message = {"role": "user", "content": content}
        return self._aliases.keep_with_alias(session_id, message, f"unanswered:{ask.names()[-1]}", also)

    def remember(self, ask: ApiRequest, session_id: str, message_id: int, replies: Sequence[Message]) -> None:
        """Record that the conversation, with any of these replies, is at this message; without replies it waits for one."""
        for reply in replies:
            name = ask.names(reply)[-1]
            self._aliases.set_alias(f"chat:{name}", f"{session_id}@{message_id}")
        if not replies:
            self._aliases.set_alias(f"unanswered:{ask.names()[-1]}", f"{session_id}@{message_id}")

    def remember_response(self, response_id: str, session_id: str, message_id: int) -> None:
        """Record that a response of ours ends at this message."""
        self._aliases.set_alias(f"response:{response_id}", f"{session_id}@{message_id}")


def _with(prompt: str, instructions: str | None) -> str:
    return prompt if not instructions else f"{prompt}{_INSTRUCTIONS}{instructions}"
