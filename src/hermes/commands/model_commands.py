"""Commands about the model that answers: /model chooses another one, /reasoning shows how it came to its reply, /context what
fills its window."""

from __future__ import annotations

import time
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, cast

from hermes.commands.registry import TERMINAL, TERMINAL_ONLY, Host, command
from hermes.errors import InvalidInput
from hermes.texts import content_text, counted, estimate_tokens, limits, shortened_line

if TYPE_CHECKING:
    from hermes.agent.models.model import Model

_LISTED = 30
DEFAULT = "default"  # the word for the configured model
_KEPT_SECONDS = 60.0  # a list of models, for completion
_BAR = 40
_names: dict[str | None, tuple[float, list[str]]] = {}


class _ShowsReasoning(Protocol):
    shows_reasoning: bool


def model_names(model: Model) -> list[str]:
    """The chat models behind the same endpoint; for a model without one those of servers on this machine.

    Asked again after a minute; [] where there is no list.
    """
    known = _names.get(model.base_url)
    if known is None or time.monotonic() - known[0] > _KEPT_SECONDS:
        known = _names[model.base_url] = time.monotonic(), sorted(_listed_now(model))
    return known[1]


def _listed_now(model: Model) -> set[str]:
    from hermes.agent.models.servers import can_chat, find_servers, listed_models

    if model.base_url is None:
        return {name for found in find_servers() for name in found.models}
    listed = listed_models(model.base_url, key=getattr(model, "api_key", None)) or []
    return {str(item["id"]) for item in listed if can_chat(str(item["id"]))}


def _choices(host: Host) -> list[str]:
    return [name for name in model_names(host.model) if name != host.model.name]


@command("model", "[name | default]", "switch to another model, or choose one", complete=_choices)
def model(host: Host, arguments: str) -> None:
    if not host.is_owner:
        raise InvalidInput("only the owner of this assistant can choose the model")
    now = host.agent.model
    names = model_names(now)
    if not arguments:
        host.say(f"Model: {now.describe()}")
        others = [name for name in names if name != now.name]
        if not others:
            host.say("This endpoint has no other model. `hermes model` shows what you can use.")
            return
        if host.where != TERMINAL:
            listed = "\n".join(f"- `{name}`" for name in others[:_LISTED])
            host.say(f"{listed}\n\n`/model name` uses one of them, `/model {DEFAULT}` the configured one.")
            return
        place = host.choose("Which one?", others[:_LISTED])
        if place is None:
            return
        arguments = others[place]
    default = host.default_model
    name = default.name if arguments == DEFAULT and DEFAULT not in names else _meant(arguments, names, now)
    if name == now.name:
        if name == default.name:
            host.choose_model(None)
        host.say(f"{name} already answers here.")
        return
    if host.agent.busy:
        raise InvalidInput("a reply is being written; wait for it, or stop it, then try again")
    from hermes.agent.models.choice import other_model

    chosen = default if name == default.name else other_model(host.config, name, now)
    if chosen is None:
        wanted = shortened_line(name, 60)
        raise InvalidInput(f"no server on this machine has {wanted}; `hermes model install` lists models")
    host.choose_model(None if chosen is default else name)
    host.agent.model = chosen
    back = "" if chosen is default else f" /model {DEFAULT} goes back to {default.name}."
    host.say(f"From now on {name} answers in this conversation.{back}")


def _meant(words: str, names: list[str], now: Model) -> str:
    """The model meant by a name or a unique part of one. Without a list, the words are taken as they are."""
    if words in names or _is_elsewhere(words, now) or not names:
        return words
    parts = [name for name in names if words.casefold() in name.casefold()]
    if len(parts) == 1:
        return parts[0]
    close = parts or get_close_matches(words, names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(close[:5])}?" if close else f"/model lists its {counted(len(names), 'model')}"
    raise InvalidInput(f"the endpoint has no model {shortened_line(words, 60)!r}; {hint}")


_REASONING = {
    "show": "Reasoning is shown from now on; /reasoning hide folds it.",
    "hide": "Reasoning is folded from now on; /reasoning shows that of the last reply.",
}


@command("reasoning", "[show | hide]", "show the model's reasoning", TERMINAL_ONLY, complete=lambda host: [*_REASONING])
def reasoning(host: Host, arguments: str) -> None:
    if arguments:
        if arguments not in _REASONING:
            raise InvalidInput(f"expected /reasoning, /reasoning show or /reasoning hide, got {arguments!r}")
        cast(_ShowsReasoning, host).shows_reasoning = arguments == "show"
        host.say(_REASONING[arguments])
        return
    rows = host.db.get_messages(host.session_id, visible_to=host.user)
    last = max((place for place, row in enumerate(rows) if row["role"] == "user"), default=0)
    thoughts = [row["reasoning"] or row["reasoning_content"] for row in rows[last:]]
    host.say(
        "\n\n".join(thought.strip() for thought in thoughts if thought) or "The last reply came without reasoning."
    )


def _is_elsewhere(words: str, now: Model) -> bool:
    """Whether the words name a model of another provider (`anthropic/claude-…`). InvalidInput without a key for it."""
    from hermes.agent.models.servers import endpoint_named, named_provider, provider_at
    from hermes.config import environment

    named, here = named_provider(words), provider_at(now.base_url)
    if named is None or (now.base_url and (here is None or here.slashes)):
        return False
    if endpoint_named(words, environment(), base_url=now.base_url, key=getattr(now, "api_key", None)) is None:
        raise InvalidInput(f"no API key for {named[0].name}: set {named[0].variables[0]}")
    return True


@command("context", "", "show what fills the context window", TERMINAL_ONLY)
def context(host: Host, arguments: str) -> None:
    parts = context_parts(host)
    window = host.model.context_length
    used = sum(parts.values())
    parts["Free"] = max(0, window - used)
    share = min(1.0, used / window) if window else 0.0
    full = min(_BAR, round(share * _BAR)) or (1 if used else 0)
    lines = [
        f"[{'█' * full}{'·' * (_BAR - full)}]",
        f"About {used:,} of {window:,} tokens ({share:.0%})",
        "",
        *(f"{name:<15} {tokens:>11,}  {_bar(tokens, max(used, 1)) if name != 'Free' else ''}".rstrip()
          for name, tokens in parts.items() if tokens or name == "Free"),
    ]  # fmt: skip
    if files := host.agent.instruction_files():
        lines += ["", *(f"Instructions    {path}" for path in files)]
    settings = host.config.compression
    if settings.enabled:
        limit, _ = limits(settings.threshold, window, parts["System prompt"] + parts["Tools"])
        lines += ["", f"From {limit:,} tokens on, the middle is summarised; /compress does it now."]
    host.say("\n".join(lines))


def _bar(tokens: int, whole: int) -> str:
    return "█" * round(tokens / whole * _BAR / 2) or "▏"


def context_parts(host: Host) -> dict[str, int]:
    """Estimated tokens by kind of text."""
    from hermes.agent.prompt import without_instructions

    row = host.db.get_session(host.session_id, visible_to=host.user)
    parts = dict.fromkeys(
        ("System prompt", "Instructions", "Tools", "Summary", "Your messages", "Replies", "Tool calls", "Results"), 0
    )
    if row and row["system_prompt"]:
        usual, project = without_instructions(row["system_prompt"])
        parts["System prompt"] = estimate_tokens([{"content": usual}])
        parts["Instructions"] = estimate_tokens([{"content": project}]) if project else 0
    tools = list(host.agent.tools.values())
    if not tools and row and host.model.calls_tools:
        tools = host.agent.expected_tools()
    parts["Tools"] = estimate_tokens((), [tool.schema() for tool in tools])
    for message in host.db.get_messages_as_conversation(host.session_id) if row else ():
        _count(parts, message)
    return parts


def _count(parts: dict[str, int], message: Mapping[str, Any]) -> None:
    from hermes.agent.recall.history_text import SUMMARY_MARK

    role = message.get("role")
    if role == "assistant":
        bare = {key: value for key, value in message.items() if key != "tool_calls"}
        said = estimate_tokens([bare])
        parts["Replies"] += said
        parts["Tool calls"] += estimate_tokens([message]) - said
    elif role == "user":
        summary = content_text(message.get("content")).startswith(SUMMARY_MARK)
        parts["Summary" if summary else "Your messages"] += estimate_tokens([message])
    elif role == "tool":
        parts["Results"] += estimate_tokens([message])
