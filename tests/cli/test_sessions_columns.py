"""Columns and times: what `hermes sessions` draws its tables with."""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.cli import output
from hermes.cli.output import Column, cells, cut, wrap
from hermes.texts import harmless, one_line
from hermes.times import ago, clock, span

pytestmark = pytest.mark.mechanism

TEXT = st.text() | st.lists(
    st.sampled_from(["a", "b c", "日本", "👨‍👩‍👧", "🇯🇵", "🏳️‍🌈", "e\u0301", "مرحبا", "\u200d", "\x1b[31m", "\n", "\t", "👍🏽", "한글", "\u202e"])
).map("".join)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("abc", 3), ("日本語", 6), ("👍", 2), ("👍🏽", 2), ("👨‍👩‍👧‍👦", 2), ("🇯🇵", 2), ("🇯🇵🇩🇪", 4), ("e\u0301", 1), ("🏳️‍🌈", 2), ("❤️", 2),
     ("한글", 4), ("مرحبا", 5), ("ｆｕｌｌ", 8), ("—", 1), ("…", 1), ("ไทย", 3), ("👩🏽‍🚀 ok", 5)],
)  # fmt: skip
def test_cells_are_what_a_terminal_draws(text: str, width: int) -> None:
    assert cells(text) == width


@given(TEXT, st.integers(0, 30))
def test_a_cut_text_fits_and_is_a_beginning(text: str, width: int) -> None:
    shown = one_line(text)
    short = cut(shown, width)
    assert cells(short) <= width
    if short != shown:
        assert shown.startswith(short.removesuffix("…")) and (short.endswith("…") or width == 0)
    else:
        assert cells(shown) <= width


@given(TEXT, st.integers(1, 30))
def test_wrapped_lines_fit_and_nothing_but_space_is_lost(text: str, width: int) -> None:
    shown = one_line(text)
    lines = wrap(shown, width)
    assert all(cells(one) <= max(width, 2) for one in lines)
    assert "".join("".join(lines).split()) == "".join(shown.split())


@given(TEXT)
def test_harmless_text_has_nothing_a_terminal_obeys(text: str) -> None:
    for shown in (harmless(text), one_line(text)):
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
        assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    assert "\n" not in one_line(text)
    assert harmless(harmless(text)) == harmless(text)


def test_a_string_for_the_terminal_goes_and_one_without_an_end_hides_nothing() -> None:
    assert harmless("a\x1b]0;title\x07b \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ c") == "ab link c"
    assert (
        harmless("before \x1b]0;never closed\nrm -rf ~ \x1bPalso\nthe end")
        == "before 0;never closed\nrm -rf ~ also\nthe end"
    )


@given(st.lists(st.tuples(TEXT, TEXT, st.text("abc", min_size=1, max_size=9)), max_size=5), st.integers(1, 100))
def test_a_table_fits_is_even_and_never_cuts_what_must_stay_whole(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = [Column("One", 4, 20, 1), Column("Two", 3), Column("ID")]
    head, rule, *lines = output.table(columns, rows, width)
    whole = max([2, *(len(row[2]) for row in rows)])
    assert set(rule) == {"─"} and len(rule) <= max(width, whole)
    assert len(lines) == len(rows)
    for shown, row in zip(lines, rows, strict=True):
        assert shown.endswith(row[2]) and cells(shown) <= len(rule)
        assert cells(shown[: len(shown) - len(row[2])]) == cells(head) - 2, "the ids stand under each other"


# ── times ──

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=BERLIN).timestamp()


def test_a_future_time_is_a_date_and_the_zone_counts() -> None:
    assert ago(NOON + 86_400, BERLIN, at=NOON) == "2026-02-01"
    assert ago(NOON + 30, BERLIN, at=NOON) == "just now"
    midnight = datetime(2026, 1, 31, 0, 30, tzinfo=BERLIN).timestamp()
    assert clock(midnight, BERLIN) == "2026-01-31 00:30"
    assert clock(midnight, ZoneInfo("UTC")) == "2026-01-30 23:30"


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2026-01-31", "2026-01-31 00:00:00", "2026-01-31 23:59:59"),
        ("2026-02", "2026-02-01 00:00:00", "2026-02-28 23:59:59"),
        ("2026-12", "2026-12-01 00:00:00", "2026-12-31 23:59:59"),
        ("2026", "2026-01-01 00:00:00", "2026-12-31 23:59:59"),
        ("2026-01-31 14:05", "2026-01-31 14:05:00", "2026-01-31 14:05:59"),
        ("2026-01-31T14:05:30", "2026-01-31 14:05:30", "2026-01-31 14:05:30"),
        ("today", "2026-01-31 00:00:00", "2026-01-31 23:59:59"),
        ("Yesterday", "2026-01-30 00:00:00", "2026-01-30 23:59:59"),
        ("7d", "2026-01-24 12:00:00", "2026-01-24 12:00:00"),
        ("90 m", "2026-01-31 10:30:00", "2026-01-31 10:30:00"),
        ("2w ago", "2026-01-17 12:00:00", "2026-01-17 12:00:00"),
        ("1.5h", "2026-01-31 10:30:00", "2026-01-31 10:30:00"),
        ("2026-03-29", "2026-03-29 00:00:00", "2026-03-29 23:59:59"),  # a day of 23 hours
    ],
)
def test_times_people_type(text: str, first: str, last: str) -> None:
    shown = [
        datetime.fromtimestamp(int(one), BERLIN).strftime("%Y-%m-%d %H:%M:%S") for one in span(text, BERLIN, at=NOON)
    ]
    assert shown == [first, last]


@given(st.text(max_size=20) | st.text("0123456789-: dwhmT", max_size=20))
def test_any_other_text_is_a_value_error_and_nothing_else(text: str) -> None:
    first = last = 0.0
    with suppress(ValueError):
        first, last = span(text, BERLIN, at=NOON)
    assert first <= last
