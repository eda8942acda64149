"""Checking, repairing and removing."""
