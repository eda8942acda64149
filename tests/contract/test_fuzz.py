"""Fuzz: made-up queries and titles (thousands with HERMES_TEST_SIZE=all); none raises, none hides a word that is there.

Strings come in batches of BATCH per example, so that the machinery costs little beside the store itself. What reads them
is the same on every engine: SQLite gets them all, a server a few of each batch.
"""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sizes import size
from tests.support.stores import opener

BATCH = 50
ON_A_SERVER = 4
EXAMPLES = size(6, 400)  # of 50 strings each

ANY = st.characters(exclude_categories=())

TOKENS = [
    *'AND OR NOT NEAR and or ( ) " "" * ^ - + : { } [ ] \' / \\ . , % _ # @ content: rowid docker deploy* a/b.py it\'s 50% #123 the'.split(),
    *"部 部署 龍 한국 ไทย đặt \U0001f680 \U0001f468\u200d\U0001f469".split(),
    *("\x00", "\ud800", "\udfff", "\u200b", "\u202e", "\u0301", "\ufeff", " ", "  ", "\t", "\n", "x" * 300),
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    "0123456789",
    "àáâãèéêìíòóôõùúýăđĩũơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹabcxyz",
    "абвгдежзийклмнопрстуфхцчшщъыьэюяё",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "的一是不了人我在有他这为之大来以个中上们部署数据库方案",
    "あいうえおかきくけこさしすせそアイウエオカキクケコ日本語",
    "가나다라마바사아자차카타파하한국어",
    "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวสหอ",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "कखगघचछजझटठडढतथदधनपफबभमयरलवशसह",
]
FIXED = [
    "a", "the", "and", "not", "why", "getUserById", "snake_case_name", "v2", "日", "用Docker部署", "Straße", "naïve",
    "İstanbul", "ﬁne",
]  # fmt: skip


def made_up_terms():
    """A few hundred words, equal in every run, in a dozen scripts, one to fourteen letters long."""
    dice = random.Random(20250305)
    words = ["".join(dice.choices(alphabet, k=dice.randint(1, 14))) for alphabet in ALPHABETS for _ in range(25)]
    return FIXED + words


TERMS = made_up_terms()


class Places(dict[str, set[int]]):
    """Term → messages; hundreds of them, so a failing example does not print it."""

    def __repr__(self) -> str:
        return f"<{len(self)} terms>"


@pytest.fixture(scope="module")
def stocked(engine, tmp_path_factory):
    """One store for all examples: a message for each term, and which messages hold it."""
    where = Places()
    with opener(engine)(tmp_path_factory.mktemp("fuzz"), durability="normal") as db:
        for n, term in enumerate(TERMS):
            session = f"s{n // 8}"
            db.ensure_session(session, "cli")
            where.setdefault(term, set()).add(db.append_message(session, "user", f"here is {term} today"))
        for n in range(50):
            db.create_session(f"t{n}", "cli")
        db.catch_up()
        yield db, where, BATCH if engine == "sqlite" else ON_A_SERVER


def soup():
    """Anything at all, and the language's own tokens thrown together."""
    tokens = st.lists(st.sampled_from(TOKENS) | st.text(ANY, max_size=4), max_size=8)
    glue = st.sampled_from(["", " "])
    return st.text(ANY, max_size=30) | st.builds(lambda parts, between: between.join(parts), tokens, glue)


def noise():
    """Punctuation only: ASCII signs and every Unicode punctuation mark, with or without a blank."""
    marks = st.characters(categories=["Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"])
    return st.text(st.sampled_from(string.punctuation + " ") | marks, max_size=5)


@settings(max_examples=EXAMPLES)
@given(queries=st.lists(soup(), min_size=BATCH, max_size=BATCH))
def test_no_text_is_an_error_for_search(stocked, queries):
    db, _, some = stocked
    for query in queries[:some]:
        assert isinstance(db.search_messages(query, limit=3), list)


@settings(max_examples=EXAMPLES)
@given(asked=st.lists(st.tuples(noise(), st.sampled_from(TERMS), noise()), min_size=BATCH, max_size=BATCH))
def test_a_term_in_the_store_is_found_whatever_punctuation_is_around_it(stocked, asked):
    db, where, some = stocked
    for before, term, after in asked[:some]:
        hits = {hit["id"] for hit in db.search_messages(before + term + after, limit=1000)}
        assert where[term] <= hits, f"{before + term + after!r} does not find {term!r}"


@settings(max_examples=EXAMPLES)
@given(titles=st.lists(soup() | st.text(ANY, min_size=95, max_size=105), min_size=BATCH, max_size=BATCH))
def test_any_text_can_be_set_as_a_title_or_is_a_value_error(stocked, titles):
    db, _, some = stocked
    for n, title in enumerate(titles[:some]):
        try:
            assert db.set_session_title(f"t{n}", title) is True
        except ValueError:
            continue
        kept = db.get_session_title(f"t{n}")
        assert kept == db.sanitize_title(title)
        if kept is not None:
            assert db.get_session_by_title(kept)["id"] == f"t{n}"
            assert db.resolve_session_by_title(kept) is not None
            assert len(db.get_next_title_in_lineage(kept)) <= 100
