"""Do the transcripts say the same of lineage as the database?

A session's file tells which messages it shows of others (`refs`), which of its own it hides and which rewinds can be undone;
the messages themselves lie in their owners' files. So each of these must be there, and name its owner by the id it has today.
"""

from __future__ import annotations

from hermes.store import codec, recovery
from hermes.store.engines.base import Engine, Tx
from hermes.store.prompt_files import prompt_hash, read_prompt
from hermes.store.scribe import Scribe

_WORDS = {
    "refs": "the messages it shows of other sessions",
    "rewinds": "its rewinds",
    "hidden": "its hidden messages",
}


def difference(tx: Tx, scribe: Scribe, session_id: str, told: recovery.Replayed) -> str | None:
    """What of a session's lineage or prompt its transcript tells otherwise; None when they agree."""
    stored = recovery.session_state(tx, session_id)
    for key, words in _WORDS.items():
        if sorted(map(tuple, told.state.get(key) or ()), key=repr) != sorted(map(tuple, stored[key]), key=repr):
            return f"its transcript tells {words} otherwise"
    if "system_prompt_hash" not in told.columns:
        return None  # a file of version 1 has the text itself
    digest, text = tx.rows("SELECT system_prompt_hash, system_prompt FROM sessions WHERE id = ?", (session_id,))[0]
    if text is not None:  # an older program wrote the row
        digest = prompt_hash(codec.restored(text))
    if told.columns["system_prompt_hash"] != digest:
        return "its transcript names another system prompt"
    if digest is not None and read_prompt(scribe.journal.folder, digest) is None:
        return "the file of its system prompt is gone or damaged"
    return None


def ownerless(engine: Engine, scribe: Scribe) -> list[tuple[str, str]]:
    """(session, what is wrong) for each session whose messages another one's transcript refers to, and that has no file."""
    with engine.read() as tx:
        pairs = tx.rows("SELECT DISTINCT r.from_session, r.session_id FROM session_refs r ORDER BY 1, 2")
        here = {row[0] for row in tx.rows("SELECT id FROM sessions")}
    found: dict[str, str] = {}
    for owner, session_id in pairs:
        if owner in found or owner not in here or not scribe.journal.path(session_id).exists():
            continue
        if not scribe.journal.path(owner).exists():
            found[owner] = f"session {session_id} shows messages of it, and it has no transcript"
    return list(found.items())
