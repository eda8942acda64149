"""Entries taken out of the prompt's history: what prompt_toolkit reads afterwards is all the others, in their order."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.history import FileHistory

from hermes.store.upkeep.shred import forget_texts

pytestmark = pytest.mark.mechanism

# Of what a prompt gives: several lines, lines that look like the file's own.
LINES = st.text(st.sampled_from("ab+# é\t"), max_size=4)
TEXTS = st.lists(LINES, min_size=1, max_size=3).map("\n".join)


@given(st.lists(TEXTS, max_size=8), st.sets(TEXTS, max_size=3))
def test_all_others_stay_in_their_order(entries: list[str], forgotten: set[str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        history = FileHistory(str(path))
        for entry in entries:
            history.store_string(entry)
        before = list(FileHistory(str(path)).load_history_strings())
        forget_texts(path, forgotten)
        gone = {text.strip() for text in forgotten}
        after = list(FileHistory(str(path)).load_history_strings())
        assert after == [entry for entry in before if entry.strip() not in gone]
        assert [one.name for one in Path(folder).iterdir()] in ([], ["history"])
