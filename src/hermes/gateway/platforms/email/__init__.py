"""Email as a chat platform: every mail thread is a conversation.

adapter.py puts the parts together: mailbox.py (IMAP), outgoing.py (writing and SMTP), incoming.py (what a mail says and
whether it is for us), authentication.py (whether it is from whom it says) and
mail_bodies.py (the words without quotes and signatures).
"""

from hermes.gateway.platforms.email.adapter import Email

__all__ = ["Email"]
