"""The English notices that tests look for."""

from __future__ import annotations

from hermes.gateway.notices import say

STOPPED = say("stopped", "en")
NOT_YOURS = say("stop_not_yours", "en")
REPEATED = say("repeated", "en") + "\n\n"
