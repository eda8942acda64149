"""A message as the full-text index sees it: the same three columns on every engine."""

from __future__ import annotations

from typing import Any

from hermes.store import codec
from hermes.store.index_text import fold, plain, plain_calls, plain_parts
from hermes.store.query import And, Leaf, Node, Not


def columns_of(content: str | None, form: Any, tool_name: Any, tool_calls: Any) -> tuple[str, str, str]:
    """The words of a message (its whole content, and the other columns as stored), not yet folded."""
    value = "" if content is None else codec.content_value(content, form)
    text = plain(value) if isinstance(value, str) else plain_parts(value)
    calls = plain_calls(codec.from_json(tool_calls)) if tool_calls is not None else ""
    return text, codec.restored(tool_name) or "", calls


def could_match(tree: Node, folded: str) -> bool:
    """A cheap necessary condition on folded text: it contains every needed word."""
    if isinstance(tree, Leaf):
        return all(word in folded for word in fold(tree.text).replace("_", " ").split() if word.isalnum())
    if isinstance(tree, Not):
        return could_match(tree.keep, folded)
    if isinstance(tree, And):
        return all(could_match(child, folded) for child in tree.children)
    return any(could_match(child, folded) for child in tree.children)
