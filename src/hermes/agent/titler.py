"""A title for a new conversation, made in the background after its first exchange.

A session is titled once, by one process, and a title that a user sets meanwhile is never replaced.
A lease keeps two processes from titling one session at the same time; a row of state_meta records that it was done, and ends
with the session. A failure costs the title and nothing else.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from hermes.agent.history import EXTRACTIVE, NOTE, SUMMARY_MARK, message_text, quoted
from hermes.agent.models.model import can_write, counted_for, without_thinking
from hermes.agent.summary import DENSE_ENDINGS, DENSE_OPENINGS, DENSE_RUN, is_stop, paragraphs, sentences, words
from hermes.errors import InvalidInput, TitleClash
from hermes.store.leases import holder_name, title_lease
from hermes.store.records.titles import titled_key
from hermes.store.text.index_text import fold
from hermes.texts import harmless, shortened

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow
    from hermes.store.records.visibility import User


TIMEOUT = 60.0
_LEASE_SECONDS = 300.0  # a crashed attempt is repeated after this time
_LONGEST = 100  # characters of a title
_TRIES = 20
AT_ONCE = 4  # titles in progress at one time
_READ = 3_000

INSTRUCTIONS = f"""Give a conversation its title: 3 to 7 words in its own language that say what it is about.
{NOTE}
Answer with the title alone: no quotation marks, no full stop, nothing before or after it."""

_LABEL = re.compile(
    r"^\W*(?:(?:suggested|conversation|chat|short|new)\s+)?(?:title|titel|título|titulo|titre|titolo|"
    r"название|заголовок|标题|題名|タイトル|제목|tytuł|başlık|tiêu đề|العنوان)"
    r"\s*[:：]\s*",
    re.IGNORECASE,
)
_PREAMBLE = re.compile(
    r"^\W*(?:sure|certainly|of course|okay|ok|here(?:'s| is| are)|gerne|claro|voici|aquí)\b.*[:：]\s*$", re.IGNORECASE
)
_REFUSAL = re.compile(
    r"^\W*(?:i(?:'m| am)\s+(?:sorry|unable|not able|an ai)|i\s+(?:can(?:'|no)t|cannot|can not|won't|don't)|"
    r"sorry\b|as an ai|unfortunately\b|"
    r"no title|untitled|n/a\b|none\b|null\b|error\b)",
    re.IGNORECASE,
)
_EDGES = " \t\"'`*_#~>“”„‘’«»‹›「」『』【】《》〈〉()[]{}<|-–—:;,.。．!！…·•"


def start_titling(db: SessionDB, session_id: str, model: Model | None) -> threading.Thread | None:
    """Begin to title a session in the background; None when it has a title or no messages.

    Costs the caller one read of the session. A program about to end joins the returned threads, with a timeout.
    """
    try:
        session = db.get_session(session_id)
        if db.read_only or session is None or session["title"] or not session["message_count"]:
            return None
    except Exception:  # promised: titling never disturbs a conversation
        return None
    thread = threading.Thread(target=_title, args=(db, session_id, model), name="hermes-titler", daemon=True)
    thread.start()
    return thread


_places = threading.Semaphore(AT_ONCE)


def _title(db: SessionDB, session_id: str, model: Model | None) -> None:
    # The store may be closed or full: a missing title must not disturb the conversation.
    with _places, suppress(Exception):
        question, answer = first_exchange(db.get_messages(session_id))
        if not question and not answer:
            return
        lease, done = title_lease(session_id), titled_key(session_id)
        token = db.acquire_lease(lease, holder_name("title"), _LEASE_SECONDS)
        if token is None:  # another process is titling it
            return
        if db.get_meta(done) is None:
            _set_title(db, session_id, question, answer, model)
            db.set_meta(done, "1")
        db.release_lease(lease, token)


def _set_title(db: SessionDB, session_id: str, question: str, answer: str, model: Model | None) -> None:
    with counted_for(db, session_id):
        title = _by_model(question, answer, model) or title_of(question, answer)
    for _ in range(_TRIES):
        try:
            free = _free_title(db, session_id, title) or db.get_next_title_in_lineage(title)
            db.set_session_title(session_id, free, only_if_untitled=True)
            break
        except TitleClash:
            continue  # another session took the title between the two calls


def _free_title(db: SessionDB, session_id: str, title: str) -> str | None:
    """The title, or the title with the date of the conversation if another session has it; None if these are taken as well.

    A number is the last resort: "Title #2" would look as if it continued "Title".
    """
    session = db.get_session(session_id)
    candidates = (title, *dated(title, session["started_at"] if session else time.time()))
    free = (one for one in candidates if len(one) <= _LONGEST and db.resolve_session_by_title(one) is None)
    return next(free, None)


def set_chosen_title(db: SessionDB, session_id: str, wanted: str, user: User | None, *, refuse: bool = False) -> str:
    """Give a session the title that `user` chose for it, or a similar one if another session has it; returns the title.

    A number at its end would reveal that others have sessions of this name: only a user who may see those gets one, or,
    with `refuse`, TitleClash.
    """
    name = wanted
    for _ in range(_TRIES):
        try:
            db.set_session_title(session_id, name)
            break
        except TitleClash as clash:  # the title in the error is the compared one, with secrets masked
            holder, taken = clash.holder, clash.title or name
            seen = holder is None or db.get_session(holder, visible_to=user) is not None
            if refuse and seen:
                raise
            name = db.get_next_title_in_lineage(taken) if seen else _title_apart(db, session_id, taken)
        except InvalidInput:
            if refuse:
                raise
            break  # longer than a title may be, with its secrets masked: one will be made
    return db.get_session_title(session_id) or ""


def free_title(db: SessionDB, session_id: str, wanted: str, user: User | None) -> str:
    """`wanted`, or a similar title that no session has: numbered only where `user` may see the session that has it."""
    holder = db.resolve_session_by_title(wanted)
    if holder is None or db.get_session(holder, visible_to=user) is not None:
        return db.get_next_title_in_lineage(wanted)
    return _title_apart(db, session_id, wanted)


def _title_apart(db: SessionDB, session_id: str, title: str) -> str:
    """A similar title that no session has, without a number: it would reveal a session that the user may not see."""
    return _free_title(db, session_id, title) or f"{title[: _LONGEST - 10].rstrip()}, {secrets.token_hex(4)}"


def first_exchange(messages: Sequence[MessageRow]) -> tuple[str, str]:
    """The first user message, and the beginning of its answer; "" for what is missing."""
    question = ""
    for message in messages:
        text = message_text(message, calls=False).strip()
        if not text or text.startswith(SUMMARY_MARK):
            continue
        if message["role"] == "user" and not question:
            question = text
        elif message["role"] == "assistant" and message.get("model") != EXTRACTIVE:
            return question, text
    return question, ""


def _by_model(question: str, reply: str, model: Model | None) -> str | None:
    if model is None or not can_write(model):
        return None
    text = f"user: {shortened(harmless(question), _READ)}\n\nassistant: {shortened(harmless(reply), _READ)}"
    prompt = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"{quoted(text)}\n\nThe title:"}]
    try:
        return clean_title(model.complete(prompt, max_tokens=500, timeout=TIMEOUT))
    except Exception:  # any failure: use the words of the conversation instead
        return None


def clean_title(answer: str) -> str | None:
    """The title in a model's answer, of 3 to 7 words; None when there is none."""
    text = without_thinking(harmless(answer))[:2000]
    text = re.sub(r"(?m)^\s*(?:```|~~~)\w*\s*$", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    while lines and (_PREAMBLE.match(lines[0]) or (len(lines) > 1 and not _LABEL.sub("", lines[0]).strip(_EDGES))):
        lines.pop(0)
    if not lines:
        return None
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", lines[0])  # a link's text
    line = re.sub(r"(`+|\*{1,3}|~~|(?<!\w)_{1,3})(\S(?:.*?\S)?)\1", r"\2", line)
    line = _bare(_LABEL.sub("", _bare(_LABEL.sub("", line))))
    if not line or _REFUSAL.match(line):
        return None
    title = cut_title(" ".join(line.split()))
    return title if word_count(title) >= 3 and any(c.isalpha() for c in title) else None


def _bare(line: str) -> str:
    start = line.lstrip(_EDGES)
    end = start.rstrip(_EDGES)
    rest = start[len(end) :]
    for close, opened in ((")", "("), ("]", "[")):
        if rest.startswith(close) and opened in end:
            return end + close
    return end


_MOST_WORDS, _FEWEST_WORDS = 7, 3
_TITLE_LENGTH = 80
_MARKUP = re.compile(r"[*`~#>|\[\]{}()<>\"“”„«»「」『』【】]+")
_CODE = re.compile(r"(?s)```.*?(?:```|$)|~~~.*?(?:~~~|$)")
_LINK = re.compile(r"\b\w+://\S+")


def title_of(user_text: str, assistant_text: str = "") -> str:
    """A title of 3 to 7 words from the first exchange; never empty, no stop word at its ends."""
    title_words: list[str] = []
    for text in (user_text, assistant_text):
        for clause in _clauses(text):
            rest = _trimmed(clause)
            if title_words:  # a short question, and an answer that often repeats it
                known = {fold(word) for word in title_words}
                rest = [word for word in rest if fold(word) not in known]
            if rest:
                title_words = _trimmed(title_words + rest) if title_words else rest
            if _weight(title_words) >= _FEWEST_WORDS:
                return _as_title(title_words)
    if title_words:
        return _as_title(["Conversation", "about", *title_words])
    today = datetime.now()
    return f"Conversation of {today.day} {today:%B %Y}"


def dated(title: str, when: float) -> tuple[str, ...]:
    """The title with the date of the conversation, and with its date and time: for a title that another session has."""
    day = datetime.fromtimestamp(when)
    date = f"{day.day} {day:%B %Y}"
    if title.endswith(date):  # "Conversation of 16 November 2026"
        return (f"{title}, {day:%H:%M}",)
    return f"{title}, {date}", f"{title}, {date} {day:%H:%M}"


def word_count(text: str) -> int:
    """How many words a title has; three (or five) characters of a script without spaces count as one."""
    return _weight(words(text))


def cut_title(text: str) -> str:
    """At most seven words of a title, without a stop word at its end."""
    if word_count(text) <= _MOST_WORDS and len(text) <= _TITLE_LENGTH:
        return text
    return _as_title(words(text))


def _clauses(text: str) -> Iterable[list[str]]:
    text = _LINK.sub(" ", _CODE.sub("\n", harmless(text[:20_000])))
    prose, _ = paragraphs(_MARKUP.sub(" ", text))
    for line in prose[:40]:
        for sentence in sentences(line):
            for clause in re.split(
                r"[,;:!?，；：、。！？؟—]+(?=\s|$|[^\x00-\x7f])|\s[-–]\s|[，；：、。！？؟,](?=[^\x00-\x7f])", sentence
            ):
                yield [word for word in words(clause) if len(word) <= 60]


def _trimmed(clause: Sequence[str]) -> list[str]:
    """A clause without the meaningless words at its ends."""
    out = list(clause)
    for at, edge in ((0, DENSE_OPENINGS), (-1, DENSE_ENDINGS)):
        while out:
            rest = edge.sub("", out[at]) if DENSE_RUN.match(out[at]) else "" if is_stop(out[at]) else out[at]
            if rest:
                out[at] = rest
                break
            out.pop(at)
    return out


def _weight(title_words: Sequence[str]) -> int:
    return sum(-(-len(word) // _letters_a_word(word)) if DENSE_RUN.match(word) else 1 for word in title_words)


def _letters_a_word(run: str) -> int:
    """Word length where no space separates words: short in Chinese and Japanese, longer in Thai, Lao, Burmese, Khmer."""
    return 5 if "\u0e00" <= run[0] <= "\u17ff" else 3


def _as_title(title_words: Sequence[str]) -> str:
    """The first seven words, joined as in the text."""
    out: list[str] = []
    room = _MOST_WORDS
    for word in title_words:
        if room <= 0:
            break
        if DENSE_RUN.match(word):
            word = _cut_dense(word, room * _letters_a_word(word))
            room -= _weight([word])
        else:
            room -= 1
        if sum(map(len, out)) + len(out) + len(word) > _TITLE_LENGTH and out:
            break
        out.append(word)
    if _FEWEST_WORDS < len(out) < len(title_words) and out[-1].replace(".", "").replace(",", "").isdigit():
        out.pop()  # its unit was cut off
    out = _trimmed(out) or out
    title = ""
    for word in out:
        glue = "" if not title or (DENSE_RUN.match(word) and DENSE_RUN.match(title[-1])) else " "
        title += glue + word
    if title[:1].islower() and out[0].isalpha() and out[0].islower():
        title = title[0].upper() + title[1:]
    return title


def _cut_dense(run: str, room: int) -> str:
    """The beginning of a run, never cut before a vowel sign and, if possible, not inside a word of another script."""
    if len(run) <= room:
        return run
    cut = room
    while cut > 1 and unicodedata.category(run[cut]).startswith("M"):
        cut -= 1
    return DENSE_ENDINGS.sub("", run[:cut]) or run[:cut]
