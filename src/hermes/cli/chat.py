"""`hermes chat`: start a conversation, continue one, or ask a single question."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import find_session, flag, model_option, session_option, yes_option, yes_to_option
from hermes.cli.record import typed, zone
from hermes.config import load_config
from hermes.config.loading import TALK
from hermes.errors import StoreFull, StoreReadOnly
from hermes.home import project_folder

if TYPE_CHECKING:
    from hermes.chat.terminal_conversation import ChatOptions
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB

_LATEST = "\0latest"  # -c without a value; it can't be typed
_CHOOSE = "\0choose"  # -r without a value


@click.command()
@click.option("-q", "--query", metavar="TEXT", help="Ask one question, print the answer and exit.")
@session_option(
    "-c", "--continue", "continued", metavar="[SESSION]", is_flag=False, flag_value=_LATEST, default=None,
    text="Continue a session, named by title, id or id prefix; without a name, the latest one.",
)  # fmt: skip
@session_option(
    "-r", "--resume", "resumed", metavar="[SESSION]", is_flag=False, flag_value=_CHOOSE, default=None,
    text="Continue a session by name, or @claude, @codex, …: the newest one of that program in this folder; without a name,"
    " choose one on a full screen.",
)  # fmt: skip
@flag("--here", "With -c alone: continue the latest session of this folder (its git root).")
@flag("--no-restore-cwd", "Stay in this folder instead of the session's.")
@model_option()
@click.option("--system", metavar="TEXT", help="Use this system prompt for a new conversation.")
@flag("--no-save", "Save nothing to disk; earlier conversations are not available either.")
@flag("--json", "With -q: print one JSON object with answer, tokens, cost and tool calls.", "as_json")
@flag("--stream-json", "With -q: print events as they happen, one JSON object per line.")
@yes_to_option("Run such commands without asking: 'git push', pytest, 'npm run *'; may be given several times.")
@yes_option("Answer every question with yes: every command runs without asking.")
def command(
    query: str | None,
    continued: str | None,
    resumed: str | None,
    here: bool,
    no_restore_cwd: bool,
    model_name: str | None,
    system: str | None,
    no_save: bool,
    as_json: bool,
    stream_json: bool,
    yes_to: tuple[str, ...],
    yes: bool,
) -> int:
    """Talk to the agent. Text piped in on standard input is added to the question.

    \b
      hermes                        a new conversation
      hermes -c                     continue the latest one
      hermes -c --here              the latest of this folder
      hermes -c "my project"        the newest of that title
      hermes -r                     choose one, continue it
      hermes chat -q "what is …?"   one answer
      hermes -q "explain @main.py"  with that file
      git diff | hermes chat -q "review this"
    """
    if here and continued != _LATEST:
        raise click.UsageError("--here goes with -c alone", click.get_current_context())
    if continued is not None and resumed is not None:
        raise click.UsageError("give -c or -r, not both", click.get_current_context())
    from hermes.chat.oneshot import ask, joined, piped_text
    from hermes.chat.terminal_conversation import folder_is_there

    query, system = query and typed(query), system and typed(system)
    config = load_config(needs=TALK)
    config.permissions.allow += yes_to
    if model_name is not None:
        config.model.default = model_name
    if resumed == _CHOOSE:
        _needs_terminal()
    if (words := resumed or continued or "").startswith("@"):
        from hermes.interop.programs import named

        named(words[1:])
    piped = piped_text()
    once = query is not None or sys.stdin is None or not sys.stdin.isatty()
    if once and not joined(query, piped):
        raise click.UsageError("no question given: pass it with -q, or pipe it in", click.get_current_context())
    if not once and (as_json or stream_json):
        raise click.UsageError("--json and --stream-json go with -q", click.get_current_context())
    if (no_save or system is not None) and (continued is not None or resumed is not None):
        raise click.UsageError("--no-save and --system are for a new conversation", click.get_current_context())
    folder_is_there()
    with unsaved() if no_save else _record(config) as db:
        if resumed == _CHOOSE:
            resumed = _chosen(db)
            if resumed is None:
                return 0
        session_id = _session_to_open(db, continued, resumed, here, once)
        from hermes.agent.models.choice import choose_model
        from hermes.chat.resume import other_folder

        note = other_folder(db, session_id) if session_id is not None and continued == _LATEST and not here else None
        keeps = model_name is not None
        settings: ChatOptions = {"restore_cwd": not no_restore_cwd, "yes": yes, "keep_model": keeps, "note": note,
                                 "system": system, "saved": not no_save}  # fmt: skip
        model = choose_model(config, db)
        if once:
            output = "stream-json" if stream_json else "json" if as_json else "text"
            return ask(
                db, config, model, query or "", piped, session_id=session_id, output=output, **settings
            )  # fmt: skip
        from hermes.chat.repl import talk

        return talk(db, config, model, session_id=session_id, **settings)


def _record(config: Config) -> SessionDB:
    """The record for the conversation; if nothing can be stored, the error names the option that needs no record."""
    from hermes.cli.record import open_record

    try:
        return open_record(config)
    except (StoreFull, StoreReadOnly) as error:
        error.args = (f"{error}; `hermes --no-save` talks without saving",)
        raise


def unsaved() -> SessionDB:
    """A record in memory for a conversation that is not kept; without /dev/shm, in a temporary folder until it ends."""
    import tempfile

    from hermes.store.api.session_db import SessionDB

    if os.access("/dev/shm", os.W_OK):
        tempfile.tempdir = "/dev/shm"
    return SessionDB(":memory:")


def _session_to_open(db: SessionDB, continued: str | None, resumed: str | None, here: bool, once: bool) -> str | None:
    """The session to continue; None for a new one."""
    from hermes.chat.resume import latest
    from hermes.commands.session_commands import continued as end_of_chain

    words = resumed if resumed is not None else continued
    if words is None:
        return None
    if words.startswith("@"):
        from hermes.interop.programs import newest

        return end_of_chain(db, newest(db, words[1:], Path.cwd()))
    if words != _LATEST:
        return end_of_chain(db, find_session(db, words, resuming=True))
    return latest(db, project_folder(Path.cwd()) if here else None, once=once)


def _needs_terminal() -> None:
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "-r alone needs a terminal to choose on: name a session, as `hermes sessions list` shows them",
            click.get_current_context(),
        )


def _chosen(db: SessionDB) -> str | None:
    """The session that the user chooses on the full screen; None when they leave without choosing."""
    from hermes.chat.browse import browse

    return browse(db, zone())
