"""The Sent folder as the record of sent mails: a mail's copy lies there before the mail is sent, with a mark on it.

The mark is removed on the same connection as soon as the SMTP server has accepted the mail. After a kill the copy
shows: without the mark the mail was sent; with it, that is unknown; no copy, it was not sent. Functions of this module work
on a connection with the Sent folder selected, in a thread.
"""

from __future__ import annotations

import imaplib
import re
from typing import NamedTuple

from imap_tools import BaseMailBox
from imap_tools.errors import ImapToolsError

SENDING = "$HermesSending"  # the mark; if a server accepts no keywords of ours it is \Draft
_DRAFT = r"\Draft"


class Copy(NamedTuple):
    """A mail in the Sent folder, and whether it is marked as being sent."""

    uid: str
    marked: bool


def copies(box: BaseMailBox, message_id: str) -> list[Copy]:
    """The copies of a mail, the oldest first; a server that stores its own copies makes a second one."""
    if not message_id.isascii() or not message_id.isprintable():
        return []
    quoted = message_id.replace("\\", "\\\\").replace('"', '\\"')
    return [Copy(uid, _marked(box, uid)) for uid in box.uids(f'UNDELETED HEADER Message-ID "{quoted}"', charset=None)]


def put(box: BaseMailBox, folder: str, mail: bytes, message_id: str) -> str | None:
    """Put a marked copy into the folder; its number. None, and no copy, if the server refuses it or any mark."""
    before = {one.uid for one in copies(box, message_id)}
    for mark in (SENDING, _DRAFT):
        try:
            box.append(mail, folder, flag_set=[r"\Seen", mark])
        except imaplib.IMAP4.abort:
            raise
        except (ImapToolsError, imaplib.IMAP4.error):
            continue
        box.client.noop()
        new = [one for one in copies(box, message_id) if one.uid not in before]
        if new and all(one.marked for one in new):
            remove(box, before)  # of an earlier try; only now, so that there is a marked copy at every moment
            return new[-1].uid
        remove(box, {one.uid for one in new})
    return None


def settle(box: BaseMailBox, uid: str, message_id: str) -> None:
    """The mail is sent: remove the mark of its copy, at once, then make sure that there is only one copy."""
    box.client.uid("STORE", uid, "-FLAGS.SILENT", f"({SENDING} {_DRAFT})")
    box.client.noop()
    found = {one.uid for one in copies(box, message_id)}
    if len(found) > 1:  # the server has stored one itself
        remove(box, {uid} & found)


def remove(box: BaseMailBox, uids: set[str]) -> None:
    """Remove copies and nothing else. A server without UIDPLUS keeps them as deleted until a person tidies up there."""
    if not uids:
        return
    which = ",".join(sorted(uids, key=int))
    box.client.uid("STORE", which, "+FLAGS.SILENT", r"(\Deleted)")
    if b"UIDPLUS" in (box.client.capability()[1][-1] or b"").upper().split():
        box.client.uid("EXPUNGE", which)


def _marked(box: BaseMailBox, uid: str) -> bool:
    _, answer = box.client.uid("FETCH", uid, "(FLAGS)")
    response = b" ".join(item for item in answer if isinstance(item, bytes))
    found = re.search(rb"FLAGS \(([^)]*)\)", response)
    flags = (found[1] if found else b"").decode("ascii", "replace").lower().split()
    return SENDING.lower() in flags or _DRAFT.lower() in flags
