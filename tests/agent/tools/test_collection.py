"""The tools every agent has, as an endpoint is told of them."""

from __future__ import annotations

import json
import subprocess
import sys

from hermes.agent.tools.tool import builtin_tools
from hermes.config import Config

FILES = ["read_file", "write_file", "edit_file"]


def test_the_built_in_tools() -> None:
    names = [tool.name for tool in builtin_tools(Config())]
    assert names == ["session_search", "memory", "skills", "terminal", "process", *FILES, "cron"]


def test_memory_is_not_offered_when_it_is_turned_off() -> None:
    config = Config()
    config.memory.enabled = False
    assert "memory" not in [tool.name for tool in builtin_tools(config)]


def test_every_schema_is_json_with_described_arguments() -> None:
    for tool in builtin_tools(Config()):
        function = json.loads(json.dumps(tool.schema()))["function"]
        assert function["description"] and function["parameters"]["type"] == "object"
        assert set(function["parameters"].get("required", [])) <= set(function["parameters"]["properties"])


def test_tools_load_no_heavy_library() -> None:
    heavy = ["mcp", "openai", "textual", "rich", "prompt_toolkit", "httpx", "yaml", "anyio", "pydantic"]
    code = (
        "import sys; from hermes.config import Config; from hermes.agent.tools.tool import builtin_tools;"
        f"builtin_tools(Config()); print([name for name in {heavy} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
