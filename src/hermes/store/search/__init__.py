"""Search: from a typed query to the messages that match it.

`stages` finds them, `ranking` puts them in order, `hits` shows them; `scope` limits which may be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.errors import InvalidInput
from hermes.store.engines.base import Engine, Tx
from hermes.store.query import parse
from hermes.store.search.hits import shown
from hermes.store.search.scope import Filters, scope_of
from hermes.store.search.stages import find
from hermes.store.session_lists import checked_page
from hermes.store.visibility import User

if TYPE_CHECKING:
    from hermes.store.rows import SearchHit

__all__ = ["BY", "Filters", "search"]
BY = ("both", "words", "meaning")  # what finds and ranks the answers to a question


def search(
    engine: Engine,
    tx: Tx,
    text: str,
    filters: Filters,
    limit: int | None,
    offset: int,
    visible_to: User | None,
    by: str = "both",
) -> list[SearchHit]:
    """See SessionDB.search_messages."""
    limit, offset = checked_page(limit, offset)
    if not isinstance(text, str):
        raise InvalidInput(f"a query is text, not {type(text).__name__}")
    if by not in BY:
        raise InvalidInput(f"a search is by {', '.join(BY)}, not {by!r}")
    query = parse(text)
    if query.tree is None or limit == 0:
        return []
    scope = scope_of(tx, filters, visible_to)
    findings = find(engine, tx, query, scope, offset + limit, by)
    return shown(tx, findings.hits[offset : offset + limit], findings.needles, filters, visible_to)
