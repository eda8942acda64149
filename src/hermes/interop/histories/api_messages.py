"""Messages as the Anthropic API has them (role, and blocks of text, thinking, tool use and tool result), for programs that
keep them so: Cline and its forks, Droid, Amp."""

from __future__ import annotations

from typing import Any

from hermes.interop.histories.conversation import (
    Message,
    answer,
    block_parts,
    joined,
    message,
    spoken,
    summary,
    tool_call,
)  # fmt: skip
from hermes.interop.json_reading import Reading
from hermes.interop.records import Record

Call = tuple[str, str, Any]  # its id, the tool and the arguments
_TOKENS = {"input_tokens": "inputTokens", "output_tokens": "outputTokens", "cache_read_tokens": "cacheReadTokens",
           "cache_write_tokens": "cacheWriteTokens"}  # fmt: skip
_OF_AMP = {**_TOKENS, "cache_read_tokens": "cacheReadInputTokens", "cache_write_tokens": "cacheCreationInputTokens"}
_NESTED = {"input_tokens": "prompt", "output_tokens": "completion", "cache_read_tokens": "cached"}
_INJECTED = ("<system-reminder>", "<system-notification>")


class ApiMessageReader:
    """The messages of the API as messages of the record, in the parts that summaries cut."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.parts: list[list[Message]] = [[]]

    def take(self, record: dict[str, Any], name: str, at: float | None) -> None:
        """Add a message."""
        told = Record.of(record)
        role, content = told.get("role"), told.get("content")
        blocks = [Record({"type": "text", "text": content})] if isinstance(content, str) else Record.all(content)
        if role == "assistant":
            self._reply(told, blocks, at, name)
        elif role == "user":
            self._said(blocks, at, name)
        else:
            self.reading.unknown[f"message {role}"] += 1

    def summarize(self, content: Any, name: str, at: float | None) -> None:
        """Begin a part with a summary of what is before it."""
        self.parts.append(summary(content, at, name))

    def _reply(self, told: Record, blocks: list[Record], at: float | None, name: str) -> None:
        texts, thoughts = list[str](), [told.text("reasoning_content")]
        calls: list[Call] = []
        for block in blocks:
            kind = block.get("type")
            if kind == "text":
                texts.append(str(block.get("text") or ""))
            elif kind in ("thinking", "reasoning"):
                thoughts.append(block.text("thinking") or block.text("text"))
            elif kind == "tool_use":
                call = block.text("id") or f"{name}-{len(calls)}"
                calls.append((call, str(block.get("name") or "tool"), block.get("input")))
            elif kind != "redacted_thinking":
                self.reading.unknown[f"block {kind}"] += 1
        words, thought, calls = self.understood("\n\n".join(texts), calls, name)
        thoughts.append(thought)
        asked = [tool_call(*one) for one in calls]
        self.parts[-1] += spoken("assistant", words, at, name, thoughts=thoughts, calls=asked, **_usage(told))

    def understood(self, words: str, calls: list[Call], name: str) -> tuple[str, str | None, list[Call]]:
        """The words of a reply without what is no words in them, the reasoning in them, and all calls."""
        return words.strip(), None, calls

    def _said(self, blocks: list[Record], at: float | None, name: str) -> None:
        """The person's words, results of tools, and notes of the program, each as what it is."""
        made: list[Message] = []
        said: list[Any] = []
        for block in blocks:
            if block.get("type") == "tool_result":
                call = block.text("tool_use_id") or str(block.get("toolUseID"))
                made.append(self.result(call, joined(block_parts(block.get("content"))), at, f"{name}-{len(made)}"))
                if block.get("is_error") is True:
                    made[-1]["meta"] = {"failed": True}
                continue
            for part in block_parts([block]):
                if isinstance(part, str):
                    self.heard(part, said, made, at, f"{name}-{len(made)}")
                else:
                    said.append(part)
        self.parts[-1] += made
        self.parts[-1] += spoken("user", joined(said), at, name)

    def heard(self, words: str, said: list[Any], made: list[Message], at: float | None, name: str) -> None:
        """Add a text to what the person said, or to the messages before it where it is the program's."""
        if words.lstrip().startswith(_INJECTED):
            made.append(message("system", words, at, name))
        else:
            said.append(words)

    def result(self, call: str, output: Any, at: float | None, name: str) -> Message:
        """The result of a tool call."""
        return answer(output, at, name, call)


def _usage(told: Record) -> dict[str, Any]:
    """Model, tokens and cost of a reply, by the names that the programs have for them."""
    model, used = told.object("modelInfo"), told.object("metrics") or told.object("usage")
    cost = used.get("cost")
    if "cacheReadInputTokens" in used:
        counted = used.counts(_OF_AMP)
    else:
        counted = used.object("tokens").counts(_NESTED, with_cached=True) | used.counts(_TOKENS, with_cached=True)
    return {
        "model": model.text("id") or model.text("modelId") or used.text("model"),
        "cost_usd": cost if isinstance(cost, (int, float)) else None,
        **counted,
    }
