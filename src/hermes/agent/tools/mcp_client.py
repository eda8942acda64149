"""Tools from MCP servers named in the configuration (`mcp_servers:`), over stdio or HTTP.

All servers run on one event loop in a separate thread; a server that fails is a line in `problems`, and the others
work. What servers report and return is untrusted data: names are made valid, everything is bounded.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hermes.agent.tools.mcp_connection import Broken, Lost, McpConnection
from hermes.agent.tools.output import readable
from hermes.agent.tools.tool import Context, Tool
from hermes.errors import MissingExtra, ToolError
from hermes.texts import one_line, shortened, without_middle

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as ServerTool

    from hermes.config import Config, McpServer

START_SECONDS: Final = 30.0
CALL_SECONDS: Final = 120.0
MAX_TOOLS: Final = 64  # of one server
MAX_DESCRIPTION: Final = 1_000
MAX_SCHEMA: Final = 16_000
MAX_NAME: Final = 64
MAX_RESULT: Final = 40_000

_T = TypeVar("_T")


def connect(
    config: Config, *, start_seconds: float = START_SECONDS, call_seconds: float = CALL_SECONDS
) -> McpTools:  # fmt: skip
    """Start or reach every server, all at once; failures are listed in `problems`.

    A server that has ended is started again by the next call of its tools.
    """
    found = McpTools(call_seconds)
    usable: dict[str, McpServer] = {}
    for name, server in config.mcp_servers.items():
        if unset := config.unset_in(f"mcp_servers.{name}"):
            found.problems.append(f"MCP server {name}: {unset[0]}")
        elif bool(server.command) == bool(server.url):
            found.problems.append(f"MCP server {name}: mcp_servers.{name} needs either a command or a url")
        else:
            usable[name] = server
    if usable:
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise MissingExtra("MCP servers", "chat") from error
        logging.getLogger("mcp").addHandler(logging.NullHandler())  # no tracebacks on the user's screen
        found._start(usable, start_seconds)
    return found


class McpTools:
    """The servers' tools, as this program's tools. Close it: the servers that were started end with it."""

    def __init__(self, call_seconds: float = CALL_SECONDS) -> None:
        self.tools: list[Tool] = []
        self.problems: list[str] = []
        self._call_seconds = call_seconds
        self._connections: list[McpConnection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _start(self, servers: dict[str, McpServer], seconds: float) -> None:
        loop = self._loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _loop, _context: None)
        self._thread = threading.Thread(target=loop.run_forever, name="mcp servers", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._submit(self._start_all(servers, seconds)).result()
        except BaseException:
            self.close()
            raise

    async def _start_all(self, servers: dict[str, McpServer], seconds: float) -> None:
        self._connections = [McpConnection(name, one, limit=seconds) for name, one in servers.items()]
        results = await asyncio.gather(*(each.start() for each in self._connections), return_exceptions=True)
        taken: set[str] = set()
        for connection, problem in zip(self._connections, results, strict=True):
            if problem is not None:
                self.problems.append(f"MCP server {connection.name}: {problem}")
                continue
            if len(connection.tools) > MAX_TOOLS:
                self.problems.append(
                    f"MCP server {connection.name}: it offers {len(connection.tools)} tools; the first {MAX_TOOLS} are used"
                )
            for tool in connection.tools[:MAX_TOOLS]:
                self.tools.append(self._tool(connection, tool, taken))

    def _tool(self, connection: McpConnection, tool: ServerTool, taken: set[str]) -> Tool:
        def run(context: Context, arguments: dict[str, Any]) -> str:
            return self._call(context, connection, tool.name, arguments)

        said = _line(tool.description or tool.title or "", MAX_DESCRIPTION)
        description = f"{said} (from the MCP server {_line(connection.name, 100)})".strip()
        return Tool(valid_name(connection.name, tool.name, taken), description, _schema(tool), run)

    def _call(self, context: Context, connection: McpConnection, tool: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError

        about = f"the MCP server {connection.name}"
        future = self._submit(connection.call(tool, arguments, seconds=self._call_seconds))
        try:
            return text_of_result(self._awaited(context, future, about))
        except Lost:
            raise ToolError(f"{about} ended during the call; whether the call took effect is not known") from None
        except Broken as error:
            raise ToolError(f"{about} can't be used: {error}") from error
        except MCPError as error:
            raise ToolError(f"{about} refused: {_line(str(error), 2_000)}") from error
        except (ToolError, concurrent.futures.CancelledError):
            raise
        except Exception as error:  # an untrusted answer may make the library raise anything
            raise ToolError(f"{about} gave no usable answer: {_line(str(error), 500)}") from error

    def _awaited(self, context: Context, future: concurrent.futures.Future[_T], about: str) -> _T:
        """The result, unless the user interrupts or the time is up."""
        deadline = time.monotonic() + self._call_seconds
        while True:
            try:
                return future.result(timeout=0.05)
            except concurrent.futures.TimeoutError:
                if future.done():  # its own timeout, not ours
                    raise
            if context.cancelled():
                future.cancel()
                raise ToolError(f"interrupted while {about} was working")
            if time.monotonic() > deadline:
                future.cancel()
                raise ToolError(f"{about} did not answer within {self._call_seconds:g} s")

    def _submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise ToolError("the MCP servers were closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Disconnect from every server; all started processes end."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        atexit.unregister(self.close)

        async def stop_all() -> None:
            await asyncio.gather(*(each.stop() for each in self._connections), return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


def valid_name(server: str, tool: str, taken: set[str]) -> str:
    """`server__tool` as endpoints accept it: at most 64 of A-Z a-z 0-9 _ -, and unlike every other name in `taken`."""
    full = f"{server}__{tool}"
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", full)
    name = plain
    if len(plain) > MAX_NAME or plain in taken:
        name = f"{plain[: MAX_NAME - 9]}_{hashlib.sha256(full.encode('utf-8', 'replace')).hexdigest()[:8]}"
    number = 2
    while name in taken:
        name = f"{plain[: MAX_NAME - 5]}_{number}"
        number += 1
    taken.add(name)
    return name


def _line(text: str, limit: int) -> str:
    """One line without control characters, at most `limit` long."""
    return shortened(one_line(readable(text[: limit * 4])), limit)


def _schema(tool: ServerTool) -> dict[str, Any]:
    """The arguments as the server describes them; a schema that is no object, or huge, becomes one that accepts anything."""
    schema = tool.input_schema
    try:
        fits = isinstance(schema, dict) and len(json.dumps(schema)) <= MAX_SCHEMA
    except (TypeError, ValueError, RecursionError):
        fits = False
    if not fits:
        return {"type": "object", "properties": {}}
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


def text_of_result(result: CallToolResult) -> str:
    """A server's result as text; ToolError when it is marked as an error."""
    parts = [_part(block) for block in result.content]
    text = "\n".join(part for part in parts if part)
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False, default=str)
    text = without_middle(readable(text), MAX_RESULT, first=1 / 3)
    if result.is_error:
        raise ToolError(text or "the tool failed without a reason")
    return text or "(no output)"


def _part(block: Any) -> str:
    kind = getattr(block, "type", "")
    if kind == "text":
        return str(block.text)
    if kind in ("image", "audio"):
        return f"[{kind}: {_line(str(block.mime_type), 100)}, about {len(block.data) * 3 // 4:,} bytes, not shown]"
    if kind == "resource":
        inner = block.resource
        text = getattr(inner, "text", None)
        return str(text) if text is not None else f"[file: {_line(str(inner.uri), 300)}, not shown]"
    if kind == "resource_link":
        return f"[link: {_line(str(block.uri), 300)}]"
    return f"[{_line(str(kind), 50)}, not shown]"
