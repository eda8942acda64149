"""Changing one value inside the text of a YAML file, so that every other character stays as it was.

The parser says where each value begins and ends. A value is replaced where it stands, a new key becomes a line below
its neighbours, a removed key takes its lines along. The result is parsed again and must say exactly what was asked for;
where it does not (an anchor that other lines refer to, for example), the file is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hermes.config.loading import hidden, unhidden
from hermes.errors import ConfigError


def with_value(text: str, keys: list[str], value: Any) -> str:
    """The text with a value under a key."""
    value = _hidden_in(value)
    return _edited(text, keys, lambda data: _assigned(data, keys, value), lambda text: _cut_in(text, keys, value))


def without(text: str, keys: list[str]) -> str:
    """The text without a key (and without the sections that are empty then); KeyError when it is not there."""
    gone = _removed(_plain(hidden(text)), keys)[1]
    return _edited(text, keys, lambda data: _removed(data, keys)[0], lambda text: _cut_out(text, gone))


def _edited(text: str, keys: list[str], change: Callable[[Any], Any], cut: Callable[[str], str | None]) -> str:
    """The text after a cut that changes what it says as `change` changes the data, and nothing else."""
    import yaml

    lines = hidden(text.replace("\r\n", "\n"))
    try:
        result = cut(lines)
        if result is not None and _plain(result) == change(_plain(lines)):
            return unhidden(result).replace("\n", "\r\n" if "\r\n" in text else "\n")
    except yaml.YAMLError:
        pass
    raise ConfigError(
        f"{'.'.join(keys)} can't be changed automatically in this file; change it with `hermes config edit`"
    )


def _hidden_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hidden_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden_in(item) for item in value]
    return hidden(value) if isinstance(value, str) else value


def _plain(text: str) -> Any:
    """What the text says, each value as text."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)) or {}


def _assigned(data: Any, keys: list[str], value: Any) -> Any:
    if not keys:
        return _plain(f"[{_flow(value)}]")[0]
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
    """A value on one line, fit to stand inside brackets too (`bare`: it need not, and has no quotes it can do without)."""
    import yaml

    if bare and isinstance(value, str) and "\n" not in value:
        dumped = yaml.safe_dump(value, allow_unicode=True, width=10**9, default_style=style)
        return dumped.removesuffix("...\n").removesuffix("\n")
    dumped = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=10**9, default_style=style)
    return dumped.strip()[1:-1]


def _cut_in(text: str, keys: list[str], value: Any) -> str | None:
    import yaml

    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    key_node, bare = None, True
    if node is None:
        head = text if not text or text.endswith("\n") else text + "\n"
        return head + _nested(keys, value, 0)
    for depth, key in enumerate(keys):
        if node.id != "mapping":  # a section that holds nothing yet
            return _filled(text, node, key_node, keys[depth:], value)
        entry = _entry(node, key)
        if entry is None:
            return _added(text, node, keys[depth:], value)
        bare = bare and not node.flow_style
        key_node, node = entry
    return _replaced(text, node, key_node, value, bare)


def _entry(node: Any, key: str) -> Any:
    return next((entry for entry in node.value if entry[0].value == key), None)


def _replaced(text: str, node: Any, key_node: Any, value: Any, bare: bool) -> str:
    start, end = node.start_mark.index, _end(text, node)
    style = (
        text[start] if node.id == "scalar" and isinstance(value, str) and text[start:end][:1] in ("'", '"') else None
    )
    flow = _flow(value, style, bare=bare)
    if node.id != "scalar" and not node.flow_style:  # lines below the key: what stands between them stays
        colon = text.index(":", key_node.end_mark.index) + 1
        return f"{text[:colon]} {flow}{text[colon:start].rstrip()}{text[end:]}"
    space = "" if text[start - 1] in " \t" else " "
    return text[:start] + space + flow + text[end:]


def _added(text: str, node: Any, keys: list[str], value: Any) -> str:
    if node.flow_style:
        end = node.end_mark.index - 1
        comma = node.value and text[node.value[-1][1].end_mark.index : end].lstrip().startswith(",")
        glue = "" if not node.value else " " if comma else ", "
        entry = ": {".join(_flow(key) for key in keys) + f": {_flow(value)}" + "}" * (len(keys) - 1)
        return text[:end].rstrip(" ") + glue + entry + text[end:]
    return _with_lines(text, _end(text, node), _nested(keys, value, node.start_mark.column))


def _filled(text: str, node: Any, key_node: Any, keys: list[str], value: Any) -> str | None:
    """`section:` with nothing (or null) behind it gets its first key."""
    start, end = node.start_mark.index, node.end_mark.index
    if key_node is None or text[start:end] not in ("", "null", "~"):
        return None
    text = text[:start].rstrip(" \t") + text[end:]
    return _with_lines(text, key_node.end_mark.index, _nested(keys, value, key_node.start_mark.column + 2))


def _with_lines(text: str, at: int, lines: str) -> str:
    """The text with lines below the one that `at` stands in."""
    end = text.find("\n", at)
    return f"{text}\n{lines}" if end < 0 else text[: end + 1] + lines + text[end + 1 :]


def _nested(keys: list[str], value: Any, column: int) -> str:
    lines = [f"{' ' * (column + 2 * depth)}{_flow(key)}:" for depth, key in enumerate(keys)]
    return "\n".join(lines) + f" {_flow(value, bare=True)}\n"


def _end(text: str, node: Any) -> int:
    """Where a value ends, without the comments and empty lines that follow it."""
    start, end, leaf = node.start_mark.index, node.end_mark.index, node
    while leaf.id != "scalar" and leaf.value and not leaf.flow_style:
        leaf = leaf.value[-1][1] if leaf.id == "mapping" else leaf.value[-1]
    if leaf is node and getattr(leaf, "style", None) not in ("|", ">"):
        return int(end)
    least = leaf.end_mark.index if start <= leaf.end_mark.index <= end else start  # an alias ends at its anchor
    while end > least and (not (line := text[text.rfind("\n", 0, end) + 1 : end].strip()) or line.startswith("#")):
        end = text.rfind("\n", 0, end)
    return len(text[: max(end, least)].rstrip())


def _cut_out(text: str, keys: list[str]) -> str | None:
    import yaml

    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    above: Any = None
    for key in keys:
        above, (key_node, node) = node, _entry(node, key)
    assert above is not None
    start, end = key_node.start_mark.index, max(_end(text, node), key_node.end_mark.index)
    if above.flow_style:
        at = next(number for number, entry in enumerate(above.value) if entry[0] is key_node)
        if at + 1 < len(above.value):
            return text[:start] + text[above.value[at + 1][0].start_mark.index :]
        return text[: above.value[at - 1][1].end_mark.index] + text[end:]
    begin = text.rfind("\n", 0, start) + 1
    if text[begin:start].strip():
        return None
    stop = text.find("\n", end)
    return text[:begin] + ("" if stop < 0 else text[stop + 1 :])
