"""Conversations of other programs, which every importer makes, in the shape that `SessionDB.import_session` takes.

An importer reads its program's files and adds messages to a `Conversation`: the path that program shows, and beside it the
branches that it has left. Each message keeps the id it had there (`platform_message_id`), so that a second import brings in
only what is new. Kinds of records that an importer does not know are counted in `Reading` and never stop it.

Several importers share the functions for sessions whose entries form a tree: each entry names the one it follows (`parentId`);
going back starts another branch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any

from hermes.interop.formats import Found, Problem
from hermes.interop.histories import make
from hermes.interop.histories.make import Message as Message
from hermes.interop.json_reading import Reading
from hermes.texts import shortened

ORIGIN, HERE = "origin", "here"  # the session here that a file was written from, and the id of each message that it has
CARRIED = "carried"  # the key of a session under which it names messages of others; `arrivals` makes references of them
_LONGEST_ID = 200


@dataclass(frozen=True, slots=True)
class Carried:
    """Messages that a conversation shows and another one has: what a compaction left in the context, or a fork began with."""

    owner: str  # the foreign id of the other one
    after: str | None  # the message of this conversation after which they stand; None: at the beginning
    messages: list[Message]


@dataclass(slots=True)
class Conversation:
    """One session of another program."""

    source: str
    foreign_id: str
    title: str | None = None
    cwd: str | None = None
    model: str | None = None
    started_at: float | None = None
    system_prompt: str | None = None
    parent: str | None = None  # the foreign id of the conversation this one comes from
    kind: str | None = None  # subagent, branch, compression
    archived_at: float | None = None
    cost: float | None = None
    tokens: dict[str, int] = field(default_factory=dict)  # of the whole session, where its messages don't have them
    end_reason: str | None = None
    git_branch: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    parts: list[list[Message]] = field(default_factory=lambda: [[]])  # what is shown, in order, cut at each compaction
    models: list[str | None] = field(default_factory=list)  # with which the parts before the last one ended
    branches: list[tuple[str | None, list[Message]]] = field(default_factory=list)  # after which foreign message id
    origin: str | None = None  # the session here that this one was exported from
    keeps_lost: bool = False  # whether messages that are no longer in the file stay: its program drops the first ones
    carried: list[Carried] = field(default_factory=list)  # messages of other conversations that this one shows

    @property
    def messages(self) -> list[Message]:
        """The messages of the last part, to which a program adds."""
        return self.parts[-1]

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self.parts[-1] = messages

    def compact(self, summary: Any, at: float | None, foreign_id: str | None) -> None:
        """Begin another part: the program compacted the conversation, and goes on with a summary (None: without one)."""
        self.models.append(self.model)
        self.parts.append(make.spoken("user", summary, at, foreign_id, meta={"summary": True}))

    def hide_from(self, cut: int) -> None:
        """Hide the messages of the last part from this place on, as a rewind does."""
        shown = self.messages
        if shown[cut:]:
            self.branches.append((shown[cut - 1]["platform_message_id"] if cut else None, shown[cut:]))
            del shown[cut:]

    def hide_turns(self, turns: int) -> None:
        """Hide the last turns of the person in the last part; summaries are no turns."""
        begins = [at for at, one in enumerate(self.messages) if one["role"] == "user" and not one.get("meta")]
        if turns and begins:
            self.hide_from(begins[-turns:][0])

    def show_tree(
        self,
        parents: dict[str, Any],
        made: dict[str, list[Message]],
        cuts: Collection[str] = (),
        leaf: str | None = None,
    ) -> list[str]:
        """Show the messages of the entries up to the leaf (the last one, if none is named), in a new part from each of `cuts`
        on, and hide the branches that were left. Returns the shown entries."""
        shown = path_to(leaf if leaf in parents else next(reversed(parents), None), parents.get)
        ends: dict[str | None, str | None] = {}  # of each entry, the last message up to it
        last: str | None = None
        for name in shown:
            if name in cuts:
                self.compact(None, None, None)
            self.messages += made[name]
            last = ends[name] = made[name][-1]["platform_message_id"] if made[name] else last
        for fork, branch in off_path(parents, set(shown), parents.get):
            if entries := [message for name in branch for message in made[name]]:
                self.branches.append((ends.get(fork), entries))
        return shown

    def split(self) -> Iterator[Conversation]:
        """A conversation for each part, each of them a continuation of the one before."""
        ended = [*self.models, *[self.model] * len(self.parts)]
        parted = [(part, model) for part, model in zip(self.parts, ended, strict=False) if part] or [([], self.model)]
        names = [{message.get("platform_message_id") for message in part} for part, _ in parted]
        later = set().union(*names[1:])
        branches, before = self.branches, self
        for number, (part, model) in enumerate(parted, 1):
            made = self
            if number > 1:
                made = copy(self)
                made.foreign_id = f"{self.foreign_id}.{number}"
                made.parent, made.kind = before.foreign_id, "compression"
                made.end_reason = made.started_at = made.cost = None
                made.tokens, made.meta, made.carried = {}, dict(self.meta), []
            before = made
            made.parts, made.model = [part], model
            if number < len(parted):
                made.end_reason = "compression"
            own = names[number - 1] | ({branch[0] for branch in branches} - later if number == 1 else set())
            made.branches = [branch for branch in branches if branch[0] in own]
            yield made

    def session(self, tools: dict[str, str]) -> dict[str, Any] | None:
        """The session to import; None when nothing was said in it. `tools` are the tools of the calls so far, by their ids."""
        if not self.messages:
            return None
        self._complete_times()
        self._name_tools(tools)
        carried = self._carried()
        rewound, rewinds = self._numbered(carried)
        all_messages = [*self.messages, *rewound]
        title = clean_title(self.title)
        began = min(at for at in (self.started_at, *(one["timestamp"] for one in all_messages)) if at is not None)
        out: dict[str, Any] = {
            "id": session_id(self.source, self.foreign_id),
            "source": self.source,
            "model": self.model or next((one["model"] for one in reversed(self.messages) if one.get("model")), None),
            "title": title,
            "cwd": self.cwd,
            "system_prompt": self.system_prompt,
            "started_at": began,
            "ended_at": max(one["timestamp"] for one in self.messages),
            "end_reason": self.end_reason or "imported",
            "archived_at": self.archived_at,
            "meta": {
                "imported": {"from": self.source, "id": self.foreign_id, **({"title": title} if title else {})},
                **({"git_branch": self.git_branch} if self.git_branch else {}),
                **self.meta,
            },
            "messages": self.messages,
            "attached": {},  # a text that only mentions an attachment has none
            ORIGIN: self.origin,
            "keeps_lost": self.keeps_lost or None,
            **self._totals(all_messages),
        }
        if self.parent is not None:
            out["parent_session_id"] = session_id(self.source, self.parent)
            out["kind"] = self.kind or "branch"
        if carried:
            out[CARRIED] = carried
        if rewound:
            out["rewound_messages"], out["rewinds"] = rewound, rewinds
            out["meta"]["imported"]["hidden"] = [batch for batch, _ in rewinds]  # by the import, not by a person here
        return {name: value for name, value in out.items() if value is not None}

    def _complete_times(self) -> None:
        """A message without a time has that of the message before it."""
        last = self.started_at
        for message in (*self.messages, *(message for _, branch in self.branches for message in branch)):
            if message.get("timestamp") is None:
                message["timestamp"] = last if last is not None else self._first_time()
            last = message["timestamp"]

    def _name_tools(self, tools: dict[str, str]) -> None:
        """A result that does not name its tool has that of its call."""
        carried, branches = (one.messages for one in self.carried), (branch for _, branch in self.branches)
        for message in chain(*carried, self.messages, *branches):
            tools.update((call["id"], call["function"]["name"]) for call in message.get("tool_calls") or ())
            if message["role"] == "tool" and "tool_name" not in message and message.get("tool_call_id") in tools:
                message["tool_name"] = tools[message["tool_call_id"]]

    def _first_time(self) -> float:
        return next((one["timestamp"] for one in self.messages if one.get("timestamp") is not None), 0.0)

    def carry(self, earlier: list[Conversation], names: set[str], after: str | None) -> None:
        """Show the messages with these foreign ids that earlier conversations have, after one of its own."""
        for conversation in earlier:
            if shown := [one for one in conversation.messages if one.get("platform_message_id") in names]:
                self.carried.append(Carried(conversation.foreign_id, after, shown))

    def _carried(self) -> list[dict[str, Any]]:
        """The ranges shown of other conversations, with the numbers that the messages have there, or others of their own."""
        found: list[dict[str, Any]] = []
        number = 0
        for carried in self.carried:
            messages = []
            for message in carried.messages:
                number = max(number + 1, message.get("id") or 0)
                messages.append({**message, "id": number, "timestamp": message.get("timestamp") or self._first_time()})
            owner = session_id(self.source, carried.owner)
            found.append({"owner": owner, "after": carried.after, "messages": messages})
        return found

    def _numbered(self, carried: list[dict[str, Any]]) -> tuple[list[Message], list[list[int]]]:
        """Give every message a number (in the order shown, branches after their fork) and hide the branches' messages."""
        number = max((message["id"] for group in carried for message in group["messages"]), default=0)
        numbers: dict[str, int] = {}
        waiting: dict[str | None, list[list[Message]]] = {}
        known = {message.get("platform_message_id") for message in self.messages}
        for after, branch in self.branches:
            waiting.setdefault(after if after in known else None, []).append(branch)
        rewound: list[Message] = []
        rewinds: list[list[int]] = []

        def hide(after: str | None, cut: int) -> None:
            nonlocal number
            for branch in waiting.get(after, ()):
                batch = len(rewinds) + 1
                rewinds.append([batch, cut])
                for message in branch:
                    number += 1
                    message["id"], message["hidden"] = number, batch
                    rewound.append(message)

        hide(None, 0)
        for message in self.messages:
            number += 1
            message["id"] = number
            if (name := message.get("platform_message_id")) is not None:
                numbers[name] = number
                hide(name, number)
        return rewound, rewinds

    def _totals(self, messages: list[Message]) -> dict[str, Any]:
        names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
        found: dict[str, Any] = {
            name: self.tokens.get(name) or sum(message.get(name) or 0 for message in messages) for name in names
        }
        cost = self.cost if self.cost is not None else sum(one.get("cost_usd") or 0.0 for one in messages) or None
        if cost is not None:
            found |= {"actual_cost_usd": cost, "cost_status": "actual", "cost_source": self.source}
        # part of the output tokens: counted by message there, kept for the session here
        thought = sum(message.get("reasoning_tokens") or 0 for message in messages)
        found["reasoning_tokens"] = self.tokens.get("reasoning_tokens") or thought
        found["api_call_count"] = sum(message["role"] == "assistant" for message in messages)
        return found


def reads(
    conversations: Callable[[Path, Reading], Iterator[Conversation]],
) -> Callable[[Path, Path | None, list[Problem]], Iterator[Found]]:
    """A format's `read`, made of a function that reads the conversations of a file."""

    @wraps(conversations)
    def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
        reading, tools = Reading(path, problems), dict[str, str]()
        for made in conversations(path, reading):
            for part in made.split():
                if (session := part.session(tools)) is not None:
                    yield Found(0, session, reading.position)
        reading.report()

    return read


def session_id(source: str, foreign_id: str) -> str:
    """The id a conversation has here: the program and the id it had there."""
    clean = "".join(c if c.isprintable() and c != " " else "_" for c in foreign_id)
    if len(clean) > _LONGEST_ID:
        import hashlib

        clean = clean[: _LONGEST_ID - 17] + "-" + hashlib.sha256(foreign_id.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{source}-{clean}"


def clean_title(title: str | None) -> str | None:
    """A title as the record takes it: on one line, 100 characters at most."""
    if not isinstance(title, str):
        return None
    from hermes.errors import HermesError
    from hermes.store.records.titles import sanitize_title

    line = " ".join(title.split())
    try:
        return sanitize_title(shortened(line, 100))
    except HermesError:
        return None


def relink(parents: dict[str, Any], may_begin: Callable[[str], bool] = lambda name: False) -> None:
    """Mend a chain: if the entry that another one follows is damaged or not named, the one before it in the file takes its place.

    One that names none begins another conversation if `may_begin` says so.
    """
    before: str | None = None
    for name, parent in parents.items():
        begins = parent is None and may_begin(name)
        if not begins and not (isinstance(parent, str) and parent in parents):
            parents[name] = before
        before = name


def path_to(leaf: Any, parent: Callable[[str], Any]) -> list[str]:
    """From the first entry to this one."""
    found: dict[str, None] = {}
    while leaf is not None and leaf not in found:
        found[leaf] = None
        leaf = parent(leaf)
    return [*reversed(found)]


def off_path(
    names: Iterable[str], on_path: Collection[str], parent: Callable[[str], Any]
) -> Iterator[tuple[str | None, list[str]]]:
    """Each branch beside a path: the entry of the path that it follows, and its entries."""
    groups: dict[str, tuple[str | None, list[str]]] = {}
    root_of: dict[str, str] = {}
    for name in names:
        if name in on_path:
            continue
        above = parent(name)
        root = root_of[name] = root_of.get(str(above), name)
        if root == name:
            groups[root] = (above if above in on_path else None, [])
        groups[root][1].append(name)
    yield from groups.values()
