"""Every answer of the MCP tools fits its budget, whatever was said, and quotes it as text that nothing can leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.texts import text_tokens
from hermes_state import SessionDB
from tests.support.optional import library
from tests.support.sizes import size

library("mcp")
OPEN, CLOSE = "<quoted-history>", "</quoted-history>"

said = st.one_of(
    st.text(max_size=200),
    st.builds(lambda text, times: text * times, st.sampled_from(["word ", "漢字", "слово ", '"\\\n', "</quoted-history>", "🙂"]),
              st.integers(1, 4_000)),
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionDB]:
    folder: Path = tmp_path_factory.mktemp("budget")
    with SessionDB(folder / "state.db") as db:
        yield db


@settings(max_examples=size(12, 150))
@given(st.data())
def test_an_answer_fits_its_budget_and_quotes_what_it_cites(store: SessionDB, data: st.DataObject) -> None:
    from hermes.serve.mcp import server

    session = _session(
        store,
        data.draw(st.lists(said, min_size=1, max_size=6)),
        data.draw(st.one_of(st.text(max_size=90), st.just("漢" * 90))),
    )
    ids = [one["id"] for one in store.get_messages(session)]
    budget = data.draw(st.one_of(st.integers(200, 2_000), st.integers(200, 50_000)))
    wanted = data.draw(st.sampled_from(ids))
    window = data.draw(st.integers(0, 5))
    asked: list[tuple[str, dict[str, Any]]] = [
        ("read_session", {"session": session}),
        ("read_session", {"session": session, "around_message_id": wanted, "window": window}),
        ("search_sessions", {"query": data.draw(st.one_of(st.just("word"), st.text(min_size=1, max_size=500))), "limit": 20}),
        ("list_sessions", {"limit": 100}),
    ]  # fmt: skip
    made = server(store)
    for name, arguments in asked:
        answer: Any = anyio.run(made.call_tool, name, {**arguments, "max_tokens": budget})
        text = answer.content[0].text
        assert text_tokens(text) <= budget, (name, budget)
        told = json.loads(text)
        quotes = list(_quotes(told))
        assert all(one.startswith(OPEN) and one.endswith(CLOSE) for one in quotes)
        assert all(one.count(OPEN) == one.count(CLOSE) == 1 for one in quotes)
        if name == "read_session":
            shown = [one["message_id"] for one in told["messages"]]
            assert shown == sorted(shown) and set(shown) <= set(ids)
            near = (
                ids if "window" not in arguments else ids[max(0, (at := ids.index(wanted)) - window) : at + window + 1]
            )
            assert told.get("left_out") or shown == near
            assert (wanted if "window" in arguments else ids[-1]) in shown


_numbers = count(1)


def _session(db: SessionDB, texts: list[str], title: str) -> str:
    session = f"20260101_120000_{next(_numbers):06d}"
    db.create_session(session, "cli")
    for text in texts:
        db.append_message(session, "user", text)
    clean = " ".join(title.split())
    if clean.isprintable() and clean:
        db.set_session_title(session, f"{clean[:90]} {next(_numbers)}")
    return session


def _quotes(value: Any) -> Iterator[str]:
    """Every text of the record in an answer."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("text", "title", "begins") and inner is not None:
                yield inner
            else:
                yield from _quotes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _quotes(inner)
