"""`hermes completion bash|zsh|fish`: the script a shell reads to complete `hermes …`.

The scripts are thin: they ask `hermes completion --words` for the candidates at the cursor. zsh and fish split words by
themselves and quote what they insert; for bash that is done here, since its own splitting at colons loses typed text.

Commands and options are click's; sessions, sources, models and configuration keys come from completers, each given to a
parameter as its `shell_complete`. The store is read once, by one short query, and never created. Nothing here may fail
loudly: the user is typing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hermes.store.records.rows import SessionRow


_BASH = r"""# completion of hermes for bash:  source <(hermes completion bash)
_hermes_completion() {
    local answer line
    COMPREPLY=()
    answer=$(hermes completion --words bash -- "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null) || return 0
    if [[ $answer == :files ]]; then
        compopt -o default 2>/dev/null
        return 0
    fi
    while IFS= read -r line; do
        [[ -n $line ]] && COMPREPLY+=("$line")
    done <<<"$answer"
}
complete -o nosort -F _hermes_completion hermes 2>/dev/null || complete -F _hermes_completion hermes
"""

_ZSH = r"""#compdef hermes
# completion of hermes for zsh:  source <(hermes completion zsh)   (after compinit)
_hermes() {
    local -a lines values shown
    local line value typed="$QIPREFIX$PREFIX$QIPREFIX"
    lines=("${(@f)$(hermes completion --words zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)typed}" 2>/dev/null)}")
    if [[ ${lines[1]} == :files ]]; then
        _files
        return
    fi
    for line in "${lines[@]}"; do
        [[ -z $line ]] && continue
        value="${line%%$'\t'*}"
        values+=("$value")
        shown+=("$value${${line#*$'\t'}:+  -- ${line#*$'\t'}}")
    done
    (( ${#values} )) && compadd -V hermes -M 'm:{a-zA-Z}={A-Za-z}' -l -d shown -a values
}
compdef _hermes hermes
"""

_FISH = r"""# completion of hermes for fish:  hermes completion fish | source
function __hermes_completion
    set -l before (commandline -opc)
    set -l typed (commandline -ct)
    set -l plain (string unescape -- $typed 2>/dev/null; or string trim -l -c "'\"" -- $typed)
    set -l answer (hermes completion --words fish -- $before[2..-1] "$plain" 2>/dev/null)
    if test "$answer[1]" = ":files"
        __fish_complete_path (commandline -ct)
        return
    end
    printf '%s\n' $answer
end
complete -c hermes -e
complete -c hermes -f -k -a '(__hermes_completion)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_HELP = """Print the completion script for a shell.

\b
bash: echo 'source <(hermes completion bash)' >> ~/.bashrc
zsh:  echo 'source <(hermes completion zsh)' >> ~/.zshrc   (after compinit)
fish: hermes completion fish > ~/.config/fish/completions/hermes.fish
"""


@click.command(help=_HELP, context_settings={"ignore_unknown_options": True})
@click.option("--words", "lists_words", is_flag=True, hidden=True)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
def command(lists_words: bool, shell: str, words: tuple[str, ...]) -> None:
    if not lists_words:
        if words:
            raise click.UsageError(f"one shell at a time, not also {words[0]!r}")
        click.echo(SCRIPTS[shell], nl=False)
        return
    if shell == "bash":
        for line in for_bash(words[0] if words else "", words[1] if len(words) > 1 else ""):
            click.echo(line)
        return
    for value, about in candidates(list(words[:-1]), words[-1] if words else ""):
        value = " ".join(value.splitlines())
        click.echo(f"{value}\t{about}" if about else value)


# ------------------------------------------------------------------------------------------------ bash


def for_bash(line: str, breaks: str) -> list[str]:
    """The candidates for the word before the cursor in bash, quoted in the way that word begins."""
    *words, partial = _split(line)
    found = candidates(words[1:], partial)
    if found == [FILES]:
        return [FILES[0]]
    quote, begun = _open_quote(line), 0
    if breaks and not quote:  # bash takes the text before a bare colon as a word of its own
        begun = len(partial) - len(_split(re.split(rf"(?<!\\)[{re.escape(breaks)}]", line)[-1])[-1])
    return [_quoted(" ".join(value[begun:].splitlines()), quote) for value, _ in found]


def _open_quote(line: str) -> str:
    """The quote that is open at the end of a line, if any."""
    quote, is_escaped = "", False
    for sign in line:
        if is_escaped:
            is_escaped = False
        elif sign == "\\" and quote != "'":
            is_escaped = True
        elif sign in "'\"" and quote in ("", sign):
            quote = "" if quote else sign
    return quote


def _quoted(value: str, quote: str) -> str:
    if quote == "'":
        return value.replace("'", "'\\''")
    if quote == '"':
        return re.sub(r'(["\\$`])', r"\\\1", value)
    return re.sub(r"([^\w./,+%@^\u0080-\U0010ffff-])", r"\\\1", value)


def _split(line: str) -> list[str]:
    """The words of a command line up to the cursor, without their quotes; the last is being typed."""
    from click.shell_completion import split_arg_string

    *words, last = split_arg_string(f"{line}.")
    return [*words, last[:-1]]


# ------------------------------------------------------------------------------------------------ candidates


Candidate = tuple[str, str]  # what would be inserted, and what it is
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
FILES: Candidate = (":files", "")  # the shell completes file names itself
RECENT = 200


def candidates(words: list[str], partial: str) -> list[Candidate]:
    """The candidates that begin with `partial`, after these words of the command line (without `hermes`)."""
    from click.shell_completion import ShellComplete

    from hermes.cli.main import program

    before = [word for word in words if word != "--debug"]
    option = partial[: partial.index("=") + 1] if partial.startswith("--") and "=" in partial else ""
    try:
        found = ShellComplete(program(), {}, "hermes", "").get_completions(before, partial)
    except Exception:  # an incomplete line, a broken config, a locked store: there is nothing to offer
        return []
    if any(item.type in ("file", "dir") for item in found):
        return [FILES] if not option else []
    return list(dict.fromkeys((option + item.value, item.help or "") for item in found))


def _completer(offer: Callable[[click.Context, str], list[Candidate]], *, first: bool = False) -> Completer:
    """A completer of the results of `offer`; `first`: only for the first of several words."""

    def complete(context: click.Context, parameter: click.Parameter, partial: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if first and parameter.nargs < 0 and context.params.get(parameter.name or ""):
            return []
        found, low = offer(context, partial), partial.lower()
        return [CompletionItem(value, help=about) for value, about in found if value.lower().startswith(low)]

    return complete


def complete_files(context: click.Context, parameter: click.Parameter, partial: str) -> list[CompletionItem]:
    """The shell's own completion of file names."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(partial, type="file")]


def _sessions(context: click.Context, partial: str) -> list[Candidate]:
    """Ids if the word begins like one; programs after @; else titles, and ids of sessions without a title."""
    if partial.startswith("@"):
        from hermes.interop.other_programs import names

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


def _jobs(context: click.Context, partial: str) -> list[Candidate]:
    """Scheduled jobs, with their prompts."""
    from hermes.store.gateway.cron import CronDB

    with _record() as db:
        jobs = CronDB(db).jobs() if db is not None else []
    return [(job.id, " ".join(job.prompt.split())[:60]) for job in jobs]


def _models(context: click.Context, partial: str) -> list[Candidate]:
    """The configured model, those used lately, and the built-in ones."""
    from hermes.config import load_config

    names = [load_config().model.default, *(row["model"] for row in _recent()), "embedded", "extractive"]
    return [(name, "") for name in dict.fromkeys(filter(None, names))]


def _keys(context: click.Context, partial: str) -> list[Candidate]:
    from hermes.config.settings_schema import every_key

    return [(key, "") for key in every_key()]


def _values(context: click.Context, partial: str) -> list[Candidate]:
    """The values of a key, if only a few are allowed."""
    from hermes.config.settings_schema import members, type_at

    key = str(context.params["key"])
    (kind, *_) = members(type_at(key.split(".")))
    if get_origin(kind) is Literal:
        return [(choice, "") for choice in get_args(kind)]
    if key == "model.default" or (key.startswith("auxiliary.") and key.endswith(".model")):
        return _models(context, partial)
    return [("true", ""), ("false", "")] if kind is bool else []


def _sources(context: click.Context, partial: str) -> list[Candidate]:
    return [(source, "") for source in dict.fromkeys(str(row["source"]) for row in _recent())]


def _installable(context: click.Context, partial: str) -> list[Candidate]:
    from hermes.agent.models.files import MODELS

    return [(name, known.about) for name, known in MODELS.items()]


complete_session = _completer(_sessions, first=True)
complete_sessions = _completer(_sessions)
complete_trashed = _completer(_trashed)
complete_source = _completer(_sources)
complete_model = _completer(_models)
complete_job = _completer(_jobs)
complete_installable = _completer(_installable)
complete_key = _completer(_keys)
complete_value = _completer(_values)

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
