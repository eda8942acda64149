"""The texts of messages, where the index alone can't decide whether a message matches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hermes.store import codec
from hermes.store.engines.base import Row, Tx
from hermes.store.index_text import call_ids, fold, lacks_one, plain, plain_calls, plain_parts

if TYPE_CHECKING:
    from hermes.store.search.query_trees import Check

_TEXTS = "SELECT id, content, content_rest, content_format, tool_calls FROM messages WHERE {these}"
_AT_ONCE = 500


def rows_of(tx: Tx, sql: str, ids: Sequence[int], column: str = "id") -> Iterable[Row]:
    """The rows of these messages, by a statement with `{these}` as a condition for the column that has their ids."""
    for start in range(0, len(ids), _AT_ONCE):
        these, params = tx.among(column, ids[start : start + _AT_ONCE])
        yield from tx.rows(sql.format(these=these), params)


def texts_of(whole: str | None, form: Any, calls: Any) -> list[str]:
    """The readable text of a message: its content, its tool calls and the ids of these, without JSON's syntax."""
    texts = []
    if whole:
        value = codec.content_value(whole, form)
        texts.append(plain(value) if isinstance(value, str) else plain_parts(value))
    if calls is not None:
        value = codec.from_json(calls)
        texts += [plain_calls(value), *call_ids(value)]
    return texts


def passing(tx: Tx, check: Check, ids: Sequence[int]) -> set[int]:
    """The messages whose folded text passes. One whose source lacks a part that is required is not parsed: most of them are
    skipped so."""
    passed = set()
    for message_id, content, rest, form, calls in rows_of(tx, _TEXTS, ids):
        whole = codec.joined(content, rest)
        if check.required and lacks_one(_source(whole, calls), check.required):
            continue
        if (form is None and check.is_certain(whole or "")) or check(fold("\n".join(texts_of(whole, form, calls)))):
            passed.add(message_id)
    return passed


def with_source(tx: Tx, ids: Sequence[int], part: str) -> set[int]:
    """The messages whose stored text contains this part, ignoring case: an escape of JSON as two characters."""
    wanted = part.lower()
    return {
        message_id
        for message_id, content, rest, _, calls in rows_of(tx, _TEXTS, ids)
        if wanted in _source(codec.joined(content, rest), calls).lower()
    }


def _source(whole: str | None, calls: Any) -> str:
    return whole or "" if calls is None else f"{whole or ''}\n{codec.restored(calls)}"
