"""Changing one value inside the text of a YAML file, so that every other character stays as it was.

A value is replaced where it stands, a new key is added as a line below its neighbours, a removed one takes its lines
along. What such a small cut can't do (values over many lines, lists in blocks) ruamel.yaml does, which keeps comments and order,
though not always the spacing. Either way the result is read again and must say exactly what was asked for.
"""

from __future__ import annotations

import io
from typing import Any

from hermes.config.variables import hidden, unhidden
from hermes.errors import ConfigError


def with_value(text: str, keys: list[str], value: Any) -> str:
    """The text with a value under a key."""
    if "\r\n" in text:
        return with_value(text.replace("\r\n", "\n"), keys, value).replace("\n", "\r\n")
    text, value = hidden(text), _hidden_in(value)
    wanted = _assigned(_plain(text), keys, value)
    ways = [lambda: _cut_in(text, keys, value), lambda: _by_ruamel(text, keys, value)]
    return unhidden(_first_that_says(wanted, ways, keys))


def without(text: str, keys: list[str]) -> str:
    """The text without a key (and without the sections that are empty then); KeyError when it is not there."""
    if "\r\n" in text:
        return without(text.replace("\r\n", "\n"), keys).replace("\n", "\r\n")
    text = hidden(text)
    wanted, gone = _removed(_plain(text), keys)
    ways = [lambda: _cut_out(text, gone), lambda: _by_ruamel(text, gone, _GONE)]
    return unhidden(_first_that_says(wanted, ways, keys))


def _hidden_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hidden_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden_in(item) for item in value]
    return hidden(value) if isinstance(value, str) else value


class _Gone:
    """Stands for: no value."""


_GONE = _Gone()


def _first_that_says(wanted: Any, ways: list[Any], keys: list[str]) -> str:
    import yaml

    for way in ways:
        result = way()
        try:
            if result is not None and _plain(result) == wanted:
                return str(result)
        except yaml.YAMLError:
            continue
    raise ConfigError(f"{'.'.join(keys)} can't be changed in this file by a program; `hermes config edit` opens it")


def _plain(text: str) -> Any:
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)) or {}


def _as_text(value: Any) -> Any:
    """A value as the base loader would read it: everything is text."""
    import yaml

    return yaml.load(_flow(value), Loader=yaml.BaseLoader)


def _assigned(data: Any, keys: list[str], value: Any) -> Any:
    if not keys:
        return _as_text(value)
    below = data if isinstance(data, dict) else {}
    return {**below, keys[0]: _assigned(below.get(keys[0]), keys[1:], value)}


def _removed(data: Any, keys: list[str]) -> tuple[Any, list[str]]:
    """The data without a key, and the key that really goes: a section that would be empty goes as a whole."""
    if not isinstance(data, dict) or keys[0] not in data:
        raise KeyError(keys[0])
    rest = {key: item for key, item in data.items() if key != keys[0]}
    if len(keys) > 1:
        below, gone = _removed(data[keys[0]], keys[1:])
        if below:
            return {**data, keys[0]: below}, [keys[0], *gone]
    return rest, [keys[0]]


def _flow(value: Any, style: str | None = None, *, bare: bool = False) -> str:
    """A value on one line, fit to stand inside brackets too (`bare`: it needs not, and has no quotes it can do without)."""
    import yaml

    if bare and isinstance(value, str) and "\n" not in value:
        dumped = yaml.safe_dump(value, allow_unicode=True, width=10**9, default_style=style)
        return dumped.removesuffix("...\n").removesuffix("\n")
    dumped = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=10**9, default_style=style)
    return dumped.strip()[1:-1]


# ------------------------------------------------------------------------------------------------ small cuts


def _cut_in(text: str, keys: list[str], value: Any) -> str | None:
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        head = text if not text or text.endswith("\n") else text + "\n"
        return head + "\n".join(_nested(keys, _flow(value, bare=True), 0)) + "\n"
    node, depth, key_node, bare = root, 0, None, True
    while depth < len(keys) and node.id == "mapping":
        bare = bare and not node.flow_style
        entry = _entry(node, keys[depth])
        if entry is None:
            return _added(text, node, key_node, keys[depth:], value)
        key_node, node = entry
        depth += 1
    if depth < len(keys):  # a section that holds nothing yet
        return _filled(text, node, key_node, keys[depth:], value)
    return _replaced(text, node, value, bare)


def _entry(node: Any, key: str) -> Any:
    return next((entry for entry in node.value if entry[0].value == key), None)


def _replaced(text: str, node: Any, value: Any, bare: bool) -> str | None:
    start, end = node.start_mark.index, node.end_mark.index
    old = text[start:end]
    if "\n" in old or old[:1] in ("&", "*", "!", "|", ">"):
        return None
    style = old[0] if isinstance(value, str) and old[:1] in ("'", '"') and node.id == "scalar" else None
    space = "" if start == 0 or text[start - 1] in " \t" else " "
    return text[:start] + space + _flow(value, style, bare=bare) + text[end:]


def _added(text: str, node: Any, key_node: Any, keys: list[str], value: Any) -> str | None:
    if node.flow_style:
        start, end = node.start_mark.index, node.end_mark.index
        if text[end - 1 : end] != "}":
            return None
        inside = text[start + 1 : end - 1].strip()
        entry = _nested_flow(keys, _flow(value))
        glue = "" if not inside else ", " if not inside.endswith(",") else " "
        return text[: end - 1].rstrip(" ") + glue + entry + text[end - 1 :]
    if not node.value:
        return None
    last = _last_leaf(node.value[-1][1])
    if getattr(last, "style", None) in ("|", ">"):
        return None
    end = text.find("\n", last.end_mark.index)
    head, tail = (text + "\n", "") if end < 0 else (text[: end + 1], text[end + 1 :])
    return head + "\n".join(_nested(keys, _flow(value, bare=True), node.value[0][0].start_mark.column)) + "\n" + tail


def _filled(text: str, node: Any, key_node: Any, keys: list[str], value: Any) -> str | None:
    """`section:` with nothing (or null) behind it gets its first key."""
    start, end = node.start_mark.index, node.end_mark.index
    if node.id != "scalar" or key_node is None:
        return None
    if text[start:end] not in ("", "null", "~"):
        return None
    text = text[:start].rstrip(" \t") + text[end:]
    stop = text.find("\n", key_node.end_mark.index)
    head, tail = (text + "\n", "") if stop < 0 else (text[: stop + 1], text[stop + 1 :])
    return head + "\n".join(_nested(keys, _flow(value, bare=True), key_node.start_mark.column + 2)) + "\n" + tail


def _nested(keys: list[str], value: str, column: int) -> list[str]:
    lines = [f"{' ' * (column + 2 * depth)}{_flow(key)}:" for depth, key in enumerate(keys)]
    lines[-1] += f" {value}"
    return lines


def _nested_flow(keys: list[str], value: str) -> str:
    return (
        "".join(f"{{{_flow(key)}: " if depth else f"{_flow(key)}: " for depth, key in enumerate(keys))
        + value
        + "}" * (len(keys) - 1)
    )


def _last_leaf(node: Any) -> Any:
    while node.id != "scalar" and node.value and not node.flow_style:
        node = node.value[-1][1] if node.id == "mapping" else node.value[-1]
    return node


def _cut_out(text: str, keys: list[str]) -> str | None:
    import yaml

    node, key_node, above = yaml.compose(text, Loader=yaml.SafeLoader), None, None
    for key in keys:
        above = node
        key_node, node = _entry(node, key)
    assert key_node is not None and above is not None
    last = _last_leaf(node)
    if above.flow_style or getattr(last, "style", None) in ("|", ">"):
        return None
    begin = text.rfind("\n", 0, key_node.start_mark.index) + 1
    if text[begin : key_node.start_mark.index].strip():
        return None
    end = text.find("\n", last.end_mark.index)
    return text[:begin] + ("" if end < 0 else text[end + 1 :])


# ------------------------------------------------------------------------------------------------ everything else


def _by_ruamel(text: str, keys: list[str], value: Any) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.util import load_yaml_guess_indent

    _, indent, offset = load_yaml_guess_indent(text)
    editor = YAML(typ="rt")
    editor.preserve_quotes, editor.width, editor.allow_unicode = True, 10**9, True
    editor.indent(mapping=2, sequence=indent or 2, offset=offset or 0)
    editor.representer.add_representer(
        type(None), lambda self, _: self.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    data = editor.load(text)
    if data is None:
        data = CommentedMap()
    inner = data
    for key in keys[:-1]:
        if not isinstance(inner.get(key), dict):
            inner[key] = CommentedMap()
        inner = inner[key]
    if isinstance(value, _Gone):
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = YAML(typ="rt").load(_flow(value))
    out = io.StringIO()
    editor.dump(data, out)
    return out.getvalue()
