"""SMS and MMS through Twilio."""

from hermes.gateway.platforms.sms.adapter import Sms, addresses, signature

__all__ = ["Sms", "addresses", "signature"]
