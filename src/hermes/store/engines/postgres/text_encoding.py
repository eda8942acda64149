"""Text as PostgreSQL can hold it.

A column of type text accepts every character but NUL and lone surrogates. These are written as U+FDD0 (which Unicode
reserves for such uses and never assigns to a character) and four hex digits, and so is U+FDD0 itself: every text comes back as
it went in, equal texts stay equal, and common prefixes stay common.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hermes.store.codec import Blob

ESCAPE = "\ufdd0"
_UNFIT = re.compile("[\0\ud800-\udfff\ufdd0]")
_WRITTEN = re.compile(ESCAPE + "([0-9a-f]{4})")


def fit(text: str) -> str:
    """Text with the characters that PostgreSQL can't store escaped."""
    if text.isascii():
        return text if "\0" not in text else text.replace("\0", ESCAPE + "0000")
    return _UNFIT.sub(lambda found: f"{ESCAPE}{ord(found[0]):04x}", text)


def unfit(text: str) -> str:
    """The inverse of fit()."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), text)


def value(given: Any) -> Any:
    """A parameter as it is stored.

    Bytes are text that is no valid UTF-8 (codec.storable), unless they are a Blob. What SQLite converts silently is converted
    here: a bool is a number, and NaN is NULL.
    """
    kind = type(given)
    if kind is str:
        return fit(given)
    if kind is int or given is None:
        return given
    if kind is float:
        return given if given == given else None
    if kind is bytes:
        return fit(given.decode("utf-8", "surrogatepass"))
    if kind is Blob:
        return bytes(given)
    if isinstance(given, int):
        return int(given)
    if isinstance(given, str):
        return fit(str(given))
    if isinstance(given, float):
        return float(given)
    raise TypeError(f"a value of type {kind.__name__} can't be stored")


def array(given: Sequence[int] | Sequence[str]) -> str:
    """Numbers or texts as one parameter, to be cast to an array. (The driver's own arrays are made element by element.)"""
    if not given or isinstance(given[0], int):
        return f"{{{','.join(map(str, given))}}}"
    joined = "\x01".join(given)  # type: ignore[arg-type]
    if joined.count("\x01") != len(given) - 1:
        return f"{{{','.join(map(_quoted, given))}}}"  # type: ignore[arg-type]
    return f"{{{_quoted(joined)}}}".replace("\x01", '","')


def _quoted(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def values(given: Sequence[Any]) -> list[Any]:
    """Parameters as they are stored."""
    return [value(one) for one in given]


def _restored(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(unfit(one) if type(one) is str and ESCAPE in one else one for one in row)


def rows(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows as they went in; nearly always they are unchanged."""
    for row in found:
        for one in row:
            if type(one) is str and ESCAPE in one:
                return [_restored(row) for row in found]
    return found
