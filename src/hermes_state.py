"""The documented import of the record: `from hermes_state import SessionDB`."""

from hermes.store.db import SessionDB

__all__ = ["SessionDB"]
