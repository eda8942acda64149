"""Microsoft Teams, by the Bot Framework's connector."""

from hermes.gateway.platforms.teams.adapter import Teams

__all__ = ["Teams"]
