"""Slack, over Socket Mode: the Web API to speak, a websocket that Slack sends events through, no public address.

adapter.py is the adapter; client.py is the websocket and the Web API: it makes our errors of Slack's, knows people and chats by
name and spreads edits over time; outgoing.py turns Markdown into Slack's blocks, and Slack's text into
what the person wrote.
"""
