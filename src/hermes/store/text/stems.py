"""Word forms: stop words to leave out of a question, and endings to strip from a word.

Only questions that find too little as typed are relaxed with these; the index itself holds words as they are.
The rules are light on purpose: they unify forms of one word and leave short words alone. Where PyStemmer is installed (the
extra `meaning`), Snowball's stemmer of the question's language takes their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being below between both but by can
    could did do does doing done down during each ever few for from further get give given go got had has have having he her
    here hers him his how i if in into is it its itself just know last let like made make many may me might more most much
    must my near need no nor not now of off on once one only or other our ours out over own please put said same say see she
    should so some still such than that the their theirs them then there these they thing things think this those through to
    today together told too under until up us use used using very want was way we week well were what when where which while
    who whom whose why will with would yesterday yet you your yours remember remind again ago again earlier time talk talked
    wie was wer wo wann warum welche welcher welches der die das den dem des ein eine einen einem einer und oder aber nicht
    ist war sind waren wird werden haben hat hatte wir ich du er sie es ihr uns mich mir dir dich ihm ihn mit von zu zum zur
    auf aus bei für fur im in ins noch nochmal mal doch denn auch nur schon sehr so als wenn dass daß über uber nach vor
    el la los las un una unos unas y o pero no es era son eran fue ser que qué cual cuál cuales quien quién como cómo cuando
    cuándo donde dónde por para con sin sobre de del al se su sus mi mis tu tus nos me te lo le les yo nosotros ya más mas muy
    le la les un une des et ou mais ne pas est était sont qui que quoi quel quelle comment quand où pour avec sans sur dans du
    au aux ce cette ces il elle nous vous je tu on mon ma mes
    và là của có không cho với các những một được trong khi này đó thì mà ở ra vào đã sẽ đang bị tôi bạn chúng ta mình gì nào
    như thế sao đâu ai bao nhiêu va la cua co khong cho voi cac nhung mot duoc nay do thi ma da se dang toi ban gi nao
    и в во не что он на я с со как а то все она так его но да ты к у же вы за бы по только ее мне было вот от меня еще нет о
    из ему теперь когда даже ну ли если уже или ни быть был где какой какая какие мы
    في من على إلى عن ما هل هذا هذه التي الذي كان كانت أن إن مع لا ماذا متى أين كيف""".split()
)
STOP_PAIRS = frozenset(
    """我们 你们 他们 什么 怎么 怎样 哪个 哪里 哪些 那个 这个 这些 那些 是不 不是 可以 一下 上次 上周 之前 以前
    时候 有没 没有 了吗 的吗
    吗？ 了什 么时 是什 的是 帮我 请问 我的 你的 如何 为什 为何 多少 几个 还是 或者 应该 需要 记得 关于
    です ます した ない いる ある する なに 何を でし しょ たか すか どの どこ どう いつ だれ これ それ あの この その から まで
    という って のは のが のを には では とは ので のに こと もの よう でき きま まし
    습니 니다 어떤 무엇 어디 언제 우리 그때 지난 했던 하는 있는 인가 나요 까요 에서 으로
    อะไร ที่ ไหน อย่าง เมื่อ""".split()
)

# Longest first; a word keeps at least three letters.
_ENDINGS = (
    "izations", "ization", "isation", "fulness", "iveness", "ousness", "ational", "ments", "ment", "ations", "ation", "ators",
    "ator", "ingly", "edly", "ables", "able", "ibles", "ible", "ities", "ity", "iness", "ness", "ings", "ing", "ions", "ion",
    "ives", "ive", "ized", "ised", "izes", "ises", "ize", "ise", "ially", "ally", "iest", "ier", "ies", "ied", "ers", "er",
    "ors", "or", "est", "eds", "ed", "es", "ly", "al", "s", "e", "y",
)  # fmt: skip


# Words that are common in one language and rare in the others, as they are typed and without their marks.
LANGUAGES: dict[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in {
        "english": "the a an and of to in is are was were it that this i you he she we they my your his her our their what who"
        " where when how why which do does did have has had not with for on at from by be been can will would about there",
        "german": "der die das den dem des ein eine einen einem einer und ist war nicht ich du er sie wir ihr uns mein mit von zu"
        " auf für fur im wie wo wer was wann warum welche welcher welches worüber woruber habe hat haben wird wurde über uber",
        "spanish": "el los las un una y es era que qué cual cuál quién quien cómo como cuándo cuando dónde donde por para con de"
        " del al se su mi yo nos cuánto cuanto ha he fue está esta",
        "french": "le la les un une des et est était etait sont qui que quoi quel quelle où ou comment quand pour avec dans du au"
        " aux ce cette il elle nous vous je tu mon ma de en combien pourquoi",
        "russian": "и в не что он на я с как это она по но мы из у к за от о где когда кто какой почему",
    }.items()
}


def language_of(words: Iterable[str]) -> str:
    """The language most of whose common words are among these; English where none or several are."""
    typed = [word.lower().strip("?!.,:;¿¡\"'()") for word in words]
    counts = {name: sum(word in common for word in typed) for name, common in LANGUAGES.items()}
    best = max(counts, key=lambda name: counts[name])
    return "english" if counts[best] == counts["english"] else best


_SHARP_S = "\ue0df"  # private use


@lru_cache(maxsize=8)
def stemmer(language: str) -> Callable[[str], str]:
    """The function that stems a folded word: Snowball's for this language if it is installed, else the rules below."""
    try:
        import Stemmer
    except ImportError:
        return stem
    made: Any = Stemmer.Stemmer(language)

    @lru_cache(maxsize=16_384)
    def snowball(word: str) -> str:
        if len(word) <= 3 or not word.isalpha():
            return word
        # To Snowball ß is ss; but Maße (sizes) are no Masse (mass).
        return str(made.stemWord(word.replace("ß", _SHARP_S))).replace(_SHARP_S, "ß")

    return snowball


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """The part of a folded word that its forms share (deployed, deploying, deployment → deploy)."""
    if not word.isascii() or not word.isalpha() or len(word) < 5:
        return word
    previous, stemmed = word, _strip(word)
    while stemmed != previous:
        previous, stemmed = stemmed, _strip(stemmed)
    return stemmed


def _strip(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4 - (len(ending) == 1):
            base = word[: -len(ending)]
            if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "sl":
                base = base[:-1]
            return base
    return word
