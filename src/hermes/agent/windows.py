"""How much fits into a model: asked of its server, else known by name, else a careful guess."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from hermes.agent.asking import ask_json, is_near, listed_models

GUESS = 32_768
_FIELDS = ("context_length", "max_model_len", "context_window", "max_context_length", "n_ctx", "max_input_tokens")

# The first pattern found in the name counts. Windows only ever grew within a family; the smaller one is the safe one.
_BY_NAME: tuple[tuple[str, int], ...] = (
    (r"gpt-5|gpt-6", 272_000),
    (r"gpt-4\.1", 1_000_000),
    (r"gpt-4o|gpt-4-turbo|chatgpt-4o|gpt-oss", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4", 8_192),
    (r"gpt-3\.5", 16_385),
    (r"(^|/)o[134](-|$)", 200_000),
    (r"claude", 200_000),
    (r"gemini-1\.0", 32_768),
    (r"gemini", 1_000_000),
    (r"grok-[3-9]", 131_072),
    (r"deepseek", 65_536),
    (r"kimi|moonshot", 131_072),
    (r"glm-4|glm-5", 128_000),
    (r"qwen3|qwen2\.5", 32_768),
    (r"llama-?3\.[123]|llama-?4", 131_072),
    (r"llama-?3", 8_192),
    (r"llama-?2", 4_096),
    (r"mistral-large|mistral-medium|mistral-small|mistral-nemo|codestral|devstral", 128_000),
    (r"mixtral|mistral", 32_768),
    (r"gemma-?3", 131_072),
    (r"gemma", 8_192),
    (r"phi-?4", 16_384),
    (r"phi-?3", 4_096),
    (r"command-r|command-a", 128_000),
    (r"smollm2", 8_192),
)


def context_length(name: str, base_url: str, key: str | None = None, *, timeout: float = 3.0) -> int:
    """The number of tokens that fit into the model `name` at this endpoint."""
    return asked(name, base_url, key, timeout=timeout) or known(name) or GUESS


def known(name: str) -> int | None:
    """What is known of models with such a name."""
    folded = name.lower()
    return next((size for pattern, size in _BY_NAME if re.search(pattern, folded)), None)


def asked(name: str, base_url: str, key: str | None = None, *, timeout: float = 3.0) -> int | None:
    """What the server itself says; each kind of server says it in another place."""
    listed = listed_models(base_url, key=key, timeout=timeout)
    if listed is None:
        return None
    mine = next((item for item in listed if item["id"] == name), None)
    size = _size_in(mine)
    if size is not None or not is_near(base_url):
        return size
    parts = urlsplit(base_url)
    root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return _of_ollama(root, name, timeout) or _of_lm_studio(root, name, timeout) or _of_llama_cpp(root, timeout)


def _size_in(item: Any) -> int | None:
    """A window named in one entry of /models (OpenRouter, vLLM, Groq, Mistral, llama.cpp)."""
    if not isinstance(item, dict):
        return None
    for place in (item.get("top_provider"), item, item.get("meta")):
        if isinstance(place, dict):
            for field in _FIELDS:
                value = place.get(field)
                if isinstance(value, int) and value > 0:
                    return value
    return None


def _of_ollama(root: str, name: str, timeout: float) -> int | None:
    """Ollama cuts silently at `num_ctx`, whatever the model could take: the setting counts, then what is loaded."""
    shown = ask_json(f"{root}/api/show", body={"model": name}, timeout=timeout)
    if not isinstance(shown, dict) or "model_info" not in shown:
        return None
    setting = re.search(r"^\s*num_ctx\s+(\d+)", str(shown.get("parameters") or ""), re.MULTILINE)
    if setting:
        return int(setting[1])
    running = ask_json(f"{root}/api/ps", timeout=timeout)
    for item in running.get("models") or () if isinstance(running, dict) else ():
        if isinstance(item, dict) and item.get("model") == name and isinstance(item.get("context_length"), int):
            return int(item["context_length"])
    info = shown["model_info"] if isinstance(shown["model_info"], dict) else {}
    largest = next((v for k, v in info.items() if k.endswith(".context_length") and isinstance(v, int)), None)
    return None if largest is None else min(largest, GUESS)


def _of_lm_studio(root: str, name: str, timeout: float) -> int | None:
    answer = ask_json(f"{root}/api/v0/models/{name}", timeout=timeout)
    if isinstance(answer, dict):
        for field in ("loaded_context_length", "max_context_length"):
            if isinstance(answer.get(field), int):
                return int(answer[field])
    return None


def _of_llama_cpp(root: str, timeout: float) -> int | None:
    answer = ask_json(f"{root}/props", timeout=timeout)
    settings = answer.get("default_generation_settings") if isinstance(answer, dict) else None
    size = settings.get("n_ctx") if isinstance(settings, dict) else None
    return size if isinstance(size, int) and size > 0 else None
