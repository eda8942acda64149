"""A title costs a call of the model: a platform can do without."""

from __future__ import annotations

import pytest

from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab


@pytest.mark.parametrize("titles", [True, False])
def test_a_platform_without_titles_asks_the_model_for_none(titles: bool) -> None:
    lab = PlainLab()
    try:
        with Echo() as model:
            with running(lab, model, platforms={"plain": {"titles": titles}}) as gateway:
                lab.say("hello")
                until(lambda: lab.shown() == ["echo: hello"])
                if titles:
                    until(lambda: gateway.db.list_sessions_rich()[0]["title"])
            asked = [one for one in model.requests if "Give a conversation its title" in str(one["messages"][0])]
            assert bool(asked) == titles  # the gateway has ended, and waited for its titles
    finally:
        lab.close()
