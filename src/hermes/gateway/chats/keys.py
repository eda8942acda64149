"""Session keys: the same chat and person always give the same key, two different ones never do.

A key is `agent:main:<platform>[/<account>]:<type>:<chat>[:<thread>][:<user>]`. Its parts are escaped, so that an id with a
colon in it can't look like two. WhatsApp knows one person by a phone number and by a LID; both are normalized to one id first.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hermes.gateway.events import CHANNEL, DM, GROUP

if TYPE_CHECKING:
    from hermes.gateway.events import Event

__all__ = ["Source", "build_session_key", "canonical_whatsapp_identifier", "normalize_whatsapp_identifier"]

WHATSAPP = "whatsapp"
UNPROVEN = ":%unproven"  # no escaped part looks like that
_MOST_ALIASES = 64  # more than any person has; a folder full of nonsense is not walked to its end


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a message's origin that determine its session."""

    platform: str
    chat_id: str
    chat_type: str = DM
    user_id: str | None = None
    user_id_alt: str | None = None  # the platform's stable alternative; it takes precedence
    thread_id: str | None = None
    account: str | None = None  # where a platform has several accounts; the one called `default` has none
    proven: bool = True


def source_of(event: Event) -> Source:
    """The source of an event."""
    chat, sender = event.chat, event.sender
    return Source(
        platform=chat.platform, chat_id=chat.chat_id, chat_type=chat.type, thread_id=chat.thread_id,
        user_id=sender.user_id, user_id_alt=sender.stable_id, proven=sender.proven, account=chat.account,
    )  # fmt: skip


def build_session_key(
    source: Source,
    *,
    group_sessions_per_user: bool = True,
    thread_sessions_per_user: bool = False,
    home: Path | None = None,
) -> str:
    """The key of the session that a message from this source belongs to."""
    chat, user = source.chat_id, source.user_id_alt or source.user_id
    if source.platform == WHATSAPP:
        chat = canonical_whatsapp_identifier(chat, home=home) if source.chat_type == DM else chat
        user = canonical_whatsapp_identifier(user, home=home) if user else user
    where = source.platform if source.account is None else f"{source.platform}/{source.account}"
    parts = [where, source.chat_type, chat]
    if source.thread_id:
        parts.append(source.thread_id)
    if is_shared(source, group_sessions_per_user, thread_sessions_per_user):
        user = None
    if user and source.chat_type != DM:
        parts.append(user)
    key = ":".join(["agent", "main", *(_escaped(part) for part in parts)])
    return key if source.proven else f"{key}{UNPROVEN}"


def is_proven(key: str) -> bool:
    """Whether the platform has authenticated the person whose key this is."""
    return UNPROVEN not in key


def key_beside(key: str, source: Source, person: str | None, *, home: Path | None = None) -> str:
    """The key of a message in a direct chat that belongs to `person`: the chat's key, unless another person speaks.

    Members of a room change: a person who joins later gets a key that ends with their own id, never the first one's session.
    """
    ids = [one for one in (source.user_id_alt, source.user_id) if one]
    if source.platform == WHATSAPP:
        ids = [canonical_whatsapp_identifier(one, home=home) for one in ids]
        person = canonical_whatsapp_identifier(person, home=home) if person else person
    if person is None or person in ids:
        return key
    return f"{key}:{_escaped(ids[0]) if ids else '%nobody'}"


BACKGROUND = ":%background:"  # no escaped part looks like that


def background_key(key: str, event_id: str) -> str:
    """The key of a question that is answered beside the conversation of a key, in a session of its own."""
    return f"{key}{BACKGROUND}{hashlib.sha256(event_id.encode('utf-8', 'replace')).hexdigest()[:24]}"


def is_background(key: str) -> bool:
    """Whether `background_key` made this key."""
    return BACKGROUND in key


def is_shared(source: Source, group_sessions_per_user: bool, thread_sessions_per_user: bool) -> bool:
    """Whether several people talk in the session of this source."""
    if source.chat_type not in (GROUP, CHANNEL):
        return False
    if not (source.user_id_alt or source.user_id):
        return True
    return not (thread_sessions_per_user if source.thread_id else group_sessions_per_user)


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")


# ------------------------------------------------------------------------------------------------ WhatsApp


def normalize_whatsapp_identifier(value: str) -> str:
    """An id without its variable parts: the device after a colon, the server after an @, a plus sign."""
    bare = value.strip().partition("@")[0].partition(":")[0]
    return bare.removeprefix("+")


def canonical_whatsapp_identifier(value: str, *, home: Path | None = None) -> str:
    """The one id of a person: of all aliases the bridge knows, the shortest; a phone number before a LID, then the smaller.

    The bridge writes aliases to `<home>/whatsapp/session/lid-mapping-<id>.json` and `…_reverse.json`. They are followed in
    all directions, in circles too. An id without aliases is its own.
    """
    from hermes.home import get_hermes_home

    start = normalize_whatsapp_identifier(value)
    if not start:
        return value.strip()  # no usable id is left: two people still never share a session key
    folder = (home or get_hermes_home()) / "whatsapp" / "session"
    known, waiting = {start}, [start]
    phones: set[str] = set()  # ids that map to a LID, or that a LID maps to, whichever id was given
    while waiting and len(known) < _MOST_ALIASES:
        one = waiting.pop()
        lid, phone = _alias(folder, one, ""), _alias(folder, one, "_reverse")
        phones |= {one} if lid is not None else set()
        phones |= {phone} if phone is not None else set()
        fresh = [other for other in (lid, phone) if other is not None and other not in known]
        known.update(fresh)
        waiting += fresh
    return min(known, key=lambda one: (len(one), one not in phones, one))


def _alias(folder: Path, identifier: str, suffix: str) -> str | None:
    """The id in one of the bridge's files; None without the file, or when it holds no possible id."""
    if "/" in identifier or "\0" in identifier:
        return None  # not a file of the bridge's; never read one outside its folder
    try:
        found = json.loads((folder / f"lid-mapping-{identifier}{suffix}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return normalize_whatsapp_identifier(found) or None if isinstance(found, str) else None
