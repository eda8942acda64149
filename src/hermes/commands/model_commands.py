"""Commands about the model that answers and its last reply: /model, /reasoning, /context; /show, /allowed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, cast

from hermes.commands.info_commands import LISTED, whole_number
from hermes.commands.registry import TERMINAL, TERMINAL_ONLY, Host, command
from hermes.errors import InvalidInput
from hermes.texts import content_text, counted, estimate_tokens, limits, one_line, shortened_line

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.agent.tool_calls import Call
    from hermes.config.settings_schema import PermissionRule
    from hermes.store.records.rows import MessageRow


_LISTED = 30
DEFAULT = "default"  # the word for the configured model
_KEPT_SECONDS = 60.0  # a list of models, for completion
_BAR = 40
_names: dict[str | None, tuple[float, list[str]]] = {}


class _ShowsReasoning(Protocol):
    shows_reasoning: bool


def model_names(model: Model) -> list[str]:
    """The chat models behind the same endpoint; for a model without one those of servers on this machine.

    Cached for a minute; [] if there is no list.
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
    name = default.name if arguments == DEFAULT and DEFAULT not in names else _matching_name(arguments, names, now)
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


def _matching_name(words: str, names: list[str], now: Model) -> str:
    """The model with this name, or with this unique part of its name. Without a list, the words are used unchanged."""
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
    shown = "\n\n".join(thought.strip() for thought in thoughts if thought)
    host.say(shown or "The last reply came without reasoning.")


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
    lines = [f"[{'█' * full}{'·' * (_BAR - full)}]", f"About {used:,} of {window:,} tokens ({share:.0%})", ""]
    lines += [f"{name:<15} {tokens:>11,}" for name, tokens in parts.items() if tokens or name == "Free"]
    if files := host.agent.instruction_files():
        lines += ["", *(f"Instructions    {path}" for path in files)]
    settings = host.config.compression
    if settings.enabled:
        limit, _ = limits(settings.threshold, window, parts["System prompt"] + parts["Tools"])
        lines += ["", f"From {limit:,} tokens on, the middle is summarised; /compress does it now."]
    host.say("\n".join(lines))


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
    from hermes.agent.history import SUMMARY_MARK

    role = message.get("role")
    if role == "assistant":
        bare = {key: value for key, value in message.items() if key != "tool_calls"}
        tokens = estimate_tokens([bare])
        parts["Replies"] += tokens
        parts["Tool calls"] += estimate_tokens([message]) - tokens
    elif role == "user":
        summary = content_text(message.get("content")).startswith(SUMMARY_MARK)
        parts["Summary" if summary else "Your messages"] += estimate_tokens([message])
    elif role == "tool":
        parts["Results"] += estimate_tokens([message])


@command(
    "show", "[n | list]", "show all output of a tool call (the last)", TERMINAL_ONLY, complete=lambda host: ["list"]
)
def show(host: Host, arguments: str) -> None:
    rows = host.db.get_messages(host.session_id, visible_to=host.user)
    results = [row for row in rows if row["role"] == "tool"]
    if not results:
        host.say("No tools have been used in this conversation yet.")
        return
    calls = _calls(rows)
    if arguments == "list":
        host.say("\n".join(_listed(calls, row, number) for number, row in enumerate(reversed(results[-LISTED:]), 1)))
        return
    number = whole_number(arguments, "/show", default=1)
    if number > len(results):
        host.say(f"This conversation has only {counted(len(results), 'tool call')}.")
        return
    row = results[-number]
    host.say(f"{_about(calls, row, 1000)}\n{_output(host, calls, row) or '(no output)'}")


def _output(host: Host, calls: Mapping[str, Call], row: MessageRow) -> str:
    """The whole output of a call; of a changed file the diff, which is not part of the message."""
    from hermes.agent.tools.files import TOOLS, diff_of_call, without_note

    text = content_text(row["content"]).rstrip()
    call = calls.get(str(row["tool_call_id"]))
    if row["tool_name"] not in TOOLS or call is None:
        return text
    diff = diff_of_call(host.db, row["tool_name"], call.arguments, row)
    return "\n".join(part for part in (without_note(text).rstrip(), diff) if part)


def _calls(rows: list[MessageRow]) -> dict[str, Call]:
    """The calls that were made, by their ids."""
    from hermes.agent.tool_calls import read_call

    made = (one["tool_calls"] for one in rows if isinstance(one["tool_calls"], list))
    calls = [read_call(raw, {}) for part in made for raw in part if isinstance(raw, dict)]
    return {call.id: call for call in calls}


def _about(calls: Mapping[str, Call], row: MessageRow, room: int) -> str:
    """`terminal: ls -l`: a tool's name and its arguments."""
    call = calls.get(str(row["tool_call_id"]))
    arguments = call.arguments if call is not None else {}
    values = [arguments["path"]] if "path" in arguments else arguments.values()
    words = " ".join(value for value in values if isinstance(value, str))
    return shortened_line(f"{row['tool_name'] or (call and call.name) or 'tool'}: {words}".rstrip(": "), room)


def _listed(calls: Mapping[str, Call], row: MessageRow, number: int) -> str:
    lines = content_text(row["content"]).rstrip().count("\n") + 1
    return f"{number:>3}  {_about(calls, row, 60)}  ({counted(lines, 'line')})"


@command("allowed", "[remove n]", "list or remove permission rules", TERMINAL_ONLY, complete=lambda host: ["remove"])
def allowed(host: Host, arguments: str) -> None:
    found = host.config.permissions
    rules = [("allow", rule) for rule in found.allow] + [("deny", rule) for rule in found.deny]
    if not arguments:
        lines = [f"{number:>3}  {_rule(kind, rule)}" for number, (kind, rule) in enumerate(rules, 1)]
        nothing = "No rules yet: every command that is not known to be read-only asks first."
        host.say("\n".join(lines) if lines else nothing)
        return
    word, _, number = arguments.partition(" ")
    chosen = whole_number(number.strip(), "/allowed remove", default=0) if word == "remove" else 0
    if not 1 <= chosen <= len(rules):
        raise InvalidInput("remove which rule? /allowed lists them, /allowed remove 1 removes the first")
    from msgspec.structs import asdict

    from hermes.config.editing import change_list

    kind, rule = rules[chosen - 1]
    kept = rule if isinstance(rule, str) else {name: value for name, value in asdict(rule).items() if value}
    change_list(["permissions", kind], remove=kept)
    (found.allow if kind == "allow" else found.deny).remove(rule)
    host.say(f"Removed: {_rule(kind, rule)}")


def _rule(kind: str, rule: str | PermissionRule) -> str:
    command, folder = (rule, None) if isinstance(rule, str) else (rule.command, rule.folder)
    never = "never runs: " if kind == "deny" else ""
    return f"{never}{one_line(command)}  {'everywhere' if folder is None else f'in {folder}'}"
