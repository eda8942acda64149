"""The home of the guide's page about the gateway: Telegram is set up, a gateway runs, and somebody waits to be let in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CODE = "K7QF-2MZB"


@contextmanager
def guide(home: Path) -> Iterator[dict[str, str]]:
    """A home where this process is the gateway, as far as the record knows."""
    from hermes.gateway.startup import announced
    from hermes.store.api.session_db import SessionDB
    from hermes.store.gateway import approvals
    from hermes.store.gateway.gateway_db import GatewayDB

    (home / "config.yaml").write_text("platforms:\n  telegram:\n    token: ${TELEGRAM_BOT_TOKEN}\n")
    with SessionDB(home / "state.db") as db:
        store = GatewayDB(db)
        store.set_status("telegram", "connected", identity="@your_bot")
        store.write(
            approvals.make_pairing,
            CODE,
            "telegram",
            "987654321",
            "Ada",
            '{"platform":"telegram","chat_id":"987654321"}',
        )
        with announced(db):
            yield {"HERMES_NO_LOCAL": "1"}
