"""The providers whose models this program knows where to find: one table of OpenAI-compatible addresses and keys.

`anthropic/claude-…` is the model `claude-…` at the provider `anthropic`, with the key in ANTHROPIC_API_KEY. Some endpoints
have names with a slash of their own (OpenRouter's `anthropic/claude-…`): there a name is taken as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider: its name, its address, the variables that may hold its key, and how its keys begin."""

    name: str
    base_url: str
    variables: tuple[str, ...]
    key_begins: str | None = None
    slashes: bool = False  # names of its models have a slash


class Endpoint(NamedTuple):
    """A model's name, its endpoint and the key; without a name the endpoint's default."""

    name: str | None
    base_url: str
    api_key: str | None


OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
_ANTHROPIC = "https://api.anthropic.com/v1"
_GOOGLE = "https://generativelanguage.googleapis.com"

PROVIDERS = {
    one.name: one
    for one in (
        Provider("openai", OPENAI, ("OPENAI_API_KEY",)),
        Provider("anthropic", _ANTHROPIC, ("ANTHROPIC_API_KEY",), "sk-ant-"),
        Provider("gemini", f"{_GOOGLE}/v1beta/openai", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "AIza"),
        Provider("openrouter", OPENROUTER, ("OPENROUTER_API_KEY",), "sk-or-", slashes=True),
        Provider("groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), "gsk_", slashes=True),
        Provider("mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
        Provider("deepseek", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
        Provider("xai", "https://api.x.ai/v1", ("XAI_API_KEY",), "xai-"),
        Provider("together", "https://api.together.ai/v1", ("TOGETHER_API_KEY",), slashes=True),
        Provider("fireworks", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",), slashes=True),
        Provider("cerebras", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",), "csk-"),
        Provider("cohere", "https://api.cohere.ai/compatibility/v1", ("COHERE_API_KEY", "CO_API_KEY")),
        Provider("deepinfra", "https://api.deepinfra.com/v1/openai", ("DEEPINFRA_API_KEY",), slashes=True),
        Provider("moonshot", "https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY",)),
        Provider("nvidia", "https://integrate.api.nvidia.com/v1", ("NVIDIA_API_KEY",), "nvapi-", slashes=True),
        Provider("perplexity", "https://api.perplexity.ai", ("PERPLEXITY_API_KEY",), "pplx-"),
        Provider("qwen", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", ("DASHSCOPE_API_KEY",)),
        Provider("sambanova", "https://api.sambanova.ai/v1", ("SAMBANOVA_API_KEY",)),
        Provider("zai", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY",)),
    )
}  # fmt: skip


def provider_at(base_url: str | None) -> Provider | None:
    """The provider at this address."""
    host = urlsplit(base_url or "").hostname or ""
    return next((one for one in PROVIDERS.values() if host == urlsplit(one.base_url).hostname), None)


def variable_of(provider: Provider, variables: Mapping[str, str]) -> str | None:
    """The variable that is set to a key of this provider."""
    return next((name for name in provider.variables if variables.get(name)), None)


def key_of(provider: Provider | None, variables: Mapping[str, str]) -> str | None:
    """The key in the environment that is this provider's own."""
    variable = None if provider is None else variable_of(provider, variables)
    return None if variable is None else variables[variable]


def key_for(base_url: str, variables: Mapping[str, str]) -> str | None:
    """The key in the environment for an endpoint: its provider's own, else OpenAI's."""
    return key_of(provider_at(base_url), variables) or variables.get("OPENAI_API_KEY") or None


def headers_for(url: str, key: str | None) -> dict[str, str]:
    """The headers that show the key. Anthropic's list of models is not a part of its compatible endpoint."""
    if key and url.startswith(f"{_ANTHROPIC}/models"):
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}
    return {"Authorization": f"Bearer {key}"} if key else {}


def named_provider(name: str | None) -> tuple[Provider, str] | None:
    """The provider that a name like `anthropic/claude-…` begins with, and its model's name there."""
    first, _, rest = (name or "").partition("/")
    if first not in PROVIDERS or not rest or name is None:
        return None
    # OpenRouter's own models, as openrouter/auto, are called so by itself
    return PROVIDERS[first], rest if first != "openrouter" or "/" in rest else name


def endpoint_named(
    name: str | None, variables: Mapping[str, str], *, base_url: str | None = None, key: str | None = None
) -> Endpoint | None:
    """The endpoint that a name like `anthropic/claude-…` means, if there is a key for it.

    None where it is a name of the endpoint `base_url` itself; `key` is the configured one.
    """
    found, here = named_provider(name), provider_at(base_url)
    if found is None or (base_url and (here is None or here.slashes)):
        return None
    provider, model = found
    owner = provider_of_key(key) if key else None
    if provider not in (here, owner) and (base_url or owner):
        key = None  # another provider's
    key = key or key_of(provider, variables)
    return Endpoint(model, provider.base_url, key) if key else None


def provider_of_key(key: str) -> Provider | None:
    """The provider whose keys begin like this one."""
    return next((one for one in PROVIDERS.values() if one.key_begins and key.startswith(one.key_begins)), None)


def configured_endpoint(
    name: str | None, base_url: str | None, key: str | None, variables: Mapping[str, str]
) -> Endpoint | None:
    """The endpoint of the configured model: by the address, the name or the key in config.yaml or in the environment."""
    base_url = base_url or variables.get("OPENAI_BASE_URL") or None
    found = endpoint_named(name, variables, base_url=base_url, key=key)
    if found is not None or base_url is not None:
        return found or Endpoint(name, base_url or "", key or key_for(base_url or "", variables))
    if key:
        of_key = provider_of_key(key)
        return Endpoint(name, of_key.base_url if of_key else OPENAI, key)
    for provider in (PROVIDERS["openai"], PROVIDERS["openrouter"]):  # no other key is used without being asked for
        own = key_of(provider, variables)
        if own and (provider.slashes or named_provider(name) is None):  # else it is another provider's model
            return Endpoint(name, provider.base_url, own)
    return None


def unused_variables(used: str | None, variables: Mapping[str, str]) -> list[str]:
    """The variables that hold keys of providers, but for the key that is used."""
    found = (variable_of(one, variables) for one in PROVIDERS.values())
    return [variable for variable in found if variable is not None and variables[variable] != used]
