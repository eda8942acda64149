"""The store in one SQLite file."""

from hermes.store.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
