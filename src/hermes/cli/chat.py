"""`hermes chat`: start a conversation, continue one, or ask a single question."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hermes.cli.common import find_session, session_option, yes_option
from hermes.cli.completers import complete_model

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

_LATEST = "\0latest"  # -c without a value; it can't be typed
_CHOOSE = "\0choose"  # -r without a value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-q", "--query", metavar="TEXT", help="Ask once, print the answer and leave.")
@session_option(
    "-c", "--continue", "continued", metavar="[SESSION]", is_flag=False, flag_value=_LATEST, default=None,
    text="Continue a session: by title, id or the beginning of an id; alone: the latest one.",
)  # fmt: skip
@session_option(
    "-r", "--resume", "resumed", metavar="[SESSION]", is_flag=False, flag_value=_CHOOSE, default=None,
    text="Continue a session that is named; alone: choose one on a full screen.",
)  # fmt: skip
@click.option("--no-restore-cwd", is_flag=True, help="Stay in this folder instead of the session's.")
@click.option(
    "--model", "model_name", metavar="NAME", shell_complete=complete_model, help="Another model than config.yaml says."
)
@yes_option("Run the agent's destructive commands without asking.")
def command(
    query: str | None,
    continued: str | None,
    resumed: str | None,
    no_restore_cwd: bool,
    model_name: str | None,
    yes: bool,
) -> int:
    """Talk. Text piped in on standard input joins the question.

    \b
      hermes                        a new conversation
      hermes -c                     continue where you left off
      hermes -c "my project"        continue the newest session of that title
      hermes -r                     choose a session and continue it
      hermes chat -q "what is …?"   one answer
      git diff | hermes chat -q "review this"
    """
    if continued is not None and resumed is not None:
        raise click.UsageError("give -c or -r, not both", click.get_current_context())
    from hermes.chat.oneshot import ask, joined, piped_text
    from hermes.chat.terminal_conversation import folder_is_there
    from hermes.config import load_config
    from hermes.config.loading import TALK
    from hermes.store.opening import open_configured

    config = load_config(needs=TALK)
    if model_name is not None:
        config.model.default = model_name
    if resumed == _CHOOSE:
        _needs_terminal()
    question = joined(query, piped_text())
    once = query is not None or sys.stdin is None or not sys.stdin.isatty()
    if once and not question:
        raise click.UsageError("no question given: pass it with -q, or pipe it in", click.get_current_context())
    folder_is_there()
    with open_configured(config) as db:
        writable(db)
        if resumed == _CHOOSE:
            resumed = _chosen(db)
            if resumed is None:
                return 0
        session_id = _wanted(db, continued, resumed)
        from hermes.agent.model_choice import choose_model

        settings = {"restore_cwd": not no_restore_cwd, "yes": yes, "keep_model": model_name is not None}
        model = choose_model(config, db)
        if once:
            return ask(db, config, model, question, session_id=session_id, **settings)
        from hermes.chat.repl import talk

        return talk(db, config, model, session_id=session_id, **settings)


def _wanted(db: SessionDB, continued: str | None, resumed: str | None) -> str | None:
    """The session to continue; None for a new one."""
    from hermes.chat.resume import resolve

    words = resumed if resumed is not None else continued
    if words is None:
        return None
    return resolve(db, None if words == _LATEST else find_session(db, words, resuming=True))


def _needs_terminal() -> None:
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "-r alone needs a terminal to choose on: name a session, as `hermes sessions list` shows them",
            click.get_current_context(),
        )


def _chosen(db: SessionDB) -> str | None:
    """The session that the user chooses on the full screen; None when they leave without one."""
    from hermes.chat.browse import browse
    from hermes.cli.shared import configuration, zone

    return browse(db, zone(), theme=configuration().display.theme)


def writable(db: SessionDB) -> None:
    """StoreReadOnly when nothing said would be kept."""
    from hermes.errors import StoreReadOnly

    if db.read_only:
        raise StoreReadOnly(f"{db.where} is read-only, so no message would be stored; `hermes doctor` shows why")
