"""Claude Code: one JSON-lines file per session under ~/.claude/projects/<folder>/, sub-agents in a folder beside it.

Lines form a tree by `uuid` and `parentUuid`: what is shown is the path to the last message, other paths were left by a
rewind. One reply of the model is written as several lines with the same `message.id`; its usage counts once. After a
compaction the conversation goes on under a summary: here that is a session of its own, continued from the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes.interop.histories import (
    Carried,
    Conversation,
    Message,
    claude_code_lines,
    off_path,
    path_to,
    reads,
    session_id,
)
from hermes.interop.histories.claude_code_lines import (
    SESSION,
    SOURCE,
    ReplyGroups,
    blocks,
    is_boundary,
    is_injected,
    is_result,
    messages_of,
)
from hermes.interop.histories.claude_code_lines import kept_at as kept_at
from hermes.interop.histories.claude_code_lines import usual_places as usual_places
from hermes.interop.histories.claude_code_lines import write as write
from hermes.interop.histories.make import as_uuid
from hermes.interop.json_reading import Reading, Record, Window, first_objects, json_lines, json_object
from hermes.interop.windows import BEGINS, BREAKS, CUTS, ON
from hermes.interop.windows import Trail as BaseTrail

_SPOKEN = ("user", "assistant")
_BOOKKEEPING = frozenset(
    "file-history-snapshot queue-operation progress mode permission-mode pr-link worktree-state bridge-session last-prompt"
    " agent-name relocated api-request api-request-blob api-request-shape atis-latch tools-used cost-state".split()
)
_CLEANUP_DAYS = 30  # as Claude Code has it without a setting
_SUMMARY_WITHIN = 10  # lines after a compaction: its summary is the first or the second


def expiring(until: float) -> Iterator[str]:
    """The ids of the sessions that Claude Code will have deleted by a time: it removes files that were not written for some
    days when it starts. With a number of days that it refuses (0 among them) it removes none."""
    for place in usual_places():
        days = json_object(place.parent / "settings.json").get("cleanupPeriodDays", _CLEANUP_DAYS)
        if isinstance(days, (int, float)) and days >= 1:
            for path in files(place):
                with suppress(OSError):  # removed meanwhile
                    if path.stat().st_mtime + days * 86400 <= until:
                        yield session_id(SOURCE, path.stem)


def sniff(path: Path) -> bool:
    """Whether a file is a session of Claude Code. Qwen Code's lines look alike, but have Gemini's messages inside."""
    first = first_objects(path)
    if any("parts" in record.object("message") or "systemPayload" in record for record in first):
        return False
    return any(
        ("sessionId" in record and ("parentUuid" in record or record.get("type") in ("summary", *_BOOKKEEPING)))
        or (record.get("type") == "summary" and "leafUuid" in record)
        for record in first
    )


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder; sub-agents come with the session that started them."""
    for path in sorted(folder.rglob("*.jsonl")):
        if path.parent.name != "subagents" and path.name != "history.jsonl":
            yield path


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """A session in as many parts as it was compacted into, and the sub-agents it started."""
    parent = _started_by(path)
    reader = _SessionFileReader(path, reading, is_agent=parent is not None)
    name = f"{parent}-{path.stem}" if parent is not None else reader.name()
    yield from reader.conversations(name, parent)
    if isinstance(path, Window) and path.start:
        return  # they came with the beginning of the file
    for agent in sorted((path.parent / path.stem / "subagents").glob("agent-*.jsonl")):
        beside = Reading(agent, reading.problems)
        yield from _SessionFileReader(agent, beside, is_agent=True).conversations(f"{name}-{agent.stem}", name)
        beside.report()


class Trail(BaseTrail):
    """A window can begin with each prompt."""

    def take(self, record: Record) -> str:
        compaction = record.object("compactMetadata")
        segment = compaction.object("preservedSegment")
        named = [*_preserved(compaction), segment.get("headUuid"), segment.get("tailUuid"), record.get("leafUuid")]
        is_known = self.follows(record.get("uuid"), record.get("parentUuid") or record.get("logicalParentUuid"))
        if not is_known or not all(map(self.knows, named)) or record.get("isSidechain") or SESSION in record:
            return BREAKS
        if any(block.get("type") == "tool_use" and block.get("id") is None for block in blocks(record)):
            return BREAKS
        if is_boundary(record) or record.get("isCompactSummary"):
            return CUTS
        is_prompt = record.get("type") == "user" and not record.get("isMeta")
        return BEGINS if is_prompt and not is_result(record) and not is_injected(record) else ON


def _preserved(compaction: Record) -> list[str]:
    """The lines that stay in the context after a compaction, where it lists them."""
    named = compaction.get("preservedMessages")
    listed = Record.of(named).get("uuids") or Record.of(named).get("allUuids") or named
    if not isinstance(listed, list):
        return []
    return [entry if isinstance(entry, str) else str(Record.of(entry).get("uuid")) for entry in listed]


def _started_by(path: Path) -> str | None:
    """The session that a sub-agent's own file belongs to; older versions put the file beside the session's."""
    if not path.name.startswith("agent-"):
        return None
    first = next((one for one in first_objects(path) if one.text("sessionId") and one.get("isSidechain")), None)
    return first["sessionId"] if first is not None else None


class _SessionFileReader:
    """One file: its lines by uuid, and the session's own fields."""

    def __init__(self, path: Path, reading: Reading, *, is_agent: bool) -> None:
        self._path_of_file, self._is_agent = path, is_agent
        self._links: dict[str, Any] = {}  # of lines that are no messages, which messages may follow: uuid -> parentUuid
        self._before: dict[str, str] = {}  # the line of the same conversation that stands before a line
        self._last: dict[bool, str] = {}
        self._session: str | None = None
        self._lines: dict[str, Record] = {}
        self._order: list[str] = []
        self._places: dict[str, int] = {}
        self._names: dict[str, str] = {}  # of each line of a reply, the name under which the reply is stored
        self._turns: dict[bool, ReplyGroups] = {}
        self._boundaries: list[tuple[str, list[str]]] = []  # each compaction, and the lines that it left in the context
        self._titles: dict[str, str] = {}
        self._leaf: str | None = None  # where the program stood when it wrote its last line
        self._cwd: str | None = None
        self._branch: str | None = None
        self._origin: str | None = None  # the session here that the file was written from
        self._reading = reading
        for number, line in json_lines(path, reading):
            self._take(line, number)

    def _take(self, line: Record, number: int) -> None:
        kind = line.get("type")
        if isinstance(line.get("cwd"), str) and self._cwd is None:
            self._cwd = line["cwd"]
        self._branch = line.text("gitBranch") or self._branch
        self._origin = line.text(SESSION) or self._origin
        if kind in _SPOKEN or kind in ("system", "attachment"):
            self._add_line(line, number)
        else:
            self._add_bookkeeping(line, kind)

    def _add_line(self, line: Record, number: int) -> None:
        uuid = line.text("uuid") or f"line-{number}"
        if uuid in self._lines:
            return
        aside = bool(line.get("isSidechain"))
        if line.get("type") in _SPOKEN and not aside:
            self._leaf = None
            self._session = line.text("sessionId") or self._session
        line.pop("toolUseResult", None)  # repeats the result, at times with whole files
        self._lines[uuid] = line
        self._places[uuid] = len(self._order)
        self._order.append(uuid)
        if aside in self._last:
            self._before[uuid] = self._last[aside]
        self._last[aside] = uuid
        if line.get("type") in _SPOKEN:
            parent = self._linked(line.get("parentUuid"))
            self._turns.setdefault(aside, ReplyGroups()).take(uuid, line, parent, self._names)
        elif is_boundary(line):
            self._boundaries.append((uuid, self._preserved(line.object("compactMetadata"))))

    def _preserved(self, compaction: Record) -> list[str]:
        """The lines that stay in the context after a compaction."""
        names = _preserved(compaction)
        if not names and (segment := compaction.object("preservedSegment")):
            first, last = (self._places.get(str(segment.get(key))) for key in ("headUuid", "tailUuid"))
            names = self._order[first : last + 1] if first is not None and last is not None else []
        return [uuid for uuid in names if uuid in self._lines]

    def _add_bookkeeping(self, line: Record, kind: Any) -> None:
        if isinstance(line.get("uuid"), str):
            self._links.setdefault(line["uuid"], line.get("parentUuid"))
        if kind in ("custom-title", "ai-title"):
            title = line.text({"custom-title": "customTitle", "ai-title": "aiTitle"}[kind])
            if title is not None:
                self._titles[kind] = title
        elif kind == "summary":
            # One that names a message is the title of the session with that message.
            if line.text("summary") and (line.get("leafUuid") is None or line["leafUuid"] in self._lines):
                self._titles[kind] = line["summary"]
        elif str(kind) not in _BOOKKEEPING:
            self._reading.unknown[str(kind)] += 1
        if kind == "relocated" and line.text("relocatedCwd"):
            self._cwd = line["relocatedCwd"]
        if kind == "last-prompt" and isinstance(line.get("leafUuid"), str):
            self._leaf = line["leafUuid"]

    def name(self) -> str:
        """The session's id: the name of its file, or what its lines say where the file has another name."""
        stem = self._path_of_file.stem
        return stem if as_uuid(stem) == stem.lower() else self._session or stem

    def _title(self) -> str | None:
        if self._is_agent:
            return json_object(self._path_of_file.with_suffix(".meta.json")).text("description")
        titles = self._titles
        return titles.get("custom-title") or titles.get("ai-title") or titles.get("summary")

    def conversations(self, name: str, parent: str | None) -> Iterator[Conversation]:
        """The session and its continuations, oldest first."""
        shown = self._path()
        segments = self._segments(shown)
        title = self._title()
        branches = self._branches(shown)
        copied = self._copied(name)
        earlier: list[Conversation] = []
        for number, part in enumerate(segments, 1):
            own = [uuid for uuid in part if uuid not in copied]
            if copied and not any(map(self._is_spoken, own)):
                continue  # the session that this one was forked from has all of it
            made = Conversation(SOURCE, name, title=title, cwd=self._cwd, parent=parent, kind="subagent")
            if earlier:
                made.foreign_id = f"{name}.{len(earlier) + 1}"
                made.parent, made.kind = earlier[-1].foreign_id, "compression"
            if number < len(segments):
                made.end_reason = "compression"
            made.git_branch, made.origin = self._branch, self._origin
            made.messages = self._messages(part)
            if len(own) < len(part):
                self._fork(made, part, copied, number, is_first=not earlier)
            for boundary, kept in self._boundaries:
                if boundary in part:
                    summary = self._summary_of(boundary)
                    made.carry(earlier, self._stored_names(kept), summary if summary in part else None)
            inside = set(part)
            for after, branch in branches:
                if (after in inside or (after is None and not earlier)) and not copied.keys() >= set(branch):
                    made.branches.append((self._name_of(after), self._messages(branch)))
            earlier.append(made)
            yield made
        if not self._is_agent:
            yield from self._inline_agents(name)

    def _stored_names(self, uuids: Iterable[str]) -> set[str]:
        """The foreign ids under which the messages of these lines are stored."""
        names: set[str] = set()
        for uuid in uuids:
            results = [str(b["tool_use_id"]) for b in blocks(self._lines[uuid]) if b.get("type") == "tool_result"]
            names.update((self._names.get(uuid, uuid), f"{uuid}-context", *results))
        return names

    def _copied(self, name: str) -> dict[str, str]:
        """The lines that were copied from the session that this one was forked from, each with the session that has it."""
        spoken = [uuid for uuid in self._order if self._is_spoken(uuid) and not self._is_sidechain(uuid)]
        is_later = isinstance(self._path_of_file, Window) and self._path_of_file.start
        if self._is_agent or not spoken or is_later:  # a fork is seen at its beginning
            return {}
        return claude_code_lines.copied(self._path_of_file, spoken[0], name)

    def _fork(
        self, made: Conversation, part: list[str], copied: dict[str, str], number: int, *, is_first: bool
    ) -> None:
        """Leave copied messages to the session that has them."""
        for owner in dict.fromkeys(copied[uuid] for uuid in part if uuid in copied):
            names = self._stored_names(uuid for uuid in part if copied.get(uuid) == owner)
            shared = [message for message in made.messages if message.get("platform_message_id") in names]
            made.messages = [message for message in made.messages if message.get("platform_message_id") not in names]
            whole = owner if number == 1 else f"{owner}.{number}"
            if shared:
                made.carried.append(Carried(whole, None, shared))
            if is_first:
                made.parent, made.kind = whole, "branch"

    def _inline_agents(self, name: str) -> Iterator[Conversation]:
        """Sub-agents that older versions wrote into the session's own file: each tree of such lines is one."""
        for _, uuids in off_path(filter(self._is_sidechain, self._order), (), self._parent):
            made = Conversation(SOURCE, f"{name}-{uuids[0]}", cwd=self._cwd, parent=name, kind="subagent")
            made.messages = self._messages(uuids)
            yield made

    def _linked(self, parent: Any) -> str | None:
        """The line to which a parent link leads, past lines that are no messages."""
        seen: set[str] = set()
        while isinstance(parent, str) and parent in self._links and parent not in seen:
            seen.add(parent)
            parent = self._links[parent]
        return parent if isinstance(parent, str) else None

    def _parent(self, uuid: str) -> str | None:
        """The message that a line follows. Where that one is damaged, or was never written, it is the line before it; so
        is it for a line that follows none: files with several such lines hold one conversation."""
        line = self._lines[uuid]
        parent = self._linked(line.get("parentUuid") or line.get("logicalParentUuid"))
        if parent is None and (self._is_agent or not self._is_sidechain(uuid)):
            return self._before.get(uuid)
        if parent is None:
            return None
        for boundary, kept in reversed(self._boundaries):  # what a compaction kept stands after its summary
            if parent in kept and self._places[parent] < self._places[boundary] < self._places[uuid]:
                return self._summary_of(boundary)
        return self._before.get(uuid) if parent not in self._lines or parent == uuid else parent

    def _summary_of(self, boundary: str) -> str:
        after = self._order[self._places[boundary] : self._places[boundary] + _SUMMARY_WITHIN]
        return next((uuid for uuid in after if self._lines[uuid].get("isCompactSummary")), boundary)

    def _path(self) -> list[str]:
        """The messages from the first to the one from which the program would go on."""
        spoken = [
            uuid for uuid in self._order if self._is_spoken(uuid) and (self._is_agent or not self._is_sidechain(uuid))
        ]
        if not spoken:
            return []
        path = path_to(spoken[-1], self._parent)
        if self._leaf in self._lines and self._leaf not in path:  # the person went back to another branch at the end
            path = path_to(self._leaf, self._parent)
        return self._with_siblings(path)

    def _is_sidechain(self, uuid: str) -> bool:
        return bool(self._lines[uuid].get("isSidechain"))

    def _with_siblings(self, path: list[str]) -> list[str]:
        """Results of calls made at the same time hang on different lines of one reply: all of them are shown."""
        replies = {self._names[uuid] for uuid in path if uuid in self._names}
        wanted = set(path)
        for uuid in self._order:
            if self._names.get(uuid) in replies or self._lines[uuid].get("sourceToolAssistantUUID") in wanted:
                wanted.add(uuid)
        wanted |= {u for u in self._order if is_result(self._lines[u]) and self._parent(u) in wanted}
        return [uuid for uuid in self._order if uuid in wanted]

    def _segments(self, shown: list[str]) -> list[list[str]]:
        """The path cut at each compaction."""
        parts: list[list[str]] = [[]]
        for uuid in shown:
            line = self._lines[uuid]
            if (is_boundary(line) or line.get("isCompactSummary")) and any(map(self._is_spoken, parts[-1])):
                parts.append([])
            parts[-1].append(uuid)
        return [part for part in parts if any(map(self._is_spoken, part))] or [[]]

    def _is_spoken(self, uuid: str) -> bool:
        return self._lines[uuid].get("type") in _SPOKEN

    def _branches(self, shown: list[str]) -> list[tuple[str | None, list[str]]]:
        """Branches that a rewind left, each with the shown message after which it begins."""
        ours = (uuid for uuid in self._order if self._is_agent or not self._is_sidechain(uuid))
        return [group for group in off_path(ours, set(shown), self._parent) if any(map(self._is_spoken, group[1]))]

    def _messages(self, uuids: list[str]) -> list[Message]:
        return messages_of(self._lines, uuids, self._names)

    def _name_of(self, uuid: str | None) -> str | None:
        """The foreign id under which the message with this line is stored."""
        at = uuid
        while at is not None:
            line = self._lines[at]
            if line.get("type") in _SPOKEN:
                results = [b for b in blocks(line) if b.get("type") == "tool_result"]
                return str(results[-1].get("tool_use_id")) if results else self._names.get(at, at)
            at = self._parent(at)
        return None
