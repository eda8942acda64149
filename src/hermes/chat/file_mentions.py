"""`@path` in a question attaches a file's text, a folder's listing or a picture.

Only an existing path counts, so an address or a name with an @ stays text. A path with spaces is written
`@"a b.txt"`. Long files are cut to a budget, binary ones are refused, and the user sees what is attached and how large it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hermes.agent.attached_files import image_type, picture_part
from hermes.errors import InvalidInput
from hermes.texts import counted, harmless, text_of_bytes, without_middle

BUDGET: Final = 200_000  # characters of all texts of one question
PICTURE_BYTES: Final = 10_000_000
FILE_BYTES: Final = 20_000_000
LISTED: Final = 300
_MENTION: Final = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]+)"|(\S+))')
_TYPED: Final = re.compile(r'(?:(?<=\s)|^)@("?)([^"\n]*)$')
_ATTACHED: Final = re.compile(
    r"\n\n(\[file ([^\n]+): [\d,]+ lines?, [^\]\n]*\])\n.*?\n\[end of \2\](?=\n\n|$)"
    r"|\n\n(\[folder [^\n]+: [^\]\n]* entr(?:y|ies)\])\n.*?(?=\n\n|$)",
    re.DOTALL,
)


@dataclass(slots=True)
class Mentions:
    """The attachments of a question: texts, pictures, and a line about each for the user."""

    left: int  # characters that the texts may still take
    texts: list[str] = field(default_factory=list)
    pictures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, path: Path) -> None:
        """Add one file or folder; InvalidInput if it can't be attached."""
        try:
            problem = self._add(name, path)
        except OSError as error:
            problem = f"can't be read ({error.strerror})"
        if problem is not None:
            raise InvalidInput(f"@{name} {problem}; the message was not sent")

    def _add(self, name: str, path: Path) -> str | None:
        """Add a listing, a text or a picture; returns None, or why it can't be attached."""
        if path.is_dir():
            listing, count = _listing(path)
            entries = counted(count, "entry", "entries")
            self.texts.append(f"[folder {name}: {entries}]\n{listing}")
            self.notes.append(f"{name}: folder, {entries}")
            self.left -= len(listing)
            return None
        if not path.is_file():
            return "is neither a file nor a folder"
        size = path.stat().st_size
        if size > FILE_BYTES:
            return f"has {size:,} bytes, more than {FILE_BYTES:,}"
        data = path.read_bytes()
        if (mime := image_type(data)) is not None:
            if size > PICTURE_BYTES:
                return f"is a picture of {size:,} bytes, more than {PICTURE_BYTES:,}"
            self.pictures.append(picture_part(mime, data))
            self.notes.append(f"{name}: picture, {_size(size)}")
            return None
        text = text_of_bytes(data)
        if text is None:
            return f"is a binary file ({_size(len(data))})"
        if self.left < 200:
            return "does not fit beside the other files"
        lines = counted(len(text.splitlines()), "line")
        shown = without_middle(text, self.left)
        cut = "" if shown == text else ", its middle left out"
        self.texts.append(f"[file {name}: {lines}, {len(data):,} bytes{cut}]\n{shown.rstrip()}\n[end of {name}]")
        self.notes.append(f"{name}: {lines}, {_size(len(data))}{cut}")
        self.left -= len(shown)
        return None


def with_files(
    text: str, folder: Path, window: int, *, piped: str = ""
) -> tuple[str | list[dict[str, Any]], list[str]]:
    """The content to send for a typed text, and notes about its attachments. InvalidInput for a file that can't be attached.

    `window` is the model's context in tokens: the texts take at most about half of it. `piped` text is data: an @ in it
    names no file.
    """
    found = Mentions(min(BUDGET, max(window, 2_000) * 2))
    for name, path in dict(_mentioned(text, folder)).items():
        found.add(name, path)
    found.texts += [piped] if piped else []
    whole = "\n\n".join(part for part in (text, *found.texts) if part)
    if not found.pictures:
        return whole, found.notes
    return [{"type": "text", "text": whole}, *found.pictures], found.notes


def without_files(text: str) -> str:
    """A message of `with_files` without the texts of its files and folders: their first lines stay."""
    return _ATTACHED.sub(lambda one: "\n" + (one[1] or one[3]), text)


def _mentioned(text: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for match in _MENTION.finditer(text):
        names = [match[1]] if match[1] else [match[2], match[2].rstrip(".,;:!?)]}'")]
        for name in names:
            path = _path(folder, name)
            if path is not None:
                yield name, path
                break


def _path(folder: Path, name: str) -> Path | None:
    try:
        path = folder / Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _listing(folder: Path) -> tuple[str, int]:
    names = sorted(os.listdir(folder))
    lines = []
    for name in names[:LISTED]:
        path = folder / name
        try:
            lines.append(f"{name}/" if path.is_dir() else f"{name}  {path.stat().st_size:,} bytes")
        except OSError:
            lines.append(name)
    more = [f"… and {len(names) - LISTED:,} more"] if len(names) > LISTED else []
    return harmless("\n".join([*lines, *more])), len(names)


def _size(size: int) -> str:
    return f"{size:,} bytes" if size < 10_000 else f"{size / 1_000:,.0f} kB"


def typed_path(before: str) -> str | None:
    """The unfinished path after an @ at the cursor; None when there is none."""
    match = _TYPED.search(before)
    if match is None or (not match[1] and any(sign.isspace() for sign in match[2])):
        return None
    return match[2]
