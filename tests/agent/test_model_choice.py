"""Who answers: the configured endpoint, a server on this machine, the embedded model, or the history itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.agent.models.choice import auxiliary_model, choose_model
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.servers import Server, find_servers, usual_servers
from hermes.config import Auxiliary, Config
from hermes.errors import ConfigError
from tests.support.aimock import fixtures_of
from tests.support.ports import free_port
from tests.support.program import ONLY_OLLAMA
from tests.support.wire import Wire, said


def configured(**model: Any) -> Config:
    config = Config()
    for name, value in model.items():
        setattr(config.model, name, value)
    return config


def listing(*names: str) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": name} for name in names]}}


def test_a_configured_endpoint_comes_first(db: Any) -> None:
    model = choose_model(
        configured(default="m", base_url="https://llm.example.com/v1/", api_key="k", context_length=9), db
    )
    assert isinstance(model, EndpointModel)
    assert (model.name, model.base_url, model.api_key, model.context_length) == (
        "m",
        "https://llm.example.com/v1",
        "k",
        9,
    )
    assert (model.kind, model.provider, model.calls_tools) == ("endpoint", "example", True)
    assert model.describe() == "m at llm.example.com (example)"


@pytest.mark.parametrize(
    "variables, name, base_url, key",
    [
        ({"OPENAI_API_KEY": "k1"}, "gpt-5-mini", "https://api.openai.com/v1", "k1"),
        ({"OPENAI_API_KEY": "k1", "HERMES_MODEL": "gpt-4o"}, "gpt-4o", "https://api.openai.com/v1", "k1"),
        ({"OPENROUTER_API_KEY": "k2"}, "openrouter/auto", "https://openrouter.ai/api/v1", "k2"),
        ({"OPENAI_API_KEY": "k1", "OPENROUTER_API_KEY": "k2"}, "gpt-5-mini", "https://api.openai.com/v1", "k1"),
        ({"OPENAI_BASE_URL": "http://box/v1", "HERMES_MODEL": "m"}, "m", "http://box/v1", None),
    ],
)
def test_the_environment_names_an_endpoint(
    db: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str, base_url: str, key: str | None
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    model = choose_model(Config(), db)
    assert isinstance(model, EndpointModel)
    assert (model.name, model.base_url, model.api_key) == (name, base_url, key)


def test_the_env_file_of_the_home_counts_as_environment(db: Any, hermes_home: Path) -> None:
    hermes_home.mkdir(parents=True, exist_ok=True)
    (hermes_home / ".env").write_text("OPENAI_API_KEY=from-file\n")
    model = choose_model(Config(), db)
    assert isinstance(model, EndpointModel)
    assert model.api_key == "from-file"


def test_without_a_name_the_first_model_that_can_chat_is_taken(db: Any) -> None:
    with Wire([said("x")], get=listing("nomic-embed-text", "whisper-1", "qwen3:8b", "other")) as wire:
        assert choose_model(configured(base_url=wire.base_url), db).name == "qwen3:8b"


def test_an_endpoint_that_lists_nothing_needs_a_name(db: Any) -> None:
    with pytest.raises(ConfigError, match="model.default"):
        choose_model(configured(base_url=f"http://127.0.0.1:{free_port()}/v1"), db)


@pytest.mark.parametrize("base_url", ["localhost:1234", "ftp://x/v1", "http://", "nonsense"])
def test_an_address_that_is_none_is_said(db: Any, base_url: str) -> None:
    with pytest.raises(ConfigError, match="model.base_url"):
        choose_model(configured(base_url=base_url, default="m"), db)


def test_a_server_on_this_machine_is_found_by_itself(aimock: Any, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = aimock([{"match": {"model": "qwen3:8b"}, "response": {"content": "Hi"}}, *fixtures_of("?")])
    monkeypatch.setenv("HERMES_NO_LOCAL", ONLY_OLLAMA["HERMES_NO_LOCAL"])
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")
    model = choose_model(Config(), db)
    assert isinstance(model, EndpointModel)
    assert (model.kind, model.provider, model.base_url) == ("local", "Ollama", server.base_url)
    assert "on this machine" in model.describe()
    items = list(model.stream([{"role": "user", "content": "x"}], cancelled=lambda: False))
    assert items[-1].content


def test_a_named_model_is_looked_for_among_the_local_ones(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Wire([said("x")], get=listing("first", "llama3.2:latest")) as wire:
        monkeypatch.setenv("HERMES_NO_LOCAL", ONLY_OLLAMA["HERMES_NO_LOCAL"])
        monkeypatch.setenv("OLLAMA_HOST", f"http://127.0.0.1:{wire.port}")
        assert choose_model(configured(default="llama3.2"), db).name == "llama3.2:latest"
        with pytest.raises(ConfigError, match="not available"):
            choose_model(configured(default="gpt-17"), db)


def test_only_servers_that_answer_as_such_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Wire([said("x")], get=listing("m1")) as good,
        Wire([said("x")], get={"/v1/models": "hello, I am a web site"}) as other,
        Wire([said("x")], get=listing("text-embedding-3")) as mute,
    ):
        servers = [
            Server("closed", free_port()),
            Server("other", other.port),
            Server("mute", mute.port),
            Server("good", good.port),
        ]
        assert find_servers(servers) == []  # HERMES_NO_LOCAL is set for every test
        monkeypatch.delenv("HERMES_NO_LOCAL")
        assert [(found.server.name, found.models) for found in find_servers(servers)] == [("good", ("m1",))]
        servers.append(Server("vLLM", good.port))
        for left_out, names in (("", ["good", "vLLM"]), ("LM Studio,vLLM", ["good"]), ("yes", [])):
            monkeypatch.setenv("HERMES_NO_LOCAL", left_out)
            assert [found.server.name for found in find_servers(servers)] == names


@pytest.mark.parametrize(
    "value, host, port",
    [
        ("", "127.0.0.1", 11434),
        ("0.0.0.0", "127.0.0.1", 11434),
        ("10.0.0.5:9999", "10.0.0.5", 9999),
        ("http://box.lan:80", "box.lan", 80),
        ("http://x:notaport", "127.0.0.1", 11434),
    ],
)
def test_ollama_is_looked_for_where_its_own_variable_says(value: str, host: str, port: int) -> None:
    first = usual_servers({"OLLAMA_HOST": value})[0]
    assert (first.host, first.port) == (host, port)


def test_with_nobody_to_ask_the_history_answers(db: Any) -> None:
    pytest.importorskip("hermes.agent.models.offline")
    model = choose_model(Config(), db)
    assert (model.kind, model.calls_tools) == ("extractive", False)
    assert model.describe()


# ── side tasks ──


def main_model() -> EndpointModel:
    return EndpointModel("big", "https://api.example.com/v1", "k", 1000)


def test_side_tasks_go_to_the_main_model_unless_another_is_set() -> None:
    config, main = Config(), main_model()
    assert all(auxiliary_model(config, task, main) is main for task in ("title", "summary", "compression"))
    config.auxiliary.title = Auxiliary(model="small")
    small = auxiliary_model(config, "title", main)
    assert isinstance(small, EndpointModel)
    assert (small.name, small.base_url, small.api_key) == ("small", main.base_url, "k")
    assert auxiliary_model(config, "summary", main) is main


def test_a_key_is_not_carried_to_another_endpoint() -> None:
    config = Config()
    config.auxiliary.compression = Auxiliary(model="small", base_url="https://other.example.org/v1", timeout=5)
    small = auxiliary_model(config, "compression", main_model())
    assert isinstance(small, EndpointModel)
    assert (small.api_key, small.timeout, small.kind) == (None, 5, "endpoint")


def test_an_auxiliary_endpoint_works_beside_a_model_without_one(db: Any) -> None:
    pytest.importorskip("hermes.agent.models.offline")
    config, main = Config(), choose_model(Config(), db)
    config.auxiliary.summary.model = "small"
    config.auxiliary.summary.base_url = "http://127.0.0.1:5/v1"
    small = auxiliary_model(config, "summary", main)
    assert isinstance(small, EndpointModel)
    assert small.base_url == "http://127.0.0.1:5/v1"
    assert auxiliary_model(config, "title", main) is main


def test_a_window_that_is_configured_counts_for_side_tasks_of_the_same_model() -> None:
    config = configured(context_length=5000)
    config.auxiliary.compression = Auxiliary(timeout=5)
    assert auxiliary_model(config, "compression", main_model()).context_length == 5000
