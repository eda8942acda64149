"""A conversation that is read again for every turn: whatever another process did to it meanwhile is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.store.api.session_db import SessionDB
from tests.support.wire import Wire, said

CHANGES: dict[str, Callable[[SessionDB, list[int]], object]] = {
    "said": lambda db, ids: db.append_message("s1", "assistant", "said elsewhere"),
    "rewound": lambda db, ids: db.rewind("s1", ids[1]),
    "replaced": lambda db, ids: db.replace_messages("s1", [{"role": "user", "content": "all new"}]),
    "cleared": lambda db, ids: db.clear_messages("s1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_process_did_is_seen(tmp_path: Path, make_agent: Any, change: str) -> None:
    with SessionDB(tmp_path / "state.db") as db, Wire([said("fine")]) as wire:
        agent = make_agent(wire, db=db)
        for text in ("one", "two"):
            list(agent.turn(text))
        with SessionDB(tmp_path / "state.db") as other:
            CHANGES[change](other, [row["id"] for row in other.get_messages("s1")])
            expected = [row["content"] for row in other.get_messages("s1")]
        list(agent.turn("three"))
        unanswered = "(This was not answered: the reply was interrupted before it began.)"
        shown = [m["content"] for m in wire.bodies[-1]["messages"][1:] if m["content"] != unanswered]
        assert shown == [*expected, "three"]
