"""Times in questions: "last week", "in May", "yesterday", "two weeks ago", "on Friday", "on 3 March", in English, German,
Spanish, French, Vietnamese and Chinese. Sessions of that time are preferred, the others stay: people speak of a day while it
lasts and for a while after. The words are as they are folded: without capitals and marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta

from hermes.store.text.index_text import fold, pieces
from hermes.store.text.stems import STOP_WORDS

PREFERRED = 9.0  # what a session of the time asked for counts in addition
EXACT = 7.0  # and more, where it is a day or a month
AFTER_A_MONTH, AFTER_A_DAY = timedelta(days=38), timedelta(days=9)  # from its beginning on
YEARS = 10  # a month or day without a year is looked for in so many
DAY = timedelta(days=1)
Period = tuple[date, date]

_MONTH_NAMES = (
    "january januar janner enero janvier", "february februar feber febrero fevrier", "march marz marzo mars",
    "april abril avril", "may mai mayo", "june juni junio juin", "july juli julio juillet", "august agosto aout",
    "september septiembre setiembre septembre", "october oktober octubre octobre",
    "november noviembre novembre", "december dezember diciembre decembre",
)  # fmt: skip
_MONTH_SHORT = (
    "jan ene janv", "feb fevr", "mar", "apr abr avr", "", "jun", "jul juil", "aug", "sep sept", "oct okt", "nov", "dec dez dic",
)  # fmt: skip
MONTHS = {
    name: number
    for names in (_MONTH_NAMES, _MONTH_SHORT)
    for number, some in enumerate(names, 1)
    for name in some.split()
}
SHORT_MONTHS = frozenset(name for names in _MONTH_SHORT for name in names.split())
AMBIGUOUS_MONTHS = frozenset("may march mars mai".split()) | SHORT_MONTHS
"""Other words, too: they need a number or a preposition beside them."""
BEFORE_SHORT_MONTHS = frozenset("in im since seit last until early late mid".split())
PEOPLE = frozenset("april june august julio avril".split())
"""Names of people, too: after one of these words, or with an s after them, they are no months."""
BEFORE_PEOPLE = frozenset(
    "did does do has had have is was will would can could should tell told ask asked and or with what".split()
)
BEFORE_MONTHS = (
    "in|im|en|of|de|last|since|seit|during|until|bis|ab|by|around|from|early|late|mid|anfang|mitte|ende|debut|fin|mi|mediados de"
    "|principios de|finales de|depuis|desde|hasta"
)
MONTHS_IN_WORDS = {
    "一": 1, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9, "十": 10, "十一": 11, "十二": 12,
    "gieng": 1, "hai": 2, "ba": 3, "tu": 4, "nam": 5, "sau": 6, "bay": 7, "tam": 8, "chin": 9, "muoi": 10, "muoi mot": 11,
    "muoi hai": 12, "chap": 12,
}  # fmt: skip

WEEKDAYS = {
    name: number
    for number, names in enumerate(
        (
            "monday montag lunes lundi", "tuesday dienstag martes mardi", "wednesday mittwoch miercoles mercredi",
            "thursday donnerstag jueves jeudi", "friday freitag viernes vendredi",
            "saturday samstag sonnabend sabado samedi", "sunday sonntag domingo dimanche",
        )
    )
    for name in names.split()
}  # fmt: skip
WEEKDAYS_VI = {"hai": 0, "ba": 1, "tu": 2, "nam": 3, "sau": 4, "bay": 5}
WEEKDAYS_ZH = {"一": 0, "二": 1, "三": 2, "四": 3, "五": 4, "六": 5, "日": 6, "天": 6}

NUMBERS = {
    word: float(value)
    for words, value in (
        ("a an one eine einer einem einen un una une mot 一", 1), ("two couple zwei dos deux hai 二 两", 2),
        ("three few several drei paar tres unos unas trois quelques ba vai 三 几", 3), ("four vier cuatro quatre bon 四", 4),
        ("five funf cinco cinq nam 五", 5), ("six sechs seis sau 六", 6), ("seven sieben siete sept bay 七", 7),
        ("eight acht ocho huit tam 八", 8), ("nine neun nueve neuf chin 九", 9), ("ten zehn diez dix muoi 十", 10),
        ("half halben medio media nua 半", 0.5),
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

RELATIVE = (
    ("three days", r"大前天"),
    ("before", r"\bday before yesterday\b|\bvorgestern\b|\banteayer\b|\bantier\b|\bavant[- ]hier\b|\bhom kia\b|(?<!大)前天"),
    ("yesterday", r"(?<!before )\byesterday\b|\blast night\b|\bgestern\b|\bletzte nacht\b|\bayer\b|\banoche\b"
                  r"|(?<!avant[- ])\bhier\b|\bnuit derniere\b|\bhom qua\b|\b(?:sang|trua|chieu|toi|dem) qua\b|昨[天晚日]"),
    ("today", r"\btoday\b|\bthis (?:morning|afternoon|evening)\b|\btonight\b|\bheute\b|\bhoy\b|\besta (?:manana|tarde|noche)\b"
              r"|\baujourd'? ?hui\b|\bce (?:matin|soir)\b|\bcet apres[- ]midi\b"
              r"|\bhom nay\b|\b(?:sang|trua|chieu|toi) nay\b|今[天早晚日]"),
    ("week before", r"\bweek before last\b|\bvorletzte[rn]? woche\b|\bsemana antepasada\b|\bavant[- ]derniere semaine\b"
                    r"|\btuan truoc nua\b|上上(?:个)?(?:周|星期|礼拜)"),
    ("weekend", r"\b(?:last|past|this|previous|over the|at the|on the) week[- ]?end\b"
                r"|\b(?:letzte[sn]|vergangene[sn]|dieses|am) wochenende\b"
                r"|\b(?:el|este|pasado) fin de semana\b|\b(?:le|ce) week[- ]?end\b|\bcuoi tuan (?:truoc|qua|nay|roi|vua)\b"
                r"|(?:上|这|本)个?周末"),
    ("week", r"\b(?:last|past|previous) week\b(?!end|[- ]end)|\b(?:letzte|vergangene|vorige)[rn]? woche\b|\bsemana pasada\b"
             r"|\bpasada semana\b|\bsemaine (?:derniere|passee)\b|(?<!cuoi )\btuan (?:truoc|qua|roi)\b(?! nua)"
             r"|(?<!上)上(?:个)?(?:周(?!末)|星期|礼拜)"),
    ("this week", r"\bthis week\b(?!end|[- ]end)|\bdiese[rn]? woche\b|\besta semana\b|\bcette semaine\b"
                  r"|(?<!cuoi )\btuan nay\b|(?:这|本)(?:个)?(?:周(?!末)|星期)"),
    ("month", r"\b(?:last|past|previous) month\b|\b(?:letzten|vergangenen|vorigen) monat\b|\bmes pasado\b|\bpasado mes\b"
              r"|\bmois (?:dernier|passe)\b|\bthang (?:truoc|qua|roi)\b|上个?月"),
    ("this month", r"\bthis month\b|\bdiese[nm] monat\b|\beste mes\b|\bce mois\b|\bthang nay\b|(?:这个|本)月"),
    ("year", r"\b(?:last|past|previous) year\b|\b(?:letzte|vergangene|vorige)[sn] jahr\b|\bano pasado\b|\bpasado ano\b"
             r"|\bannee (?:derniere|passee)\b|\ban (?:dernier|passe)\b|\bnam (?:ngoai|truoc)\b|去年"),
    ("this year", r"\bthis year\b|\bdiese[sm] jahr\b|\beste ano\b|\bcette annee\b|\bnam nay\b|今年"),
)  # fmt: skip

TALKED = frozenset(
    """talk talked talking discuss discussed discussing speak spoke spoken say said happen happened happening work worked working
    plan planned decide decided chat chatted conversation conversations session sessions topic topics write wrote written
    gesprochen sprachen geredet redeten besprochen gemacht getan passiert geschehen beschlossen entschieden gearbeitet
    unterhalten woruber woran worum ging geschrieben geplant gab los
    hablamos hablado hablabamos dijimos discutimos decidimos decidido hicimos hecho paso trabajamos conversamos hemos escribimos
    parle parlions parlait discute dit fait decide passe travaille ecrit avons avez s c
    noi chuyen ban ve lam quyet dinh trao doi xay thao luan viec gi minh chung voi nhau""".split()
)
"""Words that name no topic: a question of these and a time asks for what was said then, whatever it was."""
TALKED_ZH = frozenset("我们你咱他都一起了过的什么啥哪些聊说谈讨论做干决定发生天事情话题计划写吗呢在和跟")

# ---------------------------------------------------------------------------------------- patterns


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
_GERMAN = re.compile(r"\b(?:ist|was|wir|und|der|die|das|ich|haben|hat|war|wo|wer|wie)\b")
_RELATIVE = tuple((name, re.compile(pattern)) for name, pattern in RELATIVE)


def spans(text: str, now: float) -> list[tuple[float, float]]:
    """The times a question names, each from a moment to another."""
    return [(_moment(start), _moment(end)) for start, end in periods(text, datetime.fromtimestamp(now).date())]


def preference(times: Sequence[tuple[float, float]]) -> Callable[[float, float], float] | None:
    """A function that gives the additional score of a session, by when it began and was last active; None for no times."""
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
    for name in found:
        if name not in ("week", "this week") or not weekdays:  # else Monday of last week
            spans += _span(name, today, monday)
    for words in found.values():
        text = text.replace(words, " ")
    return [*spans, *weekdays], text


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


def _calendar(text: str, today: date) -> Iterator[Period]:
    dated = False
    for found in _NAMED.finditer(text):
        month, day = found["month"], found["day"] or found["day2"]
        is_certain = found["before"] or day or found["year"]
        if month in SHORT_MONTHS and not (day or found["year"]) and found["before"] not in BEFORE_SHORT_MONTHS:
            continue
        if not is_certain and (month in AMBIGUOUS_MONTHS or (month in PEOPLE and _is_a_person(text, found))):
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
    """The text that one of the groups with this name, in whichever language, has found; "" for none."""
    for group, value in found.groupdict().items():
        if value and (group == name or group.startswith(f"{name}_")):
            return value
    return ""
