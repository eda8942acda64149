"""System prompts next to the transcripts: each text once, in a file named by its hash.

A prompt with memory and skills in it is long, and many sessions have the same one. A transcript names it by its SHA-256; the
file is deleted with the last session that uses it. Writing and removing hold a lock, so that no prompt is removed that
another process has just begun to use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes.home import make_private
from hermes.whole_files import write_whole

FOLDER = "prompts"
_TEXT, _HASH = "system_prompt", "system_prompt_hash"


def prompt_path(sessions: Path, digest: str) -> Path:
    """The path of the prompt with this hash, next to the transcripts of a folder."""
    return sessions / FOLDER / f"{digest}.txt"


def prompt_hash(text: str) -> str:
    """The name of a prompt: the SHA-256 of its text as UTF-8."""
    return _sha256(text.encode("utf-8", "surrogatepass"))


def _sha256(raw: bytes) -> str:
    import hashlib  # slow to import for callers that only list

    return hashlib.sha256(raw).hexdigest()


def read_prompt(sessions: Path, digest: Any) -> str | None:
    """A prompt by its hash; None when its file is missing, or does not match its name."""
    if not isinstance(digest, str) or len(digest) != 64 or not digest.isalnum():
        return None
    try:
        raw = prompt_path(sessions, digest).read_bytes()
    except OSError:
        return None
    return raw.decode("utf-8", "surrogatepass") if _sha256(raw) == digest else None


def _holds(path: Path, raw: bytes) -> bool:
    try:
        return path.stat().st_size == len(raw) and path.read_bytes() == raw
    except OSError:
        return False


class PromptFiles:
    """The prompts of one folder of transcripts."""

    def __init__(self, sessions: Path, lock: Callable[[int], bool]) -> None:
        self.sessions = sessions
        self._lock = lock  # waits for a while; False when another process still holds it

    def named(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """A session's columns with the hash of its prompt in place of the text, which is stored in its file."""
        if _TEXT not in columns:
            return dict(columns)
        text = columns[_TEXT]
        rest = {name: value for name, value in columns.items() if name != _TEXT}
        return {**rest, _HASH: None if text is None else self.keep(text)}

    def keep(self, text: str) -> str:
        """Store a prompt in its file; returns its hash."""
        raw, digest = text.encode("utf-8", "surrogatepass"), prompt_hash(text)
        target = prompt_path(self.sessions, digest)
        with self._alone():  # or unlocked, if another process hangs: storing it matters more
            if not _holds(target, raw):
                write_whole(target, raw, sync=False)
        return digest

    def drop(self, digests: list[str] | None, is_used: Callable[[str], bool]) -> None:
        """Remove prompts (None: any) that no session has; never raises."""
        if not (self.sessions / FOLDER).is_dir():
            return
        try:
            with self._alone() as alone:
                found = [path.stem for path in (self.sessions / FOLDER).glob("*.txt")] if digests is None else digests
                for digest in found if alone else ():
                    if not is_used(digest):
                        prompt_path(self.sessions, digest).unlink(missing_ok=True)
        except OSError:
            pass  # a leftover file does no harm

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        make_private(self.sessions)
        make_private(self.sessions / FOLDER)
        handle = os.open(self.sessions / FOLDER / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield self._lock(handle)
        finally:
            os.close(handle)
