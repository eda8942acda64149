"""Model servers and providers: where they are, which keys they take, which models they list, and the size of a context window.

Servers on this machine are found on their usual ports; an unused port refuses at once, so all are tried together
in a fraction of a second. The standard library is enough for such requests; the libraries that call models cost ten times
as much to load. A window that no server reports is known by name, else a cautious guess.

`PROVIDERS` is the table of OpenAI-compatible addresses and keys. `anthropic/claude-…` is the model `claude-…` at the provider
`anthropic`, with the key in ANTHROPIC_API_KEY; endpoints whose own names have a slash (OpenRouter) get the name unchanged.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit


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
    """The environment variable that holds a key of this provider."""
    return next((name for name in provider.variables if variables.get(name)), None)


def key_of(provider: Provider | None, variables: Mapping[str, str]) -> str | None:
    """This provider's own key in the environment."""
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
    # OpenRouter names its own models so, as openrouter/auto
    return PROVIDERS[first], rest if first != "openrouter" or "/" in rest else name


def endpoint_named(
    name: str | None, variables: Mapping[str, str], *, base_url: str | None = None, key: str | None = None
) -> Endpoint | None:
    """The endpoint that a name like `anthropic/claude-…` means, if there is a key for it.

    None if it is a name of the endpoint `base_url` itself; `key` is the configured one.
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
    for provider in (PROVIDERS["openai"], PROVIDERS["openrouter"]):  # other keys are used only if they are named
        own = key_of(provider, variables)
        if own and (provider.slashes or named_provider(name) is None):  # else it is another provider's model
            return Endpoint(name, provider.base_url, own)
    return None


def unused_variables(used: str | None, variables: Mapping[str, str]) -> list[str]:
    """The variables that hold provider keys, except for the key in use."""
    found = (variable_of(one, variables) for one in PROVIDERS.values())
    return [variable for variable in found if variable is not None and variables[variable] != used]


def ask_json(url: str, *, key: str | None = None, body: Any = None, timeout: float = 2.0) -> Any:
    """The JSON at this address (a body makes it a POST); None when there is no valid answer in time."""
    from http.client import HTTPException
    from urllib.request import ProxyHandler, Request, build_opener

    headers = {"Accept": "application/json", "Content-Type": "application/json", **headers_for(url, key)}
    data = None if body is None else json.dumps(body).encode()
    opener = build_opener(ProxyHandler({})) if is_near(url) else build_opener()
    try:
        with opener.open(Request(url, data, headers), timeout=timeout) as answer:
            return json.loads(answer.read(8_000_000))
    except (OSError, HTTPException, ValueError):  # no server, not HTTP, not JSON, not an address
        return None


def listed_models(base_url: str, *, key: str | None = None, timeout: float = 2.0) -> list[dict[str, Any]] | None:
    """The models that the server lists under /models; None when it does not answer."""
    answer = ask_json(f"{base_url.rstrip('/')}/models", key=key, timeout=timeout)
    items = answer.get("data") if isinstance(answer, dict) else answer
    if not isinstance(items, list):
        return None
    listed = (item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str))
    return [{**item, "id": item["id"].removeprefix("models/")} for item in listed]  # Gemini's ids have this prefix


# Parts of names of models that are not for chat.
_OTHER_WORK = (
    "embed", "bge-", "bge_", "gte-", "e5-", "minilm", "rerank", "whisper", "tts", "clip", "moderation", "dall-e",
    "stable-diffusion", "sdxl", "flux", "transcribe", "realtime", "audio", "speech", "gpt-image", "sora",
)  # fmt: skip


def can_chat(model_id: str) -> bool:
    """Whether a model of this name is likely a chat model."""
    name = model_id.lower()
    return not any(part in name for part in _OTHER_WORK)


@lru_cache(maxsize=100)
def is_near(url: str) -> bool:
    """Whether the address is on this machine or in its own network."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith((".localhost", ".local", ".lan")):
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


def without_password(url: str) -> str:
    """The address for display and storage: no user, no password, no query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


GUESS = 32_768
_FIELDS = (
    "loaded_context_length", "context_length", "max_model_len", "context_window", "max_context_length", "n_ctx",
    "max_input_tokens",
)  # fmt: skip

# The first pattern found in the name counts. Windows only grew within a family; the smaller one is the safe one.
_BY_NAME: tuple[tuple[str, int], ...] = (
    (r"deepseek", 65_536),
    (r"gpt-5|gpt-6", 272_000),
    (r"gpt-4\.1|gemini(?!-1\.0)", 1_000_000),
    (r"gpt-4o|gpt-4-turbo|gpt-oss|glm-[45]|(mistral-(large|medium|small|nemo)|(code|dev)stral)|command-[ra]", 128_000),
    (r"gpt-4-32k|gemini|qwen3|qwen2\.5|mixtral|mistral", 32_768),
    (r"(^|/)o[134](-|$)|claude", 200_000),
    (r"grok-[3-9]|kimi|moonshot|llama-?3\.[123]|llama-?4|gemma-?3", 131_072),
    (r"gpt-3\.5|phi-?4", 16_384),
    (r"llama-?2|phi-?3", 4_096),
    (r"gpt-4|llama-?3|gemma|smollm2", 8_192),
)


def context_length(name: str, base_url: str, key: str | None = None, *, timeout: float = 3.0) -> int:
    """The number of tokens that fit into the model `name` at this endpoint.

    Providers of only their own models list no windows: a model with a known window is not queried.
    """
    provider, window = provider_at(base_url), known(name)
    if window is not None and provider is not None and not provider.slashes:
        return window
    return reported_context_length(name, base_url, key, timeout=timeout) or window or GUESS


def known(name: str) -> int | None:
    """The known window of models with such a name."""
    folded = name.lower()
    return next((size for pattern, size in _BY_NAME if re.search(pattern, folded)), None)


def reported_context_length(name: str, base_url: str, key: str | None = None, *, timeout: float = 3.0) -> int | None:
    """The window that the server reports; each kind of server reports it in another field."""
    listed = listed_models(base_url, key=key, timeout=timeout)
    if listed is None:
        return None
    mine = next((item for item in listed if item["id"] == name), None)
    size = _size_in(mine)
    if size is not None or not is_near(base_url):
        return size
    parts = urlsplit(base_url)
    root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    own = (f"{root}/api/v0/models/{name}", f"{root}/props")  # LM Studio's, llama.cpp's
    sizes = (_size_in(ask_json(url, timeout=timeout)) for url in own)
    return _of_ollama(root, name, timeout) or next((size for size in sizes if size), None)


def _size_in(item: Any) -> int | None:
    """A window named in an entry of /models (OpenRouter, vLLM, Groq, Mistral, llama.cpp), or in a server's own answer."""
    if not isinstance(item, dict):
        return None
    places = [item.get("top_provider"), item, item.get("meta"), item.get("default_generation_settings")]
    sizes = (place.get(field) for place in places if isinstance(place, dict) for field in _FIELDS)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _of_ollama(root: str, name: str, timeout: float) -> int | None:
    """Ollama cuts silently at `num_ctx`, regardless of the model's limit: the setting counts, then the loaded model's."""
    shown = ask_json(f"{root}/api/show", body={"model": name}, timeout=timeout)
    if not isinstance(shown, dict) or "model_info" not in shown:
        return None
    setting = re.search(r"^\s*num_ctx\s+(\d+)", str(shown.get("parameters") or ""), re.MULTILINE)
    if setting:
        return int(setting[1])
    running = ask_json(f"{root}/api/ps", timeout=timeout)
    for item in running.get("models") or () if isinstance(running, dict) else ():
        if isinstance(item, dict) and item.get("model") == name and (size := _size_in(item)):
            return size
    info = shown["model_info"] if isinstance(shown["model_info"], dict) else {}
    largest = next((v for k, v in info.items() if k.endswith(".context_length") and isinstance(v, int)), None)
    return None if largest is None else min(largest, GUESS)


@dataclass(slots=True, frozen=True)
class Server:
    """A kind of server and its usual port."""

    name: str
    port: int
    host: str = "127.0.0.1"

    @property
    def base_url(self) -> str:
        """The OpenAI-compatible address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


USUAL = (Server("Ollama", 11434), Server("LM Studio", 1234), Server("vLLM", 8000), Server("llama.cpp", 8080))


@dataclass(slots=True, frozen=True)
class FoundServer:
    """A server that answers, and the chat models it lists."""

    server: Server
    models: tuple[str, ...]


def usual_servers(variables: Mapping[str, str] | None = None) -> tuple[Server, ...]:
    """The addresses to try: the usual ones, and Ollama's from OLLAMA_HOST."""
    moved = (os.environ if variables is None else variables).get("OLLAMA_HOST", "")
    if not moved:
        return USUAL
    parts = urlsplit(moved if "://" in moved else f"http://{moved}")
    try:
        port = parts.port or 11434
    except ValueError:
        return USUAL
    host = parts.hostname or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # it listens on all addresses; use one of them
    return (Server("Ollama", port, host), *USUAL[1:])


def find_servers(servers: Sequence[Server] | None = None, *, timeout: float = 1.0) -> list[FoundServer]:
    """Every server that answers /v1/models and has a chat model, in the order given.

    HERMES_NO_LOCAL leaves out the servers that it names (`LM Studio,vLLM`), with any other value all of them.
    """
    left_out = [name for name in os.environ.get("HERMES_NO_LOCAL", "").split(",") if name]
    if not {one.name for one in USUAL}.issuperset(left_out):
        return []
    servers = [one for one in (usual_servers() if servers is None else servers) if one.name not in left_out]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max(1, len(servers))) as crew:
        return [one for one in crew.map(lambda server: _look(server, timeout), servers) if one is not None]


def _look(server: Server, timeout: float) -> FoundServer | None:
    try:
        socket.create_connection((server.host, server.port), timeout=min(timeout, 0.5)).close()
    except OSError:
        return None
    listed = listed_models(server.base_url, timeout=timeout)
    models = tuple(str(item["id"]) for item in listed or () if can_chat(str(item["id"])))
    return FoundServer(server, models) if models else None
