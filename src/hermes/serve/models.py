"""The models that a caller or an editor may choose: the configured one, and the others of its endpoint."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hermes.agent.models.choice import named_model
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.model import Model
from hermes.agent.models.servers import can_chat, listed_models
from hermes.errors import InvalidInput
from hermes.store.records.sessions import CONFIGURED
from hermes.texts import shortened

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

_FRESH = 60.0  # seconds for which the endpoint's list is cached
_MOST = 200  # names that are listed; some endpoints have thousands


class Models:
    """The list, and the model behind each name."""

    def __init__(self, main: Model) -> None:
        self.main = main
        self._others: list[str] = []
        self._listed_at: float | None = None
        self._made: dict[str, Model] = {main.name: main}
        self._listing = asyncio.Lock()

    async def names(self, *also: str) -> list[str]:
        """The names, the configured model's first, and `also`. If its endpoint does not answer, the last list stays."""
        main = self.main
        async with self._listing:
            is_old = self._listed_at is None or time.monotonic() - self._listed_at >= _FRESH
            if isinstance(main, EndpointModel) and is_old:
                self._listed_at = time.monotonic()
                found = await asyncio.to_thread(listed_models, str(main.base_url), key=main.api_key, timeout=3.0)
                if found is not None:
                    self._others = [str(item["id"]) for item in found if can_chat(str(item["id"]))]
        return list(dict.fromkeys([*[main.name, *self._others][:_MOST], *also]))

    async def find(self, name: str) -> Model | None:
        """The model of that name; None when there is none."""
        if name not in self._made and (name in await self.names() or name in self._others):
            self._made[name] = named_model(name, self.main)
        return self._made.get(name)

    async def choose(self, db: SessionDB, session_id: str, name: str) -> Model:
        """Keep a model with a session, as /model does; InvalidInput for one that the endpoint does not list."""
        if (found := await self.find(name)) is None:
            raise InvalidInput(f"the endpoint has no model {shortened(name, 60)!r}; choose one of those it lists")
        await asyncio.to_thread(db.choose_model, session_id, CONFIGURED if found is self.main else name)
        return found
