"""Rules for titles: what they may look like, and how a family of titles is numbered.

A title is cleaned once, when it is set: invisible characters (which could make two titles look alike, or turn
one around) are removed, white space is folded, and everything visible stays exactly as typed. Letters are
not normalised: an accent typed as a character of its own stays so, and the two spellings are two titles.
A family is "my project", "my project #2", "my project #3"; the number stands at the end of the title only.

Invisible characters are listed here by code point instead of queried from `unicodedata`, so that a stored title
means the same under every Python version. Format characters that have a shape (Arabic number signs) stay.
"""

from __future__ import annotations

import re
from functools import cache

from hermes.errors import TitleTooLong

__all__ = ["MAX_TITLE", "sanitize_title", "shown_title", "split_family"]

MAX_TITLE = 100  # code points


def sanitize_title(text: str | None) -> str | None:
    """The title as it is stored, or None when nothing visible remains. Cleaning twice changes nothing.

    Removed: control characters, zero-width and other invisible format characters, direction marks and
    overrides, lone surrogates, soft hyphens, byte-order marks. Joiners, variation selectors and tags stay
    inside the emoji that are built with them and are removed everywhere else. All white space becomes single spaces.
    Raises TitleTooLong when more than MAX_TITLE characters remain.
    """
    if text is None:
        return None
    title = " ".join((text if text.isascii() and text.isprintable() else _visible(text)).split())
    if len(title) > MAX_TITLE:
        raise TitleTooLong(
            f"The title is too long: {len(title)} characters, and at most {MAX_TITLE} are allowed; shorten it."
        )
    return title or None


def split_family(title: str) -> tuple[str, int]:
    """The family a title belongs to and its number in it: ("my project", 3) for "my project #3".

    What counts is something, one space, "#" and a number from 2 to 999999999 in ASCII digits without leading
    zeros. Any other title ("bug #login page", "#5", "x #1", "x #007") is the first of a family of its own.
    """
    numbered = _numbered().fullmatch(title)
    return (numbered[1], int(numbered[2])) if numbered else (title, 1)


def shown_title(base: str, number: int) -> str:
    """The title of a family's member: the base itself for number 1, else "base #number".

    Never longer than MAX_TITLE: the base is cut, where no emoji and no letter loses a part.
    """
    suffix = f" #{number}" if number > 1 else ""
    return _shortened(base, MAX_TITLE - len(suffix)) + suffix


def _visible(text: str) -> str:
    # The second pass must see its characters side by side, hence two.
    return _emoji_or_stray().sub(r"\1", _invisible().sub("", text))


def _shortened(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    from unicodedata import category  # only titles near the limit need it

    cut = 0
    for cluster in _cluster().finditer(text):
        end = cluster.end()
        if end > room:
            break
        # Vowel and final jamo of a decomposed Korean syllable are letters, but no letters of their own.
        if not category(text[end]).startswith("M") and not "\u1160" <= text[end] <= "\u11ff":
            cut = end
    # One letter with a hundred marks has no good cut: cut it anywhere, and leave no joiner at the edge.
    return (text[:cut] or _visible(text[:room])).rstrip()


# The patterns are compiled when first needed: most processes never clean a title that is not plain ASCII.


@cache
def _numbered() -> re.Pattern[str]:
    return re.compile(r"(.*\S) #([2-9]|[1-9][0-9]{1,8})", re.DOTALL)


@cache
def _invisible() -> re.Pattern[str]:
    return re.compile(
        r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff"  # control (white space apart), surrogates
        r"\u00ad\u034f\u061c\u180b-\u180f\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
        r"\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # fillers: letters and vowels that are blank
        r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # hieroglyph, shorthand, music
        r"\U000e0000-\U000e001f\U000e0080-\U000e0fff]"
    )


# Extended_Pictographic of Unicode 15.1 (with the places it holds free for emoji to come) and the skin tones.
_PICTURE = (
    r"[\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    r"\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685"
    r"\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755"
    r"\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030"
    r"\u303d\u3297\u3299\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e"
    r"\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f"
    r"\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    r"\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f"
    r"\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001faff"
    r"\U0001fc00-\U0001fffd]"
)
_ELEMENT = _PICTURE + r"[\U0001f3fb-\U0001f3ff]?[\ufe0e\ufe0f]?"
_EMOJI = (
    r"\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"  # the flag of Scotland
    r"|[0-9#*]\ufe0f?\u20e3"  # a keycap
    rf"|{_ELEMENT}(?:\u200d{_ELEMENT})*"
)


@cache
def _emoji_or_stray() -> re.Pattern[str]:
    """An emoji, which stays (group 1), or a character that only makes sense inside one."""
    return re.compile(rf"({_EMOJI})|[\u200d\ufe00-\ufe0f\U000e0020-\U000e007f]")


@cache
def _cluster() -> re.Pattern[str]:
    """An emoji, a flag of two regional letters, or one character."""
    return re.compile(rf"{_EMOJI}|[\U0001f1e6-\U0001f1ff]{{2}}|.", re.DOTALL)
