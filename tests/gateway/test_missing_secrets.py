"""A secret that is not there is an error of its platform, whichever platform it is: nothing starts without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("uvicorn")

from hermes.config.loading import parse_config
from hermes.errors import ConfigError
from hermes.gateway.platforms import adapter_class
from hermes.gateway.startup import check_work, made_adapters
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway.cron import CronDB

WHOLE: dict[str, dict[str, Any]] = {
    "whatsapp": {"phone_number_id": "1", "access_token": "t" * 20, "app_secret": "s" * 20, "verify_token": "v" * 20},
    "sms": {"account_sid": "AC" + "1" * 32, "auth_token": "t" * 20, "phone_number": "+491511"},
    "mattermost": {"url": "https://chat.example", "token": "t" * 20},
    "feishu": {"app_id": "cli_1", "app_secret": "s" * 20},
    "dingtalk": {"client_id": "c", "client_secret": "s" * 20},
    "wecom": {"bot_id": "b", "secret": "s" * 20},
    "weixin": {"token": "t" * 20},
    "bluebubbles": {"url": "http://mac.example:1234", "password": "p" * 20},
    "qqbot": {"app_id": "1", "client_secret": "s" * 20},
    "teams": {"app_id": "a", "app_secret": "s" * 20},
}
CASES = [
    (platform, one.name)
    for platform, section in WHOLE.items()
    for one in adapter_class(platform).settings
    if one.secret and one.name in section
]


def started(platform: str, section: dict[str, Any], home: Path, **variables: str) -> list[str]:
    """The platforms that start. Another one is configured, which the error must not stop."""
    other = "qqbot" if platform == "weixin" else "weixin"
    text = yaml.safe_dump({"platforms": {platform: section, other: WHOLE[other]}})
    made = made_adapters(parse_config(text, Path("config.yaml")), variables, home)
    assert "\n" not in "".join(map(str, made.left_out.values()))
    found = [one.platform for one, _ in made.adapters]
    assert other in found
    return found


@pytest.mark.parametrize("platform", WHOLE)
def test_with_all_of_them_it_starts(platform: str, tmp_path: Path) -> None:
    assert platform in started(platform, WHOLE[platform], tmp_path)


@pytest.mark.parametrize("value", ["${NOT_SET_ANYWHERE}", "x${NOT_SET_ANYWHERE}", "", " ", "\t\n", None])
@pytest.mark.parametrize(("platform", "name"), CASES)
def test_without_one_it_does_not(platform: str, name: str, value: str | None, tmp_path: Path) -> None:
    assert platform not in started(platform, {**WHOLE[platform], name: value}, tmp_path)


def test_a_variable_of_spaces_is_no_secret(tmp_path: Path) -> None:
    section = {**WHOLE["sms"], "auth_token": None}
    assert "sms" in started("sms", section, tmp_path, TWILIO_AUTH_TOKEN="t" * 20)
    assert "sms" not in started("sms", section, tmp_path, TWILIO_AUTH_TOKEN="  ")


def test_an_address_that_is_none_stops_only_its_platform(tmp_path: Path) -> None:
    assert "mattermost" not in started("mattermost", {**WHOLE["mattermost"], "url": "http://["}, tmp_path)


@pytest.mark.parametrize("section", [None, {}, {"token": ""}, "text"])
@pytest.mark.parametrize("name", ["work", "Not a name"])
def test_an_account_without_its_secret_stops_only_that_account(name: str, section: Any, tmp_path: Path) -> None:
    accounts = {"default": WHOLE["weixin"], name: section}
    text = yaml.safe_dump({"platforms": {"weixin": {"accounts": accounts}, "qqbot": WHOLE["qqbot"]}})
    made = made_adapters(parse_config(text, Path("config.yaml")), {}, tmp_path)
    assert sorted(one.connection_name for one, _ in made.adapters) == ["qqbot", "weixin"]
    assert list(made.left_out) == [f"weixin/{name}"]


def test_with_no_platform_left_the_reason_is_told_unless_there_are_jobs(tmp_path: Path) -> None:
    config = parse_config(yaml.safe_dump({"platforms": {"weixin": {"token": ""}}}), Path("config.yaml"))
    made = made_adapters(config, {}, tmp_path)
    with SessionDB(tmp_path / "state.db") as db:
        with pytest.raises(ConfigError, match=r"platforms\.weixin\.token is missing"):
            check_work(made, db, config)
        CronDB(db).add("job1", "0 9 * * *", "UTC", "hi", deliver="file", session_id=None, model=None, next_at=2e9)
        check_work(made, db, config)
