"""Every error this program raises on purpose, as one tree.

    HermesError
    ├── StoreError                  the store could not do what was asked
    │   ├── StoreBusy               another process held the write lock for too long
    │   ├── StoreFull               no space left (or a quota) where the store is
    │   ├── StoreReadOnly           the file, its folder or its format allows reading only
    │   ├── StoreClosed             the SessionDB was closed, or came into this process by fork()
    │   ├── StoreGone               its file was deleted, moved or replaced while it was open
    │   ├── StoreLocked             the store is encrypted and its key is missing or wrong
    │   ├── StoreUnreachable        the database server can't be reached, or went away
    │   ├── Fenced                  another process took over the lease this one held
    │   └── StoreCorrupt            the file is damaged
    │       └── NotADatabase        the file is not a SQLite file of this kind
    ├── InvalidInput (ValueError)   an argument that can't be accepted
    │   ├── TitleClash              another session has that title
    │   └── TitleTooLong            more than 100 characters
    ├── SessionNotFound (KeyError)  no session has that id
    ├── AttachmentNotFound (FileNotFoundError)  this store has no bytes with that hash
    ├── SessionBusy                 another process is running a turn in that session
    ├── ConfigError                 config.yaml is invalid
    ├── ModelError                  the model did not answer
    │   ├── ModelUnreachable        no server answers there, or the stream broke off
    │   ├── ModelRefused            the endpoint rejects it (key, model name, bad request)
    │   ├── RateLimited             too many requests, or the server is overloaded; worth another try
    │   └── ContextTooLong          the conversation no longer fits
    ├── ToolError                   a tool could not do what was asked; reported to the model
    │   └── ToolDeclined            the user said no; it was not done
    ├── PlatformError               a chat platform did not do it
    │   ├── PlatformUnreachable     no connection; worth another try
    │   ├── PlatformRefused         the login is rejected (token, rights, settings)
    │   ├── SendRefused             this message can't be delivered there, now or later
    │   └── SlowDown                too many requests; worth another try after a while
    └── MissingExtra                a library that is not installed; names the extra to install

Each message says what happened, to which thing, and what to do about it. They are caught once, at the entry point
(the command line, the gateway, the server).

The line that installs an optional part works where it is printed: in a clone it is the clone's own pip, and the part is taken
from the clone; elsewhere it is the pip of the Python that runs, and the package's name.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class HermesError(Exception):
    """The root of the tree."""


class StoreError(HermesError):
    """The store could not do what was asked; nothing was half-written.

    The call had no effect, unless `maybe_stored` is true: then it was done, but may not be durable (the disk
    reported an error afterwards, or the server connection was lost). Check the store before repeating such a call.
    """

    def __init__(self, message: str = "", *, maybe_stored: bool = False) -> None:
        super().__init__(message)
        self.maybe_stored = maybe_stored


class StoreBusy(StoreError):
    """Another process held the write lock for too long; the call had no effect and can be repeated."""


class StoreFull(StoreError):
    """No space left where the store is; the call had no effect."""


class StoreReadOnly(StoreError):
    """The store was opened for reading, or its file, folder or format allows reading only."""


class StoreClosed(StoreError):
    """The SessionDB was closed before this call, or was opened before this process was forked."""


class StoreGone(StoreError):
    """The database, or a file that belongs to it, was deleted, moved or replaced while open; further writes fail.

    What was stored before can still be read from this SessionDB, and exported. Open the store again to continue.
    """


class StoreLocked(StoreError):
    """The store is encrypted, and its key is missing or wrong; nothing was read or changed."""


class StoreUnreachable(StoreError):
    """The database server can't be reached, or the connection was lost during the call.

    The call had no effect and can be repeated, unless `maybe_stored` is true: the outcome is unknown.
    """


class Fenced(StoreError):
    """Another process took over the lease this one held, which was not renewed in time; nothing was stored.

    The process that holds the lease `lease` now continues; what this process knows is out of date.
    """

    def __init__(self, lease: str) -> None:
        kind, _, what = lease.removeprefix("job:").partition(":")
        subject = f"the handoff of session {what}" if kind == "handoff" else f"{kind} {what}"
        super().__init__(
            f"another process has taken over {subject}: this one did not renew its lease in time; nothing was stored"
        )
        self.lease = lease


class StoreCorrupt(StoreError):
    """The database file is damaged; `hermes sessions repair [FILE]` repairs what can be repaired."""


class NotADatabase(StoreCorrupt):
    """The file is not a SQLite database, or not one of this kind."""


class InvalidInput(HermesError, ValueError):
    """An argument that can't be accepted, with the reason."""


class TitleClash(InvalidInput):
    """Another session has that title; the message names it.

    `holder` is that session's id and `title` the title as it would have been stored, where they are known.
    """

    def __init__(self, message: str, *, holder: str | None = None, title: str | None = None) -> None:
        super().__init__(message)
        self.holder, self.title = holder, title


class TitleTooLong(InvalidInput):
    """A title of more than 100 characters."""


class SessionBusy(HermesError):
    """Another process (`source`: `cli`, `telegram` …) uses a session, for `reason`: `turn`, `compression`, `handoff`, `open`.

    Nothing was stored. Retry when it is done.
    """

    def __init__(self, session_id: str, source: str, reason: str | None = "turn") -> None:
        doing = {"turn": "is answering in", "compression": "is compressing", "handoff": "is handing over"}
        super().__init__(
            f"another process ({source}) {doing.get(reason or '', 'uses')} session {session_id}; try again when it is done"
        )
        self.session_id, self.source, self.reason = session_id, source, reason


class AttachmentNotFound(HermesError, FileNotFoundError):
    """This store has no bytes with that hash."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"this store has no attachment {digest!r}")

    def __str__(self) -> str:
        return str(self.args[0])


class SessionNotFound(HermesError, KeyError):
    """No session has that id."""

    def __init__(self, session_id: object) -> None:
        super().__init__(f"no session has the id {session_id!r}")

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(HermesError):
    """config.yaml is invalid: what is wrong, and in which line."""


class ModelError(HermesError):
    """The model did not answer."""


class ModelUnreachable(ModelError):
    """No server answers at the endpoint, or the connection broke off in the middle of a reply."""


class ModelRefused(ModelError):
    """The endpoint refuses the request: the key, the model's name, or the request itself.

    `pictures`: because of a picture (or another file) in it.
    """

    pictures = False


class RateLimited(ModelError):
    """Too many requests, or an overloaded server; retry, after `retry_after` seconds if the server gave that.

    `status` is the HTTP status, if there was one: 500 and above is a failure of the model server, not a rate limit.
    """

    def __init__(self, message: str, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after, self.status = retry_after, status


class ContextTooLong(ModelError):
    """The conversation no longer fits into the model's context window."""


class ToolError(HermesError):
    """A tool could not do what was asked. The error is reported to the model; the conversation continues."""


class ToolDeclined(ToolError):
    """The user said no to what a tool wanted to do; it was not done."""


class PlatformError(HermesError):
    """A chat platform did not do what was asked."""


class PlatformUnreachable(PlatformError):
    """There is no connection, or it broke; a retry may succeed.

    `maybe_sent` is true when the message may have arrived although its confirmation was lost.
    """

    def __init__(self, message: str, *, maybe_sent: bool = False) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent


class PlatformRefused(PlatformError):
    """The platform rejects the login: the token, missing rights, or a setting. A retry fails as well."""


class SendRefused(PlatformError):
    """This message can't be delivered to this chat: the chat is deleted, blocked, or does not allow it."""


class SlowDown(PlatformError):
    """Too many requests; nothing was done; retry after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MissingExtra(HermesError):
    """A library that is not installed; the message names the extra to install."""

    def __init__(self, what: str, extra: str) -> None:
        self.install = install_line(extra)
        super().__init__(f"{what} needs a library that is not installed: {self.install}")


# Exit statuses of a question that got no answer, by kind: a script can tell "wait" from "mend".
_KINDS: tuple[tuple[type[ModelError], str, int], ...] = (
    (ModelUnreachable, "unreachable", 3),
    (ModelRefused, "refused", 4),
    (RateLimited, "busy", 5),
    (ContextTooLong, "too_long", 6),
)


def kind_of(error: ModelError) -> str:
    """Why the model did not answer, in a word: unreachable, refused, busy, too_long, or model."""
    return next((kind for one, kind, _ in _KINDS if isinstance(error, one)), "model")


def exit_status(error: Exception) -> int:
    """The exit status of a command that ends with this error."""
    return next((status for one, _, status in _KINDS if isinstance(error, one)), 1)


# ---------------------------------------------------------------------------------- what is not installed

SOCKS = '"httpx[socks]"'


def install_line(extra: str = "", options: str = "") -> str:
    """The line that installs an extra ("" for the program itself), to be pasted into a shell as it stands."""
    import shlex

    clone = Path(__file__).resolve().parents[2]
    part = f"[{extra}]" if extra else ""
    if not (clone / "pyproject.toml").is_file():
        return pip_line(f'"hermes-sessions{part}"' if part else "hermes-sessions", options)
    if clone == _here():
        return pip_line(f'-e ".{part}"', options)
    return pip_line(f"-e {shlex.quote(str(clone))}" + (f'"{part}"' if part else ""), options)


def pip_line(what: str, options: str = "") -> str:
    """The line that installs a package with the pip of the Python that runs, as short as the shell understands it."""
    import shlex
    import shutil

    beside, here = Path(sys.executable).with_name("pip"), _here()
    if not beside.exists():
        pip = f"{shlex.quote(sys.executable)} -m pip"
    elif shutil.which("pip") == str(beside):
        pip = "pip"
    else:
        pip = shlex.quote(str(beside.relative_to(here) if here and beside.is_relative_to(here) else beside))
    return " ".join([pip, "install", *options.split(), what])


def _here() -> Path | None:
    """The working folder; None when it was removed."""
    try:
        return Path(os.getcwd())
    except OSError:
        return None
