"""What a turn stores: replies with their cost, tool results, and what a crashed process could not finish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.agent.endpoint.servers import without_password
from hermes.agent.model import Message, Model, Reply
from hermes.agent.prices import OWN, UNKNOWN, Cost, cost
from hermes.agent.tool_calls import Result
from hermes.store.drafts import left_behind

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


_REASONING = ("reasoning", "reasoning_content", "reasoning_details")


def keep_reply(db: SessionDB, session_id: str, model: Model, reply: Reply) -> int:
    """Store a reply with its usage, which is also added to the session's sums; returns the id of the message."""
    price, counts = _price(model, reply), _counts(reply)
    sums = {
        **counts, "model": model.name, "api_call_count": 1,
        "reasoning_tokens": reply.usage.reasoning_tokens if reply.usage else 0,
        "estimated_cost_usd": price.usd, "cost_status": price.status, "cost_source": price.source,
        "pricing_version": price.version, "billing_provider": model.provider,
        "billing_base_url": without_password(model.base_url) if model.base_url else None,
    }  # fmt: skip
    return db.append_message(
        session_id, "assistant", reply.content, tool_calls=reply.tool_calls or None, finish_reason=reply.finish_reason,
        reasoning=reply.reasoning, reasoning_content=reply.reasoning_content, reasoning_details=reply.reasoning_details,
        model=reply.model or model.name, cost_usd=price.usd, usage=sums, **counts,
    )  # fmt: skip


def _counts(reply: Reply) -> dict[str, Any]:
    """The token counts, where the endpoint gave any."""
    usage = reply.usage
    if usage is None:
        return {}
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return {name: getattr(usage, name) for name in names}


def _price(model: Model, reply: Reply) -> Cost:
    """The cost by the model name in the endpoint's answer, else by the requested name."""
    if model.kind in ("local", "embedded", "extractive"):
        return OWN
    names = dict.fromkeys((reply.model or model.name, model.name))
    prices = [cost(name, model.provider, model.base_url, reply.usage) for name in names]
    return next((price for price in prices if price.usd is not None), UNKNOWN)


def as_message(reply: Reply) -> Message:
    """A reply as the next call shows it to the model."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    for field in _REASONING:
        if getattr(reply, field) is not None:
            message[field] = getattr(reply, field)
    if reply.usage is not None and reply.usage.prompt_tokens:
        message["input_tokens"] = reply.usage.prompt_tokens  # not sent: a better measure of the prompt than an estimate
    return message


def keep_result(db: SessionDB, session_id: str, result: Result) -> tuple[int, Message]:
    """Store the result of a call; returns its id, and the message for the model."""
    call = result.call
    message: Message = {"role": "tool", "tool_call_id": call.id, "tool_name": call.name, "content": result.text}
    message_id = db.append_message(session_id, "tool", result.text, tool_call_id=call.id, tool_name=call.name or None)
    return message_id, message


def recover(db: SessionDB, session_id: str) -> bool:
    """Store the text of a reply that a killed process left unfinished; returns whether there was any.

    A reply that was already stored, or whose question was undone since, is not stored again.
    """
    if db.read_only:
        return False
    with left_behind(db.path, session_id) as draft:
        if draft is None:
            return False
        rows: list[dict[str, Any]] = db.get_messages(session_id)
        ids = [row["id"] for row in rows]
        if draft.after not in ids:
            return False
        since = rows[ids.index(draft.after) + 1 :]
        if any(row["role"] == "assistant" for row in since):
            return False
        db.append_message(session_id, "assistant", draft.text, finish_reason="interrupted", model=draft.model)
        return True
