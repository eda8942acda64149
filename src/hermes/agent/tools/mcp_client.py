"""Tools from MCP servers named in the configuration (`mcp_servers:`), over stdio or HTTP.

All servers run on one event loop in a separate thread; a server that fails is a line in `problems`, and the others
work. What servers report and return is untrusted data: names are made valid, everything is bounded.

A connection lives in one task from start to end, because the library's contexts must be left in the task that entered them;
stopping it cancels the scope around it, never the task, so that the library can end the server's process in order.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import hashlib
import json
import logging
import os
import re
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hermes.agent.tools.tool import Context, Tool
from hermes.errors import MissingExtra, ToolError
from hermes.texts import encodable, one_line, readable, shortened, without_middle

if TYPE_CHECKING:
    import anyio
    from anyio.from_thread import BlockingPortal
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as ServerTool

    from hermes.config import Config, McpServer


START_SECONDS: Final = 30.0
CALL_SECONDS: Final = 120.0
MAX_TOOLS: Final = 64  # tools of one server
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
    """The servers' tools, as this program's tools. `close` ends the servers that were started."""

    def __init__(self, call_seconds: float = CALL_SECONDS) -> None:
        self.tools: list[Tool] = []
        self.problems: list[str] = []
        self._call_seconds = call_seconds
        self._connections: list[McpConnection] = []
        self._running = ExitStack()  # the event loop and its thread
        self._portal: BlockingPortal | None = None  # calls into that thread, until `close`

    def _start(self, servers: dict[str, McpServer], seconds: float) -> None:
        from anyio.from_thread import start_blocking_portal

        portal = self._portal = self._running.enter_context(start_blocking_portal())
        atexit.register(self.close)
        try:
            portal.call(self._start_all, servers, seconds)
        except BaseException:
            self.close()
            raise

    async def _start_all(self, servers: dict[str, McpServer], seconds: float) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
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

        text = _line(tool.description or tool.title or "", MAX_DESCRIPTION)
        description = f"{text} (from the MCP server {_line(connection.name, 100)})".strip()
        return Tool(valid_name(connection.name, tool.name, taken), description, _schema(tool), run)

    def _call(self, context: Context, connection: McpConnection, tool: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError

        about = f"the MCP server {connection.name}"
        try:
            if self._portal is None:
                raise Broken("the MCP servers were closed")
            future = self._portal.start_task_soon(partial(connection.call, tool, arguments, seconds=self._call_seconds))
            return text_of_result(_awaited(context, future, about))
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

    def close(self) -> None:
        """Disconnect from every server; all started processes end."""
        portal, self._portal = self._portal, None
        if portal is None:
            return
        atexit.unregister(self.close)

        async def stop_all() -> None:
            await asyncio.gather(*(each.stop() for each in self._connections), return_exceptions=True)
            await portal.stop(cancel_remaining=True)

        portal.call(stop_all)
        self._running.close()


def _awaited(context: Context, future: concurrent.futures.Future[_T], about: str) -> _T:
    """The result, unless the user interrupts."""
    while not context.cancelled():
        try:
            return future.result(timeout=0.05)
        except concurrent.futures.TimeoutError:
            if future.done():  # its own timeout, not ours
                raise
    future.cancel()
    raise ToolError(f"interrupted while {about} was working")


def valid_name(server: str, tool: str, taken: set[str]) -> str:
    """`server__tool` as endpoints accept it: at most 64 of A-Z a-z 0-9 _ -, and unlike every other name in `taken`."""
    full, number = f"{server}__{tool}", 0
    plain = name = re.sub(r"[^A-Za-z0-9_-]", "_", full)
    while len(name) > MAX_NAME or name in taken:
        digest = hashlib.sha256(f"{full}{number or ''}".encode("utf-8", "replace")).hexdigest()
        name, number = f"{plain[: MAX_NAME - 9]}_{digest[:8]}", number + 1
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
    held = getattr(block, "resource", block)
    if (text := getattr(held, "text", None)) is not None:
        return str(text)
    what = getattr(held, "uri", None) or getattr(held, "mime_type", "")
    return f"[{_line(str(block.type), 50)}: {_line(str(what), 300)}, not shown]"


# ------------------------------------------------------------------------------------------------ one server


STOP_SECONDS: Final = 10.0
MAX_PAGES: Final = 20
HEARD_BYTES: Final = 4_000


class Broken(Exception):
    """The server can't be used; says why."""


class Lost(Exception):
    """The server ended during a call; the outcome of the call is unknown."""


class McpConnection:
    """The connection to one server."""

    def __init__(self, name: str, server: McpServer, *, limit: float) -> None:
        self.name = name
        self.tools: list[ServerTool] = []
        self._server = server
        self._limit = limit
        self._client: Client | None = None
        self._heard = b""  # its last output on standard error
        self._lock = asyncio.Lock()
        self._scope: anyio.CancelScope | None = None
        self._task: asyncio.Task[None] | None = None

    # -- coming and going ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and list the tools; Broken if that fails or takes too long."""
        self._heard = b""
        ready: asyncio.Future[list[ServerTool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(ready), name=f"mcp {self.name}")
        done, _ = await asyncio.wait({ready}, timeout=self._limit)
        if not done:
            await self.stop()
            raise Broken(f"it did not answer within {self._limit:g} s{self._last_words()}")
        self.tools = ready.result()

    async def stop(self) -> None:
        """Disconnect; a started process is ended."""
        self._client = None
        if self._scope is not None:
            self._scope.cancel()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_SECONDS)

    async def _serve(self, ready: asyncio.Future[list[ServerTool]]) -> None:
        import anyio
        from mcp import Client, Implementation

        try:
            with anyio.CancelScope() as self._scope:
                async with AsyncExitStack() as stack:
                    transport = await (self._http(stack) if self._server.url else self._stdio(stack))
                    client = Client(transport, client_info=Implementation(name="hermes-sessions", version="1"))
                    await stack.enter_async_context(client)
                    tools = await _all_tools(client)
                    self._client = client
                    if not ready.done():
                        ready.set_result(tools)
                    await anyio.sleep_forever()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(Broken(self._why(error)))
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._client = None
            if not ready.done():
                ready.set_exception(Broken("it was stopped"))

    async def _stdio(self, stack: AsyncExitStack) -> Any:
        from mcp import StdioServerParameters, stdio_client

        reading, writing = os.pipe()
        errors = stack.enter_context(os.fdopen(writing, "w"))
        os.set_blocking(reading, False)
        loop = asyncio.get_running_loop()
        stack.callback(os.close, reading)
        stack.callback(loop.remove_reader, reading)
        loop.add_reader(reading, self._hear, reading)
        parameters = StdioServerParameters(
            command=self._server.command or "",
            args=list(self._server.args),
            env=dict(self._server.env),
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, errlog=errors)

    async def _http(self, stack: AsyncExitStack) -> Any:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        client = httpx2.AsyncClient(headers=dict(self._server.headers), timeout=httpx2.Timeout(30, read=300))
        await stack.enter_async_context(client)
        return streamable_http_client(self._server.url or "", http_client=client)

    def _hear(self, reading: int) -> None:
        """Keep the end of what the server prints on standard error."""
        with suppress(BlockingIOError):
            self._heard = (self._heard + os.read(reading, 65536))[-HEARD_BYTES:]

    # -- asking ----------------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], *, seconds: float) -> CallToolResult:
        """Call a tool; a server that has ended is started again. Broken: it can't be used. Lost: it ended during the call."""
        import anyio
        import httpx2
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        async with self._lock:
            if self._client is None:
                await self.stop()
                await self.start()
            client = self._client
        if client is None:
            raise Broken("it has ended")
        try:
            return await client.call_tool(tool, encodable(arguments), read_timeout_seconds=seconds)
        except (MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError, httpx2.TransportError) as error:
            if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
                raise
            if self._client is client:
                self._client = None
            raise Lost from error

    # -- saying why ------------------------------------------------------------------------------------------------

    def _why(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if self._server.url:
            return f"no MCP server answers at {self._server.url} ({_error_text(error)})"
        if isinstance(error, FileNotFoundError):
            return f"its command {self._server.command!r} was not found"
        return f"it did not start properly ({_error_text(error)})" + self._last_words()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._heard.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"; its last output: {lines[-1][:200]}" if lines else ""


def _error_text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


async def _all_tools(client: Client) -> list[ServerTool]:
    from mcp import MCPError
    from mcp.types import METHOD_NOT_FOUND

    tools: list[ServerTool] = []
    cursor: str | None = None
    try:
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
    except MCPError as error:
        if error.code != METHOD_NOT_FOUND:  # a server may have no tools
            raise
    return tools
