"""What could stand where the cursor is: commands, options, sessions, configuration keys, model names.

The commands themselves are asked for their options; which of their arguments is a session or a key is written in the
tables here. The record is read once, by one short query, and never made. Nothing here may fail loudly: somebody is
in the middle of typing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

Candidate = tuple[str, str]  # what would be inserted, and what it is
FILES: Candidate = (":files", "")  # the shell completes file names itself
RECENT = 200

# Commands whose arguments are sessions (the first one only, or all of them), keys or files.
ONE_SESSION = {"show", "delete", "rename", "tag", "untag"}
SESSIONS = {"pin", "unpin", "archive", "unarchive"}
FILE_ARGUMENT = {"export", "import", "backup"}
SESSION_OPTIONS = {"-c", "--continue", "-r", "--resume", "--session-id", "--session"}
MODEL_OPTIONS = {"-m", "--model"}


def candidates(words: list[str], partial: str) -> list[Candidate]:
    """What could follow these words (those after `hermes`), beginning with `partial`."""
    try:
        found = _candidates(words, partial)
    except Exception:  # half a line, a broken config, a locked store: there is nothing to offer
        return []
    if found == [FILES]:
        return found
    low = partial.casefold()
    return [(value, about) for value, about in found if value.casefold().startswith(low)]


def _candidates(words: list[str], partial: str) -> list[Candidate]:
    path, command, rest = _command(words)
    if partial.startswith("--") and "=" in partial:  # --source=cli
        word, _, begun = partial.partition("=")
        option = _waiting(command, [word])
        found = _values_of(option, word, begun) if option is not None else []
        return [(f"{word}={value}", about) for value, about in found if (value, about) != FILES]
    option = _waiting(command, rest)
    if option is not None:
        return _values_of(option, rest[-1], partial)
    if partial.startswith("-"):
        return _options(command)
    if _is_group(command):
        return [(name, about) for name, about in _subcommands(command)]
    return _arguments(path, _positional(command, rest), partial)


# ------------------------------------------------------------------------------------------------ where we are


def _command(words: list[str]) -> tuple[list[str], Any, list[str]]:
    """The command the words lead to, its name, and the words that are left for it."""
    import click

    from hermes.cli.main import program

    command: Any = program()
    path: list[str] = []
    rest = [word for word in words if word != "--debug"]
    if rest and rest[0].startswith("-"):
        rest = ["chat", *rest]  # as the door does
    while rest and _is_group(command) and not rest[0].startswith("-"):
        inner = command.get_command(click.Context(command), rest[0])
        if inner is None:
            break
        path.append(rest[0])
        command, rest = inner, rest[1:]
    return path, command, rest


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _subcommands(group: Any) -> Iterable[Candidate]:
    import sys

    import click

    context = click.Context(group)
    table = getattr(sys.modules[type(group).__module__], "COMMANDS", {})
    for name in group.list_commands(context):
        about = table[name][1] if name in table else _short(group.get_command(context, name))
        yield name, about


def _short(command: click.Command | None) -> str:
    return command.get_short_help_str(60) if command is not None else ""


def _options(command: Any) -> list[Candidate]:
    import click

    found: list[Candidate] = []
    for parameter in command.get_params(click.Context(command)):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            found += [(name, parameter.help or "") for name in (*parameter.opts, *parameter.secondary_opts)]
    chat = (
        [] if getattr(command, "name", "") != "group" else _options(command.get_command(click.Context(command), "chat"))
    )
    return sorted(set(found + chat), key=lambda item: (not item[0].startswith("--"), item[0]))


def _option_named(command: Any, word: str) -> Any:
    import click

    for parameter in command.get_params(click.Context(command)):
        if isinstance(parameter, click.Option) and word in (*parameter.opts, *parameter.secondary_opts):
            return parameter
    return None


def _waiting(command: Any, rest: list[str]) -> Any:
    """The option whose value is being typed, or None."""
    if not rest or "--" in rest or not rest[-1].startswith("-"):
        return None
    option = _option_named(command, rest[-1])
    if option is None or option.count or (option.is_flag and not getattr(option, "_flag_needs_value", False)):
        return None
    return option


def _positional(command: Any, rest: list[str]) -> list[str]:
    """The arguments among the words, without options and their values."""
    found: list[str] = []
    skip = False
    for word in rest:
        if skip:
            skip = False
        elif word.startswith("-") and word != "-":
            skip = _waiting(command, [word]) is not None
        else:
            found.append(word)
    return found


# ------------------------------------------------------------------------------------------------ what can stand there


def _values_of(option: Any, word: str, partial: str) -> list[Candidate]:
    import click

    if isinstance(option.type, click.Choice):
        return [(str(choice), "") for choice in option.type.choices]
    if word in SESSION_OPTIONS:
        return sessions(partial)
    if word in MODEL_OPTIONS:
        return models()
    if word == "--source":
        return [(source, "") for source in dict.fromkeys(str(row["source"]) for row in _recent())]
    return [FILES] if isinstance(option.type, (click.Path, click.File)) else []


def _arguments(path: list[str], before: list[str], partial: str) -> list[Candidate]:
    if path[:1] == ["sessions"] and len(path) == 2:
        name = path[1]
        if name in SESSIONS or (name in ONE_SESSION and not before):
            return sessions(partial)
        if name == "restore" and not before:
            return trashed()
        return [FILES] if name in FILE_ARGUMENT and not before else []
    if path[:1] == ["config"] and len(path) == 2 and path[1] in ("get", "set", "unset"):
        if not before:
            return config_keys()
        return config_values(before[0]) if path[1] == "set" and len(before) == 1 else []
    if path == ["completion"]:
        return [(shell, "") for shell in ("bash", "zsh", "fish")] if not before else []
    if path[:1] == ["model"] and len(path) == 2 and path[1] != "list":
        from hermes.agent.model_files import MODELS

        return [(name, known.about) for name, known in MODELS.items()] if not before else []
    return []


def sessions(partial: str) -> list[Candidate]:
    """Ids when an id is begun; else titles, and the ids of sessions without one."""
    if re.match(r"\d", partial):
        by_title = {str(row["id"]): _about(row) for row in _recent()}
        with _record() as db:
            ids = db.session_ids_with_prefix(partial, 50) if db is not None else []
        found = [(session_id, by_title.get(session_id, "")) for session_id in ids]
        return found + [(str(row["title"]), "") for row in _recent() if row.get("title")]
    named = [(str(row["title"]), str(row["id"])) for row in _recent() if row.get("title")]
    return named + [(str(row["id"]), _about(row)) for row in _recent() if not row.get("title")][:20]


def trashed() -> list[Candidate]:
    """What `restore` can bring back."""
    with _record() as db:
        rows = db.list_trash() if db is not None else []
    return [(str(row["id"]), _about(row)) for row in rows]


def models() -> list[Candidate]:
    """Names of models seen lately, configured, or built in."""
    from hermes.config import load_config

    config = load_config()
    named = [
        config.model.default,
        *(getattr(config.auxiliary, task, None) for task in ("title", "summary", "compression")),
    ]
    names = [item if isinstance(item, str) else getattr(item, "model", None) for item in named]
    names += [row.get("model") for row in _recent()]
    return [(name, "") for name in dict.fromkeys([*filter(None, names), "embedded", "extractive"])]


def config_keys() -> list[Candidate]:
    """Every key, also those below names that are in the file (mcp_servers.NAME.url)."""
    from hermes.config import load_config
    from hermes.config.keys import every_key

    found = every_key()
    try:
        for name in load_config().mcp_servers:
            label = f'"{name}"' if "." in name else name
            found += [f"mcp_servers.{label}.{part}" for part in ("command", "args", "env", "url", "headers")]
    except Exception:  # the file is wrong: the keys are still the keys
        pass
    return [(key, "") for key in found]


def config_values(key: str) -> list[Candidate]:
    """What may stand under a key, where only a few things may."""
    from hermes.config.keys import CHOICES, in_table, members, type_at

    keys = key.split(".")
    entry = in_table(CHOICES, keys)
    if entry is not None:
        return [(choice, "") for choice in CHOICES[entry]]
    if key == "model.default" or (keys[0] == "auxiliary" and keys[-1] == "model"):
        return models()
    return [("true", ""), ("false", "")] if bool in members(type_at(keys)) else []


# ------------------------------------------------------------------------------------------------ the record

_rows: list[dict[str, Any]] | None = None


def _recent() -> list[dict[str, Any]]:
    global _rows
    if _rows is None:
        with _record() as db:
            _rows = db.list_sessions_rich(limit=RECENT, order_by_last_active=True) if db is not None else []
    return _rows


def _record() -> Any:
    """The store, for reading; None (in a `with`) when there is none yet."""
    from contextlib import nullcontext

    from hermes.config import load_config
    from hermes.store.opening import open_existing

    return open_existing(load_config()) or nullcontext(None)


def _about(row: dict[str, Any]) -> str:
    return " ".join(str(row.get("title") or row.get("preview") or "").split())[:60]
