"""The record: every session and message, the only place with SQL and the only place that persists."""
