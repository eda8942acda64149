"""`hermes model`: what this machine can use, and `hermes model use`: one step to any model, tried at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from hermes.agent.models.servers import PROVIDERS
from tests.support.echo import Echo
from tests.support.program import ONLY_OLLAMA, PROGRAM, environment, run
from tests.support.providers import Providers
from tests.support.screen import Screen
from tests.support.sizes import some

NO_CACHE = {"LLAMA_CACHE": "/nonexistent"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Providers]:
    with Providers(tmp_path) as world:
        yield world


def config_of(home: Path) -> dict[str, object]:
    return dict(yaml.safe_load((home / "config.yaml").read_text()))


def written(home: Path, text: str, name: str = "config.yaml") -> None:
    home.mkdir(exist_ok=True)
    (home / name).write_text(text)


@pytest.mark.parametrize("name", some(list(PROVIDERS), 4))
def test_one_command_chooses_a_model_of_any_provider_and_tries_it(
    name: str, hermes_home: Path, world: Providers
) -> None:
    provider = PROVIDERS[name]
    written(hermes_home, f"{provider.variables[-1]}=key-in-the-file\n", ".env")
    listed = run("model", home=hermes_home, env=NO_CACHE, width=140)
    assert listed.status == 0 and provider.variables[-1] in listed.out and f"hermes model list {name}" in listed.out
    assert "key-in-the-file" not in listed.out
    done = run("model", "use", f"{name}/family/large", home=hermes_home, env=world.variables)
    assert done.status == 0 and "It works" in done.out and done.err.startswith("Trying family/large at")
    assert config_of(hermes_home) == {"model": {"default": "family/large", "base_url": provider.base_url}}
    (asked,) = world.asked
    address = urlsplit(provider.base_url)
    assert (asked.host, asked.path) == (address.hostname, f"{address.path}/chat/completions")
    assert asked.headers["authorization"] == "Bearer key-in-the-file"
    assert asked.body["model"] == "family/large"
    answer = run("-q", "hello", home=hermes_home, env=world.variables)
    assert answer.status == 0 and "OK" in answer.out


def test_a_provider_lists_its_models_by_the_names_to_use(hermes_home: Path, world: Providers) -> None:
    env = world.variables | {"ANTHROPIC_API_KEY": "k1", "GEMINI_API_KEY": "k2"}
    for name in ("anthropic", "gemini"):
        assert run("model", "list", name, home=hermes_home, env=env).out == f"{name}/one\n"
    first, second = world.asked
    assert (first.path, first.headers["x-api-key"]) == ("/v1/models", "k1") and "authorization" not in first.headers
    assert (second.path, second.headers["authorization"]) == ("/v1beta/openai/models", "Bearer k2")
    unknown = run("model", "list", "nobody", home=hermes_home)
    assert unknown.status != 0 and "anthropic" in unknown.err
    keyless = run("model", "list", "groq", home=hermes_home)
    assert keyless.status != 0 and "GROQ_API_KEY" in keyless.err


def test_a_refusal_is_said_and_the_choice_stays(hermes_home: Path, world: Providers) -> None:
    world.status = 401
    env = world.variables | {"GROQ_API_KEY": "wrong"}
    done = run("model", "use", "groq/llama", home=hermes_home, env=env)
    assert done.status == 4 and "groq/llama is set in config.yaml, but" in done.err and "as the test says" in done.err
    assert config_of(hermes_home)["model"] == {"default": "llama", "base_url": PROVIDERS["groq"].base_url}


def test_without_a_key_nothing_changes_and_the_variable_is_named(hermes_home: Path) -> None:
    written(hermes_home, "model: {default: extractive}\n")
    done = run("model", "use", "mistral/large", home=hermes_home)
    assert done.status != 0 and "MISTRAL_API_KEY" in done.err and str(hermes_home / ".env") in done.err
    assert config_of(hermes_home) == {"model": {"default": "extractive"}}
    unknown = run("model", "use", "no-such-model", home=hermes_home)
    assert unknown.status != 0 and "hermes model" in unknown.err


def test_with_openrouters_key_alone_another_providers_model_is_openrouters(hermes_home: Path, world: Providers) -> None:
    env = world.variables | {"OPENROUTER_API_KEY": "k"}
    assert run("model", "use", "anthropic/claude-x", home=hermes_home, env=env).status == 0
    assert run("model", "use", "openrouter/auto", home=hermes_home, env=env).status == 0
    assert [(one.host, one.body["model"]) for one in world.asked] == [
        ("openrouter.ai", "anthropic/claude-x"), ("openrouter.ai", "openrouter/auto"),
    ]  # fmt: skip


def test_the_option_and_the_command_reach_another_provider(hermes_home: Path, world: Providers) -> None:
    written(hermes_home, "model: {default: gpt-5, base_url: https://api.openai.com/v1}\n")
    env = world.variables | {"OPENAI_API_KEY": "k1", "ANTHROPIC_API_KEY": "k2"}
    assert run("--model", "anthropic/claude-x", "-q", "hello", home=hermes_home, env=env).status == 0
    first = world.asked[0]
    assert (first.host, first.body["model"]) == ("api.anthropic.com", "claude-x")
    assert first.headers["authorization"] == "Bearer k2"
    assert not [one for one in world.asked if one.path.endswith("/models")]  # nothing comes before the question
    with Screen(PROGRAM, 100, 30, env=environment(hermes_home, env)) as screen:
        screen.wait_for("❯")
        screen.line("/model xai/grok")
        screen.wait_for("XAI_API_KEY")
        screen.line("/model anthropic/claude-y")
        screen.wait_for("From now on")
        screen.line("hello there")
        screen.wait_for("OK")
        screen.press("C-d")
        screen.wait_until_over()
    world.models = ["claude-y"]
    again = run("-c", "-q", "once more", home=hermes_home, env=env)
    assert again.status == 0 and "not available" not in again.err
    asked = [one.host for one in world.asked if one.body.get("messages") and one.body["model"] == "claude-y"]
    assert len(asked) >= 2 and set(asked) == {"api.anthropic.com"}


def test_an_alias_is_resumed_by_its_own_name(hermes_home: Path) -> None:
    """The endpoint lists the alias alone, and reports what it stands for."""
    with Echo() as echo:
        echo.models = ["fast"]
        written(hermes_home, f"model: {{default: fast, base_url: '{echo.base_url}', api_key: k}}\n")
        assert run("-q", "hello", home=hermes_home).status == 0
        again = run("-c", "-q", "once more", home=hermes_home)
        assert again.status == 0 and "not available" not in again.err
        assert {one["model"] for one in echo.requests} == {"fast"}


def test_a_key_in_the_file_is_not_removed_without_a_question(hermes_home: Path, world: Providers) -> None:
    before = "# mine\nmodel: {default: m, base_url: 'https://llm.example.com/v1', api_key: only-here}\n"
    written(hermes_home, before)
    env = world.variables | {"XAI_API_KEY": "k"}
    done = run("model", "use", "xai/grok", home=hermes_home, env=env)
    assert done.status != 0 and "model.api_key" in done.err
    assert (hermes_home / "config.yaml").read_text() == before
    assert run("model", "use", "xai/grok", "--yes", home=hermes_home, env=env).status == 0
    assert config_of(hermes_home) == {"model": {"default": "grok", "base_url": "https://api.x.ai/v1"}}
    assert (hermes_home / "config.yaml").read_text().startswith("# mine\n")


def test_a_model_of_a_server_on_this_machine(hermes_home: Path) -> None:
    with Echo() as echo:
        env = {"OLLAMA_HOST": f"127.0.0.1:{echo.port}", **ONLY_OLLAMA}
        assert "hermes model use echo" in run("model", home=hermes_home, env=env | NO_CACHE, width=120).out
        done = run("model", "use", "echo", home=hermes_home, env=env | {"OPENAI_API_KEY": "k"})
        assert done.status == 0 and "It works: echo answered" in done.out
        assert config_of(hermes_home)["model"] == {"default": "echo", "base_url": echo.base_url}
        assert "Now: echo at" in run("model", home=hermes_home, env=env | NO_CACHE, width=120).out


def test_a_key_that_is_not_used_is_mentioned_once(hermes_home: Path) -> None:
    env = environment(hermes_home, {"ANTHROPIC_API_KEY": "k", "HERMES_NO_EMBEDDED": "1"})
    for more, mentioned in (({}, ["ANTHROPIC"]), ({}, []), ({"GROQ_API_KEY": "k"}, ["GROQ"])):
        with Screen(PROGRAM, 100, 24, env=env | more) as screen:
            screen.wait_for("❯")
            shown = screen.text()
        assert [name for name in ("ANTHROPIC", "GROQ") if f"{name}_API_KEY" in shown] == mentioned
        assert ("hermes model" in shown) == bool(mentioned)
