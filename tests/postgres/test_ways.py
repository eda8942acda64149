"""Random lives of a store go to a server and back as they were."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings

from hermes.store.exchange.copy import move
from hermes_state import SessionDB
from tests.support import postgres
from tests.support.lives import LIVES, Life, Step, attached, facts, undone
from tests.support.sizes import size


@settings(max_examples=size(1, 4))
@given(LIVES)
def test_whatever_a_store_lived_through_goes_to_a_server_and_back_as_it_was(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        url = postgres.server().store(place)
        try:
            with (
                SessionDB(folder / "one" / "state.db", durability="normal") as one,
                SessionDB(folder / "two" / "state.db", url=url) as server,
                SessionDB(folder / "three" / "state.db", durability="normal") as three,
            ):
                Life(one).live(steps)
                move(one, server)
                assert facts(server) == facts(one)
                move(server, three)
                assert facts(three) == facts(one)
                assert attached(three) == attached(server) == attached(one)
                assert three.check() == [] and server.check() == []
                assert undone(three) == undone(one)
        finally:
            postgres.server().forget(place)
