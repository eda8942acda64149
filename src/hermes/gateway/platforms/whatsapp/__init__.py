"""WhatsApp: a business number by Meta's Cloud API, or a personal number through a bridge process."""

from hermes.gateway.platforms.whatsapp.adapter import WhatsApp

__all__ = ["WhatsApp"]
