"""What the commands share: the store, finding a session by what a person typed, asking, and progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from hermes.config import load_config

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


@contextmanager
def store(*, read_only: bool = False) -> Iterator[SessionDB]:
    """The user's store, closed afterwards."""
    from hermes.store.opening import open_configured

    with open_configured(load_config(), read_only=read_only) as db:
        yield db


class NotFound(click.ClickException):
    """Nothing is called that; exit status 1."""

    exit_code = 1


class Ambiguous(click.ClickException):
    """Several are called that; exit status 2."""

    exit_code = 2


def find_session(db: SessionDB, words: str) -> str:
    """The session a person means: an exact id, else a title (the newest of its lineage), else a unique id prefix."""
    if db.get_session(words) is not None:
        return words
    by_title = db.resolve_session_by_title(words)
    if by_title is not None:
        return by_title
    candidates = db.session_ids_with_prefix(words, 10) if words else []
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        listed = "\n".join(f"  {found}  {db.get_session_title(found) or '—'}" for found in candidates)
        raise Ambiguous(f"several sessions begin with {words}; name more of one of these:\n{listed}")
    raise NotFound(f"no session is called {words!r}{_suggestions(db, words)}")


def _suggestions(db: SessionDB, words: str) -> str:
    """Titles that look alike."""
    from difflib import get_close_matches

    titles = [row["title"] for row in db.list_sessions_rich(limit=500, order_by_last_active=True) if row.get("title")]
    folded = {title.casefold(): title for title in titles}
    close = [folded[name] for name in get_close_matches(words.casefold(), list(folded), n=3, cutoff=0.4)]
    close += [title for title in titles if words and words.casefold() in title.casefold() and title not in close]
    if not close:
        return "; `hermes sessions list` shows what there is"
    return "; did you mean " + ", ".join(f'"{title}"' for title in close[:3]) + "?"


def confirmed(question: str, *, yes: bool) -> None:
    """Ask before something is lost; without a terminal only --yes will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{question} There is nobody to ask here: say --yes")
    click.confirm(question, abort=True, err=True)
