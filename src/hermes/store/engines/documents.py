"""A message as the full-text index sees it: the same three columns on every engine."""

from __future__ import annotations

from typing import Any

from hermes.store import codec
from hermes.store.text import plain, plain_calls, plain_parts


def columns_of(content: str | None, form: Any, tool_name: Any, tool_calls: Any) -> tuple[str, str, str]:
    """The words of a message (its whole content, and the other columns as stored), not yet folded."""
    value = "" if content is None else codec.content_value(content, form)
    text = plain(value) if isinstance(value, str) else plain_parts(value)
    calls = plain_calls(codec.from_json(tool_calls)) if tool_calls is not None else ""
    return text, codec.restored(tool_name) or "", calls
