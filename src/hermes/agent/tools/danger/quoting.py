r"""The escapes of `$'…'`: a quoted text in which `\n`, `\x41` and their kind mean characters."""

from __future__ import annotations

import re

_SIMPLE = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_NUMBER = re.compile(r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})")


def ansi_c(text: str, at: int) -> tuple[str, int]:
    """The text from `at` (behind the opening quote) to its closing quote, decoded, and where it ends; -1: never."""
    text_out = ""
    while at < len(text):
        sign = text[at]
        if sign == "'":
            return text_out, at + 1
        if sign != "\\":
            text_out += sign
            at += 1
            continue
        following = text[at + 1 : at + 2]
        number = _NUMBER.match(text, at + 1)
        if number:
            value = int(number[4], 8) & 0xFF if number[4] else int(number[1] or number[2] or number[3], 16)
            text_out += chr(value) if value <= 0x10FFFF else "\ufffd"
            at = number.end()
        elif following == "c":
            control = text[at + 2 : at + 3]
            text_out += chr(ord(control) & 0x1F) if control else ""
            at += 3
        else:
            text_out += _SIMPLE.get(following, "\\" + following)
            at += 2
    return text_out, -1
