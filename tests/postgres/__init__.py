from __future__ import annotations

from dataclasses import replace
from typing import Any

from hermes_state import SessionDB


def paced(url: str, name: Any = None, **pace: Any) -> SessionDB:
    """The store at this URL, whose indexer has another pace (see `Pace` in upkeep.py)."""
    db = SessionDB(url=url) if name is None else SessionDB(db_path=name, url=url)
    indexer = db._engine._indexer  # type: ignore[attr-defined]
    indexer.pace = replace(indexer.pace, **pace)
    return db


def patient(url: str, name: Any = None, **pace: Any) -> SessionDB:
    """A store like that of `paced` that indexes nothing unless it is told to: a search has all the work."""
    return paced(url, name, pause=3600.0, **pace)
