"""The tools of mcp_server.py that servers are started and ended with, without the library, whose loading takes most of a second.

It speaks MCP over stdio line by line, as the specification says, and notes each start in the file named by MCP_NOTES, as a line.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

NUMBER = {"type": "number"}
TOOLS: dict[str, dict[str, Any]] = {
    "add": {"a": NUMBER, "b": NUMBER},
    "slow": {"seconds": NUMBER},
    "environment": {"name": {"type": "string"}},
    "die": {},
    "process_id": {},
}


def listed() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "description": f"The tool {name}.",
            "inputSchema": {"type": "object", "properties": properties, "required": list(properties)},
        }
        for name, properties in TOOLS.items()
    ]


def called(name: str, given: dict[str, Any]) -> str | None:
    """The result of a tool; None: no answer yet."""
    if name == "die":
        os._exit(3)
    if name == "slow":
        return None
    if name == "add":
        return str(given["a"] + given["b"])
    if name == "environment":
        return os.environ.get(given["name"], "(not set)")
    return str(os.getpid()) if name == "process_id" else "survived"


def answered(method: str, given: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        about = {"name": "plain", "version": "1"}
        return {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": listed()}
    if method == "tools/call":
        text = called(given["name"], given.get("arguments") or {})
        return None if text is None else {"content": [{"type": "text", "text": text}], "isError": False}
    return {} if method == "ping" else {"unknown": method}


def main() -> None:
    if notes := os.environ.get("MCP_NOTES"):
        with open(notes, "a") as file:
            file.write(f"{os.getpid()}\n")
    print("some noise on standard error", file=sys.stderr, flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        result = answered(said["method"], said.get("params") or {}) if "id" in said else None
        if result is not None:
            reply = {"jsonrpc": "2.0", "id": said["id"], "result": result}
            if "unknown" in result:
                reply = {**reply, "error": {"code": -32601, "message": f"unknown method: {result['unknown']}"}}
                del reply["result"]
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
