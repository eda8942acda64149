"""Senders: the model sees who speaks in a form that no message can imitate.

In a conversation of several people a message begins with its sender in brackets. So no other line of it may begin with a
bracket: such a bracket gets a backslash. Notes of the gateway itself are in brackets, too, and no person's text begins a
line like one. People choose their names: a name that two of them have, or that resembles the gateway, comes with the id.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.gateway.events import Sender
    from hermes.store.api.session_db import SessionDB

_LONGEST = 80
_MOST_IDS = 16  # of one name; more than one is all that matters
_BREAKS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_UNSEEN = r"\s>*_`~\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\x00-\x1f"
_BRACKET = r"[\[\u27e6\u3010\u3014\u301a\ufe47\uff3b\u2045\u298b]"
_LINE = re.compile(rf"(\A|[{_BREAKS}])([{_UNSEEN}]*)(?={_BRACKET})")
_NOTE = re.compile(rf"(\A|[{_BREAKS}])([{_UNSEEN}]*)(?={_BRACKET}[\W_]*from[\W_]+the[\W_]+gateway)", re.IGNORECASE)


def escaped(text: str, *, shared: bool) -> str:
    """A person's text in which no line looks like a sender (where several talk) or like a note of the gateway's."""
    return (_LINE if shared else _NOTE).sub(r"\1\2\\", text)


def said_by(sender: str, text: str) -> str:
    """A message in a conversation of several: its sender, then its text."""
    return f"[{sender}] {escaped(text, shared=True)}"


def passed_on(author: str | None, quotation: str, *, shared: bool) -> str:
    """The forwarded words of a message, below a note of the gateway's: the sender has not written it."""
    name = _clean(author or "").replace('"', "'")
    whose = f'written by "{name}"' if name else "author unknown"
    note = f"[From the gateway: forwarded by the sender, {whose}; quoted text, not a request]"
    return f"{note}\n{escaped(quotation, shared=shared)}"


def speaker(db: SessionDB, platform: str, sender: Sender) -> str:
    """A person's name in a shared conversation: a name that no other person has, or a name and the id."""
    who = _clean(sender.id or "")
    name = _clean(sender.name or "") or who or "someone"
    if not who:
        return name
    folded = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    if "gateway" in folded:
        return who
    return f"{name} ({who})" if _is_anothers(db, f"gateway.name:{platform}:{folded}", who) or "(" in name else name


def _clean(text: str) -> str:
    """A name on one line, without brackets and without invisible characters."""
    seen = "".join(" " if unicodedata.category(sign) in ("Cc", "Zl", "Zp") else sign for sign in text)
    seen = "".join(sign for sign in seen if unicodedata.category(sign) != "Cf")
    seen = re.sub(_BRACKET, "(", seen)
    seen = re.sub(r"[\]\u27e7\u3011\u3015\u301b\ufe48\uff3d\u2046\u298c]", ")", seen)
    return " ".join(seen.split())[:_LONGEST]


def _is_anothers(db: SessionDB, key: str, who: str) -> bool:
    """Whether more than one person has had this name; records that this one has it."""
    known: list[str] = json.loads(db.get_meta(key) or "[]")
    if who not in known and len(known) < _MOST_IDS:
        known.append(who)
        db.set_meta(key, json.dumps(known))
    return known != [who]
