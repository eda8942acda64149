"""The folders a command may run in, and the files it may overwrite there.

A command line can change folders, and whether it does may depend on earlier commands; so a place is every
folder it may be in, and a file counts as existing when it exists in one of them.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hermes.agent.tools.danger.shell_words import ShellWord

_NO_FILES = re.compile(r"/dev/(null|zero|full|stdin|stdout|stderr|tty|random|urandom|fd/\d+|(tcp|udp)/.*)")
_MANY = 1000


@dataclass(slots=True)
class WorkingFolders:
    """The folders a command may run in; `lost` when one of them can't be known."""

    folders: list[Path]
    lost: bool = False
    arrived: set[str] = field(default_factory=set)  # what the command itself moves somewhere: precious there as well

    def move(self, word: ShellWord | None) -> None:
        """`cd`: from here on this folder is possible as well."""
        if word is None:
            word = ShellWord("~", tilde=True)
        paths = None if word.text == "-" else self.paths(word)
        if paths is None or len(self.folders) > 16:
            self.lost = True
            return
        self.folders += [path for path in paths if path not in self.folders]

    def paths(self, word: ShellWord) -> list[Path] | None:
        """What a word may mean as a file name; None when that can't be known."""
        if not word.known or word.glob:
            return None
        text = os.path.expanduser(word.text) if word.tilde else word.text
        if os.path.isabs(text):
            return [Path(text)]
        return None if self.lost else [folder / text for folder in self.folders]

    def overwritten(self, word: ShellWord) -> str | None:
        """What would be lost if this file were overwritten; None when nothing is."""
        if word.process or _NO_FILES.fullmatch(word.text):
            return None
        paths = self.paths(word)
        if paths is None:
            return f"would write to {word.text}, and what that is can't be seen beforehand"
        return f"would overwrite {word.text}" if any(self._holds(path) for path in paths) else None

    def overwritten_in(self, folder: ShellWord, sources: Iterable[ShellWord], *, as_file: bool = False) -> str | None:
        """What would be lost if the sources were put to `folder` (into it, if it is one)."""
        paths = self.paths(folder)
        if paths is None:
            return f"would write to {folder.text}, and what that is can't be seen beforehand"
        for path in paths:
            if as_file or not path.is_dir():
                if path.is_dir() or self._holds(path):
                    return f"would overwrite {folder.text}"
            elif any(path.iterdir()) or self.arrived:
                for source in sources:
                    for name in self.names(source):
                        if name is None:
                            return f"would put {source.text} into {folder.text}, which may overwrite something"
                        if os.path.lexists(path / name) or self._holds(path / name):
                            return f"would overwrite {name} in {folder.text}"
        return None

    def moved(self, folder: ShellWord, sources: Iterable[ShellWord], *, as_file: bool = False) -> None:
        """The sources are now at `folder` (or in it)."""
        for path in self.paths(folder) or ():
            into = path.is_dir() and not as_file
            found = [name for source in sources for name in self.names(source) if name] if into else [""]
            self.arrived |= {os.path.normpath(path / name) for name in found}

    def _holds(self, path: Path) -> bool:
        return _holds_something(path) or os.path.normpath(path) in self.arrived

    def names(self, word: ShellWord) -> list[str | None]:
        """The names a source would have in another folder; None among them: can't be known."""
        if not word.known:
            return [None]
        if not word.glob:
            return [os.path.basename(word.text.rstrip("/")) or "."]
        if self.lost and not os.path.isabs(word.text):
            return [None]
        found = [path for folder in self.folders for path in glob.glob(word.text, root_dir=folder)]
        return [None] if len(found) > _MANY else [os.path.basename(path) or "." for path in found]

    def content(self, word: ShellWord) -> str | None:
        """The text of a file the command would read; None when it can't be read."""
        paths = self.paths(word)
        if paths is None:
            return None
        for path in paths:
            if path.is_file() and path.stat().st_size < 1_000_000:
                return path.read_text(encoding="utf-8", errors="replace")
        return None


def _holds_something(path: Path) -> bool:
    """Whether a file (or a disk) exists, or may exist."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISBLK(mode)
