"""What a call costs, by a maintained table of prices. A price that is not in the table is unknown, never zero."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from hermes.agent.model import Usage

SOURCE = "genai-prices"


@dataclass(slots=True, frozen=True)
class Cost:
    """An estimate in US dollars with the table it comes from; `usd` is None when it is unknown."""

    usd: float | None
    source: str | None
    version: str | None
    status: Literal["estimated", "unknown"]


UNKNOWN = Cost(None, None, None, "unknown")
OWN = Cost(0.0, "own machine", None, "estimated")  # no provider bills it


def load() -> None:
    """Load the table in the background, while the reply is awaited anyway."""
    import threading
    from importlib import import_module

    def work() -> None:
        with suppress(ImportError):
            import_module("genai_prices")

    if "genai_prices" not in sys.modules:
        threading.Thread(target=work, name="hermes-prices", daemon=True).start()


def cost(model_name: str, provider: str | None, base_url: str | None, usage: Usage | None) -> Cost:
    """The price of one call. The endpoint must be in the table: the same model costs differently elsewhere."""
    if usage is None or not (usage.prompt_tokens or usage.output_tokens):
        return UNKNOWN
    try:
        import genai_prices
    except ImportError:
        return UNKNOWN
    counts = genai_prices.Usage(
        input_tokens=usage.prompt_tokens,  # in that table, cached tokens are part of the input
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
    )
    places: list[dict[str, Any]] = []
    if base_url:
        places.append({"provider_api_url": base_url})
    if provider:
        places.append({"provider_id": provider})
    for place in places:
        try:
            found = genai_prices.calc_price(counts, model_name, **place)
        except (LookupError, ValueError, TypeError):
            continue
        return Cost(float(found.total_price), SOURCE, genai_prices.__version__, "estimated")
    return UNKNOWN
