"""Titles: what is kept of them, and how families of them are numbered."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes.errors import InvalidInput, TitleTooLong
from hermes.store.records.titles import MAX_TITLE, sanitize_title, shown_title, split_family

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
CODER = "\U0001f469\U0001f3fd\u200d\U0001f4bb"
RAINBOW = "\U0001f3f3\ufe0f\u200d\U0001f308"
BURNING_HEART = "\u2764\ufe0f\u200d\U0001f525"
SHAKING_HEAD = "\U0001f642\u200d\u2194\ufe0f"
SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
GERMANY = "\U0001f1e9\U0001f1ea"
KEYCAP = "1\ufe0f\u20e3"


# --- cleaning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "title",
    [
        "my project",
        "100% of my_project, a\\b 'c' \"d\" #e",
        "sửa lỗi đăng nhập",
        unicodedata.normalize("NFD", "sửa lỗi đăng nhập"),
        "إصلاح تسجيل الدخول",
        "修复登录问题、ログイン修正、로그인 수정",
        unicodedata.normalize("NFD", "로그인 수정"),
        "แก้ไขการเข้าสู่ระบบ",
        "लॉगिन ठीक करें",
        "café, naïve, Ærøskøbing",
        "سورة \u06dd",  # a format character with a shape
        "\ue0a0 main",  # private use: a terminal font's icon
    ],
)
def test_visible_text_of_every_language_stays_as_typed(title: str) -> None:
    assert sanitize_title(title) == title


@pytest.mark.parametrize(
    "emoji",
    [
        FAMILY,
        CODER,
        RAINBOW,
        BURNING_HEART,
        SHAKING_HEAD,
        SCOTLAND,
        GERMANY,
        KEYCAP,
        "\u2764\ufe0f",
        "\u2764\ufe0e",
        "🚀",
    ],
)
def test_emoji_stay_whole(emoji: str) -> None:
    for title in (emoji, f"a{emoji}b", f"{emoji} {emoji}{emoji}"):
        assert sanitize_title(title) == title


@pytest.mark.parametrize(
    "mark",
    [
        *["\0", "\x07", "\x1b", "\x1f", "\x7f", "\x80", "\x9f"],
        *["\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u034f", "\u180e"],
        *["\u200e", "\u200f", "\u061c", "\u202a", "\u202b", "\u202c", "\u202d", "\u202e"],
        *["\u2066", "\u2067", "\u2068", "\u2069", "\u206a", "\ufff9", "\ufffb", "\u3164", "\u115f"],
        *["\ud800", "\udfff", "\ud83d\ude00", "\ufe0f", "\ufe0e", "\U000e0100", "\U000e0001", "\U000e0041"],
    ],
    ids=lambda mark: "-".join(f"{ord(each):04X}" for each in mark),
)
def test_invisible_characters_are_removed_between_letters(mark: str) -> None:
    assert sanitize_title(f"{mark}pass{mark}word{mark}") == "password"
    assert sanitize_title(mark) is None


def test_every_control_format_and_surrogate_character_without_a_shape_goes() -> None:
    shaped = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    kept = [
        f"{code:04X}"
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs")
        and code not in shaped
        and sanitize_title(f"a{chr(code)}b") not in ("ab", "a b")
    ]
    assert kept == []


def test_a_direction_override_cannot_disguise_a_title() -> None:
    assert sanitize_title("invoice_\u202efdp.exe") == "invoice_fdp.exe"
    assert sanitize_title("\u2067admin\u2069 \u202enimda\u202c") == "admin nimda"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("a\u200db", "ab"),
        ("\u200d\U0001f468", "\U0001f468"),
        ("\U0001f468\u200d", "\U0001f468"),
        ("\U0001f468\u200d x", "\U0001f468 x"),
        ("\U0001f468\u200d\u200d\U0001f469", "\U0001f468\U0001f469"),
        (f"{GERMANY}\u200d\U0001f469", f"{GERMANY}\U0001f469"),
        ("\u0646\u0645\u06cc\u200c\u062f\u0627\u0646\u0645", "\u0646\u0645\u06cc\u062f\u0627\u0646\u0645"),
        ("1\ufe0f", "1"),
        ("1\ufe0f\ufe0f\u20e3", "1\u20e3"),
        ("a\ufe0f", "a"),
        ("\u2764\ufe0f\ufe0f", "\u2764\ufe0f"),
        ("\U0001f3f4\U000e0067\U000e0062", "\U0001f3f4"),
        ("\U0001f3f4" + "\U000e0061" * 7 + "\U000e007f", "\U0001f3f4"),
        ("\U0001f600\U000e0067\U000e0062\U000e0073\U000e007f", "\U0001f600"),
    ],
)
def test_joiners_selectors_and_tags_stay_only_inside_emoji(text: str, title: str) -> None:
    assert sanitize_title(text) == title


@pytest.mark.parametrize(
    "space", [" ", "\t", "\n", "\r\n", "\x0b\x0c", "\x85", "\xa0", "\u2003", "\u2028", "\u202f", "\u3000"]
)
def test_white_space_of_every_kind_is_folded(space: str) -> None:
    assert sanitize_title(f"{space}a{space}{space}b{space}\u200b{space}c{space}") == "a b c"


@pytest.mark.parametrize("text", [None, "", " \t\n", "\u200b\ufeff", "\0", "\u3000\u200d\u3000"])
def test_nothing_visible_is_no_title(text: str | None) -> None:
    assert sanitize_title(text) is None


def test_a_hundred_characters_fit_and_a_hundred_and_one_are_an_error_that_says_so() -> None:
    assert sanitize_title("x" * 100) == "x" * 100
    assert sanitize_title("\u200b".join("é" * 100)) == "é" * 100
    with pytest.raises(TitleTooLong, match="101"):
        sanitize_title("x" * 101)
    with pytest.raises(InvalidInput, match="1000000"):
        sanitize_title("\u200b文" * 1_000_000)
    with pytest.raises(ValueError, match="100"):
        sanitize_title("文" * 101)


# --- families -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "family"),
    [
        ("my project", ("my project", 1)),
        ("my project #2", ("my project", 2)),
        ("my project #3", ("my project", 3)),
        ("my project #10", ("my project", 10)),
        ("x #999999999", ("x", 999999999)),
        ("100%_done #4", ("100%_done", 4)),
        ("# #2", ("#", 2)),
        ("a #2 #3", ("a #2", 3)),
        ("修复 #2", ("修复", 2)),
        (f"{FAMILY} #2", (FAMILY, 2)),
    ],
)
def test_a_number_at_the_end_belongs_to_the_family(title: str, family: tuple[str, int]) -> None:
    assert split_family(title) == family


@pytest.mark.parametrize(
    "title",
    [
        *[
            "bug #login page", "#5", " #5", "x #0", "x #1", "x #007", "x #02", "x #1000000000", "x #٣", "x #\uff13",
            "x #²",
        ],
        *["x  #2", "x#2", "x # 2", "x #2a", "x #-2", "x #2 ", "x #2.0", "x #2\n", "", "#", "x\u00a0#2"],
    ],
)  # fmt: skip
def test_anything_else_is_a_family_of_its_own(title: str) -> None:
    assert split_family(title) == (title, 1)


def test_the_first_of_a_family_is_shown_without_a_number() -> None:
    assert shown_title("my project", 1) == "my project"
    assert shown_title("my project", 2) == "my project #2"


def test_a_title_of_a_hundred_characters_can_be_continued() -> None:
    assert shown_title("x" * 100, 1) == "x" * 100
    assert shown_title("x" * 100, 2) == "x" * 97 + " #2"
    assert shown_title("x" * 100, 123456789) == "x" * 89 + " #123456789"


@pytest.mark.parametrize(
    "emoji", [FAMILY, CODER, RAINBOW, SCOTLAND, GERMANY, KEYCAP, "e\u0301\u0323", "\u1105\u1169\u11a8"]
)
@pytest.mark.parametrize("shift", range(8))
def test_a_shortened_base_loses_whole_emoji_and_letters_only(emoji: str, shift: int) -> None:
    shown = shown_title("x" * shift + emoji * 100, 2)
    kept = shown.removesuffix(" #2").removeprefix("x" * shift)
    assert kept == emoji * ((97 - shift) // len(emoji))


def test_a_base_cut_at_a_space_leaves_no_second_space() -> None:
    assert shown_title("x" * 96 + " yyy", 2) == "x" * 96 + " #2"


# --- properties ---------------------------------------------------------------------------------------------

BITS = [
    *"ab 1#*%_é文",
    *["\u200d", "\u200c", "\ufe0f", "\u20e3", "\u0301", "\u202e", "\0", "\n", "\u3000", "\ud800", "\u11a8"],
    *[
        "\U0001f468", "\U0001f3fd", "\u2764", "\U0001f3f4", "\U000e0067", "\U000e007f", "\U0001f1e9", "\U0001f1ea",
    ],
    *[FAMILY, CODER, RAINBOW, SCOTLAND, GERMANY, KEYCAP, " #2", " #", "#2"],
]  # fmt: skip
texts = st.one_of(st.text(max_size=150), st.lists(st.sampled_from(BITS), max_size=80).map("".join))


def cleaned(text: str) -> str | None:
    try:
        return sanitize_title(text)
    except TitleTooLong:
        return None


titles = texts.map(cleaned).filter(bool)
numbers = st.one_of(st.integers(1, 30), st.integers(1, 999_999_999))


@given(texts)
def test_cleaning_never_fails_but_for_length_and_cleaning_twice_changes_nothing(text: str) -> None:
    title = cleaned(text)
    if title is not None:
        assert sanitize_title(title) == title
        assert 0 < len(title) <= MAX_TITLE
        assert title == " ".join(title.split(" "))
        title.encode("utf-8")


@given(titles, numbers)
@example("x" * 100, 2)
@example("a" + "\u0301" * 99, 2)
@example(("\U0001f468\u200d" * 50)[:99], 10)
def test_a_shown_title_is_a_title(base: str, number: int) -> None:
    shown = shown_title(base, number)
    assert 0 < len(shown) <= MAX_TITLE
    assert sanitize_title(shown) == shown
    if number > 1:
        start, counted = split_family(shown)
        assert counted == number
        assert base.startswith(start)
