"""Asking the user before a tool does something: what was allowed already, the question, and what its answer means.

A door answers a question with yes or no; the terminal's answer can say more (an `Answer`): that the user need not be asked
again, or why not. What was allowed for a command in a folder is kept in config.yaml (`terminal.allow`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hermes.agent.tools.running import waiting_for_user
from hermes.errors import HermesError, ToolDeclined

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Context

CONVERSATION: Final = "conversation"  # always, in this conversation
HERE: Final = "here"  # always, for this command in this folder
_STATE: Final = "allowed_kinds"
_REASON_CHARS: Final = 2_000


class Question(str):
    """A question of one line. `kind` and `rule` say what a lasting yes allows; `detail` is shown above it (a diff)."""

    __slots__ = ("detail", "folder", "kind", "rule")
    kind: str
    rule: str
    folder: str
    detail: str

    def __new__(cls, text: str, *, kind: str, rule: str, folder: str, detail: str = "") -> Question:
        made = super().__new__(cls, text)
        made.kind, made.rule, made.folder, made.detail = kind, rule, folder, detail
        return made


@dataclass(frozen=True, slots=True)
class Answer:
    """The user's answer; true when it is a yes. `lasting` is CONVERSATION, HERE or ""; `reason` is why not."""

    allowed: bool
    lasting: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed


def read_answer(line: str) -> Answer:
    """What was typed at the question: y, n, a, h; any other text is a no with its reason."""
    word = line.strip()
    folded = word.casefold()
    if folded in ("y", "yes"):
        return Answer(True)
    if folded in ("a", "always"):
        return Answer(True, CONVERSATION)
    if folded in ("h", "here"):
        return Answer(True, HERE)
    return Answer(False, reason="" if folded in ("", "n", "no") else word)


def permit(context: Context, question: Question, declined: str) -> None:
    """Return if the user allows it, or has allowed it before; else ToolDeclined with `declined` and the user's reason."""
    if is_allowed(context, question):
        return
    with waiting_for_user():
        answer = context.confirm(question)
    if not answer:
        reason = answer.reason if isinstance(answer, Answer) else ""
        raise ToolDeclined(f"{declined} The user said: {reason[:_REASON_CHARS]}" if reason else declined)
    if isinstance(answer, Answer) and answer.lasting == CONVERSATION:
        context.state.setdefault(_STATE, set()).add(question.kind)
    elif isinstance(answer, Answer) and answer.lasting == HERE:
        _keep(context, question)


def is_allowed(context: Context, question: Question) -> bool:
    """Whether a lasting yes covers the question."""
    if question.kind in context.state.get(_STATE, ()):
        return True
    return question.rule in context.config.terminal.allow.get(question.folder, ())


def _keep(context: Context, question: Question) -> None:
    """Keep the permission in config.yaml; where that is not possible it lasts as long as the program."""
    from hermes.config.editing import change_list

    rules = context.config.terminal.allow.setdefault(question.folder, [])
    if question.rule not in rules:
        rules.append(question.rule)
    try:
        change_list(["terminal", "allow", question.folder], add=question.rule)
    except (HermesError, OSError):
        pass  # the yes itself counts; the question comes up again in the next program
