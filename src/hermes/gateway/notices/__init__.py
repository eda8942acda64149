"""Notices: what the gateway itself says in a chat, in the language of the conversation; English where there is no translation.

Each language is a TOML file with the same keys and placeholders. The language is guessed from the words of the conversation,
else it is the one the platform tells of the person.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hermes.gateway.notices.language import guess

LANGUAGES = ("en", "de", "es", "fr", "ja", "zh")


def say(key: str, language: str | None, **values: object) -> str:
    """The text of a notice in a language ("de", "zh-TW", None), with these values in it."""
    return _texts((language or "").partition("-")[0].lower())[key].format(**values)


def language_of(texts: Iterable[str | None], told: str | None = None) -> str | None:
    """The language of the first of these texts that shows one, else what the platform tells of the person."""
    found = next((one for text in texts if text and (one := guess(text))), None)
    if found == "zh" and told is not None and told.startswith("ja"):  # a Japanese text may have no kana
        return told
    return found or told


@cache
def _texts(language: str) -> dict[str, str]:
    name = language if language in LANGUAGES else "en"
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text("utf-8"))
