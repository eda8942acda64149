"""Microsoft Teams, by the Bot Framework."""

from hermes.gateway.platforms.teams.adapter import Teams

__all__ = ["Teams"]
