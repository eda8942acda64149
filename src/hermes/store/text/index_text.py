"""Text for the index: folded, split where a script has no spaces, and without JSON's escapes.

One index serves every language because the text is prepared before it is tokenised: case and marks are folded,
runs of scripts written without spaces (Chinese, Japanese, Korean, Thai …) become overlapping pairs of characters
plus the last one, an emoji becomes a word of its own. A query is prepared by the same functions, so both always agree.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from typing import Any

import msgspec

# Scripts written without spaces between words: every pair of neighbours is indexed.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3035\u303b\u3040-\u30ff"
    "\u3100-\u312f\u3131-\u318e\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U00016f00-\U00018cff\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
_EMOJI = (
    "\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2767\u2776-\u27bf"
    "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\U0001f000-\U0001faff\ue100-\ue17f"
)  # the last range: keycaps (1️⃣), see _keycaps
UNSPACED = re.compile(f"[{_UNSPACED}]+")
_EMOJI_RE = re.compile(f"[{_EMOJI}]")
_BEYOND_ASCII = re.compile(
    r"[^\x00-\x7f][^\x00-\x7f]*"
)  # found three times as fast as [^\x00-\x7f]+ in mostly ASCII text
_LETTERS = {"ς": "σ", "đ": "d", "ø": "o", "ł": "l", "ħ": "h", "ŧ": "t", "ı": "i"}
_EMOJI_MARK = "\ue000"  # private use: not typed by users, every tokenizer takes it for a letter
_KEYCAP_MARK = "\u20e3"
_KEYCAP = re.compile("[0-9#*](?=\ufe0f?\u20e3)")


@cache
def _no_word() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}{_EMOJI}]+")


@cache
def _spaced_pieces() -> re.Pattern[str]:
    return re.compile(f"[{_EMOJI}]|(?:(?![{_EMOJI}])[\\w\u0300-\u036f\u0900-\u0dff])+")


def pieces(folded: str) -> list[str]:
    """Folded text cut up: runs of unspaced scripts, emoji one by one, words (marks and underscores included)."""
    found: list[str] = []
    at = 0
    for run in UNSPACED.finditer(folded):
        found += _spaced_pieces().findall(folded, at, run.start())
        found.append(run[0])
        at = run.end()
    return found + _spaced_pieces().findall(folded, at)


def has_no_word_border(folded: str) -> bool:
    """Whether scripts without spaces or emoji occur in a folded text: words end there without a space."""
    return not folded.isascii() and bool(UNSPACED.search(folded) or _EMOJI_RE.search(folded))


def _keycaps(text: str) -> str:
    """The text with the digit of each keycap (1️⃣) as an emoji of its own, so that it is no 1; of the same length."""
    return _KEYCAP.sub(lambda m: chr(0xE100 + ord(m[0])), text) if _KEYCAP_MARK in text else text


def _fold_character(code: int) -> str:
    """One character: lower case, marks off Latin, Greek and Cyrillic letters, symbols as spaces. A ligature (ﬁ) becomes its
    letters; everything else stays one character."""
    character = chr(code)
    if 0xD800 <= code < 0xE000:
        return " "
    if 0x300 <= code <= 0x36F:
        return "\u0300"  # a loose mark; fold() drops it, aligned() keeps its place
    if _EMOJI_RE.match(character):
        return character
    compatible = unicodedata.normalize("NFKC", character)
    if len(compatible) == 1:
        character = compatible
    elif compatible.isalnum() and unicodedata.category(character)[0] in "LN" and not UNSPACED.match(character):
        return "".join(_fold_character(ord(letter)) for letter in compatible)
    lower = character.lower()
    if len(lower) > 1:
        lower = lower[0]
    lower = _LETTERS.get(lower, lower)
    base = unicodedata.normalize("NFD", lower)
    if len(base) > 1 and base[0] < "\u0530" and all(unicodedata.combining(mark) for mark in base[1:]):
        return _LETTERS.get(base[0], base[0])
    category = unicodedata.category(lower)
    if category[0] in "ZPSC" and not (category == "Co" and lower != _EMOJI_MARK):
        return " "
    if category[0] == "M" and not 0x900 <= code <= 0xDFF and not UNSPACED.match(lower):
        return "\u0300"  # points and vowel signs outside the Indic scripts: rarely typed, never needed
    return lower


class _Folds(dict[int, str]):
    """The fold of each character, computed on first use."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = _fold_character(code)
        return folded


_FOLDS = _Folds()


def fold(text: str) -> str:
    """Text for comparing: lower case, marks off, symbols beyond ASCII as spaces."""
    if text.isascii():
        return text.lower()
    folded = _BEYOND_ASCII.sub(lambda run: run[0].translate(_FOLDS), _keycaps(unicodedata.normalize("NFC", text)))
    return folded.replace("\u0300", "").lower()


def aligned(text: str) -> tuple[str, str]:
    """The text to show and its fold, position by position the same. (Ligatures are shown as their letters.)"""
    if text.isascii():
        return text, text.lower()
    shown = unicodedata.normalize("NFC", text)
    folded = _BEYOND_ASCII.sub(lambda run: run[0].translate(_FOLDS), _keycaps(shown)).lower()
    if len(folded) != len(shown):
        shown = shown.translate({ord(one): _spelled(one) for one in set(shown) if len(_FOLDS[ord(one)]) != 1})
    return shown, folded


def _spelled(ligature: str) -> str:
    """A ligature as its letters, as many as its fold has."""
    letters, folded = unicodedata.normalize("NFKC", ligature), _FOLDS[ord(ligature)]
    return letters if len(letters) == len(folded) else folded


def pairs(run: str) -> list[str]:
    """The overlapping pairs of a run, then its last character: 部署配 → 部署 署配 配."""
    return [run[i : i + 2] for i in range(len(run) - 1)] + [run[-1]]


def emoji_word(character: str) -> str:
    """The word an emoji is indexed as."""
    return f"{_EMOJI_MARK}{ord(character):x}"


@lru_cache(maxsize=8192)
def _index_run(run: str) -> str:
    folded = run.translate(_FOLDS).replace("\u0300", "")
    folded = _EMOJI_RE.sub(lambda m: f" {emoji_word(m[0])} ", folded)
    return UNSPACED.sub(lambda m: f" {' '.join(pairs(m[0]))} ", folded)


def index_text(text: str) -> str:
    """The form of this text for the full-text index (ASCII unchanged: the index folds its case)."""
    if text.isascii():
        return text
    return _BEYOND_ASCII.sub(lambda run: _index_run(run[0]), _keycaps(unicodedata.normalize("NFC", text)))


ASCII_WORD = re.compile("[a-z0-9]+")


def index_words(text: str) -> list[str]:
    """The words of a text as the full-text index has them, in order."""
    folded = fold(text)
    if folded.isascii():
        return ASCII_WORD.findall(folded)
    words: list[str] = []
    for piece in pieces(folded):
        if _EMOJI_RE.match(piece):
            words.append(emoji_word(piece))
        elif UNSPACED.match(piece):
            words += pairs(piece)
        else:
            words += filter(None, piece.split("_"))
    return words


def phrase(text: str) -> tuple[str, bool]:
    """A query leaf as the words of an index phrase, and whether the last one is only a beginning.

    The empty string when nothing in it is indexed. A run of an unspaced script at the end may continue in the text,
    so its single last character is left out; a run of one character is the beginning of a pair.
    """
    words, folded = index_words(text), fold(text)
    last = "" if folded.isascii() else next(reversed(pieces(folded)), "")
    open_end = UNSPACED.match(last) is not None and len(last) == 1
    if UNSPACED.match(last) and not open_end:
        words.pop()
    return " ".join(words), open_end


# ---------------------------------------------------------------------------------------- text inside JSON


_decode = msgspec.json.Decoder(float_hook=str).decode  # numbers stay as they were written
_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)
_UNICODE_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": " ", "f": " "}
_CONSTANTS = {None: "null", True: "true", False: "false"}
_DEEP = 40  # levels; what is further inside stays JSON


def _flatten(value: Any, out: list[str], named: set[str], depth: int = 0) -> None:
    """Append the words of a JSON value; keys and constants, which repeat, only the first time."""
    kind = type(value)
    if kind is str:
        out.append(value if depth > _DEEP or value[:1] not in ("{", "[") else plain(value))
    elif depth > _DEEP:
        out.append(_ESCAPE.sub(_unescape, msgspec.json.encode(value).decode()))
    elif kind is dict:
        for key, item in value.items():
            if key not in named:
                named.add(key)
                out.append(key)
            _flatten(item, out, named, depth + 1)
    elif kind is list:
        for item in value:
            _flatten(item, out, named, depth + 1)
    elif value is None or kind is bool:
        name = _CONSTANTS[value]
        if name not in named:
            named.add(name)
            out.append(name)
    else:
        out.append(str(value))


def _unescape(match: re.Match[str]) -> str:
    text = match[0]
    if text.startswith("\\u"):
        units = bytes.fromhex("".join(text[i + 2 : i + 6] for i in range(0, len(text), 6)))
        return units.decode("utf-16-be", "replace")
    return _PLAIN_ESCAPES.get(text[1], text[1])


def plain(text: str) -> str:
    """The text that JSON stands for: its keys and values, one a line, unescaped. Other text is returned unchanged."""
    if text[:1] in ("{", "["):
        try:
            value = _decode(text)
        except (ValueError, RecursionError, UnicodeEncodeError):  # cut short, several documents, lone surrogates
            return _ESCAPE.sub(_unescape, text) if "\\" in text else text
        out: list[str] = []
        _flatten(value, out, set())
        return "\n".join(out)
    if "\\u" in text:
        return _UNICODE_ESCAPE.sub(_unescape, text)
    return text


def plain_calls(tool_calls: Any) -> str:
    """The words of a list of tool calls: names and arguments, without ids and scaffolding."""
    if isinstance(tool_calls, dict):
        tool_calls = [tool_calls]
    if not isinstance(tool_calls, list):
        return plain(tool_calls) if isinstance(tool_calls, str) else ""
    out: list[str] = []
    for call in tool_calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            out.append(str(function.get("name") or ""))
            arguments = function.get("arguments")
            if isinstance(arguments, str):
                out.append(plain(arguments))
            else:
                _flatten(arguments, out, set())
        else:
            _flatten(call, out, set())
    return "\n".join(out)


def call_ids(tool_calls: Any) -> list[str]:
    """The ids of a list of tool calls."""
    calls = tool_calls if isinstance(tool_calls, list) else []
    return [call["id"] for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)]


def id_word(call_id: str) -> str:
    """The word that a tool call's id is indexed as: its longest part, if possible one with a digit: not `call`."""
    words = index_words(call_id)
    return max(words, key=lambda word: (any(c.isdigit() for c in word), len(word)), default="")


def plain_parts(parts: Any) -> str:
    """The text parts of a content list, in order; pictures and other payloads have no words."""
    if isinstance(parts, dict):
        parts = [parts]
    texts: list[str] = []
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            text = part.get("text") or part.get("content") or part.get("refusal")
            if isinstance(text, str):
                texts.append(text)
    return "\n".join(texts)


def plain_content(content: Any) -> str:
    """The text of a message's content: as it is, or of its parts."""
    return content if isinstance(content, str) else plain_parts(content)


# ---------------------------------------------------------------------------------------- words of their own

WORD_BYTES = bytes(
    (byte | 0x20) if 65 <= byte <= 90 else byte if chr(byte).isalnum() or byte > 127 else 32 for byte in range(256)
)
_DIGITS = b"0123456789"
SHORT = 12  # bytes: up to here half of a word may be digits (sha256, x86abi), beyond it a quarter


def vocabulary(text: str) -> set[bytes]:
    """The distinct words of a text, folded, as UTF-8. As in the index, an underscore separates them, and so do scripts without
    spaces."""
    if not text.isascii():
        text = _no_word().sub(" ", fold(text))
    return set(text.encode("utf-8", "replace").translate(WORD_BYTES).split())


def worth_keeping(words: set[bytes]) -> list[bytes]:
    """The words among these, sorted, that can be searched by a part: not numbers, long hashes or unspaced scripts.

    Words that begin with four letters are always included, so that the list has every word with such a prefix.
    """
    ordered = sorted(word for word in words if 4 <= len(word) <= 100)
    without_digits = b" ".join(ordered).translate(None, _DIGITS).split(b" ")  # the words in their places
    return [
        word
        for word, letters in zip(ordered, without_digits)
        if ((size := len(word)) - len(letters) <= size >> (1 if size <= SHORT else 2) or word[:4] == letters[:4])
        and (word.isascii() or not UNSPACED.search(word.decode("utf-8", "replace")))
    ]
