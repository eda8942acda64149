"""Tools from real MCP servers, over stdio and HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.tools.mcp_client import McpTools, connect, valid_name
from hermes.agent.tools.tool import Context, Tool
from hermes.config import Config, McpServer
from hermes.errors import MissingExtra, ToolError
from tests.support.ports import free_port
from tests.support.waiting import until

SERVER = str(Path(__file__).with_name("mcp_server.py"))
PLAIN = str(Path(__file__).with_name("mcp_plain_server.py"))


def stdio(**env: str) -> McpServer:
    """A server that is made with the library."""
    return McpServer(command=sys.executable, args=[SERVER, "stdio"], env=env)


def plain(**env: str) -> McpServer:
    """A server that starts at once, for tests of servers that come and go."""
    return McpServer(command=sys.executable, args=["-I", "-S", PLAIN], env=env)


@pytest.fixture
def connected() -> Iterator[Callable[..., McpTools]]:
    made: list[McpTools] = []

    def make(limits: dict[str, float] | None = None, **servers: McpServer) -> McpTools:
        made.append(connect(Config(mcp_servers=servers), **(limits or {})))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[McpTools]:
    """A server for the tests that only call its tools."""
    tools = connect(Config(mcp_servers={"x": stdio()}))
    assert tools.problems == []
    yield tools
    tools.close()


@pytest.fixture
def http_server(tmp_path: Path) -> Iterator[Callable[..., tuple[str, subprocess.Popen[bytes]]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(port: int | None = None) -> tuple[str, subprocess.Popen[bytes]]:
        port = port or free_port()
        with (tmp_path / "server.log").open("wb") as log:
            running.append(subprocess.Popen([sys.executable, SERVER, "http", str(port)], stdout=log, stderr=log))
        until(lambda: answers(port))
        return f"http://127.0.0.1:{port}/mcp", running[-1]

    yield start
    for each in running:
        each.kill()
        each.wait()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def tool(tools: McpTools, name: str) -> Tool:
    return next(each for each in tools.tools if each.name == name)


def gone(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_no_servers_mean_no_tools_and_no_thread() -> None:
    before = threading.active_count()
    tools = connect(Config())
    assert (tools.tools, tools.problems, threading.active_count()) == ([], [], before)
    tools.close()


def test_a_server_over_stdio_is_started_asked_and_ended(connected: Any, context: Context) -> None:
    before = set(psutil.Process().children())
    tools = connected(calc=stdio(SECRET="s3"))
    assert tools.problems == []
    assert tool(tools, "calc__add").run(context, {"a": 2, "b": 40}) == "42"
    assert tool(tools, "calc__environment").run(context, {"name": "SECRET"}) == "s3"
    process_id = int(tool(tools, "calc__process_id").run(context, {}))
    assert not gone(process_id)
    tools.close()
    assert gone(process_id) and set(psutil.Process().children()) <= before
    with pytest.raises(ToolError, match="closed"):
        tool(tools, "calc__add").run(context, {"a": 1, "b": 1})


def test_a_server_does_not_see_the_users_variables(
    connected: Any, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert tool(connected(x=plain()), "x__environment").run(context, {"name": "OPENAI_API_KEY"}) == "(not set)"


def test_a_server_over_http_is_asked(connected: Any, context: Context, http_server: Any) -> None:
    url, _ = http_server()
    tools = connected(web=McpServer(url=url, headers={"X-Key": "k"}))
    assert tools.problems == []
    assert tool(tools, "web__add").run(context, {"a": 2, "b": 3}) == "5"
    tools.close()
    assert answers(int(url.split(":")[2].split("/")[0]))  # it was not ours to end


def test_schemas_names_and_descriptions_are_fit_for_an_endpoint(connected: Any) -> None:
    tools = connected(**{"my server": stdio()})
    for each in tools.tools:
        function = each.schema()["function"]
        assert len(function["name"]) <= 64 and function["name"].replace("_", "").replace("-", "").isalnum()
        assert function["name"].isascii() and function["name"].startswith("my_server__")
        assert 0 < len(function["description"]) < 1200
        assert all(ord(sign) >= 32 for sign in function["description"])
        assert function["parameters"]["type"] == "object"
    add = tool(tools, "my_server__add")
    assert add.parameters["required"] == ["a", "b"]
    assert add.description == "Add two numbers. (from the MCP server my server)"


def test_results_are_text_and_bounded(shared: McpTools, context: Context) -> None:
    tools = shared
    assert tool(tools, "x__picture").run(context, {}) == "look:\n[image: image/png, not shown]"
    long = tool(tools, "x__long").run(context, {})
    assert long.startswith("begin xxx") and long.endswith("xxx end") and len(long) < 41_000
    assert "characters left out" in long


def test_a_tool_that_fails_is_an_error_with_its_words(shared: McpTools, context: Context) -> None:
    tools = shared
    with pytest.raises(ToolError, match="went wrong on purpose"):
        tool(tools, "x__fail").run(context, {})
    with pytest.raises(ToolError):
        tool(tools, "x__add").run(context, {"a": "no number"})
    assert tool(tools, "x__add").run(context, {"a": 1, "b": 1}) == "2"


def test_a_call_is_interrupted_and_the_server_stays_usable(shared: McpTools, context: Context, person: Any) -> None:
    tools = shared
    threading.Timer(0.3, person.stop.set).start()
    with pytest.raises(ToolError, match="interrupted"):
        tool(tools, "x__slow").run(context, {"seconds": 500})
    person.stop.clear()
    assert tool(tools, "x__add").run(context, {"a": 1, "b": 1}) == "2"


def test_a_call_has_a_time_limit(connected: Any, context: Context) -> None:
    tools = connected({"call_seconds": 0.5}, x=plain())
    with pytest.raises(ToolError, match=r"0\.5 s|timed out"):
        tool(tools, "x__slow").run(context, {"seconds": 500})


def test_calls_run_side_by_side(shared: McpTools, context: Context) -> None:
    tools = shared
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: said.append(tool(tools, "x__add").run(context, {"a": n, "b": 0})))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, said)) == list(range(20))


FAILING = [
    (McpServer(command="no-such-program-anywhere"), "its command 'no-such-program-anywhere' was not found"),
    (
        McpServer(command=sys.executable, args=["-c", "import sys; sys.exit('no licence')"]),
        "its last output: no licence",
    ),
    (McpServer(command=sys.executable, args=["-c", "print('hello, not JSON')"]), "did not start properly"),
    (McpServer(url="http://127.0.0.1:9/mcp"), "no MCP server answers at http://127.0.0.1:9/mcp"),
    (McpServer(url="no address"), "no MCP server answers at no address"),
    (McpServer(), "needs either a command or a url"),
    (McpServer(command="x", url="y"), "needs either a command or a url"),
]


def test_a_server_that_fails_is_one_line_and_the_rest_works(
    connected: Any, context: Context, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = {f"bad{number}": server for number, (server, _) in enumerate(FAILING)}
    tools = connected(**bad, good=plain())
    assert len(tools.problems) == len(FAILING)
    for number, (_, told) in enumerate(FAILING):
        (line,) = [one for one in tools.problems if one.startswith(f"MCP server bad{number}: ")]
        assert told in line and "\n" not in line
    assert tool(tools, "good__add").run(context, {"a": 1, "b": 1}) == "2"
    tools.close()
    assert capfd.readouterr() == ("", "")


def test_a_server_that_never_answers_is_given_up(connected: Any) -> None:
    before = len(psutil.Process().children())
    mute = McpServer(command=sys.executable, args=["-c", "import time; time.sleep(6000)"])
    for seconds in (1, 2, 4, 8, 16, 32, 64):  # until it is enough for a good one on this machine
        tools = connected({"start_seconds": float(seconds)}, mute=mute, good=plain())
        assert any("mute" in one and f" {seconds} s" in one for one in tools.problems)
        if len(tools.problems) == 1:
            break
        tools.close()
    assert len(tools.problems) == 1
    assert any(each.name == "good__add" for each in tools.tools)
    until(lambda: len(psutil.Process().children()) == before + 1)


def test_a_server_that_dies_is_started_again_by_the_next_call(connected: Any, context: Context, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    tools = connected(x=plain(MCP_NOTES=str(notes)))
    for _ in range(2):
        with pytest.raises(ToolError, match="ended during the call"):
            tool(tools, "x__die").run(context, {})
        assert tool(tools, "x__add").run(context, {"a": 1, "b": 1}) == "2"
    assert len(notes.read_text().splitlines()) == 3


@pytest.mark.thorough  # over stdio, where a server starts at once, the next call is tested in every run
def test_a_web_server_that_comes_back_is_reached_again(connected: Any, context: Context, http_server: Any) -> None:
    url, process = http_server()
    tools = connected(web=McpServer(url=url))
    assert tool(tools, "web__add").run(context, {"a": 1, "b": 1}) == "2"
    process.kill()
    process.wait()
    for _ in range(3):
        with pytest.raises(ToolError, match="the MCP server web"):
            tool(tools, "web__add").run(context, {"a": 1, "b": 1})
    http_server(int(url.split(":")[2].split("/")[0]))
    assert tool(tools, "web__add").run(context, {"a": 1, "b": 1}) == "2"


def test_closing_ends_a_server_that_ignores_the_end(connected: Any, context: Context) -> None:
    stubborn = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.call([sys.executable, {PLAIN!r}]); import time; time.sleep(600)"
    )
    before = set(psutil.Process().children(recursive=True))
    tools = connected(x=McpServer(command=sys.executable, args=["-c", stubborn]))
    children = set(psutil.Process().children(recursive=True)) - before
    assert len(children) == 2
    tools.close()
    assert all(gone(child.pid) for child in children)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[chat\]"):
        connect(Config(mcp_servers={"x": stdio()}))


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=20))
def test_every_name_is_valid_and_unique(pairs: list[tuple[str, str]]) -> None:
    taken: set[str] = set()
    names = [valid_name(server, tool, taken) for server, tool in pairs * 3]
    assert len(set(names)) == len(names)
    assert all(
        1 <= len(name) <= 64 and all(sign.isascii() and (sign.isalnum() or sign in "_-") for sign in name)
        for name in names
    )
