"""The documented import for where things are: `from hermes_constants import get_hermes_home`."""

from hermes.home import get_hermes_home

__all__ = ["get_hermes_home"]
