"""SessionDB: the record's public face.

One flat class, written in three files (db_open.py, db_keeping.py and this one); each method opens a transaction and
makes one short call into the module that knows the subject. After a change is committed, a line about it goes to the
session's transcript.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hermes.errors import (
    HermesError,
    InvalidInput,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreGone,
    StoreReadOnly,
    StoreUnreachable,
)
from hermes.store import (
    adoption,
    codec,
    events,
    exchange,
    import_updates,
    lineage,
    listing,
    messages,
    retention,
    revising,
    sessions,
    titles,
)
from hermes.store import usage as _usage
from hermes.store.attachments import note, references
from hermes.store.db_keeping import Keeping
from hermes.store.engines.base import Tx
from hermes.store.naming import MAX_TITLE
from hermes.store.naming import sanitize_title as _sanitize_title
from hermes.store.visibility import User

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.rows import Finding, SessionEvent

__all__ = ["SessionDB"]

_STORE_TROUBLE = (StoreBusy, StoreClosed, StoreCorrupt, StoreFull, StoreGone, StoreReadOnly, StoreUnreachable)
_AGAIN = 10.0  # seconds in which an append that the server's end cut short is tried again


class SessionDB(Keeping):
    """Every conversation in one place.

    `SessionDB()` opens `<home>/state.db`, `SessionDB(db_path=…)` another file (made if it is not there).
    Safe to share between threads; any number of processes may have the same file open. A file of an older version is
    brought up to date at once and stays searchable while its index is rebuilt; one of a newer or foreign version opens
    read-only. `read_only=True` never alters a file, whatever its version. `SessionDB(url="postgresql://…")` opens a
    record that several hosts share; transcripts and the like then lie beside `db_path` (the default one's place) on each.
    `SessionDB(":memory:")` is empty, private (a temporary folder), without transcripts, and gone when it is closed.

    durability "full" survives power loss, "normal" a crash of the program. Secrets are masked when a message is
    stored, unless `redact_secrets=False`. Transcripts are written for "all" sessions, for those of the "gateway", or "off".
    `prepared_statements` ("auto", "on", "off") is about PostgreSQL: "auto" uses none where a pooler is in front of the server.
    `timeout` is how many seconds such a server may leave a call unanswered before it is asked whether it is still there.

    Errors are those of `hermes.errors`: an unknown session is SessionNotFound where a message would be lost (append,
    branch, compress, rewind), and None / False / [] where a question simply has no answer.
    """

    MAX_TITLE_LENGTH = MAX_TITLE

    # ------------------------------------------------------------------------------------------ sessions

    def create_session(
        self,
        session_id: str,
        source: str,
        model: str | None = None,
        model_config: dict[str, Any] | str | None = None,
        system_prompt: str | None = None,
        user_id: str | None = None,
        parent_session_id: str | None = None,
        *,
        started_at: float | None = None,
        kind: str | None = None,
        cwd: str | None = None,
    ) -> str:
        """Open a session and return its id. An existing id is left as it is. An unknown parent is SessionNotFound."""
        sessions.checked_id(session_id)
        if not isinstance(source, str) or not source:
            raise InvalidInput("a session needs a source (cli, telegram, …)")
        if kind not in sessions.KINDS:
            raise InvalidInput(f"kind is one of {', '.join(map(repr, sessions.KINDS))}, not {kind!r}")
        columns = {
            "model": model, "model_config": self._masked(codec.json_field(model_config)),
            "system_prompt": self._masked(system_prompt), "user_id": user_id, "transcript": self._scribe.wanted(source) or None,
            "parent_session_id": parent_session_id, "started_at": started_at, "kind": kind, "cwd": cwd,
        }  # fmt: skip
        with self._writing(session_id, alone=system_prompt is not None or parent_session_id is not None) as tx:
            made = sessions.create(tx, session_id, source, columns)
        if made:
            self._scribe.opened(session_id, source)
        return session_id

    def ensure_session(self, session_id: str, source: str = "unknown", model: str | None = None, **columns: Any) -> str:
        """Open a session if there is none with this id; `columns` are those of create_session."""
        return self.create_session(session_id, source, model=model, **columns)

    def get_session(self, session_id: str, *, visible_to: User | None = None) -> dict[str, Any] | None:
        """The session as a dict of its columns, or None."""
        with self._engine.read() as tx:
            return sessions.get(tx, session_id, visible_to)

    def end_session(self, session_id: str, end_reason: str | None) -> None:
        """End a session; the first reason stays until it is reopened."""
        with self._writing(session_id, alone=False) as tx:
            done = sessions.end(tx, session_id, end_reason)
        if done:
            self._scribe.changed(session_id, "end", "ended_at", "end_reason")

    def reopen_session(self, session_id: str) -> None:
        """Clear a session's end."""
        with self._writing(session_id, alone=False) as tx:
            done = sessions.reopen(tx, session_id)
        if done:
            self._scribe.changed(session_id, "reopen", "ended_at", "end_reason")

    def update_system_prompt(self, session_id: str, system_prompt: str | None) -> None:
        """Replace a session's system prompt."""
        text = self._masked(system_prompt)
        with self._writing(session_id) as tx:
            before = tx.value("SELECT system_prompt_hash FROM sessions WHERE id = ?", (session_id,))
            done = sessions.set_prompt(tx, session_id, text)
        if done:
            self._scribe.changed(session_id, "prompt", system_prompt=text)
            if before is not None:
                self._scribe.prompt_dropped(before)

    def update_token_counts(
        self,
        session_id: str,
        input_tokens: int = 0,
        output_tokens: int = 0,
        model: str | None = None,
        cache_read_tokens: int = 0,
        cache_write_tokens: int = 0,
        reasoning_tokens: int = 0,
        estimated_cost_usd: float | None = None,
        actual_cost_usd: float | None = None,
        cost_status: str | None = None,
        cost_source: str | None = None,
        pricing_version: str | None = None,
        billing_provider: str | None = None,
        billing_base_url: str | None = None,
        billing_mode: str | None = None,
        api_call_count: int = 0,
        absolute: bool = False,
    ) -> None:
        """Add to a session's counters (absolute: set them). Model and billing fields fill only what is empty.

        Creates nothing: an unknown session is ignored.
        """
        values = {key: value for key, value in locals().items() if key not in ("self", "session_id", "absolute")}
        with self._writing(session_id, alone=False) as tx:
            changed = _usage.update(tx, session_id, values, absolute=absolute)
        if changed:
            self._scribe.changed(session_id, "usage", *changed)

    def session_count(self, source: str | None = None, *, visible_to: User | None = None) -> int:
        """How many sessions there are (of one source)."""
        with self._engine.read() as tx:
            return sessions.count(tx, source, visible_to)

    def source_counts(self, *, visible_to: User | None = None) -> dict[str, int]:
        """How many sessions each source has, the largest first."""
        with self._engine.read() as tx:
            return sessions.count_by_source(tx, visible_to)

    def resolve_session_id(self, session_id_or_prefix: str, *, visible_to: User | None = None) -> str | None:
        """The exact id, else the one id with that prefix, else None (also when several have it)."""
        with self._engine.read() as tx:
            return sessions.resolve_id(tx, session_id_or_prefix, visible_to)

    def session_ids_with_prefix(self, prefix: str, limit: int = 10, *, visible_to: User | None = None) -> list[str]:
        """Ids that begin so: the candidates when a prefix is ambiguous."""
        with self._engine.read() as tx:
            return sessions.with_prefix(tx, prefix, visible_to, limit)

    def list_sessions_rich(
        self,
        source: str | None = None,
        exclude_sources: list[str] | None = None,
        limit: int | None = 20,
        offset: int = 0,
        include_children: bool = False,
        project_compression_tips: bool = True,
        order_by_last_active: bool = False,
        *,
        include_archived: bool = True,
        pinned: bool = False,
        tag: str | None = None,
        visible_to: User | None = None,
    ) -> list[dict[str, Any]]:
        """Sessions with `preview` and `last_active`, each conversation once, newest first (see spec and docs/format.md).

        `limit=None` gives all of them; a negative limit or offset is InvalidInput.
        """
        extra, params = ["s.archived_at IS NULL"] if not include_archived else [], list[Any]()
        if pinned:
            extra.append("s.pinned_at IS NOT NULL")
        if tag is not None:
            extra.append("EXISTS (SELECT 1 FROM session_tags t WHERE t.session_id = s.id AND t.tag = ?)")
            params.append(tag)
        with self._take_in(), self._engine.read() as tx:
            return listing.rich(
                tx, source=source, exclude_sources=exclude_sources, limit=limit, offset=offset,
                include_children=include_children, project_tips=project_compression_tips,
                by_activity=order_by_last_active, visible_to=visible_to, extra=(" AND ".join(extra), params),
            )  # fmt: skip

    def search_sessions(
        self, source: str | None = None, limit: int | None = 20, offset: int = 0, *, visible_to: User | None = None
    ) -> list[dict[str, Any]]:
        """Recent sessions, each with `last_active`, the one with the newest message first."""
        with self._take_in(), self._engine.read() as tx:
            return listing.recent(tx, source, limit, offset, visible_to)

    def insights(
        self,
        days: float = 30,
        source: str | None = None,
        *,
        now: float | None = None,
        timezone: str | tzinfo | None = None,
        visible_to: User | None = None,
    ) -> dict[str, Any]:
        """What was used in the last days: sessions, messages, tool calls, tokens, cost, by whom, with what and when.

        A number is the sum of the rows it is about; what costs an unknown price is counted apart, not as zero. Hours and
        days are those of `timezone` (a name; None: the machine's). See docs/guide/store.md for the keys.
        """
        from hermes.store import insights

        with self._take_in(), self._engine.read() as tx:
            return insights.insights(
                tx, days=days, source=source, now=now, timezone=timezone, visible_to=visible_to
            )  # fmt: skip

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
        counts = _usage.checked(usage)
        ready = self._ready(
            {
                "role": role, "content": content, "tool_name": tool_name, "tool_calls": tool_calls,
                "tool_call_id": tool_call_id, "token_count": token_count, "finish_reason": finish_reason,
                "reasoning": reasoning, "reasoning_content": reasoning_content, "reasoning_details": reasoning_details,
                "codex_reasoning_items": codex_reasoning_items, "codex_message_items": codex_message_items,
                "timestamp": timestamp, "model": model, "input_tokens": input_tokens, "output_tokens": output_tokens,
                "cache_read_tokens": cache_read_tokens, "cache_write_tokens": cache_write_tokens, "cost_usd": cost_usd,
                "platform_message_id": platform_message_id, "meta": meta if meta is None else dict(meta),
            }
        )  # fmt: skip
        return self._append(session_id, ready, counts)

    def _append(
        self,
        session_id: str,
        ready: messages.Ready,
        counts: Mapping[str, Any] | None = None,
        also: Callable[[Tx, int], None] | None = None,
    ) -> int:
        """Store a message that is ready; `also` does what belongs to it in the same transaction, given its id.

        If the server went away in the middle and nothing was stored, it is tried again; `also` is then called again, too.
        """
        end = time.monotonic() + _AGAIN
        changed: list[str] = []
        while True:
            try:
                with self._writing(session_id, alone=bool(ready.lifted), storing=True) as tx:
                    self._attachments.secure(tx, ready.lifted)
                    message_id = messages.append(tx, session_id, ready)
                    if counts:
                        changed = _usage.update(tx, session_id, counts, absolute=False)
                    if also is not None:
                        also(tx, message_id)
                break
            except StoreUnreachable as error:
                if error.maybe_stored or time.monotonic() > end:
                    raise
        try:
            self._scribe.said(session_id, message_id, ready)
            if changed:
                self._scribe.changed(session_id, "usage", *changed)
            self._engine.appended(message_id, ready.size)
        except StoreGone:
            raise
        except StoreError:  # closed by another thread, or the server went away: it is stored all the same, and an error
            pass  # would have the caller store it again. The next opening writes its line.
        return message_id

    def keep_attachment(self, data: bytes) -> str:
        """Keep bytes beside the database, once; the reference to be put into a message, `attachment:sha256:<hex>`.

        They go when the last message that holds the reference is deleted.
        """
        from hermes.store.attachments import PREFIX

        return PREFIX + self._attachments.keep(data)

    def replace_messages(self, session_id: str, messages: Iterable[dict[str, Any]]) -> None:
        """Put other messages in place of a session's own: all at once or not at all."""
        self._replace(session_id, [self._ready(message) for message in messages])

    def _replace(self, session_id: str, ready: Sequence[messages.Ready]) -> None:
        with self._writing(session_id) as tx:
            sessions.require(tx, session_id)
            self._clear(tx, session_id, "replace")
            for message in ready:
                self._attachments.secure(tx, message.lifted)
                messages.append(tx, session_id, message)
            messages.recount(tx, session_id)
        self._scribe.rewritten(session_id)

    def clear_messages(self, session_id: str) -> None:
        """Remove a session's messages and keep the session. An unknown session is ignored."""
        with self._writing(session_id) as tx:
            self._clear(tx, session_id, "clear")
            messages.recount(tx, session_id)
            tx.run("UPDATE sessions SET preview = NULL WHERE id = ?", (session_id,))
        self._scribe.rewritten(session_id)

    def _clear(self, tx: Tx, session_id: str, action: str) -> None:
        count = messages.remove_own(self._engine, tx, session_id)
        if count:
            retention.audit(tx, action, session_id, "", f"{count} messages")
        for table in ("session_refs", "session_rewinds"):
            tx.run(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))

    def redact_message(self, message_id: int) -> bool:
        """Hide one message for good; False when there is none, or it is hidden for good already.

        No session shows it from now on, also none that carries it over; it is not replayed, found or counted, and undoing
        a rewind does not bring it back. Its row stays (`hidden` -3), and so does its line in the transcript.
        """
        with self._engine.read() as tx:
            place = revising.find(tx, message_id)
        if place is None:
            return False
        with self._writing(*place.sessions) as tx:
            place = revising.find(tx, message_id)
            if place is None:
                return False
            revising.redact(tx, message_id, place)
            owner = place.owner
        self._scribe.restated(owner, "redact", hides=[message_id])
        return True

    def edit_message(self, message_id: int, content: str | list[Any] | dict[str, Any]) -> bool:
        """Put other content in place of one message's, where it stands; False when there is none that could be shown.

        What it said before is kept in a row of its own that nothing shows (`hidden` -4). Sessions that carry the message
        over show the new text, too. The same content again changes nothing, and is True.
        """
        with self._engine.read() as tx:
            place = revising.find(tx, message_id)
            role = tx.value("SELECT role FROM messages WHERE id = ?", (message_id,))
        if place is None:
            return False
        ready = self._ready({"role": codec.restored(role), "content": content})
        with self._writing(*place.sessions) as tx:
            place = revising.find(tx, message_id)
            if place is None:
                return False
            if revising.same_content(tx, message_id, ready):
                return True
            self._attachments.secure(tx, ready.lifted)
            version, keeper = revising.edit(self._engine, tx, message_id, ready, place)
        self._scribe.edited(place.owner, message_id, version, keeper)
        return True

    def get_messages(self, session_id: str, *, visible_to: User | None = None) -> list[dict[str, Any]]:
        """Every message a session shows, in order, with all columns; JSON fields decoded. [] for an unknown session."""
        with self._engine.read() as tx:
            if not sessions.is_shown(tx, session_id, visible_to):
                return []
            self._bring_files(tx, session_id)
            rows = messages.shown_rows(tx, session_id)
        return [messages.decode(row) for row in rows]

    def get_messages_as_conversation(
        self,
        session_id: str,
        include_ancestors: bool = False,
        *,
        inline_attachments: bool = True,
        visible_to: User | None = None,
    ) -> list[dict[str, Any]]:
        """The session as OpenAI chat messages, ready to be sent: fields that are empty are left out.

        Payloads that were lifted out of messages are put back as they came (`inline_attachments=False` leaves the
        references). With ancestors, a prompt that is repeated before any reply comes once.
        """
        with self._engine.read() as tx:
            if not sessions.is_shown(tx, session_id, visible_to):
                return []
            self._bring_files(tx, session_id)
            if include_ancestors:
                rows = lineage.with_ancestors(tx, session_id, messages.TURN_ROW, visible_to)
            else:
                rows = messages.shown_rows(tx, session_id, messages.TURN_ROW)
            kinds = messages.payload_kinds(tx, rows) if inline_attachments else {}
        turns = [messages.as_turn(row) for row in rows]
        for row, turn in zip(rows, turns, strict=True):
            if row[0] in kinds:
                turn["content"] = self._attachments.inlined(turn["content"], kinds[row[0]])
        return messages.asked_once(turns) if include_ancestors else turns

    def resolve_attachments(self, message: Any) -> Any:
        """A message (or its content) of this store with its payloads in place of the references, ready to be sent.

        What was a `data:` address is one again, bare base64 is bare base64. A reference whose file is gone stays.
        """
        digests = [digest for digest, _, _ in references(codec.to_json(message))]
        with self._engine.read() as tx:
            self._attachments.fetch(tx, digests)
            kinds = messages.kinds_of(tx, digests)
        if isinstance(message, dict) and "role" in message:
            return {**message, "content": self._attachments.inlined(message.get("content"), kinds)}
        return self._attachments.inlined(message, kinds)

    def _bring_files(self, tx: Tx, session_id: str) -> None:
        """What is about to be shown may refer to files that another host has stored."""
        if self._engine.shared:
            self._attachments.fetch(tx, messages.attachments_shown(tx, session_id))

    def record_event(self, session_id: str, kind: str, text: str) -> bool:
        """Note what happened in a session beside its messages ("model_error"); False when there is no such session.

        Events are shown and exported with a session; they are never sent to a model, counted or searched.
        """
        events.prepare(self._engine)
        with self._writing(session_id) as tx:
            if sessions.get(tx, session_id, None) is None:
                return False
            event = events.record(tx, session_id, kind, self._masked(text) or "")
        self._scribe.happened(session_id, events.line_of(event))
        return True

    def get_session_events(self, session_id: str, *, visible_to: User | None = None) -> list[SessionEvent]:
        """What happened in a session beside its messages, oldest first: `at`, `after` (a message's id), `kind`, `text`."""
        with self._engine.read() as tx:
            found = events.of_session(tx, session_id) if sessions.is_shown(tx, session_id, visible_to) else []
        return cast("list[SessionEvent]", found)

    def message_count(self, session_id: str | None = None, *, visible_to: User | None = None) -> int:
        """How many messages there are, each counted once, under the session that owns it."""
        with self._engine.read() as tx:
            return messages.count(tx, session_id, visible_to)

    def session_of_message(self, message_id: int, *, visible_to: User | None = None) -> str | None:
        """The session that shows a message: its own, else one that carries it; None when nobody may see it."""
        with self._engine.read() as tx:
            return messages.session_of(tx, message_id, visible_to)

    # ------------------------------------------------------------------------------------------ titles

    @staticmethod
    def sanitize_title(title: str | None) -> str | None:
        """A title as it would be stored; None when nothing is left, TitleTooLong (a ValueError) over 100 characters."""
        return _sanitize_title(title)

    def set_session_title(self, session_id: str, title: str | None, *, only_if_untitled: bool = False) -> bool:
        """Name a session ("" takes the name away). False when there is none; TitleClash / TitleTooLong are ValueErrors.

        With `only_if_untitled` a session that has a title by now keeps it: False.
        """
        with self._writing(session_id) as tx:
            titles.take_in(tx)
            done = titles.set_title(tx, session_id, self._masked(title), only_if_untitled=only_if_untitled)
        if done:
            self._scribe.changed(session_id, "title", "title", "title_base", "title_no")
        return done

    def get_session_title(self, session_id: str, *, visible_to: User | None = None) -> str | None:
        """The session's title, or None."""
        session = self.get_session(session_id, visible_to=visible_to)
        return None if session is None else session["title"]

    def get_session_by_title(self, title: str, *, visible_to: User | None = None) -> dict[str, Any] | None:
        """The session with exactly this title, or None."""
        with self._take_in(), self._engine.read() as tx:
            session_id = titles.by_title(tx, title, visible_to)
            return None if session_id is None else sessions.get(tx, session_id, visible_to)

    def resolve_session_by_title(self, title: str, *, visible_to: User | None = None) -> str | None:
        """The id of the newest session of the family this title names, or None."""
        with self._take_in(), self._engine.read() as tx:
            return titles.resolve(tx, title, visible_to)

    def get_next_title_in_lineage(self, base_title: str) -> str:
        """`base_title` if it is unused, else "base_title #n" with the next free number."""
        with self._take_in(), self._engine.read() as tx:
            return titles.next_title(tx, base_title)

    # ------------------------------------------------------------------------------------------ lineage

    def get_compression_tip(self, session_id: str) -> str:
        """Where a chain of compressions has got to; the id itself when there is none."""
        with self._engine.read() as tx:
            return lineage.compression_tip(tx, session_id)

    def get_compression_lineage(self, session_id: str) -> list[str]:
        """The sessions one conversation is made of, because it was compressed, the oldest first (get_compression_chain)."""
        return self.get_compression_chain(session_id)

    def get_conversation_root(self, session_id: str) -> str:
        """The first of a session's ancestors; the id itself when it has no parent."""
        with self._engine.read() as tx:
            return lineage.ancestors(tx, session_id)[0]

    def resolve_resume_session_id(self, session_id: str) -> str:
        """Where resuming really continues: the first in line that shows messages."""
        with self._engine.read() as tx:
            return lineage.resume_target(tx, session_id)

    def branch_session(
        self, session_id: str, new_session_id: str, *, at_message: int | None = None, title: str | None = None
    ) -> str:
        """A new session that shows the old one's messages up to `at_message` (None: all), by reference."""
        sessions.checked_id(new_session_id)
        self._scribe.intends(session_id)
        with self._writing(new_session_id) as tx:
            lineage.branch(tx, session_id, new_session_id, at_message, title)
        self._scribe.rewritten(new_session_id)
        self._scribe.changed(session_id, "branch", also={"branch": new_session_id, "at_message": at_message})
        return new_session_id

    def compress_session(
        self,
        session_id: str,
        new_session_id: str,
        *,
        summary: str,
        head_until: int | None = None,
        tail_from: int | None = None,
        summary_role: str = "user",
    ) -> str:
        """End a session by compression and continue in a new one, in one step.

        The new one shows the messages up to `head_until`, the summary, and the messages from `tail_from` on; the carried
        ones by reference. Its title is the next number of the old one's.
        """
        sessions.checked_id(new_session_id)
        ready = self._ready({"role": summary_role, "content": summary})
        with self._writing(session_id, new_session_id) as tx:
            lineage.compress(tx, session_id, new_session_id, ready, head_until, tail_from)
        self._scribe.rewritten(new_session_id)
        self._scribe.changed(session_id, "end", "ended_at", "end_reason", also={"continued_in": new_session_id})
        return new_session_id

    def rewind(self, session_id: str, message_id: int) -> int:
        """Hide every message after `message_id` (0: all); how many. Hidden text is not found and not replayed."""
        with self._writing(session_id) as tx:
            hidden = lineage.rewind(tx, session_id, message_id)
        self._scribe.restated(session_id, "rewind", hides=hidden)
        return len(hidden)

    def unrewind(self, session_id: str) -> int:
        """Undo the last rewind; how many messages came back. What was said since is hidden instead."""
        with self._writing(session_id) as tx:
            shown, hidden = lineage.unrewind(tx, session_id)
        self._scribe.restated(session_id, "unrewind", shows=shown, hides=hidden)
        return len(shown)

    # ------------------------------------------------------------------------------------------ search

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
        visible_to: User | None = None,
    ) -> list[dict[str, Any]]:
        """Messages that match, best first; any text is a valid query, "" finds nothing.

        Each hit has a snippet with `>>>match<<<`, its neighbours as context, a score and the reason it is here: "match",
        "substring", "relaxed" (a partial match of a plain question) or "literal". `limit=None` gives all hits; a
        negative limit is InvalidInput.
        """
        from hermes.store import search  # much to load for those who only list

        filters = search.Filters(
            source_filter, exclude_sources, role_filter, session_ids, user_id, since, until, model, title, tag, tool
        )
        with self._engine.searching() as tx:
            return search.search(self._engine, tx, query, filters, limit, offset, visible_to)

    def index_status(self) -> dict[str, int]:
        """How far the full-text index is: {"indexed_to": message id, "pending": messages}. Search does not wait for it."""
        with self._engine.read() as tx:
            return {"indexed_to": self._engine.fulltext.mark(tx), "pending": self._engine.fulltext.pending(tx)}

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index everything that is not indexed yet; how many messages that were."""
        return self._engine.catch_up(progress=progress)

    # ------------------------------------------------------------------------------------------ marks

    def tag_session(self, session_id: str, *tags: str) -> bool:
        """Add tags, to all parts of a compressed conversation; False when there is no such session."""
        return self._tags(session_id, [sessions.clean_tag(self._masked(tag)) for tag in tags], [])

    def untag_session(self, session_id: str, *tags: str) -> bool:
        """Remove tags, from all parts of a compressed conversation; False when there is no such session."""
        return self._tags(session_id, [], [sessions.clean_tag(tag) for tag in tags])

    def _tags(self, session_id: str, add: list[str], remove: list[str]) -> bool:
        def change(tx: Tx, part: str) -> bool:
            return sessions.set_tags(tx, part, add, remove)

        changed = self._each_part(session_id, change)
        for part in changed:
            self._scribe.restated(part, "tags")
        return bool(changed)

    def get_tags(self, session_id: str, *, visible_to: User | None = None) -> list[str]:
        """A session's tags, sorted."""
        with self._engine.read() as tx:
            return sessions.tags(tx, session_id, visible_to)

    def pin_session(self, session_id: str, pinned: bool = True) -> bool:
        """Pin or unpin a conversation, with all its parts if it was compressed; a pinned one is never pruned."""
        return self._mark(session_id, "pinned_at", pinned, "pin")

    def archive_session(self, session_id: str, archived: bool = True) -> bool:
        """Archive or bring back a conversation, with all its parts if it was compressed; it is still searched."""
        return self._mark(session_id, "archived_at", archived, "archive")

    def _mark(self, session_id: str, column: str, on: bool, what: str) -> bool:
        changed = self._each_part(session_id, lambda tx, part: sessions.stamp(tx, part, column, on))
        for part in changed:
            self._scribe.changed(part, what, column)
        return bool(changed)

    def share_session(self, session_id: str, source: str, user_id: str) -> bool:
        """Let another user see a session; False when there is none."""
        with self._writing(session_id) as tx:
            done = sessions.share(tx, session_id, source, user_id)
        if done:
            self._scribe.restated(session_id, "share")
        return done

    # ------------------------------------------------------------------------------------------ in, out, sound

    def export_session(self, session_id: str, *, visible_to: User | None = None) -> dict[str, Any] | None:
        """The session with its messages, or None."""
        with self._engine.read() as tx:
            self._bring_files(tx, session_id)
            return exchange.export(tx, session_id, visible_to)

    def export_all(self, source: str | None = None, *, visible_to: User | None = None) -> list[dict[str, Any]]:
        """Every session with its messages, as a list (iter_export streams)."""
        return list(self.iter_export(source, visible_to=visible_to))

    def iter_export(self, source: str | None = None, *, visible_to: User | None = None) -> Iterator[dict[str, Any]]:
        """Every session with its messages, one at a time, in constant memory."""
        return exchange.iterate(self._engine, source, visible_to)

    def import_session(self, data: dict[str, Any]) -> bool:
        """Store an exported session under its own ids; False when it is there already (and then unchanged)."""
        return self._import(data, {}, None)

    def _import(self, data: dict[str, Any], ids: dict[int, int], folder: Path | None) -> bool:
        session_id = str(data.get("id")) if isinstance(data, dict) else ""
        with self._engine.read() as tx:
            known = tx.row("SELECT 1 FROM sessions WHERE id = ?", (codec.storable(session_id),)) is not None
        if isinstance(data, dict) and not known:
            data = adoption.lifted_export(data, self._attachments)
        if exchange.has_events(data):
            events.prepare(self._engine)
        with self._writing(session_id) as tx:
            done = exchange.bring_in(self._engine, tx, data, ids)
            for other in done.all() if done is not None else ():
                self._scribe.intends(other)
        if done is not None:
            self._scribe.arrived(data["id"], done)
            self._files_came(data["id"], folder)
        return done is not None

    def _files_came(self, session_id: str, folder: Path | None) -> None:
        """Take the attachments of a session that came in from a folder, and note which of them are not there."""
        with self._engine.read() as tx:
            wanted = messages.attachments_shown(tx, session_id)
        if not wanted:
            return
        if folder is not None:
            self._attachments.take_from(folder, wanted)
        here = [digest for digest in wanted if self._attachments.has(digest)]
        with self._engine.write(alone=False) as tx:
            note(tx, here, [digest for digest in wanted if digest not in here])

    def import_sessions(
        self,
        exported: Iterable[dict[str, Any]],
        *,
        attachments_dir: Path | str | None = None,
        refused: Callable[[dict[str, Any], Exception], None] | None = None,
        update: bool = False,
    ) -> dict[str, int]:
        """Store exported sessions one after the other; ids keep their meaning between them. Attachments are copied
        from `attachments_dir`, if it is given. A session that can't be taken is an error, or, with `refused`, told to it.

        → {"sessions": n, "messages": n, "skipped": n}; sessions that are here already are skipped. With `update`, those
        that were imported from another program get what is new there: {"updated": n} counts them.
        """
        counts = {"sessions": 0, "messages": 0, "skipped": 0, **({"updated": 0} if update else {})}
        ids: dict[int, int] = {}
        for data in exported:
            try:
                done = self._import(data, ids, None if attachments_dir is None else Path(attachments_dir))
            except _STORE_TROUBLE:  # not this session's fault: the next would fare no better
                raise
            except (HermesError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
                if refused is None:
                    raise
                refused(data, error)
                continue
            if done:
                counts["sessions"] += 1
                told = data.get("messages") or ()
                counts["messages"] += sum(m.get("session_id", data["id"]) == data["id"] for m in told)
            elif update and (made := self._update_import(data)):
                counts["updated"] += 1
                counts["messages"] += len(made.added)
            else:
                counts["skipped"] += 1
        return counts

    def foreign_message_ids(self, session_id: str) -> set[str]:
        """The ids that a session's messages had on the platform or in the program they come from."""
        with self._engine.read() as tx:
            sql = "SELECT platform_message_id FROM messages WHERE session_id = ? AND platform_message_id IS NOT NULL"
            return {str(codec.restored(row[0])) for row in tx.rows(sql, (codec.storable(session_id),))}

    def _update_import(self, data: dict[str, Any]) -> import_updates.Update:
        """Bring a session that was imported from another program up to what that program has now."""
        session_id = data["id"]
        data = adoption.lifted_export(data, self._attachments)
        with self._writing(session_id) as tx:
            if not sessions.is_shown(tx, session_id, None):  # in the trash: it stays there as it is
                return import_updates.Update()
            made = import_updates.update(self._engine, tx, session_id, exchange.with_attachments(data))
        if made.changed or made.hidden:
            self._scribe.rewritten(session_id)
        else:
            for message_id, ready in made.added:
                self._scribe.said(session_id, message_id, ready)
        if made:
            self._files_came(session_id, None)
        return made

    def import_database(self, path: Path | str) -> dict[str, int]:
        """Bring in every session of another state.db, of any version; that file is not altered. Values that programs
        have set there (set_meta) come along where there is none of that name here.

        → {"sessions": n, "messages": n, "skipped": n}; sessions that are here already are skipped.
        """
        with SessionDB(db_path=Path(path), read_only=True) as other:
            counts = self.import_sessions(other.iter_export(), attachments_dir=other.attachments_dir)
            with other._engine.read() as tx:
                values = exchange.meta_of(tx)
        with self._engine.write() as tx:
            exchange.bring_meta(tx, values)
        return counts

    def backup(self, path: Path | str) -> None:
        """A consistent copy of the database while others write. The target must not exist.

        Of a server's record it is a SQLite file with everything in it; the attachments lie beside it.
        """
        target = Path(path)
        if not self._engine.shared:
            self._engine.backup(target)
            return
        if target.exists():
            raise InvalidInput(f"{target} exists already; name a file that does not")
        from hermes.store.moving import snapshot

        with SessionDB(db_path=target, durability="normal", transcripts="off") as copy:
            snapshot(self, copy)

    def check(self, *, progress: Callable[[str, int, int], None] | None = None) -> list[Finding]:
        """What is wrong with the store: [{"kind", "where", "detail"}], [] when it is sound.

        `progress` is called with what is being looked at, how much of it is done, and of how much.
        """
        from hermes.store import soundness

        return cast("list[Finding]", soundness.check(self._engine, self._scribe, self._attachments, progress))

    def repair(
        self, *, rebuild_index: bool = False, from_transcripts: bool = False, from_database: bool = False
    ) -> list[str]:
        """Mend what check() finds, after a backup beside the file; what was done. Nothing is dropped.

        The database is the truth: what someone changed or removed with SQL is not brought back, what damage took is.
        Findings of the kind `transcript-differs`, where that can't be told apart, are left as they are, unless
        `from_transcripts` brings back what the transcripts have, or `from_database` writes the transcripts anew.
        `rebuild_index` makes the full-text index anew in any case: a flipped bit in it can go unnoticed.
        """
        from hermes.store import repairing

        if from_transcripts and from_database:
            raise InvalidInput("repair takes from_transcripts or from_database, not both")
        side = repairing.TRANSCRIPTS if from_transcripts else repairing.DATABASE if from_database else None

        def mended(rebuild: bool) -> list[str] | None:
            place = (self._engine, self._scribe, self._attachments, self.path, self.backup)
            return repairing.repair(*place, rebuild_index=rebuild, side=side)

        done = mended(rebuild_index)
        if done and not self._engine.shared and any(one["kind"] == "corruption" for one in self._engine.problems()):
            done = None  # damage that shows only once something is written
        if done is None and self._engine.shared:
            raise StoreCorrupt(f"{self.where} is damaged; restore it from a backup of the server")
        if done is None:  # the file itself is damaged: what can be saved goes into a new one
            self.close()
            done = repairing.salvage(self.path, self.sessions_dir)
            self._open()
            done += mended(False) or []
        return done
