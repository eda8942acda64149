"""Every error this program raises on purpose, as one tree.

    HermesError
    ├── StoreError                  the record could not do it
    │   ├── StoreBusy               another process held the write lock for too long
    │   ├── StoreFull               no space left (or a quota) where the record lives
    │   ├── StoreReadOnly           the file, its folder or its format allows reading only
    │   ├── StoreClosed             the SessionDB was closed, or came into this process by fork()
    │   ├── StoreGone               its file was deleted, moved or replaced while it was open
    │   ├── StoreUnreachable        the database server can't be reached, or went away
    │   ├── Fenced                  another process has taken over what this one held
    │   └── StoreCorrupt            the file is damaged
    │       └── NotADatabase        the file is something else altogether
    ├── InvalidInput (ValueError)   an argument that can't be accepted
    │   ├── TitleClash              another session has that title
    │   └── TitleTooLong            more than 100 characters
    ├── SessionNotFound (KeyError)  no session has that id
    ├── SessionBusy                 another process is answering in that session
    ├── ConfigError                 config.yaml can't be used as it is
    ├── ModelError                  the model did not answer
    │   ├── ModelUnreachable        nobody listens there, or the stream broke off
    │   ├── ModelRefused            the endpoint says no (key, model name, bad request)
    │   ├── RateLimited             too many requests, or the server is overloaded; worth another try
    │   └── ContextTooLong          the conversation no longer fits
    ├── ToolError                   a tool could not do what was asked; the model is told
    │   └── ToolDeclined            the user said no; it was not done
    ├── PlatformError               a chat platform did not do it
    │   ├── PlatformUnreachable     no connection; worth another try
    │   ├── PlatformRefused         it does not let us in (token, rights, settings)
    │   ├── SendRefused             this message can't be delivered there, now or later
    │   └── SlowDown                too many requests; worth another try after a while
    └── MissingExtra                a library that is not installed; names the extra that brings it

Each message says what happened, to which thing, and what to do about it. They are caught once, at the door
(the command line, the gateway, the server).
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "ContextTooLong",
    "Fenced",
    "HermesError",
    "InvalidInput",
    "MissingExtra",
    "ModelError",
    "ModelRefused",
    "ModelUnreachable",
    "NotADatabase",
    "PlatformError",
    "PlatformRefused",
    "PlatformUnreachable",
    "RateLimited",
    "SendRefused",
    "SessionBusy",
    "SessionNotFound",
    "SlowDown",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreGone",
    "StoreReadOnly",
    "StoreUnreachable",
    "TitleClash",
    "TitleTooLong",
    "ToolDeclined",
    "ToolError",
]


class HermesError(Exception):
    """The root of the tree."""


class StoreError(HermesError):
    """The record could not do what was asked; nothing was half-written.

    The call had no effect, unless `maybe_stored` is true: then it was done, but whether that lasts is not known (the disk
    reported an error afterwards, the server went away at that moment). Look before repeating such a call.
    """

    def __init__(self, message: str = "", *, maybe_stored: bool = False) -> None:
        super().__init__(message)
        self.maybe_stored = maybe_stored


class StoreBusy(StoreError):
    """Another process held the write lock for too long; the call had no effect and can be repeated."""


class StoreFull(StoreError):
    """No space left where the record lives; the call had no effect."""


class StoreReadOnly(StoreError):
    """The store was opened for reading, or its file, folder or format allows nothing else."""


class StoreClosed(StoreError):
    """The SessionDB was closed before this call, or was opened before this process was forked."""


class StoreGone(StoreError):
    """The database, or a file that belongs to it, was deleted, moved or replaced while it was open; nothing is stored any more.

    What was stored before can still be read from this SessionDB, and exported. Open the store again to go on.
    """


class StoreUnreachable(StoreError):
    """The database server can't be reached, or went away before the end.

    The call had no effect and can be repeated, unless `maybe_stored` says that nobody could find out.
    """


class Fenced(StoreError):
    """Another process has taken over what this one held, since it gave no sign of life for too long; nothing was stored.

    Whoever holds the lease `lease` now goes on; what this process knows is out of date.
    """

    def __init__(self, lease: str) -> None:
        kind, _, what = lease.partition(":")
        told = {
            "session": f"session {what}",
            "turn": f"session {what}",
            "handoff": f"the handoff of session {what}",
            "gateway": f"the chats of the gateway {what}",
            "platform": f"the platform {what}",
        }.get(kind, lease)
        super().__init__(
            f"another process has taken over {told}, as this one gave no sign of life for too long; nothing was stored"
        )
        self.lease = lease


class StoreCorrupt(StoreError):
    """The database file is damaged; `python -m hermes.store.check FILE --repair` mends what can be mended."""


class NotADatabase(StoreCorrupt):
    """The file is not a SQLite database, or not one of this kind."""


class InvalidInput(HermesError, ValueError):
    """An argument that can't be accepted, with the reason."""


class TitleClash(InvalidInput):
    """Another session has that title; the message names it."""


class TitleTooLong(InvalidInput):
    """A title of more than 100 characters."""


class SessionBusy(HermesError):
    """Another process is answering in a session; nothing was stored. Worth another try when it is done."""

    def __init__(self, session_id: str, source: str) -> None:
        super().__init__(f"another process ({source}) is answering in session {session_id}; try again when it is done")
        self.session_id, self.source = session_id, source


class SessionNotFound(HermesError, KeyError):
    """No session has that id."""

    def __init__(self, session_id: object) -> None:
        super().__init__(f"no session has the id {session_id!r}")

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(HermesError):
    """config.yaml can't be used as it is: what is wrong, and in which line."""


class ModelError(HermesError):
    """The model did not answer."""


class ModelUnreachable(ModelError):
    """Nobody listens at the endpoint, or the connection broke off in the middle of a reply."""


class ModelRefused(ModelError):
    """The endpoint refuses the request: the key, the model's name, or the request itself."""


class RateLimited(ModelError):
    """Too many requests, or an overloaded server; another try may succeed, after `retry_after` seconds if it said so.

    `status` is the HTTP status, if there was one: 500 and above is a failure of the model's server, not our haste.
    """

    def __init__(self, message: str, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after, self.status = retry_after, status


class ContextTooLong(ModelError):
    """The conversation no longer fits into the model's context window."""


class ToolError(HermesError):
    """A tool could not do what was asked. The model is told; the conversation goes on."""


class ToolDeclined(ToolError):
    """The user said no to what a tool wanted to do; it was not done."""


class PlatformError(HermesError):
    """A chat platform did not do what was asked."""


class PlatformUnreachable(PlatformError):
    """There is no connection, or it broke; another try may succeed.

    `maybe_sent` says that what was to be sent may have arrived all the same: the answer got lost, not the message.
    """

    def __init__(self, message: str, *, maybe_sent: bool = False) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent


class PlatformRefused(PlatformError):
    """The platform does not let us in: the token, missing rights, or a setting. Trying again changes nothing."""


class SendRefused(PlatformError):
    """This message can't be delivered to this chat: it is gone, blocked, or does not allow it."""


class SlowDown(PlatformError):
    """Too many requests; nothing was done, and another try is welcome after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MissingExtra(HermesError):
    """A library that is not installed; the message names the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs a library that is not installed: pip install "hermes-sessions[{extra}]"')
