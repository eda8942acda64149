"""Times in questions: "last week", "in May", "yesterday", "on 3 March", in English, German, Spanish, French, Vietnamese and
Chinese. Sessions of that time are preferred, the others stay: people speak of a day while it lasts and for a while after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta

from hermes.store.index_text import fold

PREFERRED = 6.0  # what a session of the time asked for counts in addition
AFTER_A_MONTH, AFTER_A_DAY = timedelta(days=38), timedelta(days=9)  # from its beginning on
YEARS = 10  # a month or day without a year is looked for in so many
DAY = timedelta(days=1)
Period = tuple[date, date]

_NAMES = (
    "january januar enero janvier", "february februar febrero fevrier", "march marz marzo mars", "april abril avril",
    "may mai mayo", "june juni junio juin", "july juli julio juillet", "august agosto aout",
    "september septiembre septembre", "october oktober octubre octobre", "november noviembre novembre",
    "december dezember diciembre decembre",
)  # fmt: skip
_MONTHS = {name: number for number, names in enumerate(_NAMES, 1) for name in names.split()}
_AMBIGUOUS = frozenset(
    "may march mars mai".split()
)  # other words, too: they need a number or a preposition beside them
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_YEAR = r"(?:19|20)\d\d"
_NAMED = re.compile(
    r"(?:\b(?P<before>in|im|en|of|de|last|since|seit|during|until|early|late|anfang|ende)\s+)?"
    r"(?:\b(?P<day>\d{1,2})(?:st|nd|rd|th|er|\.)?\s+(?:of\s+|de\s+)?)?"
    rf"\b(?P<month>{_MONTH})\b"
    rf"(?:\s+(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:))?(?:,?\s+(?:de\s+|del\s+)?(?P<year>{_YEAR})\b)?"
)
_NUMBERED = re.compile(  # Vietnamese, Chinese, ISO 8601
    rf"(?:\bngay\s+(?P<day>\d{{1,2}})\s+)?\bthang\s+(?P<month>\d{{1,2}})\b(?:\s+(?:nam\s+)?(?P<year>{_YEAR}))?"
    rf"|(?:(?P<year_zh>{_YEAR})\s*年\s*)?(?<!\d)(?P<month_zh>\d{{1,2}})\s*月(?:份|\s*(?P<day_zh>\d{{1,2}})\s*[日号])?"
    rf"|\b(?P<year_iso>{_YEAR})-(?P<month_iso>\d\d)(?:-(?P<day_iso>\d\d))?\b"
)
_YEAR_ALONE = re.compile(rf"\b(?:in|im jahr|im jahre|en|nam)\s+(?P<year>{_YEAR})\b|(?P<year_zh>{_YEAR})\s*年(?!\s*\d)")
_AGO = re.compile(
    r"\b(?P<count>\d{1,3})\s+(?P<unit>day|week|month)s?\s+ago\b|\bvor\s+(?P<count_de>\d{1,3})\s+(?P<unit_de>tag|woche|monat)\w*"
    r"|\bhace\s+(?P<count_es>\d{1,3})\s+(?P<unit_es>dia|semana|mes)\w*"
    r"|\bil y a\s+(?P<count_fr>\d{1,3})\s+(?P<unit_fr>jour|semaine|mois)\w*"
    r"|\b(?P<count_vi>\d{1,3})\s+(?P<unit_vi>ngay|tuan|thang)\s+truoc\b|(?P<count_zh>\d{1,3})\s*个?(?P<unit_zh>天|周|星期|月)前"
)
_UNITS = {
    **dict.fromkeys("day tag dia jour ngay 天".split(), 1), **dict.fromkeys("week woche semana semaine tuan 周 星期".split(), 7),
    **dict.fromkeys("month monat mes mois thang 月".split(), 30),
}  # fmt: skip
_GERMAN = re.compile(r"\b(?:ist|was|wir|und|der|die|das|ich|haben|hat|war|wo|wer|wie)\b")
_RELATIVE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("before", r"\bday before yesterday\b|\bvorgestern\b|\banteayer\b|\bavant[- ]hier\b|\bhom kia\b|前天"),
        ("yesterday", r"(?<!before )\byesterday\b|\bgestern\b|\bayer\b|(?<!avant[- ])\bhier\b|\bhom qua\b|昨天|昨晚"),
        ("today", r"\btoday\b|\bheute\b|\bhoy\b|\baujourd'? ?hui\b|\bhom nay\b|今天"),
        ("week", r"\blast week\b|\b(?:letzte|vergangene|vorige)[rn]? woche\b|\bsemana pasada\b|\bsemaine (?:derniere|passee)\b"
                 r"|(?<!\d )\btuan truoc\b|上(?:个)?(?:周|星期|礼拜)"),
        ("this week", r"\bthis week\b|\bdiese[rn]? woche\b|\besta semana\b|\bcette semaine\b"
                      r"|\btuan nay\b|(?:这|本)(?:个)?(?:周|星期)"),
        ("month", r"\blast month\b|\b(?:letzten|vergangenen|vorigen) monat\b|\bmes pasado\b|\bmois (?:dernier|passe)\b"
                  r"|(?<!\d )\bthang truoc\b|上个?月"),
        ("year", r"\blast year\b|\b(?:letztes|vergangenes|voriges) jahr\b|\bano pasado\b|\bannee (?:derniere|passee)\b"
                 r"|\bnam (?:ngoai|truoc)\b|去年"),
    )
)  # fmt: skip


def preference(text: str, now: float) -> Callable[[float, float], float] | None:
    """What a session counts in addition, by when it began and was last active; None where a text names no time."""
    spans = [(_moment(start), _moment(end)) for start, end in periods(text, datetime.fromtimestamp(now).date())]
    if not spans:
        return None

    def counts(began: float, active: float) -> float:
        return PREFERRED if any(began < end and active >= start for start, end in spans) else 0.0

    return counts


def periods(text: str, today: date) -> list[Period]:
    """The times a question names, each from its first day to the day after its last."""
    folded = fold(text).replace("\u2019", "'")
    return [*_relative(folded, today), *_calendar(folded, today)]


def _moment(day: date) -> float:
    try:
        return datetime(day.year, day.month, day.day).timestamp()
    except (OverflowError, OSError, ValueError):
        return 0.0


def _relative(text: str, today: date) -> Iterator[Period]:
    monday = today - timedelta(days=today.weekday())
    first = today.replace(day=1)
    month_before = (first - DAY).replace(day=1)
    spans = {
        "before": (today - 2 * DAY, today - DAY),
        "yesterday": (today - DAY, today),
        "today": (today, today + DAY),
        "week": (monday - 7 * DAY, monday),
        "this week": (monday, monday + 7 * DAY),
        "month": (month_before, first),
        "year": (date(today.year - 1, 1, 1), date(today.year, 1, 1)),
    }
    for name, pattern in _RELATIVE:
        found = pattern.search(text)
        if found and not (found[0] == "hier" and _GERMAN.search(text)):  # "here" in German
            yield spans[name]
    for ago in _AGO.finditer(text):
        unit = _UNITS[_one_of(ago, "unit")]
        then = today - timedelta(days=int(_one_of(ago, "count")) * unit)
        around = timedelta(days=0 if unit == 1 else unit // 2)
        yield then - around, then + around + DAY


def _calendar(text: str, today: date) -> Iterator[Period]:
    dated = False
    for found in _NAMED.finditer(text):
        month, day = found["month"], found["day"] or found["day2"]
        if month in _AMBIGUOUS and not (found["before"] or day or found["year"]):
            continue
        dated = True
        yield from _days(found["year"], _MONTHS[month], day, today)
    for found in _NUMBERED.finditer(text):
        dated = True
        yield from _days(_one_of(found, "year"), int(_one_of(found, "month")), _one_of(found, "day"), today)
    if not dated:
        for found in _YEAR_ALONE.finditer(text):
            year = int(_one_of(found, "year"))
            yield date(year, 1, 1), date(year + 1, 1, 1)


def _days(year: str | None, month: int, day: str | None, today: date) -> Iterator[Period]:
    """A month or a day of it, in the year that is named, else in each of the last ones."""
    for one in [int(year)] if year else range(today.year, today.year - YEARS, -1):
        try:
            start = date(one, month, int(day) if day else 1)
        except ValueError:  # 30 February, month 13
            continue
        if year or start <= today:
            yield start, start + (AFTER_A_DAY if day else AFTER_A_MONTH)


def _one_of(found: re.Match[str], name: str) -> str:
    """What one of the groups with this name, in whichever language, has found; "" for none."""
    for group, value in found.groupdict().items():
        if value and (group == name or group.startswith(f"{name}_")):
            return value
    return ""
