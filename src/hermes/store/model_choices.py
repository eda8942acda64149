"""The model a person has chosen for a conversation (/model): kept in state_meta, so that it outlives the process.

A choice has the name of a session or, before the first message, of the conversation's key in the gateway. It passes to
branches and compressions, and is deleted with its session.
"""

from __future__ import annotations

from hermes.store import codec
from hermes.store.engines.base import Tx, set_meta

CONFIGURED = ""  # the choice to use the configured model again


def choice_key(conversation: str) -> str:
    """The key of state_meta with a conversation's model."""
    return f"model_choice:{conversation}"


def get(tx: Tx, conversation: str) -> str | None:
    """The chosen model, CONFIGURED, or None when nothing was chosen."""
    value = tx.value("SELECT value FROM state_meta WHERE key = ?", (choice_key(conversation),))
    return None if value is None else str(codec.restored(value))


def put(tx: Tx, conversation: str, model: str | None) -> None:
    """Keep a choice; None forgets it."""
    if model is None:
        tx.run("DELETE FROM state_meta WHERE key = ?", (choice_key(conversation),))
    else:
        set_meta(tx, choice_key(conversation), codec.storable(model))


def inherit(tx: Tx, parent: str, child: str) -> None:
    """A session that continues another has the same model."""
    chosen = get(tx, parent)
    if chosen is not None:
        put(tx, child, chosen)


def move(tx: Tx, old: str, new: str) -> None:
    """What was chosen before the first message belongs to the session that has begun."""
    chosen = get(tx, old)
    if chosen is not None:
        put(tx, old, None)
        put(tx, new, chosen)
