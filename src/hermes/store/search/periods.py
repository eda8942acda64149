"""Times in questions: "last week", "in May", "yesterday", "two weeks ago", "on Friday", "on 3 March", in English, German,
Spanish, French, Vietnamese and Chinese. Sessions of that time are preferred, the others stay: people speak of a day while it
lasts and for a while after. The words are as they are folded: without capitals and marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta

from hermes.store.text.index_text import fold
from hermes.store.text.stems import language_of

PREFERRED = 9.0  # what a session of the time asked for counts in addition
EXACT = 7.0  # and more, where it is a day or a month
AFTER_A_MONTH, AFTER_A_DAY = timedelta(days=38), timedelta(days=9)  # from its beginning on
YEARS = 10  # a month or day without a year is looked for in so many
DAY = timedelta(days=1)
Period = tuple[date, date]

# Names of months and weekdays in English, German, Spanish and French.
_MONTH_NAMES = (
    "january jan januar janner enero ene janvier janv", "february feb februar feber febrero fevrier fevr",
    "march mar marz marzo mars", "april apr abril abr avril avr", "may mai mayo", "june jun juni junio juin",
    "july jul juli julio juillet juil", "august aug agosto aout", "september sep sept septiembre setiembre septembre",
    "october oct oktober okt octubre octobre", "november nov noviembre novembre",
    "december dec dezember dez diciembre dic decembre",
)  # fmt: skip
_WEEKDAY_NAMES = (
    "monday montag lunes lundi", "tuesday dienstag martes mardi", "wednesday mittwoch miercoles mercredi",
    "thursday donnerstag jueves jeudi", "friday freitag viernes vendredi",
    "saturday samstag sonnabend sabado samedi", "sunday sonntag domingo dimanche",
)  # fmt: skip
MONTHS = {name: number for number, names in enumerate(_MONTH_NAMES, 1) for name in names.split()}
WEEKDAYS = {name: number for number, names in enumerate(_WEEKDAY_NAMES) for name in names.split()}
# In Vietnamese and Chinese they are numbered; these are no names where they stand alone.
_NUMBERED_MONTHS = {
    "一": 1, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9, "十": 10, "十一": 11, "十二": 12,
    "gieng": 1, "hai": 2, "ba": 3, "tu": 4, "nam": 5, "sau": 6, "bay": 7, "tam": 8, "chin": 9, "muoi": 10, "muoi mot": 11,
    "muoi hai": 12, "chap": 12,
}  # fmt: skip
_NUMBERED_WEEKDAYS = {
    "thu hai": 0, "thu ba": 1, "thu tu": 2, "thu nam": 3, "thu sau": 4, "thu bay": 5, "chu nhat": 6,
    "一": 0, "二": 1, "三": 2, "四": 3, "五": 4, "六": 5, "日": 6, "天": 6,
}  # fmt: skip
NUMBERS = {
    word: value
    for value, words in enumerate(
        (
            "a an one eine einer einem einen un una une mot 一", "two couple zwei dos deux hai 二 两",
            "three few several drei paar tres unos unas trois quelques ba vai 三 几", "four vier cuatro quatre bon 四",
            "five funf cinco cinq nam 五", "six sechs seis sau 六", "seven sieben siete sept bay 七",
            "eight acht ocho huit tam 八", "nine neun nueve neuf chin 九", "ten zehn diez dix muoi 十",
        ),
        1,
    )
    for word in words.split()
}  # fmt: skip
VAGUE = frozenset("couple few several paar unos unas quelques vai 几".split())
UNITS = {
    word: days
    for words, days in (
        ("day tag dia jour ngay 天", 1), ("week woche semana semaine tuan 周 星期 礼拜", 7),
        ("month monat mes mois thang 月", 30), ("year jahr ano an nam 年", 365),
    )
    for word in words.split()
}  # fmt: skip
RELATIVE = {
    "today": r"\btoday\b|\bthis (?:morning|afternoon|evening)\b|\btonight\b|\bheute\b|\bhoy\b|\baujourd'? ?hui\b|\bhom nay\b"
             r"|今[天早晚日]",
    "yesterday": r"(?<!before )\byesterday\b|\blast night\b|\bgestern\b|\bayer\b|\banoche\b|(?<!avant[- ])\bhier\b"
                 r"|\b(?:hom|toi) qua\b|昨[天晚日]",
    "week": r"\b(?:last|past|previous) week\b(?!end|[- ]end)|\b(?:letzte|vergangene|vorige)[rn]? woche\b|\bsemana pasada\b"
            r"|\bpasada semana\b|\bsemaine (?:derniere|passee)\b|(?<!cuoi )\btuan (?:truoc|qua|roi)\b(?! nua)"
            r"|(?<!上)上(?:个)?(?:周(?!末)|星期|礼拜)",
    "month": r"\b(?:last|past|previous) month\b|\b(?:letzten|vergangenen|vorigen) monat\b|\bmes pasado\b|\bpasado mes\b"
             r"|\bmois (?:dernier|passe)\b|\bthang (?:truoc|qua|roi)\b|上个?月",
    "year": r"\b(?:last|past|previous) year\b|\b(?:letzte|vergangene|vorige)[sn] jahr\b|\bano pasado\b|\bpasado ano\b"
            r"|\bannee (?:derniere|passee)\b|\ban (?:dernier|passe)\b|\bnam (?:ngoai|truoc)\b|去年",
}  # fmt: skip

# ---------------------------------------------------------------------------------------- patterns


def _either(words: Iterable[str]) -> str:
    """A pattern for one of these words, without those in Chinese."""
    return "|".join(sorted(filter(str.isascii, words), key=len, reverse=True))


_YEAR = r"(?:19|20)\d\d"
# A month alone may be another word (may, mars) or a person (April, June): a preposition, a day or a year stands beside it.
_NAMED = re.compile(
    r"(?:\b(?P<before>in|im|en|of|de|last|since|seit|depuis|desde|until|bis|early|late|mid|anfang|mitte|ende)[\s-]+)?"
    r"(?:\b(?P<day>\d{1,2})(?:st|nd|rd|th|er|\.)?\s+(?:of\s+|de\s+)?)?"
    rf"\b(?P<month>{_either(MONTHS)})\b\.?"
    rf"(?:\s+(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:))?(?:,?\s+(?:of\s+|de\s+|del\s+)?(?P<year>{_YEAR})\b)?"
)
_NUMBERED = re.compile(  # Vietnamese, Chinese, ISO 8601
    rf"(?:\bngay\s+(?P<day>\d{{1,2}})\s+)?\bthang\s+(?P<month>\d{{1,2}}|{_either(_NUMBERED_MONTHS)})\b"
    rf"(?!\s+(?:truoc|qua|nay))(?:\s+(?:nam\s+)?(?P<year>{_YEAR}))?"
    rf"|(?:(?P<year_zh>{_YEAR})\s*年\s*)?(?<![\d个])(?P<month_zh>\d{{1,2}}|十[一二]?|[一二三四五六七八九])\s*月"
    r"(?:份|\s*(?P<day_zh>\d{1,2})\s*[日号])?"
    rf"|\b(?P<year_iso>{_YEAR})-(?P<month_iso>\d\d)(?:-(?P<day_iso>\d\d))?\b"
)
_YEAR_ALONE = re.compile(rf"\b(?:in|im jahr|en|nam|since|seit|desde|depuis)\s+({_YEAR})\b|({_YEAR})\s*年(?!\s*\d)")
_COUNT = rf"\d{{1,3}}|{_either(NUMBERS)}"
_AGO = re.compile(
    rf"\b(?P<count>{_COUNT})\s+(?:of\s+|a\s+)?(?P<unit>day|week|month|year)s?\s+(?:ago|back|earlier)\b"
    rf"|\bvor\s+(?:ein(?:em)? )?(?P<count_de>{_COUNT})\s+(?P<unit_de>tag|woche|monat|jahr)\w*"
    rf"|\bhace\s+(?P<count_es>{_COUNT})\s+(?P<unit_es>dia|semana|mes|ano)\w*"
    rf"|\bil y a\s+(?P<count_fr>{_COUNT})\s+(?P<unit_fr>jour|semaine|mois|an)(?:nee)?s?\b"
    rf"|(?<!thu )\b(?P<count_vi>{_COUNT})\s+(?P<unit_vi>ngay|tuan|thang|nam)\s+truoc\b(?! nua)"
    r"|(?P<count_zh>\d{1,3}|[一二两三四五六七八九十几])\s*个?(?P<unit_zh>天|周|星期|礼拜|月|年)(?:以|之)?前"
)
_DAYS = _either({**WEEKDAYS, **_NUMBERED_WEEKDAYS})
_WEEKDAY = re.compile(
    r"\b(?:on|last|past|this|since|week|am|letzten|vergangenen|diesen|seit|woche|el|este|pasado|le|ce|hom|vao)\s+"
    rf"(?P<day>{_DAYS})\b(?! prochain| que viene| proximo)"
    rf"|\b(?P<day_past>{_DAYS})\s+(?:pasado|dernier|passe|morning|afternoon|evening|night|last week|tuan|vua|truoc|nay)\b"
    r"|(?<![一二两三四五六七八九十几每下\d])(?:周|星期|礼拜)(?P<day_zh>[一二三四五六日天])"
)
_RELATIVE = {name: re.compile(pattern) for name, pattern in RELATIVE.items()}


def preference(text: str, now: float) -> Callable[[float, float], float] | None:
    """A function that gives the additional score of a session, by when it began and was last active; None where a question
    names no time."""
    named = periods(text, datetime.fromtimestamp(now).date())
    times = [(_moment(start), _moment(end)) for start, end in named]
    if not times:
        return None

    def counts(began: float, active: float) -> float:
        fitting = [end - start for start, end in times if began < end and active >= start]
        return (PREFERRED + EXACT * (min(fitting) < 32 * 86400)) if fitting else 0.0

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
    with suppress(OverflowError):
        return _relative(_folded(text), datetime.fromtimestamp(now).date())[1]
    return fold(text)


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
    for name, pattern in _RELATIVE.items():
        match = pattern.search(text)
        if match and not (match[0] == "hier" and language_of(text.split()) == "german"):  # "here"
            found[name] = match[0]
    weekdays = list(_weekdays(text, today, in_last_week="week" in found))
    for name in found:
        if name != "week" or not weekdays:  # else Monday of last week
            spans.append(_span(name, today))
    for words in found.values():
        text = text.replace(words, " ")
    return [*spans, *weekdays], text


def _span(name: str, today: date) -> Period:
    if name == "year":
        return date(today.year - 1, 1, 1), date(today.year, 1, 1)
    if name == "month":
        first = today.replace(day=1)
        return (first - DAY).replace(day=1), first
    if name == "week":
        monday = today - timedelta(days=today.weekday())
        return monday - 7 * DAY, monday
    day = today if name == "today" else today - DAY
    return day, day + DAY


def _ago(count: str, unit: int, today: date) -> Period:
    number = NUMBERS.get(count) or int(count)
    then = today - timedelta(days=number * unit)
    around = timedelta(days=unit // 2 if unit > 1 else 2 if count in VAGUE else 0)
    return then - around, then + around + DAY


def _weekdays(text: str, today: date, *, in_last_week: bool) -> Iterator[Period]:
    """The last days of these names."""
    for match in _WEEKDAY.finditer(text):
        name = _one_of(match, "day")
        number = {**WEEKDAYS, **_NUMBERED_WEEKDAYS}[name]
        back = today.weekday() + 7 - number if in_last_week else (today.weekday() - number) % 7
        day = today - back * DAY
        yield day, day + DAY
        if day == today:
            yield day - 7 * DAY, day - 6 * DAY


def _calendar(text: str, today: date) -> Iterator[Period]:
    dated = False
    for found in _NAMED.finditer(text):
        month, day = found["month"], found["day"] or found["day2"]
        if day or found["year"] or (found["before"] and (len(month) > 3 or month in ("may", "mai"))):
            dated = True
            yield from _days(found["year"], MONTHS[month], day, today)
    for found in _NUMBERED.finditer(text):
        dated = True
        named = _one_of(found, "month")
        month_number = _NUMBERED_MONTHS.get(named) or int(named)
        yield from _days(_one_of(found, "year"), month_number, _one_of(found, "day"), today)
    if not dated:
        for found in _YEAR_ALONE.finditer(text):
            year = int(found[1] or found[2])
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
    """The text that one of the groups with this name, in whichever language, has found; "" for none."""
    for group, value in found.groupdict().items():
        if value and (group == name or group.startswith(f"{name}_")):
            return value
    return ""
