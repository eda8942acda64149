"""Discord, on discord.py: direct messages, server channels and threads.

`adapter` connects, receives and sends; `client` is discord.py's client at the server of our choice, with its errors
as ours; `incoming` turns messages into events; `backlog` fetches what was missed while disconnected; `formatting`
turns Markdown into what Discord shows.
"""
