"""Mattermost, by its REST API (version 4) and its WebSocket."""
