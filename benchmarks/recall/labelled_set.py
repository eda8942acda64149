"""The labelled set: chats in six languages and questions with known answers, made from topics.tsv, always the same.

Sixteen people a language, three chats each, two topics a chat: every topic is talked about by a dozen people in nearly the
same words, and a chat names its person once, so that only the words of a chat together answer a question. The sentences were written before any ranking
was tuned. A third of the questions is set aside: tune on the others, look at these at the end. across.tsv has facts that were
told in one language and are asked for in the five others; unanswered.tsv has questions about what no chat is about.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

BASE = 1_700_000_000.0  # 14 November 2023
APART = 30 * 3600.0
BETWEEN = 60.0  # seconds from message to message
NAMES = {
    "en": "Alice Brandon Chloe Derek Emily Frank Grace Harold Irene Jason Kate Liam Megan Nathan Olivia Peter",
    "de": "Anke Bernd Claudia Dieter Elke Friedrich Gudrun Holger Ingrid Jürgen Katrin Lothar Monika Norbert Petra Ralf",
    "es": "Alba Benito Carmen Diego Elena Fernando Gloria Hugo Inés Javier Lucía Manuel Nuria Pablo Raquel Sergio",
    "fr": "Aurélie Bastien Camille Damien Élodie Fabrice Gaëlle Henri Isabelle Jérôme Karine Luc Margaux Nicolas Pauline Rémi",
    "vi": "Hạnh Bình Cường Dũng Giang Hải Khánh Linh Minh Ngọc Phúc Quân Sơn Thảo Tuấn Vân",
    "zh": "李雷 王芳 张伟 刘洋 陈静 杨帆 赵敏 黄磊 周杰 吴昊 徐丽 孙悦 马超 朱琳 郭涛 何欣",
}
MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "vi": " ".join(f"tháng_{number}" for number in range(1, 13)),
    "zh": " ".join(f"{number}月" for number in range(1, 13)),
}
TIME = {
    "en": "What was {n} talking about in {m}?", "de": "Worüber hat {n} im {m} gesprochen?",
    "es": "¿De qué habló {n} en {m}?", "fr": "De quoi parlait {n} en {m} ?",
    "vi": "{n} đã nói chuyện gì trong {m}?", "zh": "{n}在{m}说了什么？",
}  # fmt: skip
SEVERAL = {
    "en": "Who told me something about {v}?", "de": "Wer hat mir von {v} erzählt?", "es": "¿Quién me habló de {v}?",
    "fr": "Qui m'a parlé de {v} ?", "vi": "Ai đã nói với tôi về {v}?", "zh": "谁跟我说过{v}？",
}  # fmt: skip
SMALL_TALK = {
    "en": "All right, talk to you soon.", "de": "Alles klar, bis bald.", "es": "Vale, hablamos pronto.",
    "fr": "D'accord, à bientôt.", "vi": "Được rồi, hẹn gặp lại.", "zh": "好的，回头聊。",
}  # fmt: skip


@dataclass
class Chat:
    """One session: when it began, and its messages as (role, text)."""

    id: str
    started: float
    messages: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """What somebody asks, the sessions that are right (none: there is no answer), and the message that says it."""

    text: str
    kind: str
    language: str
    sessions: tuple[str, ...]
    message: tuple[str, float] | None  # its session and time

    @property
    def set_aside(self) -> bool:
        return hashlib.sha256(self.text.encode()).digest()[0] % 3 == 0


def lines(name: str) -> list[list[str]]:
    """The rows of a file beside this one."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def across() -> tuple[list[Chat], list[Question]]:
    """Facts in one language, each in a chat with small talk, and the questions for them in the others."""
    chats, asked = [], []
    for number, (said_in, said, reply, *questions) in enumerate(lines("across.tsv")):
        small = SMALL_TALK[said_in]
        talk = [("user", small), ("user", said), ("assistant", reply), ("user", small)]
        chat = Chat(f"across-{number:02}", BASE + APART * (20 * number + 0.5), talk)
        chats.append(chat)
        for language, question in zip(("de", "en", "es", "fr", "vi", "zh"), questions, strict=True):
            if question:  # no model that is used here knows Vietnamese
                kind = "across (vi)" if "vi" in (said_in, language) else "across"
                asked.append(Question(question, kind, language, (chat.id,), (chat.id, chat.started + BETWEEN)))
    return chats, asked


def topics() -> dict[str, list[list[str]]]:
    """The rows of topics.tsv by language."""
    found: dict[str, list[list[str]]] = {}
    for line in (Path(__file__).parent / "topics.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            language, *row = line.split("\t")
            found.setdefault(language, []).append(row)
    return found


def labelled_set() -> tuple[list[Chat], list[Question]]:
    """All chats in order of time, and all questions."""
    dice = random.Random(19)
    places = [(language, person, part) for language in NAMES for person in range(16) for part in range(3)]
    dice.shuffle(places)
    started = {place: BASE + APART * number for number, place in enumerate(places)}
    chats: list[Chat] = []
    asked: list[Question] = []
    told: dict[str, list[str]] = {}  # a value may be the same word in several languages
    first: dict[str, str] = {}
    for language, rows in topics().items():
        for person, name in enumerate(NAMES[language].split()):
            order = dice.sample(rows, len(rows))
            mine = [Chat(f"{language}-{person:02}-{part}", started[language, person, part]) for part in range(3)]
            for number, row in enumerate(order[:6]):
                _, kind, said, reply, chatter, question, other, values = row
                value = values.split("|")[dice.randrange(8)]
                chat = mine[number // 2]
                chat.messages += [
                    ("user", SMALL_TALK[language] if number % 2 else f"{name}: 👋"), ("user", said.format(v=value)),
                    ("assistant", reply), ("user", chatter),
                ]  # fmt: skip
                answer = (chat.id, chat.started + BETWEEN * (len(chat.messages) - 3))
                told.setdefault(value.lower(), []).append(chat.id)
                first.setdefault(value, language)
                if number in (0, 3):
                    asked.append(Question(question.format(n=name), kind, language, (chat.id,), answer))
                elif number == 5:
                    asked.append(Question(other.format(n=name), "paraphrase", language, (chat.id,), answer))
            asked.append(Question(order[6][5].format(n=name), "no answer", language, (), None))
            month = datetime.fromtimestamp(mine[1].started, UTC).month
            named = MONTHS[language].split()[month - 1].replace("_", " ")
            then = [chat.id for chat in mine if datetime.fromtimestamp(chat.started, UTC).month == month]
            asked.append(Question(TIME[language].format(n=name, m=named), "time", language, tuple(then), None))
            chats += mine
    for value, language in sorted(first.items())[::4]:
        asked.append(Question(SEVERAL[language].format(v=value), "several", language, tuple(told[value.lower()]), None))
    told_once, asked_across = across()
    chats += told_once
    asked += asked_across
    asked += [Question(question, "unanswered", language, (), None) for language, question in lines("unanswered.tsv")]
    return sorted(chats, key=lambda chat: chat.started), asked
