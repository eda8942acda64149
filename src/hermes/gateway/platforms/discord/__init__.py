"""Discord, on discord.py: direct messages, server channels and threads.

`adapter` connects, receives and sends; `client` is discord.py's client at the configured server, with its errors as ours;
`incoming` turns messages into events and fetches what was missed while disconnected; `outgoing` turns Markdown into what
Discord shows.
"""
