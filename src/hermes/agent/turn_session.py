"""The session of a turn: opened, read, appended to, and followed when it continues in another session.

The history is read from the store when a turn begins and grows with it in memory; each message is stored before
it is in the history. The model's own text of this turn is sent back to it unmasked, unlike the stored text.

A turn that held the session when it began stores only as long as it still does: if its process was suspended for long and
another continued the session, it ends with `Fenced`, and the received part of a reply stays in its draft. (The lease
held at the beginning counts: one that was lost and taken again in between does not.)

One process runs a turn at a time: while another does, a turn does not begin (`SessionBusy`). Callers that can wait use
`take_turn` first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hermes.agent.leases import SessionLease
from hermes.agent.models.model import COUNTED, REASONING, Message, Model, Reply, price_of, usage_of
from hermes.agent.models.servers import without_password
from hermes.agent.prompt import last_question, prepared
from hermes.agent.tool_calls import OUTCOME, Result
from hermes.agent.tools.tool import Context
from hermes.agent.turn import Event, Followed, Notice
from hermes.errors import Fenced, InvalidInput, SessionBusy, SessionNotFound
from hermes.store.api.session_db import Transactions
from hermes.store.leases import TURN, holder_name, session_lease
from hermes.store.transcripts.drafts import Draft
from hermes.texts import content_text

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.engines.base import Tx

MASKED = "a secret in {} was masked before it was stored (privacy.redact_secrets)"
WENT_ON = "(The conversation continued elsewhere before this was answered. Send it again if it still matters.)"
Content = str | list[Any]
Also = Callable[["Tx"], None]  # writes more in the transaction that stores a message
Keep = Callable[[str, Content, Also], int]  # stores a user message in a session, with more; returns its id


class TurnSession:
    """One conversation at a time: the session that `context` names, in its store."""

    def __init__(self, context: Context, source: str, lease: SessionLease, **columns: Any) -> None:
        """`columns` are the columns of the session's row (named as in create_session) if the first turn has to create it."""
        self._context = context
        self._db = context.db
        self._source, self._columns = source, columns
        self._lease = lease
        self._masking_reported = False
        self._recovered = recover_abandoned(context.db, context.session_id)  # done here, so that a recap shows it
        self.history: list[Message] = []
        self.last_id = 0  # the id of the last stored message
        self.prompt: str | None = None
        self.moves: list[Event] = []  # not reported yet
        self.recalled = ""  # text of earlier conversations that is sent with the user's message in this turn

    @property
    def session_id(self) -> str:
        return self._context.session_id

    def enter(
        self, model: Model, new_prompt: Callable[[], str], *, later: bool = False
    ) -> Generator[Event, None, bool]:
        """Open, reopen or follow the session, make it live (`later`: with the user's message), and read its messages.

        Returns whether a reply had been cut off by a crash: its received part is stored now.
        """
        self.take_turn(later=later)
        before = self.session_id
        session = self._db.get_session(before)
        if session is None:
            self.prompt = new_prompt()
            self._create(model)
        else:
            tip = self._db.get_compression_tip(before) if session["end_reason"] == "compression" else before
            if tip != before:  # another process compressed it meanwhile
                self._context.session_id = tip
                yield Followed(before, tip)
                session = self._db.get_session(tip) or session
            if session["ended_at"] is not None:
                self._db.reopen_session(self.session_id)
            self.prompt = session["system_prompt"]
            if self.prompt is None:
                self.prompt = new_prompt()
                self._db.update_system_prompt(self.session_id, self.prompt)
        if session is None or self.session_id != before:  # our lease may be of another session
            self.take_turn(later=later)
        cut_off, self._recovered = self._recovered, False
        if self._db.drafts.exists(self.session_id):
            self.take_turn()
            with self._lease.fenced():
                cut_off = recover(self._db, self.session_id) or cut_off
        self.load()
        return cut_off

    def _create(self, model: Model) -> None:
        about = {"kind": model.kind, "provider": model.provider, "base_url": model.base_url}
        self._db.create_session(
            self.session_id, self._source, model=model.name, system_prompt=self.prompt, cwd=str(self._context.cwd),
            model_config={key: value for key, value in about.items() if value is not None},
            **self._columns,
        )  # fmt: skip

    def change_prompt(self, prompt: str) -> None:
        """Give the session another system prompt."""
        with self._lease.fenced():
            self._db.update_system_prompt(self.session_id, prompt)
        self.prompt = prompt

    def load(self) -> None:
        """Read the history again."""
        self.history = list(self._db.get_messages_as_conversation(self.session_id, inline_attachments=False))

    def take_turn(self, *, later: bool = False) -> None:
        """Take the session to answer in it; SessionBusy while another process does, or compresses it.

        A session that does not exist yet is free; of a compressed one the last child counts. `later`: nothing is stored yet,
        the transaction that stores the user's message takes it, if no other process has used it by then.
        """
        if self._lease.holds(self.session_id, TURN):
            return
        take = self._lease.plan if later else self._lease.take
        tip, previous = self._db.get_compression_tip(self.session_id), None
        while tip != previous:
            try:
                take(tip)
            except SessionNotFound:
                return
            tip, previous = self._db.get_compression_tip(tip), tip

    def go_to(self, session_id: str) -> None:
        """Continue in another session, which this one was compressed into; Fenced if another process has answered there."""
        try:
            self._lease.take(session_id)
        except SessionBusy:
            raise Fenced(session_lease(session_id)) from None
        rows = self._db.get_messages(session_id)
        if any(row["role"] == "assistant" and row["id"] > self.last_id for row in rows):
            raise Fenced(session_lease(session_id))
        self._context.session_id = session_id
        self.load()
        self.last_id = rows[-1]["id"]

    def _here(self) -> str:
        """The session to store in: if another process has compressed it during the turn, its child."""
        old = self.session_id
        tip = self._db.get_compression_tip(old)
        if tip != old:
            self.go_to(tip)
            self.moves.append(Followed(old, tip))
        return tip

    @contextmanager
    def _reporting_secrets(self, where: str) -> Iterator[None]:
        """Report once per conversation that a secret was masked in what this block stores."""
        before = self._db.secrets_masked
        yield
        if self._db.secrets_masked > before and not self._masking_reported:
            self._masking_reported = True
            self.moves.append(Notice(MASKED.format(where)))

    def pending_events(self) -> list[Event]:
        """Events from outside the turn that were not reported yet; each is returned once."""
        moves, self.moves = self.moves, []
        return moves

    # ------------------------------------------------------------------------------------------ turns

    def append_user(self, content: Content, keep: Keep | None = None) -> None:
        """Store the user's message; `keep` stores it if more has to happen in the same transaction.

        SessionBusy, and nothing is stored, if another process took the session since `enter`.
        """
        with self._lease.joining(), self._lease.fenced(), self._reporting_secrets("your message"):
            self.last_id = (keep or self._keep)(self.session_id, content, self._lease.take_in)
        self.history.append({"role": "user", "content": content})

    def _keep(self, session_id: str, content: Content, also: Also) -> int:
        return Transactions(self._db).store_message(
            session_id, {"role": "user", "content": content}, lambda tx, _: also(tx)
        )

    def undo_reply(self) -> bool:
        """Undo everything after the user's last message; False when there is no such message."""
        user_ids = [row["id"] for row in self._db.get_messages(self.session_id) if row["role"] == "user"]
        if user_ids:
            with self._lease.fenced():
                self._db.rewind(self.session_id, user_ids[-1])
            self.load()
            self.last_id = user_ids[-1]
        return bool(user_ids)

    def answered(self, message_id: int | None = None) -> str | None:
        """The stored complete reply to the user's last message, or to this one.

        A note if there is none and the conversation has continued since. InvalidInput when there is no message.
        """
        rows = self._db.get_messages(self._db.get_compression_tip(self.session_id))
        if not any(row["role"] == "user" for row in rows):
            raise InvalidInput("there is nothing to answer: this conversation has no message from you")
        place = next((number for number, row in enumerate(rows) if row["id"] == message_id), len(rows))
        later = next((number for number in range(place + 1, len(rows)) if rows[number]["role"] == "user"), None)
        last = next(row for row in reversed(rows[:later]) if row["role"] != "system")
        whole = last["role"] == "assistant" and not last["tool_calls"] and not _is_cut_off(last)
        if later is not None and not whole:
            return WENT_ON
        return content_text(last["content"]) if whole else None

    def rewind_partial(self) -> None:
        """Undo the received part of an interrupted reply, since that starts over."""
        rows = self._db.get_messages(self.session_id)
        kept = len(rows)
        while _is_cut_off(rows[kept - 1]):
            kept -= 1
        self.last_id = rows[kept - 1]["id"]
        if kept < len(rows):
            with self._lease.fenced():
                self._db.rewind(self.session_id, self.last_id)
            self.load()

    def append_reply(self, reply: Reply, model: Model, heard: list[str], also: Also | None = None) -> Reply:
        """Store a reply; of an interrupted one the received text. An empty one is not stored.

        `also` is called in the transaction that stores the last reply of a turn, if that is complete.
        """
        if reply.finish_reason == "interrupted":
            reply.content = "".join(heard) or reply.content
            reply.tool_calls = []
        empty = not (reply.content or reply.tool_calls or reply.reasoning or reply.reasoning_content)
        if not (empty and reply.finish_reason == "interrupted"):
            here = self._here()
            is_last = not reply.tool_calls and reply.finish_reason != "interrupted" and (reply.content or "").strip()
            with self._lease.joining(), self._lease.fenced(), self._reporting_secrets("the reply"):
                self.last_id = keep_reply(self._db, here, model, reply, also if is_last else None)
            heard.clear()  # stored: from here on no error may cause it to be stored again
            self.history.append(as_message(reply))
        return reply

    def append_result(self, result: Result) -> None:
        """Store the result of a call."""
        here = self._here()
        with self._lease.fenced(), self._reporting_secrets("what a tool gave"):
            self.last_id, message = keep_result(self._db, here, result)
        self.history.append(message)

    def draft(self, model: Model) -> Draft:
        """The draft that holds the reply that begins now until it is complete."""
        return self._db.drafts.begin(self.session_id, after=self.last_id, model=model.name, mask=self._db.masked)

    # ------------------------------------------------------------------------------------------ showing

    def messages(self) -> list[Message]:
        """The conversation as sent to the model, if all of it fits."""
        read = self._db.read_attachment
        messages = prepared(self.history, system_prompt=self.prompt, attachments=read)
        if self.recalled and (place := last_question(messages)) is not None:
            messages[place] = {**messages[place], "recalled": self.recalled}
        return messages

    def question(self) -> str:
        """The text of the user's last message."""
        place = last_question(self.history)
        return "" if place is None else content_text(self.history[place].get("content"))

    def is_short(self, characters: int) -> bool:
        """Whether the history has fewer characters, roughly: a cheap check before a real count."""
        return len(self.prompt or "") + sum(len(str(one.get("content"))) for one in self.history) < characters


def _is_cut_off(row: Message) -> bool:
    return bool(row["role"] == "assistant" and row["finish_reason"] == "interrupted")


# ----------------------------------------------------------------------------------------------------
# Storing replies with their usage, results of calls, and the drafts of processes that died.


def keep_reply(db: SessionDB, session_id: str, model: Model, reply: Reply, also: Also | None = None) -> int:
    """Store a reply with its usage, which is also added to the session's sums; returns the id of the message."""
    price = price_of(model, reply)
    counts = {} if reply.usage is None else {name: getattr(reply.usage, name) for name in COUNTED}
    sums = {
        **usage_of(reply, price), "model": model.name, "billing_provider": model.provider,
        "billing_base_url": without_password(model.base_url) if model.base_url else None,
    }  # fmt: skip
    message = {
        "role": "assistant", "content": reply.content, "tool_calls": reply.tool_calls or None,
        "finish_reason": reply.finish_reason, "model": reply.model or model.name, "cost_usd": price.usd,
        **{name: getattr(reply, name) for name in REASONING}, **counts, "token_count": counts.get("output_tokens"),
    }  # fmt: skip
    return Transactions(db).store_message(session_id, message, None if also is None else lambda tx, _: also(tx), sums)


def as_message(reply: Reply) -> Message:
    """A reply as the next call shows it to the model."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    for field in REASONING:
        if getattr(reply, field) is not None:
            message[field] = getattr(reply, field)
    if reply.usage is not None and reply.usage.prompt_tokens:
        message["input_tokens"] = reply.usage.prompt_tokens  # not sent: a better measure of the prompt than an estimate
    return message


def keep_result(db: SessionDB, session_id: str, result: Result) -> tuple[int, Message]:
    """Store the result of a call; returns its id, and the message for the model."""
    call = result.call
    message: Message = {"role": "tool", "tool_call_id": call.id, "tool_name": call.name, "content": result.text}
    stored = {**message, "tool_name": call.name or None, "meta": {OUTCOME: result.outcome} if result.outcome else None}
    return Transactions(db).store_message(session_id, stored), message


def recover(db: SessionDB, session_id: str) -> bool:
    """Store the text of a reply that a killed process left unfinished; returns whether there was any.

    The caller holds the session for a turn, so that no process writes the draft. A reply that was already stored, or whose
    question was undone since, is not stored again.
    """
    if db.read_only:
        return False
    with db.drafts.left_behind(session_id) as draft:
        if draft is None:
            return False
        rows = db.get_messages(session_id)
        ids = [row["id"] for row in rows]
        if draft.after not in ids:
            return False
        since = rows[ids.index(draft.after) + 1 :]
        if any(row["role"] == "assistant" for row in since):
            return False
        reply = {"role": "assistant", "content": draft.text, "finish_reason": "interrupted", "model": draft.model}
        Transactions(db).store_message(session_id, reply)
        return True


def recover_abandoned(db: SessionDB, session_id: str) -> bool:
    """Call `recover`, unless another process answers in the session: the draft belongs to that process."""
    if db.read_only or not db.drafts.is_abandoned(session_id):
        return False
    try:
        fence = session_lease(session_id), db.take_turn(session_id, holder_name("recovery"))
    except (SessionBusy, SessionNotFound):
        return False
    try:
        with db.fenced(*fence):
            return recover(db, session_id)
    finally:
        db.release_lease(*fence)
