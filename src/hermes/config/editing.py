"""Changing config.yaml: one writer at a time, checked whole before it is written, replaced in one step.

A process that edits the file (`hermes config set`, `hermes config edit`) holds a lock from reading it to writing it, so that
two processes never lose an edit of each other; the file is swapped by a rename, so that no process reads half of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_origin

from hermes.config import settings_schema as table
from hermes.config.loading import config_path, parse_config, read_text
from hermes.config.reading import check_text, composed
from hermes.config.settings_schema import suggestion
from hermes.errors import ConfigError, InvalidInput
from hermes.home import make_private
from hermes.whole_files import sync_folder, write_whole

HEAD = """\
# The configuration of Hermes Sessions. Every key has a default; only what differs needs to be set here.
# `hermes config show --all` lists them all, `hermes config set KEY VALUE` changes one, `hermes doctor` checks it.
# Secrets are best kept in the environment or in the file .env beside this one, and named here: ${OPENAI_API_KEY}
"""
Rule = dict[str, str]  # {command, folder}
_PART = re.compile(r'"([^"]+)"|([^."]+)')


def split_key(key: str) -> list[str]:
    """The parts of `model.api_key`; a name with a dot in it goes in double quotes: `mcp_servers."my.server".url`."""
    parts, at = [], 0
    while True:
        found = _PART.match(key, at)
        if found is None:
            raise InvalidInput(f"{key!r} is not a configuration key; join names with dots, as in model.default")
        parts.append(found[1] or found[2])
        at = found.end()
        if at == len(key):
            return parts
        if key[at] != ".":
            raise InvalidInput(f"{key!r} is not a configuration key; join names with dots, as in model.default")
        at += 1


def known_type(keys: list[str]) -> Any:
    """The type of a key; InvalidInput (with the name that was probably meant) when it is unknown."""
    try:
        return table.type_at(keys)
    except KeyError:
        name = ".".join(keys)
        renamed = f"; it is now {table.RENAMED[name]}" if name in table.RENAMED else ""
        hint = renamed or suggestion(name, table.keys_beside(keys)) or suggestion(name, table.every_key())
        if not hint:
            same = [key for key in table.every_key() if key.split(".")[-1] == keys[-1]]
            hint = f"; did you mean {same[0]}?" if same else "; `hermes config show --all` lists them"
        raise InvalidInput(f"unknown configuration key: {name}{hint}") from None


def parsed(text: str, kind: Any, name: str) -> Any:
    """What was typed for a key of a type: text as it is, the rest as YAML. `null` (or ~) is no value."""
    import yaml

    members = table.members(kind)
    if text in ("null", "~") and (table.may_be_null(kind) or table.is_section(members[0])):
        return None
    if str in members and not (text.lstrip().startswith("[") and any(get_origin(one) is list for one in members)):
        return text
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InvalidInput(f"{name}: not valid YAML; write lists as [a, b] and mappings as {{a: b}}") from None
    if get_origin(members[0]) is list and not isinstance(value, list):
        return [] if value is None else [text if get_args(members[0]) == (str,) else value]
    return value


def set_value(key: str, text: str) -> None:
    """Put a value under a key in config.yaml (made if it is missing). ConfigError when the result would be wrong."""
    from hermes.config.splice import with_value

    keys = split_key(key)
    value = parsed(text, known_type(keys), key)
    with locked() as (target, before):
        _must_be_readable(before or "", target)
        _write_checked(target, with_value(before or HEAD, keys, value), keys)


def unset(key: str) -> bool:
    """Take a key out of config.yaml, so that its default holds again; False when it was not there."""
    from hermes.config.splice import without

    keys = split_key(key)
    with locked() as (target, before):
        _must_be_readable(before or "", target)
        try:
            after = without(before or "", keys)
        except KeyError:
            known_type(keys)
            return False
        known_before = {problem.text for problem in check_text(before or "", target)[1]}
        if any(problem.text not in known_before for problem in check_text(after, target)[1]):
            parse_config(after, target)
        write_config(target, after)  # taking out one of two wrong keys is a step forward
        return True


def change_list(keys: list[str], *, add: str | Rule | None = None, remove: str | Rule | None = None) -> None:
    """Add a text or a rule to a list in config.yaml, or take one out of it; an empty list goes away with its key."""
    from hermes.config.splice import with_value, without

    with locked() as (target, before):
        _must_be_readable(before or "", target)
        import yaml

        there: Any = yaml.safe_load(before or "")
        for key in keys:
            there = there.get(key) if isinstance(there, dict) else None
        texts = [one for one in there if one != remove] if isinstance(there, list) else []
        if add is not None and add not in texts:
            texts.append(add)
        if texts:
            _write_checked(target, with_value(before or HEAD, keys, texts), keys)
        elif there is not None:
            write_config(target, without(before or "", keys))


def _write_checked(target: Path, text: str, keys: list[str]) -> None:
    _, problems = check_text(text, target)
    wanted = ".".join(keys)
    about = [problem for problem in problems if _related(problem.text.partition(": ")[0], wanted)]
    if about:  # what was just asked for is wrong: the line number of a file that is not written is no help
        raise InvalidInput(about[0].text)
    parse_config(text, target, ignore_unknown=True)
    write_config(target, text)


def _related(name: str, other: str) -> bool:
    """Whether one key is the other, or above it."""
    return f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.")


def _must_be_readable(text: str, target: Path) -> None:
    import yaml

    try:
        composed(text)
    except (yaml.YAMLError, RecursionError, UnicodeError):
        parse_config(text, target)  # says what is wrong, and where


@contextmanager
def locked() -> Iterator[tuple[Path, str | None]]:
    """The file to write (links followed) and its text, while no other process changes it."""
    path = config_path()
    make_private(path.parent)
    target = Path(os.path.realpath(path))
    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path.parent} can't be written ({error.strerror}); fix its permissions") from None
    try:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        except ImportError:  # a system without flock: the rename alone has to do
            pass
        yield target, read_text(target)
    finally:
        os.close(lock)


def write_config(target: Path, text: str) -> None:
    """Replace the file in one step; only its owner can read it."""
    try:
        write_whole(target, text)
        sync_folder(target.parent)
    except OSError as error:
        raise ConfigError(f"{target} can't be written ({error.strerror}); nothing was changed") from None
