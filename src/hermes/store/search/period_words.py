"""The words for times, in English, German, Spanish, French, Vietnamese and Chinese, as they are without capitals and marks."""

from __future__ import annotations

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

SEASONS = {  # by their first month, in the north
    3: ("spring|fruhling|fruhjahr|primavera|printemps|mua xuan", "春天|春季"),
    6: ("summer|sommer|verano|ete|mua he|mua ha", "夏天|夏季"),
    9: ("autumn|fall|herbst|otono|automne|mua thu", "秋天|秋季"),
    12: ("winter|invierno|hiver|mua dong", "冬天|冬季"),
}
AMBIGUOUS_SEASONS = frozenset("spring fall ete summer sommer winter herbst".split())
"""Other words or names of people, too: they need a preposition before or a year after them."""
BEFORE_SEASONS = r"in|last|this|past|during|since|im|letzten|vergangenen|diesen|en|cet|l|el|pasado"

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
