"""The store on a PostgreSQL server: see `hermes.store.engines.base` for the interface of an engine."""

from hermes.store.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
