"""Email as a chat platform: every mail thread is a conversation.

adapter.py puts the parts together: client.py (IMAP), outgoing.py (writing and SMTP), incoming.py (parsing a mail, its
text without quotes and signatures, and whether it is for us), authentication.py (whether the sender is genuine).
"""
