"""From the text of config.yaml to a Config: every value is checked where it stands, so that each mistake has a line number.

YAML's own guesses about types are not followed where a key has a type: `transcripts: off` is the word off, and a
number that comes out of a variable is a number. A message shows what is written in the file, never what a variable
holds, and nothing at all of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from hermes.config import settings_schema as table
from hermes.config.loading import environment, expanded, hidden, unhidden, unset_in
from hermes.config.settings_schema import MOST_BYTES, Config, Unset, suggestion

_DEEPEST = 50
_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[+-]?[\d_]+")
_LARGEST = 1e18  # a number beyond it is a mistake
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TELLTALE = re.compile(r"^(sk-|pk-|gh[pousr]_|xox|AIza|eyJ|AKIA|Bearer )", re.I)
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class ConfigProblem(msgspec.Struct, frozen=True):
    """A mistake: its line, and a description in plain words."""

    line: int
    text: str
    column: int | None = None
    unknown: str | None = None  # the unknown key; such a key is ignored, everything else is an error

    @property
    def section(self) -> str:
        """The first part of the key that it is about; other text if it is about the whole file."""
        return re.split(r"[.:\[]", self.text, maxsplit=1)[0]

    def __str__(self) -> str:
        at = f" column {self.column}" if self.column is not None else ""
        return f"line {self.line}{at}: {self.text}"


class _Missing:
    """No value: the default is used."""


_MISSING = _Missing()


def check_text(text: str, path: Path) -> tuple[Config, list[ConfigProblem]]:
    """The configuration in a text, and its mistakes (`path` is where the text is, or would be, stored)."""
    import yaml

    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        return Config(), [
            ConfigProblem(1, f"this is larger than a configuration may be ({MOST_BYTES // 1_000_000} MB)")
        ]
    try:
        root = composed(text)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        return Config(), [_not_yaml(error, text)]
    reader = _NodeReader(environment(path.parent) if "${" in text else {})
    found = reader.value(Config, root, [], 1) if root is not None else _MISSING
    problems = sorted(reader.problems, key=lambda problem: problem.line)
    config = found if isinstance(found, Config) else Config()
    config.__dict__["unset_variables"] = tuple(dict.fromkeys(reader.unset))
    config.__dict__["unknown_keys"] = {one.unknown: f"{path} {one}" for one in problems if one.unknown}
    return config, problems


def composed(text: str) -> Any:
    """The nodes of a YAML text (None: there are none). Neither aliases nor tags; too deep a nesting is RecursionError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = hidden(text)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            what = "alias" if isinstance(event, yaml.AliasEvent) else "tag"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)  # type: ignore[arg-type]
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise RecursionError
    return yaml.compose(text, Loader=loader)


class _NodeReader:
    """Compares the nodes of a file with the types they should have."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.problems: list[ConfigProblem] = []
        self.unset: list[Unset] = []
        self._variables = variables

    def value(self, kind: Any, node: Any, keys: list[str], line: int) -> Any:
        """The value of a node in its type; `_MISSING` if there is none, or none that fits."""
        written = _written_text(node)
        missing = unset_in(written, self._variables) if written is not None else []
        self.unset += [Unset(_name(keys), variable) for variable in missing]
        text = None if missing else expanded(written, self._variables) if written is not None else ""
        empty = written == "" and kind is not Any and table.may_be_null(kind)
        if text is None or node.tag == f"{_TAG}null" or empty:
            return None if table.may_be_null(kind) else _MISSING
        is_name = node.id == "scalar" and node.tag == f"{_TAG}str" and not _TELLTALE.match(text)
        if kind is table.ModelSettings and is_name:  # `model: NAME`, as other programs write it
            return table.ModelSettings(default=text)
        wanted = []
        for member in table.members(kind):
            found = self._as(member, node, text, keys, line)
            if found is not _MISSING:
                self._check_password(found, keys, line)
                return found
            if self._fits(member, node):
                return _MISSING  # the mistake is inside, and reported
            wanted.append(in_words(member))
        known = get_args(kind) if get_origin(kind) is Literal else _timezones() if keys == ["timezone"] else ()
        hint = suggestion(text, known) if _may_show(node, keys) else ""
        self._report(line, f"{_name(keys)}: expected {' or '.join(wanted)}{_instead(node, keys)}{hint}")
        return _MISSING

    @staticmethod
    def _fits(kind: Any, node: Any) -> bool:
        """Whether a node has the shape of a type."""
        if table.is_section(kind) or get_origin(kind) is dict:
            return str(node.id) == "mapping"
        return get_origin(kind) is list and node.id == "sequence"

    def _as(self, kind: Any, node: Any, text: str, keys: list[str], line: int) -> Any:
        if kind is Any:
            return self._anything(node, text, keys)
        if self._fits(kind, node):
            if table.is_section(kind):
                return self._section(kind, node, keys, line)
            if get_origin(kind) is dict:
                return self._mapping(kind, node, keys)
            items = (
                self.value(get_args(kind)[0], child, [*keys, str(number)], child.start_mark.line + 1)
                for number, child in enumerate(node.value, 1)
            )
            return [item for item in items if item is not _MISSING]
        return _scalar(kind, text) if node.id == "scalar" else _MISSING

    def _section(self, kind: Any, node: Any, keys: list[str], line: int) -> Any:
        values = self._mapping(kind, node, keys)
        names = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
        found = kind(**{names[key]: value for key, value in values.items()})
        whole = not any(one.key.startswith(f"{_name(keys)}.") for one in self.unset)
        if whole and isinstance(found, table.McpServer) and (found.command is None) == (found.url is None):
            needed = "command (a program to start) or url (an address)"
            self._report(line, f"{_name(keys)}: needs {needed}, {'not both' if found.url else 'and has neither'}")
        return found

    def _mapping(self, kind: Any, node: Any, keys: list[str]) -> dict[str, Any]:
        """The values of a mapping or section by their keys; unknown keys are reported and left out."""
        fields, values = table.fields_of(kind), {}
        for key, at, child in self._entries(node, keys):
            if fields and key not in fields:
                self._unknown([*keys, key], at, list(fields))
                continue
            inner = fields[key] if fields else Any if kind is Any else get_args(kind)[1]
            value = self.value(inner, child, [*keys, key], at)
            if value is _MISSING and not fields and table.is_section(inner) and child.tag == f"{_TAG}null":
                value = self.value(inner, _empty_like(child), [*keys, key], at)
            if value is not _MISSING:
                values[key] = value
        return values

    def _entries(self, node: Any, keys: list[str]) -> Iterator[tuple[str, int, Any]]:
        """The keys of a mapping with their lines and values; a key given twice is an error."""
        seen: dict[str, int] = {}
        for key_node, child in node.value:
            line = key_node.start_mark.line + 1
            if (key := _written_text(key_node)) is None:
                self._report(line, f"{_name(keys)}: a key must be text, not a list or a mapping")
            elif key in seen:
                self._report(line, f"{_name([*keys, key])}: given twice (first in line {seen[key]}); keep one")
            else:
                seen[key] = line
                yield key, line, child

    def _anything(self, node: Any, text: str, keys: list[str]) -> Any:
        """A value without a prescribed type: YAML's guess, as far as JSON could say it too."""
        if node.id == "mapping":
            return self._mapping(Any, node, keys)
        if node.id == "sequence":
            return [self.value(Any, child, keys + ["-"], child.start_mark.line + 1) for child in node.value]
        guess = node.tag.removeprefix(_TAG)
        if text != _written_text(node):  # from a variable: only what can't be meant as text
            guess = "bool" if node.style is None and text in ("true", "false") else "str"
        kind = {"bool": bool, "int": int, "float": float}.get(guess)
        value = _scalar(kind, text) if kind is not None else text
        return text if value is _MISSING else value

    # what can be wrong

    def _check_password(self, value: Any, keys: list[str], line: int) -> None:
        if isinstance(value, str) and "://" in value and table.is_torn(value):
            hint = "write / @ : ? # % and spaces in the password as %2F %40 %3A %3F %23 %25 %20, or keep it in .env and write"
            self._report(line, f"{_name(keys)}: {hint} ${{NAME}} in its place")

    def _unknown(self, keys: list[str], line: int, known: list[str]) -> None:
        self._report(line, f"unknown configuration key: {_name(keys)}{table.meant(keys, known)}", unknown=_name(keys))

    def _report(self, line: int, text: str, *, unknown: str | None = None) -> None:
        self.problems.append(ConfigProblem(line, text, unknown=unknown))


def _is_timezone(name: str) -> bool:
    """Whether a time zone is known, even if this machine has no list of them."""
    from zoneinfo import ZoneInfo

    try:
        return bool(ZoneInfo(name))
    except (KeyError, ValueError, OSError):
        return not _timezones()


def _timezones() -> set[str]:
    from zoneinfo import available_timezones

    return available_timezones()


def _scalar(kind: Any, text: str) -> Any:
    """A text as a value of this type, checked by its rules."""
    if kind is bool:
        return _BOOLEANS.get(text.lower(), _MISSING)
    if kind == table.Timezone and not _is_timezone(text):
        return _MISSING
    base = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    value: str | float = text
    try:
        if base in (int, float):  # a whole number stays one, even where fractions are allowed
            value = int(text) if base is int or _WHOLE.fullmatch(text) else float(text)
        msgspec.convert(value, kind)
    except (ValueError, msgspec.ValidationError):
        return _MISSING
    return value if isinstance(value, str) or -_LARGEST < value < _LARGEST else _MISSING


def _empty_like(node: Any) -> Any:
    import yaml

    return yaml.MappingNode(f"{_TAG}map", [], node.start_mark, node.end_mark)


def in_words(kind: Any) -> str:
    """The name of a type in a message, with its rules."""
    if get_origin(kind) is Annotated:
        base, rule = get_args(kind)
        limits = (
            "" if rule.ge is None else f" from {rule.ge:g} to {rule.le:g}" if rule.le else f" of {rule.ge:g} or more"
        )
        return rule.description or in_words(base) + limits
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if table.is_section(kind):
        known = list(table.fields_of(kind))
        return f"a section ({', '.join(known[:3])}{', …' if len(known) > 3 else ''})"
    return {dict: "a mapping", list: "a list"}.get(get_origin(kind)) or _WORDS.get(kind, "a value")


def _written_text(node: Any) -> str | None:
    """The text of a node as it is written; None when it is a list or a mapping."""
    return unhidden(node.value) if isinstance(node.value, str) else None


def _may_show(node: Any, keys: list[str]) -> bool:
    text = _written_text(node)
    if not keys or text is None or table.is_secret(keys) or len(text) > 24 or not text.isprintable():
        return False
    return _TELLTALE.match(text) is None and not ("://" in text and "@" in text)


def _instead(node: Any, keys: list[str]) -> str:
    """The part of a message that quotes the value (`, got 'soon'`); empty where the value may be a secret."""
    text = _written_text(node)
    if text is None:
        return f", got {'a list' if node.id == 'sequence' else 'a mapping'}"
    return f", got {text!r}" if _may_show(node, keys) else ""


def _name(keys: list[str]) -> str:
    shown = [key if len(key) <= 40 and key.isprintable() and not _TELLTALE.match(key) else "…" for key in keys]
    return ".".join(shown) or "the file"


# ------------------------------------------------------------------------------------------------ broken YAML

# What the library says, and what it means to a person who wrote the file by hand.
_SAYINGS = {
    "mapping values are not allowed": "unexpected colon (check the indentation; a value with ': ' needs quotes)",
    "cannot start any token": "a value can't begin with a tab, @, ` or % (indent with spaces, put such values in quotes)",
    "did not find expected ',' or": "a bracket is opened and not closed",
    "unexpected end of stream": "a quote is opened and not closed",
    "alias": "aliases (*name) are not supported; a value that begins with * needs quotes",
    "tag": "tags (!name) are not supported; a value that begins with ! needs quotes",
    "another document": "a second document begins here (---); only one is allowed",
    "control characters": "a control character; remove it",
}


def _not_yaml(error: BaseException, text: str) -> ConfigProblem:
    """A problem from the library's error, in our words."""
    if isinstance(error, RecursionError):
        return ConfigProblem(1, "nested too deeply")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", ""))
    usual = "does not fit the lines above it (check indentation, quotes and brackets)"
    words = next((plain for saying, plain in _SAYINGS.items() if saying in problem), usual)
    if mark is None:
        before = text[: getattr(error, "position", 0)]
        return ConfigProblem(before.count("\n") + 1, f"not valid YAML: {words}")
    return ConfigProblem(mark.line + 1, f"not valid YAML: {words}", mark.column + 1)
