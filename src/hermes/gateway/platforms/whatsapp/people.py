"""People on WhatsApp: one person has a phone number, a LID, and for a business a business-scoped id; all are one id here.

What belongs together is noted in `<home>/whatsapp/session/lid-mapping-….json`: the bridge writes LIDs there, `same_person`
business-scoped ids (as US.13491208655302741918). Meta sends these with the number, and alone for people who hide it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hermes.gateway.events import Sender
from hermes.gateway.keys import canonical_whatsapp_identifier
from hermes.whole_files import write_whole

BUSINESS_SCOPED = re.compile(r"[A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}")
PHONE = re.compile(r"[0-9]{5,15}")


def canonical(value: Any, home: Path) -> str:
    """The one id of a person or a direct chat; "" where the value is none."""
    return canonical_whatsapp_identifier(value, home=home) if isinstance(value, str) and value.strip() else ""


def sender(person: str, name: str | None) -> Sender:
    """A person by their canonical id. Their number with a plus sign works in `allowed_users`, too.

    WhatsApp authenticated the account: Meta signs its deliveries, and the bridge is our own linked device.
    """
    if PHONE.fullmatch(person):
        return Sender(user_id=f"+{person}", stable_id=person, name=name or f"+{person}", proven=True)
    return Sender(user_id=person, name=name or person, proven=True)


def same_person(home: Path, number: str, scoped: str) -> None:
    """Note on the disk that a business-scoped id is the person with this number. OSError if that fails."""
    if not PHONE.fullmatch(number) or not BUSINESS_SCOPED.fullmatch(scoped) or len(scoped) <= len(number):
        return
    folder = home / "whatsapp" / "session"
    file, content = folder / f"lid-mapping-{scoped}_reverse.json", json.dumps(number)
    try:
        if file.read_text("utf-8") == content:
            return
    except (OSError, ValueError):
        pass
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(file, content)
