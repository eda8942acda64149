"""Slack, over Socket Mode: the Web API to speak, a websocket that Slack sends events through, no public address.

adapter.py is the adapter; client.py is the websocket and the Web API: it turns Slack's errors into ours, knows people and chats
by name and spreads edits over time; incoming.py turns messages into events; outgoing.py turns Markdown into Slack's blocks, and
Slack's text into what the person wrote.
"""
