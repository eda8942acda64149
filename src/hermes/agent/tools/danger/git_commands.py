"""git commands that discard work, here or on the remote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hermes.agent.tools.danger.shell_words import ShellWord
from hermes.agent.tools.danger.wrappers import Options, split

_GLOBAL_VALUES = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"})


def git(words: Sequence[ShellWord], run: Callable[[Sequence[ShellWord]], str | None]) -> str | None:
    """Why this git command needs confirmation; `run` judges a command that git itself would start."""
    general = split(words, _GLOBAL_VALUES, permuting=False)
    for name, value in general.given:
        if name in ("-c", "--config-env") and value is not None and (value.open or _starts(value.text)):
            return f"git -c {value.text} sets a command that git would run"
    if not general.operands:
        return None
    verb, rest = general.operands[0], general.operands[1:]
    if not verb.known or verb.glob:
        return f"what git {verb.text} would do can't be seen beforehand"
    return _RULES[verb.text](rest, run) if verb.text in _RULES else None


def _starts(setting: str) -> bool:
    key = setting.partition("=")[0].lower()
    return key.startswith("alias.") or key.endswith(("command", "fsmonitor", "hookspath", ".cmd"))


def _first(options: Options) -> str:
    return options.operands[0].text if options.operands else ""


_Run = Callable[[Sequence[ShellWord]], "str | None"]


def _reset(words: Sequence[ShellWord], run: _Run) -> str | None:
    options = split(words)
    if options.unclear:
        return "what git reset would do can't be seen beforehand"
    return "git reset --hard throws away changes" if options.has("--hard", "--merge") else None


def _clean(words: Sequence[ShellWord], run: _Run) -> str | None:
    return None if split(words, frozenset({"-e"})).exactly("-n", "--dry-run") else "git clean removes files"


def _push(words: Sequence[ShellWord], run: _Run) -> str | None:
    options = split(words, frozenset({"-o", "--push-option", "--repo", "--receive-pack", "--exec"}))
    if options.has("-f", "--force", "--force-with-lease", "--mirror", "--prune"):
        return "git push --force overwrites what others see"
    if options.has("-d", "--delete") or any(word.text.startswith(":") for word in options.operands[1:]):
        return "git push --delete removes a branch for everyone"
    if any(word.text.startswith("+") for word in options.operands[1:]):
        return "git push with + overwrites what others see"
    return "what git push would do can't be seen beforehand" if options.unclear else None


def _checkout(words: Sequence[ShellWord], run: _Run) -> str | None:
    options = split(words, frozenset({"-b", "-B", "--orphan"}))
    paths = any(word.text == "--" for word in words) or any(word.text in (".", "./", ":/") for word in options.operands)
    if options.has("-f", "--force", "--discard-changes") or paths:
        return "git checkout of files throws away changes"
    return None


def _restore(words: Sequence[ShellWord], run: _Run) -> str | None:
    options = split(words, frozenset({"-s", "--source"}))
    only_staged = options.exactly("-S", "--staged") and not options.has("-W", "--worktree")
    return None if only_staged else "git restore throws away changes"


def _stash(words: Sequence[ShellWord], run: _Run) -> str | None:
    return "git stash throws away what was set aside" if _first(split(words)) in ("drop", "clear") else None


def _branch(words: Sequence[ShellWord], run: _Run) -> str | None:
    options = split(words)
    forced = options.has("-D") or (options.has("-d", "--delete") and options.exactly("-f", "--force"))
    return "git branch -D removes a branch" if forced else None


def _remove(words: Sequence[ShellWord], run: _Run) -> str | None:
    return None if split(words).exactly("--cached", "-n", "--dry-run") else "git rm removes files"


def _submodule(words: Sequence[ShellWord], run: _Run) -> str | None:
    options = split(words, permuting=False)
    if _first(options) == "deinit":
        return "git submodule deinit removes files"
    return run([ShellWord("eval"), *options.operands[1:]]) if _first(options) == "foreach" else None


def _rebase(words: Sequence[ShellWord], run: _Run) -> str | None:
    for name, value in split(words, frozenset({"-x", "--exec", "--onto", "-s", "-X", "-C"})).given:
        if name in ("-x", "--exec") and value is not None and (reason := run([ShellWord("eval"), value])):
            return reason
    return None


def _bisect(words: Sequence[ShellWord], run: _Run) -> str | None:
    return run(words[1:]) if len(words) > 1 and words[0].text == "run" else None


def _rewrite(words: Sequence[ShellWord], run: _Run) -> str | None:
    return "git filter-branch rewrites the history"


_RULES: dict[str, Callable[[Sequence[ShellWord], _Run], str | None]] = {
    "reset": _reset,
    "clean": _clean,
    "push": _push,
    "checkout": _checkout,
    "switch": _checkout,
    "restore": _restore,
    "stash": _stash,
    "branch": _branch,
    "rm": _remove,
    "submodule": _submodule,
    "rebase": _rebase,
    "bisect": _bisect,
    "filter-branch": _rewrite,
    "filter-repo": _rewrite,
}
