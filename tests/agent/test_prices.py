"""Prices come from the library, with its version; what it does not know is unknown."""

from __future__ import annotations

import genai_prices
import pytest

from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.model import UNKNOWN, Reply, Usage, cost, has_price, price_of

pytestmark = pytest.mark.mechanism

OPENAI = "https://api.openai.com/v1"


def test_a_known_price_is_an_estimate_with_its_source() -> None:
    found = cost("gpt-4o", "openai", OPENAI, Usage(1_000_000, 1_000_000))
    assert found.usd == pytest.approx(12.5)
    assert (found.status, found.source, found.version) == ("estimated", "genai-prices", genai_prices.__version__)


def test_cached_tokens_cost_less() -> None:
    full = cost("gpt-4o", "openai", OPENAI, Usage(1000, 10)).usd  # the same prompt, nothing of it cached
    cached = cost("gpt-4o", "openai", OPENAI, Usage(100, 10, cache_read_tokens=900)).usd
    assert full is not None
    assert cached is not None
    assert 0 < cached < full


@pytest.mark.parametrize(
    "name, provider, base_url, usage",
    [
        ("no-such-model", "openai", OPENAI, Usage(10, 10)),
        ("gpt-4o", None, "http://127.0.0.1:11434/v1", Usage(10, 10)),
        ("gpt-4o", "Ollama", "http://127.0.0.1:11434/v1", Usage(10, 10)),
        ("gpt-4o", None, None, Usage(10, 10)),
        ("gpt-4o", "openai", OPENAI, None),
        ("gpt-4o", "openai", OPENAI, Usage()),
    ],
)
def test_what_nobody_knows_is_unknown_and_not_zero(
    name: str, provider: str | None, base_url: str | None, usage: Usage | None
) -> None:
    assert cost(name, provider, base_url, usage) == UNKNOWN
    assert UNKNOWN.usd is None
    assert UNKNOWN.status == "unknown"


def test_a_server_in_the_own_network_is_not_looked_up_but_may_say_what_it_costs() -> None:
    near = EndpointModel("gpt-4o", "http://192.168.1.7:8000/v1", None)
    counted, told = Usage(1000, 10), Usage(1000, 10, cost_usd=0.5)
    assert not has_price(near)
    assert price_of(near, Reply(content="yes", usage=counted)) == UNKNOWN
    assert price_of(near, Reply(content="yes", usage=told)).usd == 0.5
    proxy = EndpointModel("gpt-4o", "http://192.168.1.7:8000/v1", None, provider="openai")
    assert has_price(proxy)
    assert price_of(proxy, Reply(content="yes", usage=counted)).status == "estimated"
