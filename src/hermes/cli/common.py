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


def find_session(db: SessionDB, words: str, *, resuming: bool = False) -> str:
    """The session a person means: an exact id, else an exact title, else a unique id prefix."""
    from hermes.commands.session_choice import find

    found = find(db, words, resuming=resuming)
    if found.session_id is not None:
        return found.session_id
    if found.candidates:
        listed = "\n".join(f"  {one}  {db.get_session_title(one) or '—'}" for one in found.candidates)
        more = "\n  … and more" if found.more else ""
        raise Ambiguous(f"several sessions begin with {words}; name more of one of these:\n{listed}{more}")
    if not found.suggestions:
        raise NotFound(f"no session is called {words!r}; `hermes sessions list` shows what there is")
    hint = ", ".join(f'"{title}"' for title in found.suggestions)
    raise NotFound(f"no session is called {words!r}; did you mean {hint}?")


def confirmed(question: str, *, yes: bool) -> None:
    """Ask before something is lost; without a terminal only --yes will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{question} There is nobody to ask here: say --yes")
    click.confirm(question, abort=True, err=True)
