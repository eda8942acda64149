"""The part of SessionDB about messages: storing, changing, reading and finding them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hermes.errors import InvalidInput, StoreError, StoreUnreachable
from hermes.store.api.open import OpenStore, R, read_again
from hermes.store.engines.base import Tx
from hermes.store.records import codec, file_changes, lineage, message_reading, messages, sessions
from hermes.store.records.attachments import references
from hermes.store.records.message_values import EncodedMessage
from hermes.store.records.rows import (
    ChangeReason,
    ChatMessage,
    FileChangeRow,
    MeaningStatus,
    MessageRow,
    SearchHit,
    SessionEvent,
)
from hermes.store.records.visibility import User
from hermes.store.upkeep import retention

Also = Callable[[Tx, int], None]  # writes what belongs to the message with this id


class MessageCalls(OpenStore):
    """Messages, their attachments, the session events between them, and search."""

    # ------------------------------------------------------------------------------------------ messages

    def append_message(
        self,
        session_id: str,
        role: str,
        content: str | list[Any] | dict[str, Any] | None = None,
        tool_name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        token_count: int | None = None,
        finish_reason: str | None = None,
        reasoning: str | None = None,
        reasoning_content: str | None = None,
        reasoning_details: Any = None,
        codex_reasoning_items: Any = None,
        codex_message_items: Any = None,
        *,
        timestamp: float | None = None,
        model: str | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cache_read_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        cost_usd: float | None = None,
        usage: Mapping[str, Any] | None = None,
        platform_message_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> int:
        """Store a message and return its id; when this returns, the message is safe and can be found.

        Any role is accepted. `usage` (arguments of update_token_counts) is added to the session's sums in the same
        transaction: either both are there or neither. An unknown (or deleted) session is SessionNotFound, content that
        is neither text, a list nor a dict is InvalidInput; nothing is stored then.
        """
        message = locals()  # a message is read by the names of its columns; the other arguments do no harm
        counts = sessions.checked_usage(usage)
        message["meta"] = meta if meta is None else dict(meta)
        return self._append(session_id, self._encoded(message), counts)

    def _append(
        self, session_id: str, ready: EncodedMessage, counts: Mapping[str, Any] | None = None, also: Also | None = None
    ) -> int:
        """Store a prepared message; `also`, given its id, writes related rows in the same transaction.

        If the server connection is lost and nothing was stored, the call is retried, and `also` is called again.
        """
        end = time.monotonic() + self._patience * 2 / 3  # the last try may take all of it
        used: dict[str, Any] = {}
        self._transcripts.check_newer(session_id)
        while True:
            try:
                with self._writing(session_id, exclusive=bool(ready.lifted), storing=True) as tx:
                    message_id = messages.append(tx, session_id, ready)
                    if counts:
                        changed = sessions.add_usage(tx, session_id, counts, absolute=False)
                        used = self._transcripts.values(tx, session_id, changed)
                    if also is not None:
                        also(tx, message_id)
                break
            except StoreUnreachable as error:
                if error.maybe_stored or time.monotonic() > end:
                    raise
        self._transcripts.message_stored(session_id, message_id, ready, used)
        with suppress(StoreError, RuntimeError):  # the message is stored: an error would make the caller store it twice
            self._engine.appended(message_id, ready.size)
            self._meaning.appended()
        return message_id

    def keep_attachment(self, data: bytes) -> str:
        """Store bytes once next to the database; returns the reference for a message, `attachment:sha256:<hex>`.

        They are deleted with the last message that holds the reference.
        """
        from hermes.store.records.attachments import PREFIX

        self._require_open()
        return PREFIX + self._attachments.keep(data)

    def replace_messages(self, session_id: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Replace a session's own messages with others: all of them or none, in one transaction."""
        self._replace(session_id, [self._encoded(message) for message in messages], "replace")

    def clear_messages(self, session_id: str) -> None:
        """Remove a session's messages and keep the session. An unknown session is ignored."""
        self._replace(session_id, [], "clear")

    def _replace(self, session_id: str, ready: Sequence[EncodedMessage], action: str) -> None:
        with self._writing(session_id) as tx:
            if action == "replace":
                sessions.require(tx, session_id)
            if count := messages.remove_own(self._engine, tx, session_id):
                retention.audit(tx, action, session_id, "", f"{count} messages")
            for table in ("session_refs", "session_rewinds"):
                tx.run(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
            for message in ready:
                messages.append(tx, session_id, message)
            messages.recount(tx, session_id)
        self._transcripts.rewritten(session_id)

    def redact_message(self, message_id: int) -> bool:
        """Redact one message; False when there is none, or it is already redacted.

        No session shows it any more, nor does one that carries it over; it is not replayed, found or counted, and undoing
        a rewind does not bring it back. Its row stays (`hidden` -3), and so does its line in the transcript.
        """
        place = self._read(messages.home_of, message_id)
        if place is None:
            return False
        with self._writing(*place.sessions) as tx:
            place = messages.home_of(tx, message_id)
            if place is None:
                return False
            messages.redact(tx, message_id, place)
        self._transcripts.changed(place.owner, "redact", hides=[message_id])
        return True

    def edit_message(self, message_id: int, content: str | list[Any] | dict[str, Any]) -> bool:
        """Replace the content of one message in place; False when there is no visible message with this id.

        The earlier content moves to a separate row that is never shown (`hidden` -4). Sessions that carry the message
        over show the new text as well. Identical content changes nothing and returns True.
        """
        place = self._read(messages.home_of, message_id)
        if place is None:
            return False
        role = self._read(lambda tx: tx.value("SELECT role FROM messages WHERE id = ?", (message_id,)))
        ready = self._encoded({"role": codec.restored(role), "content": content})
        with self._writing(*place.sessions) as tx:
            place = messages.home_of(tx, message_id)
            if place is None:
                return False
            if messages.same_content(tx, message_id, ready):
                return True
            version = messages.replace(self._engine, tx, message_id, ready, place.keeper, only_content=True)
            for session_id in place.sessions:
                messages.recount(tx, session_id)
        if place.deleted:
            self._transcripts.rewritten(place.owner, place.keeper)
        else:
            self._transcripts.revised(place.owner, [version], [message_id], hides=False)
        return True

    def get_messages(
        self, session_id: str, include_ancestors: bool = False, *, visible_to: User | None = None
    ) -> list[MessageRow]:
        """Every message a session shows, in order, with all columns; JSON fields decoded. [] for an unknown session.

        With ancestors as in get_messages_as_conversation.
        """
        ask: Callable[[Tx, str], list[Any]] = message_reading.shown_rows
        if include_ancestors:
            ask = partial(lineage.with_ancestors, columns=message_reading.ROW, visible_to=visible_to)
        rows = [message_reading.decode(row) for row in self._visible_rows(session_id, visible_to, ask)]
        return message_reading.without_repeats(rows) if include_ancestors else rows

    def get_undone_messages(self, session_id: str, *, visible_to: User | None = None) -> list[MessageRow]:
        """The messages that the last rewind hid and `unrewind` would show again, in order."""
        return [message_reading.decode(row) for row in self._visible_rows(session_id, visible_to, lineage.undone)]

    def _visible_rows(self, session_id: str, visible_to: User | None, ask: Callable[[Tx, str], list[R]]) -> list[R]:
        """The rows that `ask` finds for a session; [] for one that may not be seen."""
        return self._read(lambda tx: ask(tx, session_id) if sessions.is_shown(tx, session_id, visible_to) else [])

    @read_again
    def get_messages_as_conversation(
        self,
        session_id: str,
        include_ancestors: bool = False,
        *,
        inline_attachments: bool = True,
        visible_to: User | None = None,
    ) -> list[ChatMessage]:
        """The session as OpenAI chat messages, ready to send: empty fields are left out.

        Payloads that were lifted out of messages are put back as they came (`inline_attachments=False` leaves the
        references). With ancestors, a user message that is repeated before any reply appears once.
        """
        with self._engine.read() as tx:
            if not sessions.is_shown(tx, session_id, visible_to):
                return []
            if include_ancestors:
                rows = lineage.with_ancestors(tx, session_id, message_reading.TURN_ROW, visible_to)
            else:
                rows = message_reading.shown_rows(tx, session_id, message_reading.TURN_ROW)
            kinds = message_reading.payload_kinds(tx, rows) if inline_attachments else {}
        turns = [message_reading.as_turn(row) for row in rows]
        for row, turn in zip(rows, turns, strict=True) if kinds else ():
            if row[0] in kinds:
                turn["content"] = self._attachments.inlined(turn["content"], kinds[row[0]])
        return message_reading.without_repeats(turns) if include_ancestors else turns

    def resolve_attachments(self, message: Any) -> Any:
        """A message (or its content) of this store with its payloads in place of the references, ready to be sent.

        What was a `data:` address becomes one again, bare base64 stays bare base64. A reference without a file stays.
        """
        digests = [digest for digest, _, _ in references(codec.to_json(message))]
        kinds = self._read(message_reading.kinds_of, digests)
        if isinstance(message, dict) and "role" in message:
            return {**message, "content": self._attachments.inlined(message.get("content"), kinds)}
        return self._attachments.inlined(message, kinds)

    def record_event(self, session_id: str, kind: str, text: str) -> bool:
        """Record a session event that is no message ("model_error"); False when there is no such session.

        Events are shown and exported with a session; they are never sent to a model, counted or searched.
        """
        if not isinstance(kind, str) or not kind:
            raise InvalidInput("an event has a kind, which is a text")
        with self._writing(session_id) as tx:
            if sessions.get(tx, session_id, None) is None:
                return False
            event = sessions.record_event(tx, session_id, kind, self._masked(text) or "")
        self._transcripts.event_stored(session_id, sessions.line_of_event(event))
        return True

    def get_session_events(self, session_id: str, *, visible_to: User | None = None) -> list[SessionEvent]:
        """The session's events (not its messages), oldest first: `at`, `after` (a message's id), `kind`, `text`."""
        return self._visible_rows(session_id, visible_to, sessions.events_of)

    def message_count(self, session_id: str | None = None, *, visible_to: User | None = None) -> int:
        """How many messages there are, each counted once, under the session that owns it."""
        return self._read(message_reading.count, session_id, visible_to)

    def carried_message_counts(self, session_ids: Sequence[str]) -> dict[str, int]:
        """How many messages of other sessions each of these shows: a branch those before it, a compressed one its edges.

        With a session's own `message_count` that is how many `get_messages` gives. Sessions that show none are left out.
        """
        return self._read(message_reading.carried_counts, list(session_ids))

    def session_of_message(self, message_id: int, *, visible_to: User | None = None) -> str | None:
        """The session that shows a message: its own, else one that carries it; None when none visible does."""
        return self._read(message_reading.session_of, message_id, visible_to)

    # ------------------------------------------------------------------------------------------ search

    def get_messages_from(self, message_id: int, limit: int, *, visible_to: User | None = None) -> list[MessageRow]:
        """A message and the next ones of its session, at most `limit` in all; [] where there is no such message."""
        rows = self._look_up(message_reading.following, message_id, limit, visible_to)
        return [message_reading.decode(row) for row in rows]

    @read_again
    def search_messages(
        self,
        query: str,
        source_filter: Sequence[str] | None = None,
        exclude_sources: Sequence[str] | None = None,
        role_filter: Sequence[str] | None = None,
        limit: int | None = 20,
        offset: int = 0,
        *,
        session_ids: Sequence[str] | None = None,
        user_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
        model: str | None = None,
        title: str | None = None,
        tag: str | None = None,
        tool: str | None = None,
        cwd: str | None = None,
        exclude_sessions: Sequence[str] | None = None,
        automated: bool = True,
        visible_to: User | None = None,
        by: str = "both",
    ) -> list[SearchHit]:
        """Messages that match, best first; any text is a valid query, "" finds nothing.

        Each hit has a snippet with `>>>match<<<`, its neighbours as context, a score and the match reason: "match",
        "substring", "relaxed" (a partial match of a plain question) or "literal"; `why` says what found it: "words",
        "meaning" or "both"; `confidence` is "sure" for a match, "likely" or "weak" for a partial one. `by="words"` leaves
        meaning out, `by="meaning"` answers a question without its words. A question that nothing answers finds nothing or
        weak hits. `automated=False` leaves out what no person held: jobs, batches, sub-agents and single questions
        (`hermes -q`). `limit=None` gives all hits; a negative limit is InvalidInput.
        """
        from hermes.store import search  # slow to import for callers that only list

        filters = search.Filters(
            source_filter, exclude_sources, role_filter, session_ids, user_id, since, until, model, title, tag, tool, cwd,
            exclude_sessions, automated,
        )  # fmt: skip
        with self._engine.searching() as tx:
            return search.search(self._engine, tx, query, filters, limit, offset, visible_to, by)

    def file_changes(
        self, names: Sequence[str] | None = None, *, session_id: str | None = None, visible_to: User | None = None
    ) -> list[FileChangeRow]:
        """The file changes that tool calls made, newest first: all, of files with one of these names, or of a session.

        A name is the last component of a path; `path` is as the tool call names it, so a relative one is below `cwd` of its
        session. Calls that failed are left out. `lines` has the hashes of the added lines.
        """
        basenames = None if names is None else [names] if isinstance(names, str) else [str(name) for name in names]
        return self._read(lambda tx: file_changes.changes(self._engine, tx, basenames, session_id, visible_to))

    def change_reasons(self, message_ids: Sequence[int], *, visible_to: User | None = None) -> dict[int, ChangeReason]:
        """By message, the user's `request` that led to it and the agent's `words` beside it; none that may not be seen."""
        return self._read(file_changes.reasons, list(message_ids), visible_to)

    def index_status(self) -> dict[str, int]:
        """The state of the full-text index: {"indexed_to": message id, "pending": messages}. Search never waits."""
        index = self._engine.fulltext
        return self._read(lambda tx: {"indexed_to": index.mark(tx), "pending": index.pending(tx)})

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index everything that is not indexed yet; returns how many messages that were."""
        return self._engine.catch_up(progress=progress)

    def meaning_status(self) -> list[MeaningStatus]:
        """The vectors of each model that is installed, or has made some: see rows.MeaningStatus."""
        from hermes.store.search import encoders, vectors

        here = [encoder.name for encoder in encoders.installed()]
        with self._engine.read() as tx:
            counts = vectors.counts(tx) if vectors.is_switched_on(tx) else None
            total = int(tx.value("SELECT count(*) FROM messages"))
        out: list[MeaningStatus] = []
        for name in dict.fromkeys([*here, *(counts or ())]):
            rows, filled = (counts or {}).get(name, (0, 0))
            out.append({"model": name, "installed": name in here, "on": counts is not None, "vectors": filled,
                        "pending": max(0, total - rows)})  # fmt: skip
        return out

    def index_meaning(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Make the vectors of all messages that have none, with each model that is installed; how many rows were written.

        The first call switches search by meaning on: from then on the vectors of new messages are made in the background.
        Without a model it is InvalidInput.
        """
        from hermes.store.search import encoders, vectors

        found = encoders.installed()
        if not found:
            raise InvalidInput("no model for search by meaning is installed; `hermes search setup` installs one")
        vectors.prepare(self._engine)
        self._meaning.switched_on()
        return sum(self._meaning.make(encoder, progress=progress) for encoder in found)
