"""A turn as JSON, for scripts: the events one a line (`--stream-json`), and what the last object needs of them."""

from __future__ import annotations

import json
from typing import IO, Any

from hermes.agent.turn import Done, Event, Followed, Notice, Restarted, Text, ToolFinished, ToolStarted


def put_json(stream: IO[str], value: dict[str, Any]) -> None:
    """One object, on a line of its own."""
    stream.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    stream.flush()


class JsonDisplay:
    """Collects a turn; with a stream, writes every event as it happens."""

    def __init__(self, stream: IO[str] | None) -> None:
        self.stream = stream
        self.answer = ""
        self.calls: list[dict[str, Any]] = []

    def feed(self, event: Event) -> None:
        if isinstance(event, Text):
            self._tell("text", text=event.text, **({"restart": True} if event.anew else {}))
        elif isinstance(event, ToolStarted):
            self.calls.append({"id": event.call_id, "name": event.name, "arguments": event.arguments})
            self._tell("tool_start", **self.calls[-1])
        elif isinstance(event, ToolFinished):
            ended = {"ok": event.ok, "seconds": round(event.seconds, 3), "outcome": event.outcome}
            for call in self.calls:
                if call["id"] == event.call_id:
                    call.update(ended)
            self._tell("tool_end", id=event.call_id, name=event.name, **ended)
        elif isinstance(event, Notice):
            self._tell("restart" if isinstance(event, Restarted) else "notice", text=event.text)
        elif isinstance(event, Followed):
            self._tell("compressed", session_id=event.session_id)
        elif isinstance(event, Done):
            self.answer = event.text

    def _tell(self, kind: str, **values: Any) -> None:
        if self.stream is not None:
            put_json(self.stream, {"type": kind, **values})

    def tick(self) -> None:
        pass

    def typing(self, line: str, sent: bool) -> None:
        pass

    def pause(self) -> None:
        pass

    def finish(self) -> None:
        pass
