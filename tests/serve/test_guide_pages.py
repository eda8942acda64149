"""The examples of the guide work as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serve.hooks import SECRET, Hooked
from tests.support.environments import program
from tests.support.program import run
from tests.support.wire import Wire, said

PAGES = Path(__file__).resolve().parents[2] / "docs" / "guide" / "platforms"


def example(page: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_python_example_talks_to_the_api_server(serve: Any) -> None:
    with Wire([said("Hello yourself.")]) as wire:
        served = serve(wire, token="t")
        code = example("api-server.md", "python").replace("http://127.0.0.1:8642", served.root).replace("…", "t")
        outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert outcome.stdout == "Hello yourself.\n", outcome.stderr


def test_the_script_sends_a_delivery_that_is_believed(loop: Any, hermes_home: Path) -> None:
    program("curl", "curl")
    program("openssl", "openssl")
    hooks = Hooked(
        loop, hermes_home, {"backup": {"secret": SECRET, "scheme": "x-signature", "prompt": "{payload.job}"}}
    )
    try:
        script = example("webhook.md", "sh").replace("http://127.0.0.1:8644", hooks.root)
        environment = {**os.environ, "SECRET": SECRET, "NO_PROXY": "127.0.0.1"}
        outcome = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, env=environment)
        assert outcome.stdout == '{"status":"accepted"}', outcome.stderr
        assert "backup" in hooks.link.events[0].text
    finally:
        hooks.close()


@pytest.mark.parametrize("page", ["api-server.md", "webhook.md"])
def test_the_configuration_shown_is_one(page: str, tmp_path: Path) -> None:
    from textwrap import dedent

    from hermes.config import parse_config

    found = re.search(r"^   ```yaml\n(.*?)^   ```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    config = parse_config(dedent(found[1]), tmp_path / "config.yaml")
    assert config.api_server.enabled or config.webhooks.routes["issues"].deliver == "telegram"


def test_the_lines_for_editors_are_those_of_the_help() -> None:
    page, said = (PAGES.parent / "acp.md").read_text(), run("acp", "--help", home=Path("/nowhere")).out
    lines = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    assert [line for line in lines if "acp" in line]
    assert all(f"`{line}`" in page for line in lines if "acp" in line), lines


def test_the_entry_for_other_clients_is_whole() -> None:
    entries = re.findall(r"^```json\n(.*?)^```$", (PAGES.parent / "mcp.md").read_text(), re.MULTILINE | re.DOTALL)
    assert [json.loads(one) for one in entries] == [{"mcpServers": {"hermes": {"command": "hermes", "args": ["mcp"]}}}]
