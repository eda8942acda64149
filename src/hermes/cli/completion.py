"""`hermes completion bash|zsh|fish`: the script a shell reads to complete `hermes …`, and the candidates it is given.

Scripts, commands and options are click's; sessions, sources, models and configuration keys come from completers, each given
to a parameter as its `shell_complete`. The store is read once, by one short query, and never created. Nothing here may fail
loudly: the user is typing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem, ShellComplete

    from hermes.store.records.rows import SessionRow

_BASH = r"""%(complete_func)s() {
    local IFS=$'\n'
    mapfile -t COMPREPLY < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
        %(complete_var)s=bash_complete %(prog_name)s 2>/dev/null)
    if [[ ${COMPREPLY[0]} == :files ]]; then
        COMPREPLY=()
        compopt -o default
    fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_HELP = """Print the completion script for a shell.

\b
bash: echo 'source <(hermes completion bash)' >> ~/.bashrc      (4.4 or later)
zsh:  echo 'source <(hermes completion zsh)' >> ~/.zshrc        (after compinit)
fish: hermes completion fish > ~/.config/fish/completions/hermes.fish
"""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    from hermes.cli.main import program

    made = _shell(shell, program())
    # click's script for fish would cut a title at its first comma
    template = made.source_template.replace('string split ","', 'string split -m 1 ","')
    click.echo(template % made.source_vars(), nl=False)


def answer(program: click.Command, instruction: str) -> int:
    """Print the candidates that a shell's script asks for; none for half a line, a broken config or a locked store."""
    with suppress(Exception), redirect_stderr(StringIO()):
        click.echo(_shell(instruction.partition("_")[0], program).complete())
    return 0


def _shell(name: str, program: click.Command) -> ShellComplete:
    """Click's completion for a shell. For bash, words are quoted here: the others quote what they insert themselves."""
    from click.shell_completion import BashComplete, get_completion_class

    from hermes.cli.main import COMPLETION

    class Bash(BashComplete):
        source_template = _BASH

        def get_completion_args(self) -> tuple[list[str], str]:
            words, typed = super().get_completion_args()
            return [word for word in words if word != "="], typed  # bash makes three words of --source=cli

        def format_completion(self, item: CompletionItem) -> str:
            if item.type in ("file", "dir"):
                return ":files"
            words, at = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
            return _quoted(item.value, words[at][:1] if at < len(words) else "")

    return (Bash if name == "bash" else get_completion_class(name) or Bash)(program, {}, "hermes", COMPLETION)


def _quoted(value: str, quote: str) -> str:
    """A value as it continues a word that begins with this quote, or with none."""
    if quote == "'":
        return value.replace("'", "'\\''")
    if quote == '"':
        return re.sub(r'(["\\$`])', r"\\\1", value)
    return re.sub(r"([^\w./,+%@^\u0080-\U0010ffff-])", r"\\\1", value)


# ------------------------------------------------------------------------------------------------ candidates


Candidate = tuple[str, str]  # what would be inserted, and what it is
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
RECENT = 200


def _completer(offer: Callable[[click.Context, str], list[Candidate]], *, first: bool = False) -> Completer:
    """A completer of the results of `offer`; `first`: only for the first of several words."""

    def complete(context: click.Context, parameter: click.Parameter, partial: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if first and parameter.nargs < 0 and context.params.get(parameter.name or ""):
            return []
        found, low = offer(context, partial), partial.lower()
        return [
            CompletionItem(" ".join(value.splitlines()), help=about)
            for value, about in found
            if value.lower().startswith(low)
        ]

    return complete


def _sessions(context: click.Context, partial: str) -> list[Candidate]:
    """Ids if the word begins like one; programs after @; else titles, and ids of sessions without a title."""
    if partial.startswith("@"):
        from hermes.interop.programs import names

        return [(f"@{name}", "") for name in names()]
    if re.match(r"\d", partial):
        by_title = {str(row["id"]): _about(row) for row in _recent()}
        with _record() as db:
            ids = sorted(db.session_ids_with_prefix(partial, 50)) if db is not None else []
        found = [(session_id, by_title.get(session_id, "")) for session_id in ids]
        return found + [(str(row["title"]), "") for row in _recent() if row.get("title")]
    named = [(str(row["title"]), str(row["id"])) for row in _recent() if row.get("title")]
    return named + [(str(row["id"]), _about(row)) for row in _recent() if not row.get("title")][:20]


def _trashed(context: click.Context, partial: str) -> list[Candidate]:
    """The sessions `restore` can restore."""
    with _record() as db:
        rows = db.list_trash() if db is not None else []
    return [(str(row["id"]), _about(row)) for row in rows]


def _keys(context: click.Context, partial: str) -> list[Candidate]:
    from hermes.config.settings_schema import every_key

    return [(key, "") for key in every_key()]


def _sources(context: click.Context, partial: str) -> list[Candidate]:
    return [(source, "") for source in dict.fromkeys(str(row["source"]) for row in _recent())]


complete_session = _completer(_sessions, first=True)
complete_sessions = _completer(_sessions)
complete_trashed = _completer(_trashed)
complete_source = _completer(_sources)
complete_key = _completer(_keys)

# ------------------------------------------------------------------------------------------------ the record

_rows: list[SessionRow] | None = None


def _recent() -> list[SessionRow]:
    global _rows
    if _rows is None:
        _rows = []
        with _record() as db:
            if db is not None:
                _rows = db.list_sessions_rich(limit=RECENT, order_by_last_active=True, automated=False)
    return _rows


def _record() -> Any:
    """Open the store for reading; gives None if there is none yet."""
    from hermes.config import load_config
    from hermes.store.api.configured import open_existing

    return open_existing(load_config()) or nullcontext(None)


def _about(row: SessionRow) -> str:
    return " ".join(str(row.get("title") or row.get("preview") or "").split())[:60]
