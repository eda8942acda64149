"""Notices: what the gateway itself says in a chat, in the language of the conversation; English where there is no translation.

Each language is a TOML file with the same keys and placeholders. The language is guessed from the words of the conversation,
else it is the one that the platform reports for the person.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

LANGUAGES = ("en", "de", "es", "fr", "ja", "zh")


def say(key: str, language: str | None, **values: object) -> str:
    """The text of a notice in a language ("de", "zh-TW", None), with these values in it."""
    return _texts((language or "").partition("-")[0].lower())[key].format(**values)


def language_of(texts: Iterable[str | None], preferred: str | None = None) -> str | None:
    """The language of the first of these texts that shows one, else `preferred`, the one that the platform reports."""
    found = next((one for text in texts if text and (one := guess(text))), None)
    if found == "zh" and preferred is not None and preferred.startswith("ja"):  # a Japanese text may have no kana
        return preferred
    return found or preferred


@cache
def _texts(language: str) -> dict[str, str]:
    name = language if language in LANGUAGES else "en"
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text("utf-8"))


# ------------------------------------------------------------------------------------------------ which language
#
# A cheap guess at the language of a text: by its script, or by the most frequent words of a few languages.

_SEEN = 500  # characters of a text that are looked at
_SHARE = 0.3  # of the letters must be of an East Asian script
_LEAST = 2  # points; a frequent word is one, a greeting two
_HAN, _KANA = re.compile(r"[\u3400-\u9fff]"), re.compile(r"[\u3040-\u30ff]")
_WORD = re.compile(r"[^\W\d_]+")
# Languages without translations are here, too: a Portuguese text is not Spanish.
_FREQUENT = {
    "en": "the and is of to you what that it for with how are can this my i me please do not have in on about",
    "de": "der die das und ist nicht ich du sie wie was ein eine mit für auf es kann kannst bitte mir den dem zu wir im von",
    "fr": "le la les et est pas je tu vous que qui une un des du pour dans avec ce sur comment peux moi mon mes au",
    "es": "el la los las y es no yo tú que qué un una del de por para con cómo puedes mi me está en lo se",
    "pt": "o a os as e é não eu você que um uma do da de por para com como pode meu minha está em no na se",
    "it": "il la lo gli e è non io tu che un una del di per con come puoi mio mia sono in si della",
    "nl": "de het een en is niet ik je jij hoe wat met voor op kan kun mijn van zijn te dat",
}
_GREETINGS = {
    "en": "hello thanks hi", "de": "hallo danke moin", "fr": "bonjour merci salut", "es": "hola gracias buenos",
    "pt": "olá obrigado obrigada", "it": "ciao grazie buongiorno", "nl": "hoi bedankt goedemorgen",
}  # fmt: skip
_POINTS: dict[str, list[tuple[str, int]]] = {}
for _points, _table in ((1, _FREQUENT), (2, _GREETINGS)):
    for _language, _words in _table.items():
        for _word in _words.split():
            _POINTS.setdefault(_word, []).append((_language, _points))


def guess(text: str) -> str | None:
    """The language of a text ("de"), if its words or its script show it; None if they do not."""
    text = text[:_SEEN]
    letters = sum(map(str.isalpha, text))
    kana, han = len(_KANA.findall(text)), len(_HAN.findall(text))
    if kana + han and kana + han >= _SHARE * letters:
        return "ja" if kana else "zh"
    points: dict[str, int] = {}
    for word in _WORD.findall(text.casefold()):
        for language, number in _POINTS.get(word, ()):
            points[language] = points.get(language, 0) + number
    best = sorted(points, key=lambda one: -points[one])[:2]
    if not best or points[best[0]] < _LEAST or (len(best) > 1 and points[best[0]] == points[best[1]]):
        return None
    return best[0]
