"""`hermes completion bash|zsh|fish`: the script a shell reads to complete `hermes …`.

The scripts are thin: they ask `hermes completion --words` for the candidates at the cursor. zsh and fish split and
quote words by themselves; for bash that is done here, since its own splitting at colons and quotes loses typed text.
"""

from __future__ import annotations

import click

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
@click.option("--words", "asked", is_flag=True, hidden=True)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
def command(asked: bool, shell: str, words: tuple[str, ...]) -> None:
    if not asked:
        if words:
            raise click.UsageError(f"one shell at a time, not also {words[0]!r}")
        click.echo(SCRIPTS[shell], nl=False)
        return
    from hermes.cli.completers import candidates

    if shell == "bash":
        for line in for_bash(words[0] if words else "", words[1] if len(words) > 1 else ""):
            click.echo(line)
        return
    for value, about in candidates(list(words[:-1]), words[-1] if words else ""):
        value = " ".join(value.splitlines())
        click.echo(f"{value}\t{about}" if about else value)


# ------------------------------------------------------------------------------------------------ bash


def for_bash(line: str, breaks: str) -> list[str]:
    """The candidates for the word before the cursor in bash, quoted the way that word was begun."""
    from hermes.cli.completers import FILES, candidates

    typed = Typed(line)
    found = candidates(typed.words[1:], typed.partial)
    if found == [FILES]:
        return [FILES[0]]
    kept = typed.before_break(breaks)
    return [_quoted(value[len(kept) :], typed.quote) for value, _ in found]


class Typed:
    """A parsed command line up to the cursor: the complete words, and the one that is being typed."""

    def __init__(self, line: str) -> None:
        self.words: list[str] = []
        self.partial = ""
        self.quote = ""  # the quote that is open at the cursor
        self._bare: list[bool] = []  # for each letter of `partial`, whether it is unquoted
        begun = escaped = False
        for sign in line:
            if escaped:
                if self.quote == '"' and sign not in '"\\$`\n':
                    self._add("\\", bare=False)
                self._add(sign, bare=False)
                escaped = False
            elif sign == "\\" and self.quote != "'":
                escaped, begun = True, True
            elif self.quote:
                if sign == self.quote:
                    self.quote = ""
                else:
                    self._add(sign, bare=False)
            elif sign in "'\"":
                self.quote, begun = sign, True
            elif sign in " \t\n":
                if begun:
                    self.words.append(self.partial)
                self.partial, self._bare, begun = "", [], False
            else:
                self._add(sign, bare=True)
                begun = True

    def _add(self, sign: str, *, bare: bool) -> None:
        self.partial += sign
        self._bare.append(bare)

    def before_break(self, breaks: str) -> str:
        """The beginning of the word that bash takes for a word of its own (up to the last bare colon, say)."""
        if self.quote:
            return ""
        at = max((n for n, sign in enumerate(self.partial) if self._bare[n] and sign in breaks), default=-1)
        return self.partial[: at + 1]


def _quoted(value: str, quote: str) -> str:
    value = " ".join(value.splitlines())
    if quote == "'":
        return value.replace("'", "'\\''")
    if quote == '"':
        return "".join(f"\\{sign}" if sign in '"\\$`' else sign for sign in value)
    safe = "_-./,+%@^"
    return "".join(sign if sign.isalnum() or sign in safe or ord(sign) > 127 else f"\\{sign}" for sign in value)
