"""A small MCP server made with the library: `python mcp_server.py stdio`, or `http PORT`."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ToolError("this went wrong on purpose")


@server.tool(structured_output=False)
def picture() -> list:
    """A text and an image."""
    return ["look:", Image(data=b"\x89PNG" + b"x" * 296, format="png")]


@server.tool()
def long() -> str:
    """Far too much."""
    return "begin " + "x" * 500_000 + " end"


@server.tool()
async def slow(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
def environment(name: str) -> str:
    """A variable of the server."""
    return os.environ.get(name, "(not set)")


@server.tool()
def process_id() -> str:
    """Who is it?"""
    return str(os.getpid())


@server.tool(name="odd name/with:signs and a tail that is much longer than any endpoint would ever accept")
def odd() -> str:
    """\x1b[31mA strange\x07 name.\n\nSecond paragraph."""
    return "odd"


@server.tool(description="d" * 50_000)
def verbose() -> str:
    return "v"


if __name__ == "__main__":
    print("some noise on standard error", file=sys.stderr, flush=True)
    if sys.argv[1] == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
