"""The record on a PostgreSQL server: see `hermes.store.engines.base` for what an engine must do."""

from hermes.store.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
