"""Chats and people: keys, routes, access, sessions, resets, handoffs."""
