"""The assistant without a model: it answers with quoted passages of the user's own history.

It states what it is, and how to get a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hermes.agent.models.model import Message, Piece, Reply
from hermes.agent.recall.excerpts import EXTRACTIVE, Excerpt
from hermes.agent.recall.history_text import message_text, when
from hermes.agent.recall.recall import recall
from hermes.store.text.index_text import fold
from hermes.texts import harmless, shortened

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User


WHAT = "no language model: answers are passages from your own history"
I_AM = "I'm not a language model; I can only quote your own history."
HOW = (
    "For a model that answers: `hermes model install smollm2` (small, offline), or"
    " `hermes config set model.base_url URL` (a server that speaks OpenAI's protocol)."
)
# Greetings, and questions for help: both are answered with what this assistant can do.
_GREETING = re.compile(
    r"^(?:hi+|hello|hey+|hiya|yo|greetings|good (?:morning|afternoon|evening|day)|hallo|moin|servus|guten (?:tag|morgen|abend)|"
    r"hola|buenos dias|buenas(?: tardes| noches)?|bonjour|bonsoir|salut|ciao|salve|ola|oi|привет|здравствуйте|добрый день|"
    r"你好|您好|嗨|こんにちは|おはよう(?:ございます)?|"
    r"안녕(?:하세요)?|xin chao|chao|merhaba|selam|czesc|مرحبا|السلام عليكم|สวัสดี|"
    r"help|help me|what can you do|who are you|what are you|how does this work|"
    r"hilfe|ayuda|aide|aiuto|помощь|帮助|ヘルプ|도움말)?(?: there| you| hermes| all| everyone)?$"
)


class ExtractiveModel:
    """Quotes your history; one instance for all conversations and threads.

    `session_id` is its conversation, `user` the one whose sessions may be quoted (None: the owner, who sees all). In a
    conversation that is not `private`, only that conversation is quoted.
    """

    name = EXTRACTIVE
    kind = "extractive"
    context_length = 1_000_000  # it reads the question only: no conversation is too long for it
    calls_tools = False
    base_url: str | None = None
    provider: str | None = None

    def __init__(
        self, db: SessionDB, session_id: str | None = None, *, user: User | None = None, private: bool = True
    ) -> None:
        self.db, self._session_id, self._user = db, session_id, user
        self._within = session_id if not private else None

    def speaking_in(self, session_id: str, user: User | None, *, private: bool = True) -> ExtractiveModel:
        """A copy for one conversation and user."""
        return ExtractiveModel(self.db, session_id, user=user, private=private)

    def unread(self, messages: Sequence[Message]) -> str | None:
        """None: the whole question is searched for."""
        return None

    def describe(self) -> str:
        """A one-line description for the user."""
        return f"{self.name}: {WHAT}"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """The answer in one piece."""
        text = self.answer(_last_question(messages))
        yield Piece(text=text)
        yield Reply(content=text, finish_reason="stop", model=self.name)

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> str:  # fmt: skip
        """The answer to the last question: side tasks are not given to this model."""
        return self.answer(_last_question(messages))

    def answer(self, question: str) -> str:
        """The answer to a question."""
        folded = fold(" ".join(question.split())).strip(" .!,?¡¿。！？、")
        if _GREETING.match(folded):
            return (
                f"Hello! {I_AM} Ask in your own words, for example: what did we decide about the parser?\n\n"
                "`hermes sessions search WORDS` finds every place, and `hermes sessions list` lists all sessions."
                f"\n\n{HOW}"
            )
        # It does not get its own conversation, so that is searched as well.
        found = recall(self.db, question, current=None, visible_to=self._user, weak=True, within=self._within)
        if found is None:
            return self._nothing(question)
        listed = "\n\n".join(_shown(number, excerpt) for number, excerpt in enumerate(found.passages, 1))
        return f"{I_AM} These passages fit best:\n\n{listed}\n\n{HOW}"

    def _nothing(self, question: str) -> str:
        about = shortened(" ".join(harmless(question).split()), 80)
        if self._within is not None:
            return f"I found nothing about “{about}” in this conversation, and quote no other one here. {I_AM}\n\n{HOW}"
        others = self.db.session_count(visible_to=self._user) - (1 if self._session_id is not None else 0)
        searched = (
            "there are no other conversations to search yet"
            if others <= 0
            else f"I searched {others} other conversation{'s' * (others != 1)} for it"
        )
        return f"I found nothing about “{about}” in your history: {searched}. {I_AM}\n\n{HOW}"


def _last_question(messages: Sequence[Message]) -> str:
    return next((message_text(m) for m in reversed(messages) if m.get("role") == "user"), "")


def _shown(number: int, excerpt: Excerpt) -> str:
    title = " ".join(harmless(excerpt.title or "").split()) or "no title"
    passage = "\n".join(f"> {line}" for line in excerpt.text.splitlines() if line.strip())
    who = {"user": "you", "assistant": "the assistant"}.get(excerpt.role, excerpt.role)
    return f"{number}. **{title}** · {when(excerpt.when)} · {who} · `{excerpt.session_id}`\n\n{passage}"
