"""Email as a chat platform: every mail thread is a conversation.

adapter.py puts the parts together: client.py (IMAP), outgoing.py (writing and SMTP), incoming.py (parsing a mail, and
whether it is for us), authentication.py (whether the sender is genuine) and
mail_bodies.py (the text without quotes and signatures).
"""
