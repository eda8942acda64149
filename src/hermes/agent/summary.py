"""Summaries made from the text of the conversation itself, for when no model can write them, and the analysis they rest on.

A summary has the five parts that a model would write (goal, decisions, facts, open work, files); it quotes sentences and
lists every particular (file, identifier, number) that the quoted sentences don't contain, as far as there is room.

The analysis (of titles as well) finds sentences, words, the phrases of decisions and open questions, and particulars: file
names, identifiers, numbers with their units, dates, which are lost for good if a summary lacks them. Its patterns, for the
languages of the search, are meant to find too much rather than too little: a summary that repeats a sentence is better than
one that leaves a decision out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from hermes.agent.history import SUMMARY_MARK, message_text
from hermes.store.text.index_text import fold
from hermes.store.text.stems import STOP_WORDS
from hermes.texts import DENSE, harmless, shortened, text_tokens

MOST = 12_000  # characters of a summary
LEAST = 1_500
SENTENCE = 320
COMMAND = 600  # characters of a command line; a longer one is a program, which belongs into a file
SECTIONS = ("Goal", "Decisions", "Facts", "Open work", "Files")


class _Notes:
    """The findings by section, each line once."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[str, None]] = {name: {} for name in ("Focus", *SECTIONS)}
        self.particulars: dict[str, None] = {}  # facts in messages of people and models, then of tools
        self.from_tools: dict[str, None] = {}
        self.other: dict[str, None] = {}  # other sentences of the user; included while there is room
        self.commands: dict[str, int] = {}  # command lines and how often each was used, the latest last

    def add(self, section: str, line: str) -> None:
        line = shortened(" ".join(line.split()), SENTENCE)
        if line and (section == "Focus" or not any(line in self.lines[name] for name in SECTIONS[1:])):
            self.lines[section][line] = None

    def use(self, command: str, times: int = 1) -> None:
        if command and len(command) <= COMMAND:
            self.commands[command] = self.commands.pop(command, 0) + times


def summary_of(messages: Sequence[Mapping[str, Any]], focus: str | None = None, most: int = MOST) -> str:
    """The content of the messages, in sections; at most `most` characters, growing with the input; never empty.

    Summaries of earlier parts among the messages are included, section by section. Sentences about `focus` come first.
    """
    notes, total = _noted(messages, content_words(focus) if focus else set())
    return _composed(notes, min(most, MOST, max(LEAST, LEAST + total * 3 // 4)), focus, len(messages))


def exact_lines(messages: Sequence[Mapping[str, Any]], summary: str, most: int) -> str:
    """The user's messages, decisions, commands, open work and files that a model's summary lacks, in `most` tokens.

    Decisions come in any words, so that short messages of the user are kept whole, as many as there is room for, the newest
    first. Of the commands, those that were used several times come first, then the latest. Such lines
    of earlier summaries are kept.
    """
    notes, _ = _noted(messages, None)
    found: dict[str, list[str]] = {
        name: [line for line in notes.lines[name] if line not in summary] for name in SECTIONS
    }
    found[_SAID] = [line for line in notes.other if line not in summary]
    newest = list(notes.commands)[::-1]
    found["Commands"] = sorted(newest, key=lambda command: -min(notes.commands[command], 2))
    ranked = {name: lines if name == "Commands" else lines[::-1] for name, lines in found.items()}
    ranked[_SAID].sort(key=lambda line: (bool(QUESTION.search(line)), not (DECISION.search(line) or OPEN.search(line))))
    kept: dict[str, set[str]] = {name: set() for name in (_SAID, "Decisions", "Commands", "Open work", "Files")}
    left = most - _HEADING * len(kept)
    for name, share in _EXACT_ORDER:
        room = int(left * share)
        for line in ranked[name]:
            size = text_tokens(line) + 2
            if size <= room and line not in kept[name]:
                kept[name].add(line)
                room, left = room - size, left - size
    parts = []
    for name in kept:
        lines = [line for line in found[name] if line in kept[name]]
        if name == "Commands":
            lines = [command.replace("\n", "\n  ") + _times(notes.commands[command]) for command in lines]
        listed = ", ".join(lines) if name == "Files" else "\n".join(f"- {line}" for line in lines)
        if lines:
            parts.append(f"## {name}{_EXACTLY}\n{listed}")
    return "\n\n".join(parts)


def _noted(messages: Sequence[Mapping[str, Any]], wanted: set[str] | None) -> tuple[_Notes, int]:
    """The facts in the messages (none if `wanted` is None), and how many characters the messages have."""
    notes = _Notes()
    total = 0
    for number, message in enumerate(messages):
        text = harmless(message_text(message))
        total += len(text)
        if text.startswith(SUMMARY_MARK):
            _take_over(notes, text)
        elif message.get("role") == "tool":
            if wanted is not None:
                _note_output(notes, text[:4000])
        elif message.get("role") != "system":
            _note_message(notes, message, text[:40_000], _reply_to(messages, number), wanted)
            for command in commands(message):
                notes.use(command)
    return notes, total


def commands(message: Mapping[str, Any]) -> Iterator[str]:
    """The command lines in a message, as they are: those that its tool calls run, and those in blocks of shell code."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        try:
            values = json.loads(call["function"]["arguments"])
            command = values.get("command") or values.get("cmd")
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        if isinstance(command, list):
            words = [str(word) for word in command]
            command = words[2] if len(words) == 3 and words[1] in ("-c", "-lc") else shlex.join(words)
        if isinstance(command, str):
            yield harmless(command).strip()
    for block in _SHELL.findall(harmless(message_text(message, calls=False))):
        lines = [block] if "<<" in block else re.split(r"(?<!\\)\n", block)  # a line may go on, or hold a document
        prompted = any(line.lstrip().startswith("$ ") for line in lines)
        for line in map(str.strip, lines):
            if line and not line.startswith("#") and (line.startswith("$ ") or not prompted):
                yield line.removeprefix("$ ")


def _note_message(notes: _Notes, message: Mapping[str, Any], text: str, reply: str, wanted: set[str] | None) -> None:
    """Sort the sentences of one message into the sections."""
    for path in files(text):
        notes.lines["Files"][path] = None
    spoken = harmless(message_text(message, calls=False))[:40_000]
    prose, code = paragraphs(spoken)
    statements = [sentence for line in prose for sentence in sentences(line)]
    whole = " ".join(statements)
    short = message.get("role") == "user" and len(whole) <= 2 * SENTENCE and len(content_words(whole)) > 1
    if wanted is None and short and not all(map(QUESTION.search, statements)):
        notes.other[whole] = None
        statements = [sentence for sentence in statements if QUESTION.search(sentence)]
    if message.get("role") == "user" and statements and not notes.lines["Goal"]:
        goal = ""
        for sentence in statements:
            if goal and len(goal) + len(sentence) > SENTENCE:
                break
            goal = f"{goal} {sentence}".strip()
        notes.add("Goal", goal)
    open_questions = _open_questions(message, statements, reply)
    for sentence in statements:
        if wanted and wanted & content_words(sentence):
            notes.add("Focus", sentence)
        if sentence in open_questions or OPEN.search(sentence):
            notes.add("Open work", sentence)
        elif DECISION.search(sentence) and not QUESTION.search(sentence):
            notes.add("Decisions", sentence)
        else:
            if wanted is not None and next(facts(sentence), None) is not None:
                notes.add("Facts", sentence)
            elif message.get("role") == "user" and content_words(sentence):
                notes.other[shortened(" ".join(sentence.split()), SENTENCE)] = None
    if wanted is None:
        return
    for fact in facts("\n".join([*prose, *code]) if code else spoken):
        notes.particulars[fact] = None
    for fact in facts(text[len(spoken) :]):
        notes.from_tools[fact] = None


def _reply_to(messages: Sequence[Mapping[str, Any]], number: int) -> str:
    """The next text of the other role, "" when there is none."""
    other = "assistant" if messages[number].get("role") == "user" else "user"
    for following in range(number + 1, len(messages)):
        if messages[following].get("role") == other:
            text = message_text(messages[following], calls=False)
            if text.strip():
                return text[:4000]
    return ""


def _open_questions(message: Mapping[str, Any], statements: Sequence[str], reply: str) -> set[str]:
    """The questions of a message that the reply does not address."""
    questions = [sentence for sentence in statements if QUESTION.search(sentence)]
    if not questions or not reply:
        return set(questions)
    opening = " ".join(sentences(" ".join(paragraphs(reply[:2000])[0]))[:2])
    if UNANSWERED.search(opening):
        return set(questions)
    if message.get("role") == "user":
        return set()
    answered = content_words(reply)
    short = len(reply) < 60  # "yes, please" answers what was asked
    return {question for question in questions if not short and not answered & content_words(question)}


def _note_output(notes: _Notes, text: str) -> None:
    """Note names and numbers of a tool's output, and fewer of them than from messages."""
    for name in (*islice(files(text), 20), *islice(facts(text), 20)):
        notes.from_tools[name] = None


def _take_over(notes: _Notes, text: str) -> None:
    """Add the lines of an earlier summary to the same sections."""
    section = "Facts"
    listed = text.partition(f"## Commands{_EXACTLY}\n- ")[2].partition("\n\n## ")[0]
    for line in listed.split("\n- "):
        found = _TIMES.fullmatch(line)
        notes.use((found[1] if found else line).replace("\n  ", "\n"), int(found[2]) if found else 1)
    for line in text.replace(listed, "").split("\n")[1:]:
        heading = line.strip().lstrip("#*").strip().removesuffix(_EXACTLY).rstrip(":*").strip()
        known = next((name for name in (*SECTIONS, _SAID) if heading.casefold() == name.casefold()), None)
        if known is not None:
            section = known
            continue
        line = re.sub(r"^\s*[-*•]\s+", "", line).strip()
        if not line or line.startswith("#"):
            continue
        if section == "Files" and ", " in line:
            for path in line.split(", "):
                notes.lines["Files"][path.strip("` ")] = None
        elif line.startswith(_ALSO):
            for fact in line.removeprefix(_ALSO).split(" · "):
                notes.particulars[fact.strip()] = None
        elif section == _SAID:
            notes.other[line] = None
        else:
            notes.lines[section][shortened(line, 2 * SENTENCE)] = None


_ALSO = "Also mentioned: "
_EXACTLY = ", word for word"
_SAID = "Said by the user"
_TIMES = re.compile(r"(?s)(.*)  # used (\d+) times")
# By importance, each with its largest share of the room that is left; what the others leave is for the user's words.
_EXACT_ORDER = ((_SAID, 0.7), ("Commands", 0.7), ("Decisions", 0.6), ("Open work", 0.6), ("Files", 0.7), (_SAID, 1.0))
_HEADING = 10  # tokens
_SHELL = re.compile(
    r"(?ims)^[ \t]*```[ \t]*(?:sh|bash|zsh|fish|shell|console|terminal|shell-session|powershell)[ \t]*\n(.*?)^[ \t]*```"
)
# The priority of the sections when there is not room for all, and the largest share of each.
_ORDER = (("Goal", 0.3), ("Open work", 0.35), ("Decisions", 0.5), ("Files", 0.4), ("Focus", 0.5))


def _composed(notes: _Notes, room: int, focus: str | None, count: int) -> str:
    kept: dict[str, list[str]] = {name: [] for name in ("Focus", *SECTIONS)}
    left = room - 120  # the headings
    for section, share in _ORDER:
        left -= _fill(kept[section], notes.lines[section], min(left, int(left * share) + 200))
    listed = "\n".join(line for lines in kept.values() for line in lines)
    missing = [fact for fact in notes.particulars if fact not in listed]
    facts_room = max(0, left - min(left * 3 // 4, sum(len(fact) + 3 for fact in missing)))
    left -= _fill(kept["Facts"], notes.lines["Facts"], facts_room)
    listed += "\n" + "\n".join(kept["Facts"])
    also: list[str] = []
    for fact in [*islice(notes.particulars, 3000), *islice(notes.from_tools, 1000)]:
        if fact not in listed and len(fact) > 1 and len(fact) + 3 <= left:
            also.append(fact)
            left -= len(fact) + 3
            listed += "\n" + fact
    left -= _fill(kept["Facts"], (line for line in notes.other if line not in listed), left - len(_ALSO) - 3)
    if also:
        kept["Facts"].append(_ALSO + " · ".join(also))
    parts = []
    for name in ("Goal", "Focus", "Decisions", "Facts", "Open work", "Files"):
        heading = f"Focus: {shortened(' '.join((focus or '').split()), 80)}" if name == "Focus" else name
        if name == "Files" and kept[name]:
            parts.append(f"## {heading}\n{', '.join(kept[name])}")
        elif kept[name] or name != "Focus":
            parts.append(f"## {heading}\n" + ("\n".join(f"- {line}" for line in kept[name]) or "- none found"))
    text = "\n\n".join(parts)
    return text if any(kept.values()) else f"{text}\n\n({count} messages without words to quote)"


def _times(count: int) -> str:
    return f"  # used {count} times" if count > 1 else ""


def _fill(target: list[str], lines: Iterable[str], room: int) -> int:
    """Add lines while there is room; returns the number of characters. Of long lists the first and the last stay."""
    lines = list(lines)
    used = 0
    chosen: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda index: min(index, len(lines) - 1 - index)):
        if used + len(lines[index]) + 3 <= room:
            used += len(lines[index]) + 3
            chosen.add(index)
    target += [lines[index] for index in sorted(chosen)]
    return used


# ------------------------------------------------------------------------------------------ analysis of a text

DENSE_RUN = re.compile(f"[{DENSE}]+")

# Words that open a request without saying what it is about; left out at the ends of a title.
FILLERS = frozenset(
    """hi hello hey dear thanks thank thx please pls ok okay sure yes no yeah hmm um well so help helping assist wanna gonna
    need want would like could can may might let lets let's i'm im i'd id i've ive i'll we're we've we'll you're it's that's
    there's what's how's don't can't isn't try trying quick question question: morning afternoon evening good
    since been being keep getting
    hallo moin servus guten tag morgen abend bitte danke kannst konntest koennen konnen konnte mochte moechte will wollen
    brauche hilf hilfe helfen gerne ja nein dass mich mir uns unser unsere unserem unseren unserer mein meine meinen meinem
    hola buenos buenas dias tardes noches gracias favor puedes puede podrias podria ayudar ayudarme ayudame ayuda quiero
    quisiera necesito si sí me nos nuestro nuestra
    bonjour bonsoir salut merci pouvez-vous pouvez peux peux-tu pourriez pourriez-vous aider m'aider aide veux voudrais
    j'aimerais besoin oui non s'il plait plaît notre votre nos vos leur
    ola oi obrigado obrigada pode poderia ajudar quero preciso
    ciao salve grazie puoi potresti aiutarmi aiuto vorrei
    привет здравствуйте здравствуй пожалуйста спасибо помоги помогите можешь можете хочу нужно надо мне нам
    안녕하세요 안녕 감사합니다 부탁해요 부탁드립니다 저는 제가 저희 싶어요 싶습니다 해주세요 주세요 지금
    xin chào cảm ơn giúp muốn hãy
    مرحبا السلام عليكم شكرا أريد هل يمكنك مساعدتي من فضلك
    merhaba selam lütfen teşekkürler
    cześć dzień dobry proszę dziękuję""".split()
)
_FOLDED_FILLERS = frozenset(fold(word) for word in FILLERS) | frozenset(fold(word) for word in STOP_WORDS)

DENSE_OPENINGS = re.compile(
    "^(?:你好|您好|嗨|请问|请帮我|请|麻烦你?|帮我看看|帮我|帮忙|我想要|我想把|我想|我要|我们想|我们要|能不能|可不可以|可以|能否|怎么样|"
    "こんにちは|こんばんは|おはようございます|すみません|ちょっと|お願いします|สวัสดี(?:ครับ|ค่ะ)?|ช่วย|อยาก|把|给我|一下|[、,，。.！!？?\\s])+"
)
DENSE_ENDINGS = re.compile(
    "(?:[吗呢吧了的啊呀嘛在从和与把被对上里]|怎么办|たいです|のですが|でしょうか|ください|ですか|ますか|ました|ます|です|たい|"
    "して|[をがはにでのとへもやし]|ครับ|ค่ะ|ไหม|[、,，。.！!？?\\s])+$"
)

DECISION = re.compile(
    r"\b(?:decid\w*|decision\w*|agreed?|agreement|chose[n]?|choose|choosing|settled?\s+on|reject\w*|opt(?:ed|ing)?\s+for|approved?|"
    r"conclusion|concluded|go(?:ing)?\s+with|went\s+with|stick(?:ing)?\s+(?:with|to)|stay(?:ing|s)?\s+with|instead\s+of|"
    r"from\s+now\s+on|we(?:'ll|’ll|\s+will|\s+shall|\s+should|\s+must|\s+keep|\s+use|\s+drop|\s+won't|\s+are\s+going\s+to|'re\s+going\s+to)|"
    r"let(?:'|’)?s\s+(?:use|keep|go|take|do|drop|make|not|stay|call|ship|start|move|switch|add|put)|always|never|must(?:\s+not)?|mustn't|"
    r"prefer\w*|rule\s+is|the\s+plan\s+is|final(?:ly|ised|ized)?|ruled\s+out|dropped|pick(?:ed)?|switch(?:ed)?\s+to|"
    r"entschied\w*|entscheid\w*|beschlossen|beschlie(?:ß|ss)en|wir\s+(?:nehmen|machen|bleiben|verwenden|nutzen|lassen|behalten)|"
    r"(?:nehmen|machen|bleiben|verwenden|nutzen|lassen)\s+wir|geeinigt|festgelegt|abgemacht|verworfen|vereinbart|muss|müssen|statt(?:dessen)?|"
    r"decid(?:imos|ido|í|ió|iremos|emos)|decisi(?:ón|one|on|ones)|acordamos|acordado|elegimos|elegido|descart\w+|nos\s+quedamos|usaremos|"
    r"vamos\s+(?:a|con|usar|com)|quedamos\s+en|optamos|escolhemos|ficamos\s+com|siempre|nunca|"
    r"décid\w*|décision\w*|choisi\w*|retenu\w*|écart[ée]\w*|on\s+(?:garde|part\s+sur|prend|va|utilise|reste)|"
    r"nous\s+(?:utiliserons|gardons|prenons)|d'accord\s+pour|convenu\w*|toujours|jamais|"
    r"deciso|decidiamo|abbiamo\s+scelto|usiamo|teniamo|scelto|concordato|"
    r"quyết\s+định|chọn|thống\s+nhất|sẽ\s+dùng|karar\w*|seçtik|kullanacağız|zdecydowa\w*|postanowi\w*|wybra\w*|ustali\w*)\b"
    r"|(?:реш(?:ил|ено|ение|аем|им)|выбра(?:л|н)|договорил|останови(?:лись|мся)|будем\s|берём|берем|всегда|никогда|созда[её]м|важно|оставля)"
    r"|决定|就用|那就|确定|选择|选了|改用|采用|定了|定为|不用|放弃|结论|一定要|必须|決定|就選|採用|改為|"
    r"決め|にしましょう|にします|することにし|却下|やめ(?:ます|ました|る)|必ず|"
    r"결정|하기로|쓰기로|정했|선택|확정|반드시|قررنا|قرار|القرار|سنستخدم|اتفقنا|ตัดสินใจ|ตกลง|เลือก|จะใช้|तय|फैसला|निर्णय",
    re.IGNORECASE,
)

OPEN = re.compile(
    r"\b(?:to-?dos?|fixme|open\s+(?:question|issue|point|item|work)s?|still\s+(?:need|have|has|open|missing|to|must|unclear|waiting)|not\s+yet|"
    r"yet\s+to|remain(?:s|ing)|next\s+(?:step|time|up|week|thing)s?|later|pending|unresolved|undecided|unclear|waiting\s+(?:for|on)|blocked|"
    r"follow[\s-]?up|remind|need(?:s|ed)?\s+to|have\s+to|has\s+to|should\s+(?:also|still)|outstanding|unfinished|tomorrow|not\s+sure|don't\s+know|"
    r"noch\s+(?:offen|zu|nicht|unklar|ein|fehl\w*)|offen\w*|später|fehlt|nächste[rsn]?\s+(?:schritt|woche|mal)|klären|ungeklärt|zu\s+tun|"
    r"pendientes?|falta[n]?|queda[n]?\s+(?:por|pendiente)|próxim[oa]\w*|por\s+hacer|todavía|aún|luego|más\s+tarde|"
    r"reste(?:nt)?\s+à|à\s+faire|prochaine?\w*|en\s+attente|pas\s+encore|il\s+faut|faut-il|plus\s+tard|"
    r"pendente\w*|ainda|manca\w*|da\s+fare|prossim[oa]|ancora|"
    r"chưa|bước\s+tiếp|còn\s+lại|cần|henüz|sonraki|kaldı|jeszcze|następn\w+|do\s+zrobienia|zostało)\b"
    r"|(?:осталось|остал(?:ся|ась)|ещ[её]\s+(?:не|нужно|надо)|следующ|позже|открыт(?:ый|ые)\s+вопрос|не\s+решен|пока\s+не|надо\s)"
    r"|待办|还没|还需要|还要|下一步|未解决|以后再|待定|剩下|尚未|未决|還沒|接下來|"
    r"まだ|次は|次に|未解決|今後|残り|後で|あとで|課題|宿題|未定|"
    r"아직|남은|다음\s*단계|나중에|해야|미정|لم\s+يتم|الخطوة\s+التالية|لاحقا|بعد\s+ذلك|ยังไม่|ขั้นต่อไป|ต้อง|अभी\s+तक|बाकी",
    re.IGNORECASE,
)

UNANSWERED = re.compile(
    r"\b(?:not\s+sure|don't\s+know|do\s+not\s+know|no\s+idea|unclear|can't\s+say|cannot\s+say|weiß\s+(?:ich\s+)?nicht|keine\s+ahnung|"
    r"no\s+(?:lo\s+)?sé|ni\s+idea|(?:je\s+)?ne\s+sais\s+pas|aucune\s+idée|non\s+(?:lo\s+)?so|não\s+sei)\b"
    r"|не\s+знаю|不知道|不确定|不清楚|わかりません|分かりません|모르겠|لا\s+أعرف|ไม่รู้|ไม่แน่ใจ",
    re.IGNORECASE,
)

_FENCE = re.compile(r"^\s*(?:```|~~~)")
_BULLET = re.compile(r"^\s*(?:[-*+•·‣]|\d{1,3}[.)]|\[[ xX]\])\s+")
_END = re.compile(r"(?<=[.!?؟…])[\"'”’»)\]*_]*\s+(?=\S)|(?<=[。！？])|(?<=[\u3040-\u9fff][?!;])(?=\S)")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|no|nr|dr|mr|mrs|ms|st|bzw|z\.\s?b|d\.h|ca|usw|u\.s|p\.ej|sr|sra|т\.е|т\.д|др)|\b[A-ZÀ-ÞА-Я])\.$",
    re.IGNORECASE,
)
QUESTION = re.compile(
    r"[?？؟][\"'”’»)\]*_]*$|(?:吗|呢|ますか|ですか|でしょうか|까요|나요|인가요|ไหม|什么时候\S{0,4}|怎么\S{0,6}|多少\S{0,4})[。.？?]?$"
)


def is_stop(word: str) -> bool:
    """Whether a word says nothing about the subject."""
    return fold(word.strip("'’-.")) in _FOLDED_FILLERS


def paragraphs(text: str) -> tuple[list[str], list[str]]:
    """The lines of prose (list marks and headings taken off) and the lines of code."""
    prose: list[str] = []
    code: list[str] = []
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif fenced:
            code.append(line)
        else:
            line = _BULLET.sub("", line).strip().lstrip("#>").strip()
            if line:
                prose.append(line)
    return prose, code


def sentences(line: str) -> list[str]:
    """A line of prose cut after its sentences; abbreviations and single initials don't end one."""
    out: list[str] = []
    for part in (piece.strip() for piece in _END.split(line)):
        if not part:
            continue
        if out and _ABBREVIATION.search(out[-1]):
            out[-1] = f"{out[-1]} {part}"
        else:
            out.append(part)
    return out


_WORD = re.compile(f"[{DENSE}]+|(?:(?![{DENSE}])[\\w'’.+#/@&-])+")


def words(text: str) -> list[str]:
    """The words of a text; a run of a script without spaces is one."""
    found = (word.strip("'’.-/&_") if word != "C++" else word for word in _WORD.findall(text))
    return [word for word in found if any(c.isalnum() for c in word)]


def content_words(text: str) -> set[str]:
    """The topic words of a text, folded: its words without stop words, and the pairs of dense scripts."""
    out: set[str] = set()
    for word in words(text):
        if DENSE_RUN.match(word):
            out.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        elif not is_stop(word):
            out.add(fold(word))
    return out


_NAME = f"(?:(?![{DENSE}\uac00-\ud7ff])[\\w@+~-])"  # a character of a file name; dense scripts would run into their sentence
_PART = f"(?:{_NAME}|\\.(?={_NAME}))+"
_ENDINGS = (
    "py|pyi|ipynb|js|jsx|ts|tsx|mjs|cjs|vue|svelte|html?|css|scss|less|json5?|jsonl|ya?ml|toml|ini|cfg|conf|cnf|env|lock|xml|csv|tsv|"
    "xlsx?|ods|docx?|odt|pptx?|odp|pdf|md|mdx|rst|txt|tex|bib|log|sh|bash|zsh|fish|ps1|bat|sql|db|sqlite3?|rs|go|java|kt|kts|scala|"
    "rb|php|pl|lua|c|h|cc|cpp|hpp|cxx|cs|fs|swift|m|mm|r|jl|hs|ml|ex|exs|erl|clj|dart|zig|nim|proto|graphql|tf|hcl|nix|lark|load|"
    "gradle|cmake|mk|service|png|jpe?g|gif|svg|webp|ico|mp3|mp4|wav|mkv|mov|zip|tar|gz|tgz|bz2|xz|zst|7z|whl|jar|iso|img|bin|exe|"
    "dll|so|key|pem|crt|pub|patch|diff|bak|tmp|ics|vcf|epub|parquet|gguf|safetensors|pt|onnx|npz|plist|desktop|eml"
)
_PATH = re.compile(
    rf"(?<![A-Za-z0-9\u00c0-\u04ff_/.:@+~-])(?:(?:~|\.{{1,2}})?/{_PART}(?:/{_PART})*/?|[A-Za-z]:\\[^\s\"'<>|:*?]+"  # C:\a
    rf"|{_PART}(?:/{_PART})+/?)"  # a/b
    rf"|(?<![A-Za-z0-9\u00c0-\u04ff_./@+~-])(?:{_NAME}|\.)(?:{_NAME}|\.(?={_NAME}))*\.(?:{_ENDINGS})(?![A-Za-z0-9_])"  # name.ext
    r"|(?<![A-Za-z0-9_./])(?:Makefile|Dockerfile|Justfile|Jenkinsfile|Procfile|Gemfile|Rakefile|Vagrantfile|CMakeLists\.txt|LICENSE|"
    r"\.(?:env|gitignore|bashrc|zshrc|vimrc|dockerignore|editorconfig|npmrc)(?:\.\w+)?)(?!\w)"
)
_NO_PATH = re.compile(r"^(?:\d+/\d+(?:/\d+)?|and/or|[A-Za-z]/[A-Za-z]|w/o|n/a|he/she|s/he|\w+/m[²2]K?)$", re.IGNORECASE)
_URL = re.compile(
    r"\b(?:https?|ftp|ssh|git|file|postgres(?:ql)?|mysql|redis|s3)://[^\s<>\"'）」】，。]+[^\s<>\"'）」】，。.,;:!?)\]]"
)
_SPAN = re.compile(r"(?<!`)`([^`\n]{1,120})`(?!`)")
_A = r"(?<![A-Za-z0-9_])"  # an identifier may be next to a letter of another script
_Z = r"(?![A-Za-z0-9_])"
_IDENTIFIER = re.compile(
    rf"{_A}[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}{_Z}"  # a UUID
    rf"|{_A}[A-Z][A-Z0-9]{{1,9}}-\d+{_Z}"  # OPS-4412
    rf"|(?<![\w.+-])[A-Za-z0-9_][\w.+-]{{0,63}}@[\w-]+(?:\.[\w-]+)+{_Z}"  # a mail address
    rf"|{_A}\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d+)?{_Z}"  # an IP address
    rf"|{_A}(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{{7,64}}{_Z}"  # a hash
    rf"|{_A}\$?[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?:\(\))?(?:=[\w.]+)?"  # snake_case, CONSTANT=1
    rf"|{_A}[a-z]+[0-9]*[A-Z][A-Za-z0-9]*(?:\(\))?{_Z}|{_A}[A-Z][a-z0-9]+[A-Z][A-Za-z0-9]*{_Z}"  # camelCase, PascalCase
    rf"|(?<![A-Za-z0-9_.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){{0,8}}\(\)"  # a call()
    rf"|(?<![\w-])--[a-z][\w-]+(?:=\S+)?"  # --a-flag
    rf"|(?<![\w-])[A-Za-z][\w-]*(?:==|>=|<=|~=|@)\d[\w.]*"  # lark==1.1.9
    rf"|{_A}v?\d+\.\d+\.\d+(?:[-.+][0-9A-Za-z.]+)?{_Z}|{_A}v\d+(?:\.\d+)*{_Z}"  # a version
    rf"|(?<![\w&])\#\d+{_Z}"  # 123 of a tracker
)
_NUMBER = r"(?<!\d)\d{1,15}(?:[.,:'\u00a0\u202f]\d{1,9}|[ \u00a0\u202f]\d{3}(?!\d)){0,5}"
_COUNTED = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}"  # dates
    r"|\d{1,2}:\d{2}(?::\d{2})?(?:\s?(?:[ap]m|UTC|CET|Uhr|h))?(?!\w)|\d{1,2}\s?h\s?\d{2}(?!\w)"  # times
    rf"|[$€£¥₹₽₩]\s?{_NUMBER}(?:\s?(?:k|K|m|M|bn|million|billion))?"  # money
    rf"|{_NUMBER}\s?(?:%|‰|°[CF]?|[€£¥₹₽₩$]|[µμ]s|[A-Za-z]{{1,4}}[²³])"
    rf"|{_NUMBER}[ \u00a0\u202f-]?(?:(?![{DENSE}])[^\W\d_])[^\W\d_{DENSE}]*"  # 40 rules, 150ms, 48 млн, 3 часов
    rf"|{_NUMBER}\s?[{DENSE}]{{1,3}}"  # 2亿行, 30天, 12万行
    r"|[一二三四五六七八九十百千万亿两〇零億]+(?:个|位|人|元|块|年|月|日|号|点|分|秒|小时|天|周|次|倍|度|公里|米|公斤|克|行|页|条|台|円|時間|週間)"
    rf"|(?:PostgreSQL|MySQL|Python|Java|Node|Debian|Ubuntu|iOS|Android|Windows|article|Artikel|art\.|HTTP|port|Port|version|Version)\s\d[\d.]*"
)


def files(text: str) -> Iterator[str]:
    """File names and paths, in order; URLs are not included."""
    bare = _URL.sub(" ", text)
    for found in _PATH.finditer(bare):
        path = found[0].rstrip(".,;:")
        if len(path) > 2 and not _NO_PATH.match(path) and any(c.isalnum() for c in path):
            yield path


def facts(text: str) -> Iterator[str]:
    """Addresses, code in back quotes, identifiers, then numbers with units and dates."""
    for found in _URL.finditer(text):
        yield found[0]
    bare = _URL.sub(" ", text)
    for found in _SPAN.finditer(bare):
        yield found[1].strip()
    for found in _IDENTIFIER.finditer(bare):
        yield found[0].strip()
    for found in _COUNTED.finditer(bare):
        fact = found[0].strip().rstrip(".,:")
        number, _, unit = fact.partition(" ")
        if unit and is_stop(unit):  # "31 de", "2 and": not a unit
            if sum(c.isdigit() for c in number) >= 3:
                yield number
        else:
            yield fact
