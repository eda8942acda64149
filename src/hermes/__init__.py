"""Hermes Sessions: every conversation with an agent kept, found and continued anywhere."""

__version__ = "0.1.0"
