"""Changes config.yaml: one writer at a time, the whole file checked before it is replaced in one step.

A process that edits the file (`hermes config set`, `hermes config edit`) holds a lock from reading it to writing it, so that
two processes never lose an edit of each other; the file is swapped by a rename, so that no process reads half of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from hermes import home
from hermes.config import settings_schema as table
from hermes.config.loading import config_path, hidden, parse_config, read_text, unhidden
from hermes.config.reading import check_text, composed, in_words
from hermes.errors import ConfigError, InvalidInput
from hermes.home import make_private, sync_folder, write_whole

HEAD = """\
# The configuration of Hermes Sessions. Every key has a default; only what differs needs to be set here.
# `hermes config show --all` lists them all, `hermes config set KEY VALUE` changes one, `hermes doctor` checks it.
# Secrets are best kept in the environment or in the file .env beside this one, and named here: ${OPENAI_API_KEY}
"""
Rule = dict[str, str]  # {command, folder}
_PART = re.compile(r'"([^"]+)"|([^."]+)')
_KEY = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def split_key(key: str) -> list[str]:
    """The parts of `model.api_key`; a name with a dot in it goes in double quotes: `mcp_servers."my.server".url`."""
    if not _KEY.fullmatch(key):
        raise InvalidInput(f"{key!r} is not a configuration key; join names with dots, as in model.default")
    return [quoted or plain for quoted, plain in _PART.findall(key)]


def known_type(keys: list[str]) -> Any:
    """The type of a key; InvalidInput (with the name that was probably meant) when it is unknown."""
    for number in range(len(keys)):
        try:
            kind = table.type_at(keys[: number + 1])
        except KeyError:
            known = table.fields_of(table.members(table.type_at(keys[:number]))[0])
            whole = table.suggestion(".".join(keys), table.every_key()) if number == 0 else ""
            hint = whole or table.meant(keys[: number + 1], known) or "; `hermes config show --all` lists them"
            raise InvalidInput(f"unknown configuration key: {'.'.join(keys)}{hint}") from None
    return kind


def parsed(text: str, kind: Any, name: str) -> Any:
    """A typed value of a key: text as it is, the rest as YAML. `null` (or ~) is no value."""
    import yaml

    members = [get_args(one)[0] if get_origin(one) is Annotated else one for one in table.members(kind)]
    is_list = any(get_origin(one) is list for one in members)
    if text in ("null", "~") and (table.may_be_null(kind) or table.is_section(members[0])):
        return None
    if get_origin(members[0]) is Literal or (str in members and not (is_list and text.lstrip().startswith("["))):
        return text
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InvalidInput(f"{name}: not valid YAML; write lists as [a, b] and mappings as {{a: b}}") from None
    if table.is_section(members[0]) and not isinstance(value, dict):  # `model: NAME` would drop the rest of the section
        raise InvalidInput(f"{name}: expected {in_words(members[0])}, got {text!r}")
    if get_origin(members[0]) is list and not isinstance(value, list):
        return [] if value is None else [value if isinstance(value, dict) else text]
    return value


def set_value(key: str, text: str) -> None:
    """Put a typed value under a key in config.yaml, as `put_value` does."""
    put_value(key, parsed(text, known_type(split_key(key)), key))


def put_value(key: str, value: Any) -> None:
    """Put a value under a key in config.yaml (made if it is missing). ConfigError when the result would be wrong."""
    keys = split_key(key)
    known_type(keys)
    _edit(lambda before: with_value(before or HEAD, keys, value))


def unset(key: str) -> bool:
    """Take a key out of config.yaml, so that its default holds again; False when it was not there."""
    keys = split_key(key)
    try:
        _edit(lambda before: without(before, keys))
    except KeyError:
        known_type(keys)
        return False
    return True


def change_list(keys: list[str], *, add: str | Rule | None = None, remove: str | Rule | None = None) -> None:
    """Add a text or a rule to a list in config.yaml, or take one out of it; an empty list goes away with its key."""

    def changed(before: str) -> str:
        there: Any = _yaml(before)[1]
        for key in keys:
            there = there.get(key) if isinstance(there, dict) else None
        listed: list[str | Rule] = [
            {key: unhidden(str(value)) for key, value in one.items()} if isinstance(one, dict) else unhidden(str(one))
            for one in (there if isinstance(there, list) else ())
        ]
        kept = [one for one in listed if one != remove]
        if add is not None and add not in kept:
            kept.append(add)
        if kept:
            return with_value(before or HEAD, keys, kept)
        return before if there is None else without(before, keys)

    _edit(changed)


# ------------------------------------------------------------------------------------------------ the text


def with_value(text: str, keys: list[str], value: Any) -> str:
    """The text with a value under a key; comments and order stay."""
    from ruamel.yaml.comments import CommentedMap

    yaml, data = _yaml(text)
    place = top = CommentedMap() if data is None else data
    for key in keys[:-1]:
        if not isinstance(place.get(key), dict):
            place[key] = CommentedMap()
        place = place[key]
    place[keys[-1]] = _on_one_line(value)
    return _written(yaml, top, text)


def without(text: str, keys: list[str]) -> str:
    """The text without a key, and without the sections that are empty then; KeyError when it is not there."""
    yaml, data = _yaml(text)
    sections = [data]
    for key in keys[:-1]:
        if not isinstance(sections[-1], dict):
            raise KeyError(key)
        sections.append(sections[-1][key])
    if not isinstance(sections[-1], dict) or keys[-1] not in sections[-1]:
        raise KeyError(keys[-1])
    for section, key in reversed(list(zip(sections, keys, strict=True))):
        del section[key]
        if section:
            break
    return _written(yaml, data, text)


def _yaml(text: str) -> tuple[Any, Any]:
    """The library, set to write as this text is written, and what the text says (None: nothing)."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.util import load_yaml_guess_indent

    text = hidden(text.replace("\r\n", "\n"))
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 1 << 20
    yaml.explicit_start = text.startswith("---")
    try:
        _, sequence, offset = load_yaml_guess_indent(text)
        yaml.indent(sequence=sequence or 2, offset=offset or 0)
        return yaml, yaml.load(text)
    except YAMLError:  # a key given twice, say
        raise ConfigError("config.yaml can't be changed automatically; change it with `hermes config edit`") from None


def _on_one_line(value: Any) -> Any:
    """A value as it is written: lists and mappings in brackets, `${NAME}` as it is. (JSON is YAML in brackets.)"""
    from ruamel.yaml import YAML

    return YAML().load(hidden(dumps(value, ensure_ascii=False)))


def _written(yaml: Any, data: Any, before: str) -> str:
    """The data as text. Lines with a comment that the library took along with a value stay, and end their section."""
    from difflib import SequenceMatcher

    out = StringIO()
    if data:
        yaml.dump(data, out)
    old = before.replace("\r\n", "\n").splitlines(keepends=True)
    new = unhidden(out.getvalue()).splitlines(keepends=True)
    if not composed(before):  # nothing, or comments alone
        return "".join([*old, *new])
    lines: list[str] = []
    for kind, first, last, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        after: list[str] = []
        if kind == "insert":
            while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
                after.insert(0, lines.pop())
        elif kind != "equal":
            after = [line for line in old[first:last] if line.lstrip().startswith("#") and line not in new]
        lines += [*new[start:end], *after]
    merged = "".join(lines)
    text = merged if _says_the_same(merged, "".join(new)) else "".join(new)
    return text.replace("\n", "\r\n" if "\r\n" in before else "\n")


def _says_the_same(one: str, other: str) -> bool:
    import yaml

    try:
        return bool(yaml.load(hidden(one), yaml.BaseLoader) == yaml.load(hidden(other), yaml.BaseLoader))
    except yaml.YAMLError:
        return False


# ------------------------------------------------------------------------------------------------ the file


def _edit(change: Callable[[str], str]) -> None:
    """Replace the text of the file, unless that adds a mistake; earlier mistakes are no reason to refuse."""
    import yaml

    with locked() as (target, text):
        before = text or ""
        try:
            composed(before)
        except (yaml.YAMLError, RecursionError, UnicodeError):
            parse_config(before, target)  # says what is wrong, and where
        after = change(before)
        known = {problem.text for problem in check_text(before, target)[1]}
        problems = [one for one in check_text(after, target)[1] if one.text not in known]
        if problems:  # the line number of a file that is not written is no help
            raise InvalidInput(problems[0].text)
        if after != before:
            write_config(target, after)


@contextmanager
def locked() -> Iterator[tuple[Path, str | None]]:
    """The file to write (links followed) and its text, while no other process changes it."""
    path = config_path()
    make_private(path.parent)
    target = Path(os.path.realpath(path))
    with ExitStack() as held:
        try:
            held.enter_context(home.locked(path.with_name(path.name + ".lock")))
        except OSError as error:
            hint = "" if isinstance(error, TimeoutError) else "; fix its permissions"
            raise ConfigError(f"{path.parent} can't be written ({error.strerror}){hint}") from None
        yield target, read_text(target)


def write_config(target: Path, text: str) -> None:
    """Replace the file in one step; only its owner can read it."""
    try:
        write_whole(target, text)
        sync_folder(target.parent)
    except OSError as error:
        raise ConfigError(f"{target} can't be written ({error.strerror}); nothing was changed") from None
