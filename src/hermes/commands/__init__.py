"""Slash commands, one registry for the terminal and the gateway."""
