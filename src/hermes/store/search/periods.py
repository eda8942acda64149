"""Times in questions: "last week", "in May", "yesterday", "two weeks ago", "on Friday", "on 3 March", in English, German,
Spanish, French, Vietnamese and Chinese. Sessions of that time are preferred, the others stay: people speak of a day while it
lasts and for a while after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta

from hermes.store.index_text import fold, pieces
from hermes.store.search.period_words import (
    AMBIGUOUS_MONTHS,
    AMBIGUOUS_SEASONS,
    BEFORE_MONTHS,
    BEFORE_PEOPLE,
    BEFORE_SEASONS,
    BEFORE_SHORT_MONTHS,
    MONTHS,
    MONTHS_IN_WORDS,
    NUMBERS,
    PEOPLE,
    RELATIVE,
    SEASONS,
    SHORT_MONTHS,
    TALKED,
    TALKED_ZH,
    UNITS,
    VAGUE,
    WEEKDAYS,
    WEEKDAYS_VI,
    WEEKDAYS_ZH,
)
from hermes.store.stems import STOP_WORDS

PREFERRED = 13.0  # what a session of the time asked for counts in addition
AFTER_A_MONTH, AFTER_A_DAY = timedelta(days=38), timedelta(days=9)  # from its beginning on
YEARS = 10  # a month or day without a year is looked for in so many
DAY = timedelta(days=1)
Period = tuple[date, date]


def _either(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_YEAR = r"(?:19|20)\d\d"
_NAMED = re.compile(
    rf"(?:\b(?P<before>{BEFORE_MONTHS})[\s-]+)?"
    r"(?:\b(?P<day>\d{1,2})(?:st|nd|rd|th|er|\.)?\s+(?:of\s+|de\s+)?)?"
    rf"\b(?P<month>{_either(MONTHS)})\b\.?"
    rf"(?:\s+(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:))?(?:,?\s+(?:of\s+|de\s+|del\s+)?(?P<year>{_YEAR})\b)?"
)
_NUMBERED = re.compile(  # Vietnamese, Chinese, ISO 8601
    rf"(?:\bngay\s+(?P<day>\d{{1,2}})\s+)?\bthang\s+(?P<month>\d{{1,2}}|{_either(filter(str.isascii, MONTHS_IN_WORDS))})\b"
    rf"(?!\s+(?:truoc|qua|nay))(?:\s+(?:nam\s+)?(?P<year>{_YEAR}))?"
    rf"|(?:(?P<year_zh>{_YEAR})\s*年\s*)?(?<![\d个])(?P<month_zh>\d{{1,2}}|十[一二]?|[一二三四五六七八九])\s*月"
    r"(?:份|\s*(?P<day_zh>\d{1,2}|[一二三四五六七八九十]{1,3})\s*[日号])?"
    rf"|\b(?P<year_iso>{_YEAR})-(?P<month_iso>\d\d)(?:-(?P<day_iso>\d\d))?\b"
)
# 3.5.2024, 3/5/2024, 3-5-2024; without a year only after a word that says it is a day.
_DIGITS = re.compile(
    rf"\b(?P<first>\d{{1,2}})(?P<sign>[./-])(?P<second>\d{{1,2}})(?P=sign)(?P<year>{_YEAR})\b"
    r"|\b(?:(?:am|vom)\s+|(?:on|el|le|ngay)\s+(?=\d+/))"
    r"(?P<first_short>\d{1,2})(?P<sign_short>[./])(?P<second_short>\d{1,2})\b\.?(?![\d/.])"
)
_YEAR_ALONE = re.compile(
    rf"\b(?:in|im jahr|im jahre|en|nam|since|seit|desde|depuis|early|late|mid|anfang|mitte|ende)[\s-]+(?P<year>{_YEAR})\b"
    rf"|(?P<year_zh>{_YEAR})\s*年(?!\s*\d)"
)
_COUNT = rf"\d{{1,3}}|{_either(filter(str.isascii, NUMBERS))}"
_AGO = re.compile(
    rf"\b(?P<count>{_COUNT})\s+(?:of\s+|a\s+)?(?P<unit>day|week|month|year)s?\s+(?:ago|back|earlier)\b"
    rf"|\bvor\s+(?:ein(?:em)? )?(?P<count_de>{_COUNT})\s+(?P<unit_de>tag|woche|monat|jahr)\w*"
    rf"|\bhace\s+(?P<count_es>{_COUNT})\s+(?P<unit_es>dia|semana|mes|ano)\w*"
    rf"|\bil y a\s+(?P<count_fr>{_COUNT})\s+(?P<unit_fr>jour|semaine|mois|an)(?:nee)?s?\b"
    rf"|(?<!thu )\b(?P<count_vi>{_COUNT})\s+(?P<unit_vi>ngay|tuan|thang|nam)\s+truoc\b(?! nua)"
    r"|(?P<count_zh>\d{1,3}|[一二两三四五六七八九十几半])\s*个?(?P<unit_zh>天|周|星期|礼拜|月|年)(?:以|之)?前"
)
_WEEKDAY = re.compile(
    r"\b(?:on|last|past|this|since|am|letzten|vergangenen|vorigen|diesen|seit|el|este|pasado|le|ce)\s+"
    rf"(?P<day>{_either(WEEKDAYS)})\b(?! prochain| que viene| proximo)"
    rf"|\b(?P<day_past>{_either(WEEKDAYS)})\s+(?:pasado|dernier|passe|morning|afternoon|evening|night|last week)\b"
    rf"|\b(?:woche|week|semana pasada|semaine derniere)\s+(?P<day_of>{_either(WEEKDAYS)})\b"
    r"|\b(?:hom|vao|sang|chieu|toi)\s+(?:thu (?P<day_vi>hai|ba|tu|nam|sau|bay)|(?P<sunday_vi>chu nhat))\b"
    r"|\b(?:thu (?P<day_vi2>hai|ba|tu|nam|sau|bay)|(?P<sunday_vi2>chu nhat))\s+(?:tuan|vua|truoc|nay)\b"
    r"|(?<![一二两三四五六七八九十几每下\d])(?:周|星期|礼拜)(?P<day_zh>[一二三四五六日天])"
)
_SEASON_NAMES = "|".join(rf"(?P<s{month}>\b(?:{latin})\b|{chinese})" for month, (latin, chinese) in SEASONS.items())
_SEASON = re.compile(
    rf"(?:\b(?P<before>{BEFORE_SEASONS})(?:[\s']+(?:the|l|el))?[\s']+)?(?:{_SEASON_NAMES})"
    rf"(?:\s+(?:of\s+|de\s+|del\s+|nam\s+)?(?P<year>{_YEAR}))?(?P<past>\s+(?:pasado|dernier))?"
)
_GERMAN = re.compile(r"\b(?:ist|was|wir|und|der|die|das|ich|haben|hat|war|wo|wer|wie)\b")
_RELATIVE = tuple((name, re.compile(pattern)) for name, pattern in RELATIVE)


def spans(text: str, now: float) -> list[tuple[float, float]]:
    """The times a question names, each from a moment to another."""
    return [(_moment(start), _moment(end)) for start, end in periods(text, datetime.fromtimestamp(now).date())]


def preference(times: Sequence[tuple[float, float]]) -> Callable[[float, float], float] | None:
    """What a session counts in addition, by when it began and was last active; None for no times."""
    if not times:
        return None

    def counts(began: float, active: float) -> float:
        return PREFERRED if any(began < end and active >= start for start, end in times) else 0.0

    return counts


def periods(text: str, today: date) -> list[Period]:
    """The times a question names, each from its first day to the day after its last."""
    try:
        spans, rest = _relative(_folded(text), today)
        return [*spans, *_calendar(rest, today)]
    except OverflowError:  # the first days of the calendar
        return []


def without_times(text: str, now: float) -> str:
    """A question, folded, without the words that count from today ("two weeks ago"): messages of that day do not have them."""
    try:
        return _relative(_folded(text), datetime.fromtimestamp(now).date())[1]
    except OverflowError:
        return fold(text)


def names_no_topic(text: str, now: float) -> bool:
    """Whether a question asks what was said at a time, whatever it was: "what did we talk about last week"."""
    return all(
        piece in STOP_WORDS or piece in TALKED or set(piece) <= TALKED_ZH for piece in pieces(without_times(text, now))
    )


def _folded(text: str) -> str:
    return fold(text).replace("\u2019", "'")


def _moment(day: date) -> float:
    try:
        return datetime(day.year, day.month, day.day).timestamp()
    except (OverflowError, OSError, ValueError):
        return 0.0


def _relative(text: str, today: date) -> tuple[list[Period], str]:
    """The times that are counted from today, and the text without the words for them."""
    spans = []
    for ago in [*_AGO.finditer(text)]:
        spans.append(_ago(_one_of(ago, "count"), UNITS[_one_of(ago, "unit")], today))
        text = text.replace(ago[0], " ", 1)
    found = {}
    for name, pattern in _RELATIVE:
        match = pattern.search(text)
        if match and not (match[0] == "hier" and _GERMAN.search(text)):  # "here" in German
            found[name] = match[0]
    monday = today - timedelta(days=today.weekday())
    weekdays = list(_weekdays(text, today, monday, found))
    seasons = list(_seasons(text, today, "year" in found))
    for name in found:
        if (name in ("week", "this week") and weekdays) or (name == "year" and seasons):
            continue  # Monday of last week, last year's summer
        spans += _span(name, today, monday)
    for words in found.values():
        text = text.replace(words, " ")
    return [*spans, *weekdays, *seasons], text


def _span(name: str, today: date, monday: date) -> list[Period]:
    first = today.replace(day=1)
    if name == "weekend":
        saturday = monday + 5 * DAY if today.weekday() >= 5 else monday - 2 * DAY
        return [(saturday, saturday + 2 * DAY), *([(saturday - 7 * DAY, monday)] if today.weekday() >= 5 else [])]
    if name.endswith("month"):
        if name == "month":
            return [((first - DAY).replace(day=1), first)]
        return [(first, (first + timedelta(days=31)).replace(day=1))]
    if name.endswith("year"):
        year = today.year - (name == "year")
        return [(date(year, 1, 1), date(year + 1, 1, 1))]
    if "week" in name:
        start = monday - 7 * DAY * {"week before": 2, "week": 1, "this week": 0}[name]
        return [(start, start + 7 * DAY)]
    day = today - DAY * {"three days": 3, "before": 2, "yesterday": 1, "today": 0}[name]
    return [(day, day + DAY)]


def _ago(count: str, unit: int, today: date) -> Period:
    number = NUMBERS.get(count) or float(count)
    then = today - timedelta(days=round(number * unit))
    around = timedelta(days=int(min(number, 1.0) * unit / 2) if unit > 1 else 2 if count in VAGUE else 0)
    return then - around, then + around + DAY


def _weekdays(text: str, today: date, monday: date, found: dict[str, str]) -> Iterator[Period]:
    """The last days of these names; in the week that is named beside them, if one is."""
    for match in _WEEKDAY.finditer(text):
        if named := match["day"] or match["day_past"] or match["day_of"]:
            number = WEEKDAYS[named]
        elif match["day_zh"]:
            number = WEEKDAYS_ZH[match["day_zh"]]
        else:
            number = WEEKDAYS_VI.get(match["day_vi"] or match["day_vi2"] or "", 6)
        if "week" in found or "this week" in found:
            day = monday + (number - (7 if "week" in found else 0)) * DAY
            yield day, day + DAY
            continue
        day = today - ((today.weekday() - number) % 7) * DAY
        yield day, day + DAY
        if day == today:
            yield day - 7 * DAY, day - 6 * DAY


def _seasons(text: str, today: date, last_year: bool) -> Iterator[Period]:
    for match in _SEASON.finditer(text):
        month = next(one for one in SEASONS if match[f"s{one}"])
        if match[f"s{month}"] in AMBIGUOUS_SEASONS and not (
            match["before"] or match["year"] or match["past"] or last_year
        ):
            continue
        years = (
            [int(match["year"])] if match["year"] else [today.year - 1] if last_year else [today.year, today.year - 1]
        )
        for start in [one for year in years if (one := date(year, month, 1)) <= today or match["year"]]:
            yield start, start + timedelta(days=92) + AFTER_A_DAY
            if start + timedelta(days=92) <= today:  # else "last summer" may be this one or the one before
                break


def _calendar(text: str, today: date) -> Iterator[Period]:
    dated = False
    for found in _NAMED.finditer(text):
        month, day = found["month"], found["day"] or found["day2"]
        told = found["before"] or day or found["year"]
        if month in SHORT_MONTHS and not (day or found["year"]) and found["before"] not in BEFORE_SHORT_MONTHS:
            continue
        if not told and (month in AMBIGUOUS_MONTHS or (month in PEOPLE and _is_a_person(text, found))):
            continue
        dated = True
        yield from _days(found["year"], MONTHS[month], day, today)
    for found in _NUMBERED.finditer(text):
        dated = True
        named, day = _one_of(found, "month"), _one_of(found, "day")
        month_number = MONTHS_IN_WORDS.get(named) or int(named)
        yield from _days(_one_of(found, "year"), month_number, _chinese(day), today)
    for found in _DIGITS.finditer(text):
        dated = True
        first, second = int(_one_of(found, "first")), int(_one_of(found, "second"))
        yield from _days(found["year"], second, str(first), today)
        if _one_of(found, "sign") == "/" and first != second:  # the month first, as in America
            yield from _days(found["year"], first, str(second), today)
    if not dated:
        for found in _YEAR_ALONE.finditer(text):
            year = int(_one_of(found, "year"))
            yield date(year, 1, 1), date(year + 1, 1, 1)


def _is_a_person(text: str, found: re.Match[str]) -> bool:
    """Whether April is a person: "What did April say", "June's party"."""
    before = text[: found.start("month")].split()
    return text[found.end("month") :].startswith("'s") or bool(before and before[-1] in BEFORE_PEOPLE)


def _chinese(day: str) -> str:
    """A day in Chinese numerals as digits; digits as they are."""
    if not day or day.isascii():
        return day
    tens, ten, ones = day.rpartition("十")
    value = MONTHS_IN_WORDS.get(ones, 0) + (10 * MONTHS_IN_WORDS.get(tens, 1) if ten else 0)
    return str(value)


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
