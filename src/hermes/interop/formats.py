"""The registry of formats: what `sessions export`, `sessions import`, the browser and their `--help` know.

A format is a row here and a module with some of these functions:

    write(export: Export) -> Iterator[bytes]                                        sessions as the bytes of a file
    sniff(path: Path) -> bool                                                       whether a file is in this format
    read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]    the sessions of a file; their
                                                                                    attachments go into the folder
    take(db: SessionDB, path: Path) -> dict[str, int]                               instead of read, where there is a quicker way
    files(folder: Path) -> Iterator[Path]                                           the files of this format below a folder;
                                                                                    or a pattern of their names: FILES
    usual_places() -> list[Path]                                                    where the program keeps them
    kept_at(name: str, session: ExportedSession) -> Path                            where the program looks for a session of
                                                                                    this id; only with `writes` and `resume`
    expiring(until: float) -> Iterator[str]                                         ids of the sessions that the program itself
                                                                                    deletes until then
    Trail                                                                           a class: where reading can begin in the
                                                                                    middle of a file (windows.py)

Other packages register a `Format` through an entry point of the group `hermes.formats`. Modules are imported when a file
of their format is read or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hermes.store.records.attachments import Read
    from hermes.store.records.rows import ExportedSession, SessionRow

GROUP = "hermes.formats"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: its name on the command line, and the module that writes or reads it."""

    name: str
    module: str
    help: str  # for --help, after the name
    endings: tuple[str, ...] = ()  # file names that choose it, where the caller names no format
    aliases: tuple[str, ...] = ()
    writes: bool = False
    writer: str = "write"  # the module's function that does
    reads: bool = False
    program: str = ""  # whose history it is; it grows there, so an import brings sessions that are here up to date
    by_folder: bool = True  # whether that program's sessions belong to folders
    resume: str = ""  # the words that resume a session there, before its id

    def load(self) -> ModuleType:
        """The module, imported now."""
        return import_module(self.module)

    def usual_places(self) -> list[Path]:
        """The places where the program keeps them; none for an export, which lies where it was downloaded to."""
        module = self.load()
        return list(module.usual_places()) if hasattr(module, "usual_places") else []

    def files(self, places: Iterable[Path]) -> Iterator[Path]:
        """The files of this format in some places, of which each is a folder, or a file itself; some may not be there."""
        module = self.load()
        for place in places:
            if place.is_dir():
                yield from module.files(place) if hasattr(module, "files") else sorted(place.rglob(module.FILES))
            elif place.is_file():
                yield place


def _history(name: str, program: str, help_text: str, resume: str = "", **more: Any) -> Format:
    module = f"hermes.interop.histories.{name.replace('-', '_')}"
    return Format(name=name, module=module, help=help_text, program=program, resume=resume, reads=True, **more)


def _document(name: str, help_text: str, *endings: str, **more: Any) -> Format:
    module = "hermes.interop.documents"
    return Format(
        name=name, module=module, help=help_text, endings=endings, writes=True, writer=f"write_{name}", **more
    )


def _own(name: str, help_text: str, *endings: str, **more: Any) -> Format:
    module = f"hermes.interop.{name}"
    return Format(name=name, module=module, help=help_text, endings=endings, reads=True, **more)


# The order in which files are sniffed.
BUILT_IN = (
    _document("markdown", "to read and print", ".md", ".markdown", aliases=("md",)),
    _document("html", "one page with pictures", ".html", ".htm"),
    _history(
        "claude-code", "Claude Code", "sessions of Claude Code", "claude --resume", aliases=("claude",), writes=True
    ),
    _history("codex", "Codex CLI", "rollouts of Codex CLI", "codex resume", writes=True),
    _history("gemini", "Gemini CLI", "chats of Gemini CLI", "gemini --resume"),
    _history("qwen", "Qwen Code", "sessions of Qwen Code", "qwen --resume"),
    _history("copilot", "GitHub Copilot CLI", "sessions of GitHub Copilot CLI", "copilot --resume"),
    _history("kimi", "Kimi Code", "sessions of Kimi Code", "kimi --session"),
    _history("grok", "Grok Build", "sessions of Grok Build", "grok --resume"),
    _history("cline", "Cline", "tasks of Cline, Roo Code and Kilo Code"),
    _history("opencode", "OpenCode", "OpenCode's database or export", "opencode --session"),
    _history("goose", "Goose", "Goose's database", "goose session --resume --session-id"),
    _history("llm", "llm", "the log of llm", by_folder=False),
    _history("pi", "Pi", "sessions of Pi, Oh My Pi and OpenClaw", "pi --session"),
    _history("cursor", "Cursor", "conversations of Cursor, the editor and the command line"),
    _history("vscode-copilot", "VS Code Copilot Chat", "chats of Copilot in VS Code and its kin"),
    _history("zed", "Zed", "Zed's conversations"),
    _history("antigravity", "Antigravity", "transcripts of Antigravity"),
    _history("aider", "aider", "aider's chat history"),
    _history("hermes-agent", "Hermes Agent", "Hermes Agent's state.db", by_folder=False),
    _history("chatgpt", "ChatGPT", "ChatGPT's data export", by_folder=False),
    _history("claude-ai", "Claude.ai", "Claude.ai's data export", by_folder=False),
    _own("database", "a state.db of this program or an older one"),
    _own("jsonl", "complete, can be imported again", ".jsonl", ".ndjson", ".json", writes=True),
)
DEFAULT = "jsonl"


@dataclass(slots=True, kw_only=True)
class Export:
    """An export request: the sessions, and how they are to be written."""

    sessions: Iterable[ExportedSession]  # as SessionDB.export_session gives them
    title: str = "Hermes sessions"
    name: str | None = None  # the id that the session gets in another program's format; None: made of its own
    zone: tzinfo | None = None  # of the times shown; None: the machine's
    attachments: Read | None = None  # the bytes of an attachment by its hash: SessionDB.read_attachment
    contents: Iterable[SessionRow] = ()  # the sessions (at least their ids) for a list of contents
    left_out: Counter[str] = field(default_factory=Counter)  # what the format can't hold, counted by the writer


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of a file that was not imported, and why."""

    line: int
    reason: str
    path: Path | None = None
    unknown: str | None = None  # the kind of record that the importer does not know; those are no damage
    times: int = 1  # how many there are of that kind


class Found(NamedTuple):
    """A session as import_session takes it, and where it was found."""

    line: int
    session: Mapping[str, Any]
    position: int = 0  # bytes of the file that were read, for progress


def formats() -> list[Format]:
    """Every format, those of other packages first."""
    others = [entry.load() for entry in entry_points(group=GROUP)]
    return [*others, *BUILT_IN]


def writers() -> dict[str, Format]:
    """The formats that can be written, by name and alias; the default first."""
    found = sorted((one for one in formats() if one.writes), key=lambda one: one.name != DEFAULT)
    return {name: one for one in found for name in (one.name, *one.aliases)}


def endings() -> list[str]:
    """The file name endings that choose a format to write."""
    return list(dict.fromkeys(one.endings[0] for one in writers().values() if one.endings))


def writer_for(path: Path) -> Format | None:
    """The format that a file name chooses."""
    return next((one for one in writers().values() if path.suffix.lower() in one.endings), None)


def reader_for(path: Path) -> Format | None:
    """The format of a file, judged by its content; None when it is in none that can be read."""
    return next((one for one in formats() if one.reads and one.load().sniff(path)), None)


def looked_for() -> str:
    """The programs and formats whose files can be read, for the message about a file of none of them."""
    return ", ".join(one.program or f"{one.name} ({one.help})" for one in formats() if one.reads)


def histories() -> list[Format]:
    """The formats of other programs' histories."""
    return [one for one in formats() if one.program]


def found_in(folder: Path) -> Iterator[tuple[Format, Path]]:
    """The histories of other programs below a folder, each file once."""
    seen: set[Path] = set()
    for history in histories():
        for path in history.files([folder]):
            if path not in seen and history.load().sniff(path):
                seen.add(path)
                yield history, path


def found_here() -> Iterator[tuple[Format, Path]]:
    """The histories of other programs in the usual places of this machine."""
    for history in histories():
        found = history.files(history.usual_places())
        yield from ((history, path) for path in found if history.load().sniff(path))


def described(*, reading: bool) -> str:
    """The formats in one line, for --help."""
    found = [one for one in formats() if (one.reads if reading else one.writes)]
    return ", ".join(f"{one.name} ({one.help})" for one in sorted(found, key=lambda one: one.name != DEFAULT))


def written(chosen: Format, export: Export) -> Iterator[bytes]:
    """The bytes of an export."""
    pieces: Iterator[bytes] = getattr(chosen.load(), chosen.writer)(export)
    return pieces
