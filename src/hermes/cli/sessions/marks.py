"""`hermes sessions rename`, `tag`, `pin`, `archive` and their opposites: by name, or by filter for many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.completion import complete_session, complete_sessions
from hermes.cli.options import filtered_ids, filters, find_session, find_sessions, is_filter
from hermes.cli.record import opened, typed
from hermes.cli.sessions.removing import called
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB


@click.command()
@click.argument("session", metavar="ID", shell_complete=complete_session)
@click.argument("words", nargs=-1, required=True, metavar="TITLE…")
def rename(session: str, words: tuple[str, ...]) -> None:
    """Give a session a title: all words after ID, quoted or not. "" removes the title."""
    with opened(writing=True) as db:
        session_id = find_session(db, session)
        db.set_session_title(session_id, typed(" ".join(words)))
        title = db.get_session_title(session_id)
    print(f'{session_id} is now called "{one_line(title)}"' if title else f"{session_id} has no title now")


def chosen(db: SessionDB, words: tuple[str, ...], filtered: dict[str, Any]) -> list[str]:
    """The sessions a command applies to: those named, or those the filter selects."""
    if is_filter(filtered):
        if words:
            raise click.UsageError("name sessions or give a filter, not both", click.get_current_context())
        return filtered_ids(db, filtered)
    if not words:
        wanted = "name a session, or give a filter (--source, --older-than, --with-tag, --search)"
        raise click.UsageError(wanted, click.get_current_context())
    return find_sessions(db, words)


def _apply(
    ids: list[str], change: Callable[[str], bool], done: str, db: SessionDB, *, none: str = "no session matches"
) -> int:
    """Change sessions and print it; returns 1 if there were none."""
    changed = [session_id for session_id in ids if change(session_id)]
    if len(changed) == 1:
        print(f"{called(db.get_session(changed[0]) or {'id': changed[0]})} is {done}")
    elif changed:
        print(f"{counted(len(changed), 'session')} are {done}")
    else:
        click.echo(f"hermes: {none}; nothing was changed", err=True)
    return 0 if changed else 1


def _marking(name: str, text: str, done: str, change: Callable[[SessionDB, str], bool]) -> click.Command:
    """Make a command that sets or clears one mark."""

    @click.command(name, help=f"{text} By id, beginning of an id, title, or filter.")
    @click.argument("words", nargs=-1, metavar="[ID]…", shell_complete=complete_sessions)
    @filters
    def mark(words: tuple[str, ...], **filtered: Any) -> int:
        with opened(writing=True) as db:
            return _apply(chosen(db, words, filtered), lambda session_id: change(db, session_id), done, db)

    return mark


pin = _marking("pin", "Pin sessions: they are never pruned.", "pinned", lambda db, one: db.pin_session(one))
unpin = _marking("unpin", "Remove the pin.", "no longer pinned", lambda db, one: db.pin_session(one, False))
archive = _marking(
    "archive", "Archive sessions: not listed, still found.", "archived", lambda db, one: db.archive_session(one)
)
unarchive = _marking(
    "unarchive", "List them again.", "no longer archived", lambda db, one: db.archive_session(one, False)
)


def _tagging(name: str, text: str, change: Callable[[SessionDB, str, tuple[str, ...]], bool]) -> click.Command:
    """Make a command that adds or removes tags. With a filter, every word is a tag; else the first is the session."""

    @click.command(name, help=text)
    @click.argument("words", nargs=-1, required=True, metavar="[ID] TAG…", shell_complete=complete_session)
    @filters
    def tagging(words: tuple[str, ...], **filtered: Any) -> int:
        named = () if is_filter(filtered) else words[:1]
        tags = words[len(named) :]
        if not tags:
            raise click.UsageError("name a tag after the session", click.get_current_context())
        listed = ", ".join(map(one_line, tags))
        done = f"tagged {listed}" if name == "tag" else f"no longer tagged {listed}"
        with opened(writing=True) as db:
            ids = chosen(db, named, filtered)
            none = f"no such session has the tag {listed}" if ids and name == "untag" else "no session matches"
            return _apply(ids, lambda session_id: change(db, session_id, tags), done, db, none=none)

    return tagging


def _untag(db: SessionDB, session_id: str, tags: tuple[str, ...]) -> bool:
    """Remove tags; returns whether the session had any of them."""
    before = db.get_tags(session_id)
    return db.untag_session(session_id, *tags) and db.get_tags(session_id) != before


_MANY = "or with a filter (`--source telegram TAG…`) for many sessions."
tag = _tagging("tag", f"Add tags: `tag ID TAG…`, {_MANY}", lambda db, one, tags: db.tag_session(one, *tags))
untag = _tagging("untag", f"Remove tags: `untag ID TAG…`, {_MANY}", _untag)
