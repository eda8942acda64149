"""The interface of a tool, and the context it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

STOPPED, DECLINED, TIMED_OUT, FAILED = "stopped", "declined", "timed out", "failed"

if TYPE_CHECKING:
    from hermes.agent.tools.permission import Answer
    from hermes.config import Config
    from hermes.store.db import SessionDB
    from hermes.store.visibility import User


@dataclass(slots=True)
class Context:
    """What a tool gets besides its arguments."""

    db: SessionDB
    config: Config
    session_id: str
    home: Path
    cwd: Path
    confirm: Callable[[str], bool | Answer]  # asks the user about one thing, in one line; False means no
    cancelled: Callable[[], bool]
    user: User | None = None  # the user whose sessions may be seen; None: the owner, who sees all
    root: Path | None = None  # the folder the conversation began in, where files are free; None: nowhere
    state: dict[str, Any] = field(default_factory=dict)  # lives as long as the agent: background processes


class Reported(str):
    """The text of a result for the model, with what the user's screen shows of it.

    `outcome` says in a word or two how a call ended that was no success; `shown` is a program's output, or a diff.
    """

    __slots__ = ("outcome", "shown")
    outcome: str
    shown: str

    def __new__(cls, text: str, *, outcome: str = "", shown: str = "") -> Reported:
        made = super().__new__(cls, text)
        made.outcome, made.shown = outcome, shown
        return made


def parameters(*required: str, **described: str | dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments: a text describes one that is a text, anything else has a schema of its own."""
    properties = {
        name: {"type": "string", "description": about} if isinstance(about, str) else about
        for name, about in described.items()
    }
    made = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def argument(kind: str, description: str | None = None, **more: Any) -> dict[str, Any]:
    """The schema of one argument: "integer", "number" or "boolean"; a text, if it is one of a few words (`enum`)."""
    return {"type": kind, **({"description": description} if description else {}), **more}


@dataclass(slots=True, frozen=True)
class Tool:
    """A tool that the model can call. `run` returns the text of the result; ToolError (errors.py) is a failed result.

    A `Reported` text is a result the model gets as it is, of something that ran; its outcome says whether it succeeded.
    """

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of the arguments
    run: Callable[[Context, dict[str, Any]], str]

    def schema(self) -> dict[str, Any]:
        """The tool's declaration for the endpoint."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }
