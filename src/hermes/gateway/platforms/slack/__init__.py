"""Slack, over Socket Mode: the Web API to speak, a websocket that Slack sends events through, no public address.

adapter.py is the adapter; socket_mode.py the websocket; directory.py knows people and chats by name; web_api.py makes our
errors of Slack's; edit_limit.py spreads edits over time; formatting.py turns Markdown into Slack's blocks, and Slack's text into
what the person wrote.
"""

from hermes.gateway.platforms.slack.adapter import Slack

__all__ = ["Slack"]
