"""The models a caller may name: `hermes` (the configured one), its own name, and its endpoint's others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from hermes.agent.endpoint.client import EndpointModel
from hermes.agent.endpoint.servers import can_chat, listed_models
from hermes.agent.model import Model
from hermes.serve.api_errors import ApiError

MAIN = "hermes"
_FRESH = 60.0  # seconds for which the endpoint's list is cached


class Models:
    """The list, and the model behind each name."""

    def __init__(self, main: Model) -> None:
        self._main = main
        self._since = int(time.time())
        self._others: list[str] = []
        self._asked_at: float | None = None
        self._made: dict[str, Model] = {}
        self._asking = asyncio.Lock()

    async def names(self) -> list[str]:
        """Every name a caller may use."""
        await self._ask()
        return list(dict.fromkeys([MAIN, self._main.name, *self._others]))

    async def find(self, name: str) -> Model:
        """The model of that name; ApiError 404 when there is none."""
        if name in (MAIN, self._main.name):
            return self._main
        if name not in await self.names() or not isinstance(self._main, EndpointModel):
            raise ApiError(
                404, f"The model {name!r} does not exist here; /v1/models lists those that do.",
                code="model_not_found", param="model",
            )  # fmt: skip
        if name not in self._made:
            main = self._main
            self._made[name] = EndpointModel(
                name, main.base_url, main.api_key, None, main.kind, main.timeout, provider=main.provider
            )
        return self._made[name]

    async def described(self, name: str) -> dict[str, Any]:
        """A model as /v1/models shows it."""
        if name not in await self.names():
            await self.find(name)
        return {
            "id": name,
            "object": "model",
            "created": self._since,
            "owned_by": "hermes" if name == MAIN else "endpoint",
        }

    async def _ask(self) -> None:
        """Ask the endpoint for its models, now and then; if it does not answer, the last list stays."""
        main = self._main
        if not isinstance(main, EndpointModel):
            return
        async with self._asking:
            if self._asked_at is not None and time.monotonic() - self._asked_at < _FRESH:
                return
            self._asked_at = time.monotonic()
            found = await asyncio.to_thread(listed_models, str(main.base_url), key=main.api_key, timeout=3.0)
            if found is not None:
                self._others = [str(item["id"]) for item in found if can_chat(str(item["id"]))]
