"""Masks secrets in text before it is stored: `redact(text)` replaces each one by `[masked:<kind>]`.

Searches, each for secrets of one sort: private-key blocks, tokens of a known shape (each begins a run of at least 20 word
characters), known places (URLs, headers, cookies), values assigned to a secret's name (`PASSWORD=…`, `"api_key": "…"`),
passwords given to a command (`curl -u ada:…`) or told in a sentence ("my password is …"). secret_rules.py says what a secret is.

Nearly every message holds none, so a search begins with a literal that is found at C speed. Some read a copy of the text
with one byte a character, which keeps every position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from re import Match, Pattern

from hermes.store import secret_rules as rules

Span = tuple[int, int, str]  # start, end, kind
_LONGEST = 4096  # characters of a value in quotes
_ROUNDS = 8  # a mask rarely uncovers another secret; this bounds the work if it does
# All characters a token can be made of become the same letter, so that one substring search finds long runs.
_RUN = b"w" * 20
_WORD_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_WORDS = bytes(ord("w") if chr(c) in _WORD_CHARACTERS else ord(" ") for c in range(256))


def redact(text: str) -> str:
    """Return `text` with every secret in it replaced by `[masked:<kind>]`, and everything else unchanged.

    The name, user, host or header in front of the secret stays. JSON stays JSON, redacting twice
    changes nothing more, and text without a secret comes back as the very same object. Any string is accepted.
    """
    for _ in range(_ROUNDS):
        spans = _find(text)
        if not spans:
            break
        text = _masked(text, spans)
    return text


def _find(text: str) -> list[Span]:
    """The places of secrets in a text; of two that overlap the earlier in the list is the better description."""
    raw = text.encode("latin-1", "replace")  # one byte a character, for any text
    low, spans = raw.lower(), list[Span]()
    if "PRIVATE KEY" in text:
        spans += _private_keys(text)
    spans += _tokens(text, raw)
    for known, kind, pattern, is_secret in rules.PLACES:
        if known in text:
            spans += [(*m.span(m.lastindex or 0), kind) for m in pattern.finditer(text) if is_secret(m)]
    if b"authorization" in low:
        spans += _headers(text, low)
    spans += _assignments(text, low)
    if rules.ANY_OPTION.search(text):
        spans += _arguments(text)
    if b"pass" in low or not text.isascii() or b"\\u00" in low:
        spans += _sentences(text, low)
    if "ookie" in text:
        spans += _cookies(text)
    return spans


def _masked(text: str, spans: Iterable[Span]) -> str:
    """The text with the spans masked, each character at most once."""
    taken, chosen = bytearray(len(text)), [(0, 0, "")]
    for start, end, kind in spans:
        if 1 not in taken[start:end]:
            taken[start:end] = b"\1" * (end - start)
            chosen.append((start, end, kind))
    chosen.sort()
    pieces = [f"{text[before[1] : start]}{rules.MASK}{kind}]" for before, (start, _, kind) in pairwise(chosen)]
    return "".join((*pieces, text[chosen[-1][1] :]))


def _tokens(text: str, raw: bytes) -> Iterator[Span]:
    """Tokens of a known shape. Only the start of a run is tried, so the work is linear."""
    words = raw.translate(_WORDS) + b" "
    find, match = words.find, rules.TOKEN.match  # this loop runs for every long word of source code
    at = find(_RUN)
    while at >= 0:
        end = find(b" ", at + 20)
        if (m := match(text, at)) and not text.startswith("+", m.end()):  # "+": we are inside of base64
            kind, token = str(m.lastgroup), text[m.start(1) : m.end()]
            if "xxxxxxxx" not in token.lower() and (kind != "sk" or rules.is_random(token)):
                yield m.start(1), m.end(), "openai" if kind == "sk" else kind
                end = max(end, m.end())
        at = find(_RUN, end)


def _private_keys(text: str) -> Iterator[Span]:
    """The base64 between the marks of a private-key block, also cut short, escaped, or one string a line."""
    for begin in rules.KEY_BEGIN.finditer(text):
        start = stop = 0
        at = begin.end()
        while piece := rules.KEY_PIECE.match(text, at) or rules.KEY_REST.match(text, at):
            first, at = piece.span(1)
            if start and ('"' in text[stop:first] or "'" in text[stop:first]):
                yield start, stop, "private-key"
                start = 0
            start, stop = start or first, at
        if start:
            yield start, stop, "private-key"


def _headers(text: str, low: bytes) -> Iterator[Span]:
    """The text after the scheme of an Authorization header."""
    for m in rules.HEADER.finditer(low):
        scheme, (start, end) = (m[1] or b"bearer").decode(), m.span(2)
        value = text[start:end]
        if scheme == "basic":
            is_secret = rules.is_basic(value)
        else:
            is_secret = rules.is_opaque(value) if m[1] else len(value) >= 16 and rules.is_random(value)
        if is_secret and not rules.PLACEHOLDER.match(value):
            yield start, end, scheme if scheme in ("basic", "bearer") else "token"


def _arguments(text: str) -> Iterator[Span]:
    """Passwords among the arguments of a command: curl -u ada:…, mysql -p…, redis-cli -a …, sshpass -p …"""
    found = ((word, m) for word, (program, _) in rules.PROGRAMS.items() if word in text for m in program.finditer(text))
    commands = sorted((m.start(), m.end(), word) for word, m in found)
    # No command reaches into the next one: the work is linear.
    for (_, begin, word), (last, *_) in pairwise([*commands, (len(text), 0, "")]):
        last = min(last, begin + rules.LONGEST_COMMAND)
        over = rules.COMMAND_END.search(text, begin, last)
        for option in rules.PROGRAMS[word][1].finditer(text, begin, over.start() if over else last):
            start, end = _argument(text, option.end(), rules.BARE_LINE) or (0, 0)
            if word == "curl":
                start = text.find(":", start, end) + 1 or end
            if rules.is_given(text[start:end]):
                yield start, end, "password"
    for option in rules.ANY_PASSWORD.finditer(text):  # of any program
        yield from _sentence_value(text, option.end(), rules.BARE_LINE)


def _argument(text: str, at: int, bare: Pattern[str]) -> tuple[int, int] | None:
    """The start and end of the value that begins here, without its quotes; `bare` is the shape of one that has none."""
    if opening := rules.QUOTE.match(text, at):
        return None if opening[1] else _quoted(text, opening)
    return m.span() if (m := bare.match(text, at)) else None


def _cookies(text: str) -> Iterator[Span]:
    """The values of a Cookie or Set-Cookie header, but not those that are settings (theme=dark)."""
    at = 0
    for header in rules.COOKIES.finditer(text):
        more = ";" if header.end() >= at else ""  # else it was looked at as part of the one before
        at = max(at, header.end())
        while more and (m := rules.COOKIE.match(text, at)):
            at, name, value, more = m.end(), m[1].lower(), m[2] or "", m[3]
            enough = 6 if any(word in name for word in rules.LOGINS) else 16
            is_opaque = len(value) >= enough and rules.is_opaque(value) and name not in rules.ATTRIBUTES
            if is_opaque and rules.is_given(value):
                yield *m.span(2), "cookie"


def _sentences(text: str, low: bytes) -> Iterator[Span]:
    """Passwords told in a sentence: my password is …, das Passwort lautet …"""
    for m in (m for word, pattern in rules.TOLD if word in low for m in pattern.finditer(low)):
        yield from _sentence_value(text, m.end(), rules.SAID)


def _sentence_value(text: str, at: int, bare: Pattern[str]) -> Iterator[Span]:
    """The value in a place where a sentence names a password, unless it is a word of a sentence, an example or a placeholder."""
    start, end = _argument(text, at, bare) or (at, at)
    value = text[start:end]
    if start > at:  # in quotes
        is_word = len(value) >= 4 and not any(c.isspace() for c in value) and value[0] not in ",:]}"
        is_one = is_word and value.lower().rstrip("?!.") not in rules.NO_VALUES
    else:
        is_one = rules.looks_chosen(value.rstrip("!"))
    if is_one and rules.is_given(value):
        yield start, end, "password"


def _assignments(text: str, low: bytes) -> Iterator[Span]:
    """Values assigned to a secret's name, quoted or bare."""
    for kind, pattern in rules.ASSIGNMENTS:
        at = 0
        while m := pattern.search(low, at):
            start, at = m.start(), m.end()
            owner = _owner(text, start)
            if text.endswith(rules.MASK, 0, start - len(owner)) or not _is_telling(kind, text, owner, m):
                continue
            name = owner + text[start : m.end(1)]
            if found := _value(text, name, m):
                style, begin, at = found  # a=a=a=…: each value is looked at once
                value = text[begin:at]
                if rules.is_secret(kind, style, name, value[:256]) and rules.MASK not in value:
                    yield begin, at, "aws" if kind == "api-key" and "aws" in name.lower() else kind


def _owner(text: str, start: int) -> str:
    """The part of a name in front of its last word, which begins at `start`."""
    head = text[max(0, start - 48) : start]
    owner = head[len(head.rstrip(_WORD_CHARACTERS)) :]
    if owner and head[: -len(owner)].endswith("\\"):
        owner = owner[1:]  # the letter of an escape
    return owner


def _is_telling(kind: str, text: str, owner: str, m: Match[bytes]) -> bool:
    """Whether the whole name means a secret, as api_key does and cache_key does not."""
    word = owner.lower().rstrip("_.-")
    if kind == "api-key":
        before = text[max(0, m.start() - 8) : m.start()].lower()
        return word.endswith(rules.KEY_OWNERS) if owner else before.endswith(rules.SPOKEN_OWNERS)
    if kind == "token":
        return not word.endswith(rules.CURSORS)
    if kind == "basic":
        return not word
    if m[1] == b"pass":  # dbPass, DB_PASS, db.pass; not minipass, bypass
        return not owner or owner[-1] in "_-." or text[m.start()] == "P"
    return True


def _value(text: str, name: str, m: Match[bytes]) -> tuple[str, int, int] | None:
    """How the value behind a name is written, where it starts and where it ends."""
    if opening := rules.QUOTE.match(text, m.end()):
        found = _quoted(text, opening)
        same = m[2] is not None and m[2].decode() == opening[2]
        return found and ("json" if same else "quoted", *found)
    if m[2] is not None:
        return None  # behind a quoted name: a number in JSON, or code
    spaced = b" " in m[0] or b"\t" in m[0]
    environment = m[3] == b"=" and not spaced and name.isupper()
    bare = (rules.BARE_LINE if environment else rules.BARE).match(text, m.end())
    if bare is None:
        return None
    start, end = bare.span()
    if environment:
        return "environment", start, end
    if text.startswith(("(", "["), end) or (spaced and name.lower() == "pass"):  # PASS: test_login
        return "code", start, end
    return "bare", start, start + len(bare[0].rstrip(".:"))


def _quoted(text: str, opening: Match[str]) -> tuple[int, int] | None:
    """The start and end of the string that opens here. None if it does not close, or is made by code.

    A quote inside JSON inside JSON has 1, 3 or 7 backslashes before it; one that is part of the string has
    more. Escapes are taken whole and no quote of an outer level is passed, so the JSON around stays JSON.
    """
    depth, quote, start = len(opening[2]) - 1, opening[2][-1], opening.end()
    for m in rules.ENDS[quote].finditer(text, start, start + _LONGEST):
        inner, odd = divmod((m.end(1) - m.start()) - depth, depth + 1)
        if m[1] is None or odd or inner < 0 or depth not in (0, 1, 3, 7):
            break
        if inner % 2 == 0:
            end = m.end(1) - depth
            value = text[start:end]
            formatted = "f" in opening[1].lower() and "{" in value
            if not value or formatted or (quote != '"' and '"' in value):
                break
            return start, end
    return None
