"""Texts as words: told apart without folding them, and bounded where they are searched."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes.store.engines.postgres import lexemes
from hermes.store.engines.sqlite import fulltext
from hermes.store.text.index_text import fold, phrase, pieces
from hermes.store.text.query import MAX_PHRASE_WORDS, parse

pytestmark = pytest.mark.mechanism


@given(st.text("aZ0_-. '\u00e9", max_size=20))
def test_ascii_is_cut_into_words_like_any_text(text: str) -> None:
    words = [word for piece in pieces(fold(text)) for word in piece.split("_") if word]
    assert phrase(text)[0].split() == words


@given(st.text("\u90e8\u7f72\u914da_. ", min_size=1), st.integers(1, 2_000), st.sampled_from(['"{}"', "{}", '"{}"*']))
@example("\u90e8", 1_900, '"{}"')
@example("a.", 900, "{}")
def test_no_engine_compares_more_words_in_a_row_than_a_phrase_may_have(text: str, often: int, form: str) -> None:
    """The cost of a phrase in a long message grows with its words; in Chinese, each pair of characters is a word."""
    tree = parse(form.format(text * often)).tree
    for leaf in (fulltext.expression(tree) or "").split('"')[1::2]:
        assert len(leaf.split()) <= MAX_PHRASE_WORDS
    for one in (lexemes.expression(tree) or "").replace("|", "&").split("&"):
        assert one.count("<->") < MAX_PHRASE_WORDS
