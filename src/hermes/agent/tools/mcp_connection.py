"""One MCP server: started or connected to, called, restarted if it dies, and ended completely.

Everything here runs on the event loop of mcp.py. A connection lives in one task from start to end,
because the library's contexts must be left in the task that entered them; stopping it cancels the scope around it,
never the task, so that the library can end the server's process in order.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import anyio
    from mcp import Client
    from mcp.types import CallToolResult, Tool

from hermes.config import McpServer
from hermes.texts import encodable

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
        self.tools: list[Tool] = []
        self._server = server
        self._limit = limit
        self._client: Client | None = None
        self._heard = b""  # its last output on standard error
        self._lock = asyncio.Lock()
        self._scope: anyio.CancelScope | None = None
        self._task: asyncio.Task[None] | None = None

    # -- coming and going ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and list the tools; Broken when that fails or takes too long."""
        self._heard = b""
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
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

    async def _serve(self, ready: asyncio.Future[list[Tool]]) -> None:
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
            return f"no MCP server answers at {self._server.url} ({_said(error)})"
        if isinstance(error, FileNotFoundError):
            return f"its command {self._server.command!r} was not found"
        return f"it did not start properly ({_said(error)})" + self._last_words()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._heard.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"; its last output: {lines[-1][:200]}" if lines else ""


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


async def _all_tools(client: Client) -> list[Tool]:
    from mcp import MCPError
    from mcp.types import METHOD_NOT_FOUND

    tools: list[Tool] = []
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
