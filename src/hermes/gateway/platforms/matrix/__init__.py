"""Matrix: any home server, encrypted rooms included, through matrix-nio.

adapter.py receives, and writes and sends our messages; client.py is nio's client made strict about failures and key sharing, with
the login and what must survive a restart; incoming.py reads people's messages.
"""
