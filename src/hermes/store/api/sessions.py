"""The part of SessionDB about sessions: their columns, titles, marks and lineage, and the lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.api.arguments import checked_text, checked_time
from hermes.store.api.open import END, OpenStore
from hermes.store.engines.base import Tx
from hermes.store.records import codec, lineage, listing, sessions, titles
from hermes.store.records.rows import Facets, Insights, Relative, SessionRow
from hermes.store.records.titles import sanitize_title as _sanitize_title
from hermes.store.records.visibility import Filters, User
from hermes.store.search.matching import text_test
from hermes.store.transcripts.replay import event

# The transcript line of each change: its name, and the columns of the session.
_REOPEN = ("reopen", "ended_at", "end_reason")
_TITLE = ("title", "title", "title_base", "title_no")


class SessionCalls(OpenStore):
    """Sessions, their titles, tags, pins and lineage."""

    # ------------------------------------------------------------------------------------------ sessions

    def create_session(
        self,
        session_id: str,
        source: str,
        model: str | None = None,
        model_config: dict[str, Any] | str | None = None,
        system_prompt: str | None = None,
        user_id: str | int | None = None,
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
        if started_at is not None:
            started_at = checked_time(started_at, "started_at")
        columns = {
            "model": checked_text(model, "model"), "model_config": self._masked(codec.json_field(model_config)),
            "system_prompt": self._masked(system_prompt),
            "user_id": checked_text(user_id, "user_id"), "transcript": self._transcripts.wanted(source) or None,
            "parent_session_id": parent_session_id, "started_at": started_at, "kind": kind, "cwd": checked_text(cwd, "cwd"),
        }  # fmt: skip
        with self._writing(session_id, exclusive=system_prompt is not None or parent_session_id is not None) as tx:
            made = sessions.create(tx, session_id, source, columns)
            had_lines = made and self._transcripts.has_lines(session_id)
        if made:
            self._transcripts.opened(session_id, source, had_lines=had_lines)
        return session_id

    def ensure_session(self, session_id: str, source: str = "unknown", model: str | None = None, **columns: Any) -> str:
        """Open a session if there is none with this id; `columns` are those of create_session."""
        return self.create_session(session_id, source, model=model, **columns)

    def get_session(self, session_id: str, *, visible_to: User | None = None) -> SessionRow | None:
        """The session as a dict of its columns, or None."""
        return self._read(sessions.get, session_id, visible_to)

    def get_sessions(self, session_ids: Sequence[str], *, visible_to: User | None = None) -> dict[str, SessionRow]:
        """Several sessions at once, each by its id as get_session() gives it; those that do not exist are left out."""
        return self._read(sessions.several, list(session_ids), visible_to)

    def end_session(self, session_id: str, end_reason: str | None) -> None:
        """End a session; the first end reason stays until the session is reopened."""
        reason = self._masked(end_reason)
        self._change(END, lambda tx: sessions.end(tx, session_id, reason), session_id, exclusive=False)

    def reopen_session(self, session_id: str) -> None:
        """Reopen a session: clear its end time and end reason."""
        self._change(_REOPEN, lambda tx: sessions.reopen(tx, session_id), session_id, exclusive=False)

    def update_system_prompt(self, session_id: str, system_prompt: str | None) -> None:
        """Replace a session's system prompt."""
        text = self._masked(system_prompt)
        with self._writing(session_id) as tx:
            done = sessions.set_prompt(tx, session_id, text)
        if done:
            self._transcripts.event_stored(session_id, event("prompt", set={"system_prompt": text}))

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
        values = sessions.checked_usage(values)
        values["billing_base_url"] = self._masked(values["billing_base_url"])
        with self._writing(session_id, exclusive=False) as tx:
            changed = sessions.add_usage(tx, session_id, values, absolute=absolute)
        if changed:
            self._transcripts.changed(session_id, "usage", *changed)

    def choose_model(self, conversation: str, model: str | None) -> None:
        """Keep the model chosen for a session ("": the configured one; None forgets the choice). It passes to its continuations.

        Before the first message `conversation` may be any other name, until `begin_with_choice`.
        """
        self._write(sessions.choose_model, conversation, checked_text(model, "model"))

    def chosen_model(self, conversation: str) -> str | None:
        """The model chosen for a session: its name, "" for the configured one, None when nothing was chosen."""
        return self._read(sessions.chosen_model, conversation)

    def begin_with_choice(self, conversation: str, session_id: str) -> None:
        """The session has begun in this conversation: what was chosen before belongs to the session."""
        self._write(sessions.move_choice, conversation, session_id)

    def session_count(self, source: str | None = None, *, visible_to: User | None = None) -> int:
        """How many sessions there are (of one source)."""
        return self._read(sessions.count, source, visible_to)

    def source_counts(self, *, visible_to: User | None = None) -> dict[str, int]:
        """How many sessions each source has, the largest first."""
        return self._read(sessions.count_by_source, visible_to)

    def resolve_session_id(self, session_id_or_prefix: str, *, visible_to: User | None = None) -> str | None:
        """The exact id, else the one id with that prefix, else None (also when several ids match)."""
        return self._read(sessions.resolve_id, session_id_or_prefix, visible_to)

    def session_ids_with_prefix(self, prefix: str, limit: int = 10, *, visible_to: User | None = None) -> list[str]:
        """Ids with this prefix, the newest session first: the candidates when it is ambiguous."""
        return self._read(sessions.with_prefix, prefix, visible_to, listing.checked_page(limit, 0)[0])

    def list_sessions_rich(
        self,
        source: str | None = None,
        exclude_sources: Sequence[str] | None = None,
        limit: int | None = 20,
        offset: int = 0,
        include_children: bool = False,
        project_compression_tips: bool = True,
        order_by_last_active: bool = False,
        *,
        include_archived: bool = True,
        pinned: bool = False,
        tag: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
        since: float | None = None,
        until: float | None = None,
        automated: bool | None = None,
        title: str | None = None,
        visible_to: User | None = None,
    ) -> list[SessionRow]:
        """Sessions with `preview` and `last_active`, each conversation once, newest first.

        `title` is a query (see docs/guide/search.md) that titles match, `cwd` a folder (and those below it), `since` and `until`
        bound the last activity. `automated=False` leaves out
        what no person held: jobs, batches and single questions (`hermes -q`); `automated=True` lists sub-agents, too.
        `limit=None` gives all of them; a negative limit or offset is InvalidInput.
        """
        page = listing.checked_page(limit, offset)
        sources = None if source is None else [source]
        filters = Filters(sources, exclude_sources, tag=tag, cwd=cwd, automated=automated is not False)
        narrowed = [*listing.conditions(include_archived, pinned, model, since, until)]
        children, tips, by_activity = include_children, project_compression_tips, order_by_last_active
        return self._look_up(
            listing.rich, filters, narrowed, visible_to, page, children=children, tips=tips, by_activity=by_activity,
            automated=automated, title=None if title is None else text_test(title),
        )  # fmt: skip

    def automated_count(self, *, cwd: str | None = None, visible_to: User | None = None) -> int:
        """How many sessions, archived ones aside, `list_sessions_rich(automated=False)` leaves out (in a folder)."""
        return self._read(listing.count_automated, cwd, visible_to)

    def search_sessions(
        self, source: str | None = None, limit: int | None = 20, offset: int = 0, *, visible_to: User | None = None
    ) -> list[SessionRow]:
        """Recent sessions, each with `last_active`, the one with the newest message first."""
        return self.list_sessions_rich(source, None, limit, offset, True, False, True, visible_to=visible_to)

    def insights(
        self,
        days: float = 30,
        source: str | None = None,
        *,
        now: float | None = None,
        timezone: str | tzinfo | None = None,
        whole_days: bool = False,
        visible_to: User | None = None,
    ) -> Insights:
        """Usage in the last days: sessions, messages, tool calls, tokens, cost, by user, by model, platform and tool, by time.

        Each number is a sum over rows; usage with an unknown price is counted separately, not as zero. Hours and
        days are those of `timezone` (a name; None: the machine's); with `whole_days` the period begins at midnight, and
        today is the last of the days. See docs/guide/store.md for the keys.
        """
        from hermes.store.records import insights

        return self._look_up(insights.insights, days, source, now, timezone, whole_days, visible_to)

    def facets(self, *, visible_to: User | None = None) -> Facets:
        """The sources, models, folders, tags and recently used tools of the sessions, each with how often it occurs."""
        return self._read(listing.facets, visible_to)

    def session_states(self, session_ids: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """A value for each of these sessions that is another one after it got messages, a title or a mark, or was trashed."""
        return self._read(listing.states, session_ids)

    # ------------------------------------------------------------------------------------------ titles

    @staticmethod
    def sanitize_title(title: str | None) -> str | None:
        """A title as it would be stored; None when nothing is left, TitleTooLong (a ValueError) over 100 characters."""
        return _sanitize_title(title)

    def set_session_title(self, session_id: str, title: str | None, *, only_if_untitled: bool = False) -> bool:
        """Set a title ("" removes it). False when there is no such session; TitleClash / TitleTooLong are ValueErrors.

        With `only_if_untitled` a session that already has a title keeps it, and the result is False.
        """
        words = self._masked(title)

        def change(tx: Tx) -> bool:
            titles.adopt_foreign_titles(tx)
            return titles.set_title(tx, session_id, words, only_if_untitled=only_if_untitled)

        return self._change(_TITLE, change, session_id)

    def get_session_title(self, session_id: str, *, visible_to: User | None = None) -> str | None:
        """The session's title, or None."""
        session = self.get_session(session_id, visible_to=visible_to)
        return None if session is None else session["title"]

    def get_session_by_title(self, title: str, *, visible_to: User | None = None) -> SessionRow | None:
        """The session with exactly this title, or None."""
        session_id = self._look_up(titles.by_title, title, visible_to)
        return None if session_id is None else self.get_session(session_id, visible_to=visible_to)

    def resolve_session_by_title(self, title: str, *, visible_to: User | None = None) -> str | None:
        """The id of the newest session of the family this title names, or None."""
        return self._look_up(titles.resolve, title, visible_to)

    def sessions_meant_by_title(self, words: str, *, visible_to: User | None = None) -> list[str]:
        """The sessions to continue that these words may name: exactly this title, else in any case, else a part of it.

        Of each family of numbered titles its newest member; several ids, the newest first, where the words are not clear.
        """
        return self._look_up(titles.meant, words, visible_to)

    def get_next_title_in_lineage(self, base_title: str) -> str:
        """`base_title` if it is unused, else "base_title #n" with the next free number."""
        return self._look_up(titles.next_title, base_title)

    # ------------------------------------------------------------------------------------------ marks

    def tag_session(self, session_id: str, *tags: str) -> bool:
        """Add tags, to all parts of a compressed conversation; False when there is no such session."""
        return self._tags(session_id, [self._masked(sessions.clean_tag(tag)) for tag in tags], [])

    def untag_session(self, session_id: str, *tags: str) -> bool:
        """Remove tags, from all parts of a compressed conversation; False when there is no such session."""
        return self._tags(session_id, [], [sessions.clean_tag(tag) for tag in tags])

    def _tags(self, session_id: str, add: list[str], remove: list[str]) -> bool:
        return self._change_parts(session_id, ("tags",), lambda tx, part: sessions.set_tags(tx, part, add, remove))

    def get_tags(self, session_id: str, *, visible_to: User | None = None) -> list[str]:
        """A session's tags, sorted."""
        return self.tags_of([session_id], visible_to=visible_to)[session_id]

    def tags_of(self, session_ids: Sequence[str], *, visible_to: User | None = None) -> dict[str, list[str]]:
        """The tags of several sessions at once, each list sorted."""
        return self._read(sessions.tags_of_several, list(session_ids), visible_to)

    def pin_session(self, session_id: str, pinned: bool = True) -> bool:
        """Pin or unpin a conversation, with all its parts if it was compressed; a pinned one is never pruned."""
        return self._stamp(session_id, ("pin", "pinned_at"), pinned)

    def archive_session(self, session_id: str, archived: bool = True) -> bool:
        """Archive or unarchive a conversation, with all its parts if it was compressed; it is still searched."""
        return self._stamp(session_id, ("archive", "archived_at"), archived)

    def _stamp(self, session_id: str, what: tuple[str, str], on: bool) -> bool:
        return self._change_parts(session_id, what, lambda tx, part: sessions.stamp(tx, part, what[1], on))

    def share_session(self, session_id: str, source: str, user_id: str) -> bool:
        """Let another user see a session; False when there is no such session."""
        return self._change(("share",), lambda tx: sessions.share(tx, session_id, source, user_id), session_id)

    # ------------------------------------------------------------------------------------------ lineage

    def get_compression_tip(self, session_id: str) -> str:
        """The newest session of a chain of compressions; the id itself when there is no chain."""
        return self._read(lineage.compression_tip, session_id)

    get_compression_lineage = OpenStore.get_compression_chain

    def get_conversation_root(self, session_id: str) -> str:
        """The first of a session's ancestors; the id itself when it has no parent."""
        return self._read(lineage.ancestors, session_id)[0]

    def get_family(self, session_id: str, *, visible_to: User | None = None) -> list[Relative]:
        """The session and all its relatives (branches, compressions, their parents) that may be seen, parents first."""
        return self._read(listing.family, session_id, visible_to)

    def resolve_resume_session_id(self, session_id: str) -> str:
        """The session that a resume continues: this one, else its first descendant that shows messages."""
        return self._read(lineage.resume_target, session_id)

    def branch_session(
        self, session_id: str, new_session_id: str, *, at_message: int | None = None, title: str | None = None
    ) -> str:
        """A new session that shows the old one's messages up to `at_message` (None: all, 0: none), by reference."""
        sessions.checked_id(new_session_id)
        title = self._masked(title)
        with self._writing(new_session_id) as tx:
            lineage.branch(tx, session_id, new_session_id, at_message, title)
        self._transcripts.rewritten(new_session_id)
        self._transcripts.changed(session_id, "branch", branch=new_session_id, at_message=at_message)
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
        """End a session by compression and continue in a new one, in one transaction.

        The new one shows the messages up to `head_until`, the summary, and the messages from `tail_from` on; the carried
        ones by reference. Its title is the old title with the next number.
        """
        sessions.checked_id(new_session_id)
        ready = self._encoded({"role": summary_role, "content": summary})
        with self._writing(session_id, new_session_id) as tx:
            lineage.compress(tx, session_id, new_session_id, ready, head_until, tail_from)
        self._transcripts.rewritten(new_session_id)
        self._transcripts.changed(session_id, "end", "ended_at", "end_reason", continued_in=new_session_id)
        return new_session_id

    def rewind(self, session_id: str, message_id: int) -> int:
        """Hide every message after `message_id` (0: all); returns how many. Hidden text is neither found nor replayed."""
        if type(message_id) is not int:
            raise TypeError("an id is a whole number")  # SQLite would convert it
        with self._writing(session_id) as tx:
            hidden = lineage.rewind(tx, session_id, message_id)
        self._transcripts.changed(session_id, "rewind", hides=hidden)
        return len(hidden)

    def unrewind(self, session_id: str) -> int:
        """Undo the last rewind; returns how many messages are shown again. Messages stored since are hidden instead."""
        with self._writing(session_id) as tx:
            shown, hidden = lineage.unrewind(tx, session_id)
        self._transcripts.changed(session_id, "unrewind", shows=shown, hides=hidden)
        return len(shown)
