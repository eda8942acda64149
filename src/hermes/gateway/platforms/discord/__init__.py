"""Discord, on discord.py: direct messages, server channels and threads.

`adapter` connects, receives and sends; `client` is discord.py's client at the server of our choice, with its errors
in our words; `incoming` turns what is said into events; `backlog` fetches what was missed while disconnected; `formatting`
turns Markdown into what Discord shows.
"""

from hermes.gateway.platforms.discord.adapter import Discord

__all__ = ["Discord"]
