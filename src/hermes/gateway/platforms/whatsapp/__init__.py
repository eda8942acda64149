"""WhatsApp: a business number by Meta's Cloud API, or a personal number through a bridge process."""
