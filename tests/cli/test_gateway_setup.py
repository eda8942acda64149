"""`hermes gateway setup` in a real terminal, and `install`: what is asked, checked, written, and what is left alone."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hermes.cli.services import GATEWAY
from hermes.config import load_config
from tests.support import program
from tests.support.labs.telegram import Lab
from tests.support.screen import Screen

pytest.importorskip("telegram")
BEFORE = "# my own notes\nmodel: {default: extractive}  # quick\nowner: [discord:7]\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


@pytest.fixture
def home(hermes_home: Path) -> Path:
    hermes_home.mkdir(mode=0o700)
    (hermes_home / "config.yaml").write_text(BEFORE)
    (hermes_home / ".env").write_text("OTHER=kept # as it is\n")
    return hermes_home


def screen(home: Path, lab: Lab, *words: str) -> Screen:
    variables = program.environment(home, {"TELEGRAM_BASE_URL": lab.base_url})
    return Screen([*program.PROGRAM, "gateway", "setup", *words], env=variables)


def test_it_asks_checks_and_writes(home: Path, lab: Lab) -> None:
    with screen(home, lab) as shown:
        shown.wait_for("Which platform?")
        shown.line("telegram")
        shown.wait_for("the token @BotFather gave you")
        shown.line(lab.token)
        shown.wait_for("the Bot API server")
        shown.press("Enter")
        shown.wait_for("✓ Logged in to Telegram as @hermes_lab_bot")
        shown.wait_for("Your own user id")
        shown.line("1001")
        shown.wait_for("Other user ids")
        shown.line("1002, 1005")
        shown.wait_for("Written.")
        assert shown.wait_until_over() == 0
        assert lab.token not in shown.history()
    text = (home / "config.yaml").read_text()
    assert "# my own notes" in text
    assert "# quick" in text
    assert lab.token not in text
    tree = yaml.safe_load(text)
    assert tree["platforms"]["telegram"]["token"] == "${TELEGRAM_BOT_TOKEN}"
    assert tree["platforms"]["telegram"]["enabled"] is True
    assert tree["owner"] == ["discord:7", "telegram:1001"]
    assert load_config().platforms["telegram"]["token"] == lab.token
    assert [str(one) for one in load_config().platforms["telegram"]["allowed_users"]] == ["1002", "1005"]
    secrets = home / ".env"
    assert secrets.read_text().startswith("OTHER=kept # as it is\n")
    assert secrets.stat().st_mode & 0o777 == 0o600


def test_asked_again_it_keeps_what_is_there(home: Path, lab: Lab) -> None:
    with screen(home, lab, "telegram") as shown:
        shown.wait_for("the token")
        shown.line(lab.token)
        for words in ("the Bot API server", "Your own user id", "Other user ids"):
            shown.wait_for(words)
            shown.press("Enter")
        shown.wait_for("hermes pairing approve --owner")
        assert shown.wait_until_over() == 0
    before = (home / "config.yaml").read_text(), (home / ".env").read_text()
    with screen(home, lab, "telegram") as shown:
        for words in ("the token", "the Bot API server", "Your own user id", "Other user ids"):
            shown.wait_for(words)
            shown.press("Enter")
        assert shown.wait_until_over() == 0
    assert ((home / "config.yaml").read_text(), (home / ".env").read_text()) == before


def test_an_account_is_set_up_beside_the_first(home: Path, lab: Lab) -> None:
    mine = "platforms:\n  telegram:\n    token: ${TELEGRAM_BOT_TOKEN}  # the first\n"
    (home / ".env").write_text("TELEGRAM_BOT_TOKEN=1111:the-first-0123456789abcdef0123456789\n")
    (home / "config.yaml").write_text(BEFORE + mine)
    values = ["--set", f"token={lab.token}", "--set", f"base_url={lab.base_url}"]
    unknown = program.run("gateway", "setup", "telegram/work", *values, home=home)
    assert unknown.status == 1 and "accounts first" in unknown.err
    (home / "config.yaml").write_text(BEFORE + mine + "    accounts: {default: {}, work: {}}\n")
    assert program.run("gateway", "setup", "telegram/work", *values, home=home).status == 0
    text, config = (home / "config.yaml").read_text(), load_config()
    assert "# the first" in text and lab.token not in text and "${TELEGRAM_BOT_TOKEN_WORK}" in text
    assert config.platform_section("telegram")["token"] == "1111:the-first-0123456789abcdef0123456789"
    assert config.platform_section("telegram/work")["token"] == lab.token


def test_a_wrong_token_writes_nothing(home: Path, lab: Lab) -> None:
    wrong = "4242:wrong-0123456789abcdef0123456789"
    with screen(home, lab, "telegram") as shown:
        shown.wait_for("the token")
        shown.line(wrong)
        shown.wait_for("the Bot API server")
        shown.press("Enter")
        shown.wait_for("Nothing was written")
        assert shown.wait_until_over() == 1
        assert wrong not in shown.history()
    assert (home / "config.yaml").read_text() == BEFORE
    assert (home / ".env").read_text() == "OTHER=kept # as it is\n"


@pytest.mark.parametrize("steps", [0, 3])
def test_ctrl_c_leaves_all_as_it_was(home: Path, lab: Lab, steps: int) -> None:
    asked = ("the token", "the Bot API server", "Your own user id", "Other user ids")
    with screen(home, lab, "telegram") as shown:
        for number, words in enumerate(asked[: steps + 1]):
            shown.wait_for(words)
            if number == steps:
                shown.press("C-c")
            elif number == 0:
                shown.line(lab.token)
            else:
                shown.press("Enter")
        assert shown.wait_until_over() == 1
        assert "nothing was changed" in shown.history()
    assert (home / "config.yaml").read_text() == BEFORE
    assert (home / ".env").read_text() == "OTHER=kept # as it is\n"
    assert sorted(path.name for path in home.iterdir() if path.is_file()) == [".env", "config.yaml"]


def test_without_a_terminal_there_is_nobody_to_ask(home: Path) -> None:
    done = program.run("gateway", "setup", "telegram", home=home)
    assert done.status == 1
    assert "needs a terminal" in done.err


def test_without_a_terminal_the_values_are_given(home: Path, lab: Lab) -> None:
    values = [f"token={lab.token}", f"base_url={lab.base_url}", "owner=111", "allowed_users=222, 333"]
    words = [word for one in values for word in ("--set", one)]
    done = program.run("gateway", "setup", "telegram", *words, home=home)
    assert (done.status, done.err) == (0, "")
    assert "✓ Logged in to Telegram as" in done.out
    written = yaml.safe_load((home / "config.yaml").read_text())
    section = written["platforms"]["telegram"]
    assert section["token"] == "${TELEGRAM_BOT_TOKEN}" and lab.token in (home / ".env").read_text()
    assert (section["base_url"], section["allowed_users"]) == (lab.base_url, ["222", "333"])
    assert written["owner"] == ["discord:7", "telegram:111"]
    again = program.run("gateway", "setup", "telegram", "--set", "allowed_users=444", home=home)  # the rest stays
    assert again.status == 0, again.err
    section = yaml.safe_load((home / "config.yaml").read_text())["platforms"]["telegram"]
    assert section["allowed_users"] == ["222", "333", "444"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["telegram", "--set", "tokn=x"], "did you mean token?"),
        (["telegram", "--set", "token"], "'token' is not KEY=VALUE"),
        (["telegram", "--set", "owner=1"], "platforms.telegram.token is missing"),
        (["--set", "token=x"], "--set needs a platform"),
        (["telegram", "--set", "token=1:wrong", "--set", "base_url=http://127.0.0.1:9"], "Nothing was written"),
        (["matrix", "--set", "homeserver=https://h.example", "--set", "user_id=@a:h.example"], "password"),
    ],
)
def test_values_that_can_not_work_write_nothing(home: Path, words: list[str], told: str) -> None:
    done = program.run("gateway", "setup", *words, home=home)
    assert done.status in (1, 2)
    assert told in done.err
    assert (home / "config.yaml").read_text() == BEFORE
    assert (home / ".env").read_text() == "OTHER=kept # as it is\n"


def test_a_login_with_a_password_or_a_token_is_asked_for_until_one_is_given(home: Path, lab: Lab) -> None:
    pytest.importorskip("nio")
    with screen(home, lab, "matrix", "--no-check") as shown:
        shown.wait_for("address of the home server")
        shown.line("https://matrix.example")
        shown.wait_for("instead of the password: a token")
        shown.press("Enter")
        shown.wait_for("who we are there")
        shown.line("@hermes:matrix.example")
        shown.wait_for("that user's password")
        shown.line("a password of mine")
        for words in ("Your own user id", "Other user ids"):
            shown.wait_for(words)
            shown.press("Enter")
        assert shown.wait_until_over() == 0
    section = load_config().platforms["matrix"]
    assert (section["user_id"], section["password"]) == ("@hermes:matrix.example", "a password of mine")
    assert "access_token" not in section and "a password of mine" not in (home / "config.yaml").read_text()
    with screen(home, lab, "matrix", "--no-check") as shown:
        shown.wait_for("address of the home server")
        shown.press("Enter")
        shown.wait_for("instead of the password: a token")
        shown.line("a-token-of-mine")
        for words in ("Your own user id", "Other user ids"):
            shown.wait_for(words)
            shown.press("Enter")
        assert shown.wait_until_over() == 0
        assert "who we are there" not in shown.history()
    assert load_config().platforms["matrix"]["access_token"] == "a-token-of-mine"


# ------------------------------------------------------------------------------------------------ as a service


def test_two_homes_are_two_services(home: Path, tmp_path: Path) -> None:
    variables = {"XDG_CONFIG_HOME": str(tmp_path / "configuration"), "HOME": str(tmp_path)}
    units = tmp_path / "configuration" / "systemd" / "user"
    homes = [tmp_path / ".hermes", home, tmp_path / "other" / home.name]
    for one in homes:
        assert program.run("gateway", "install", home=one, env=variables).status == 0
    found = {path.name: path.read_text() for path in units.iterdir()}
    assert len(found) == 3 and f"HERMES_HOME={tmp_path / '.hermes'}\n" in found["hermes-gateway.service"]
    done = program.run("gateway", "uninstall", home=home, env=variables)
    (gone,) = set(found) - {path.name for path in units.iterdir()}
    assert f"HERMES_HOME={home}\n" in found[gone] and f"systemctl --user disable --now {gone}" in done.out


def test_install_and_uninstall(home: Path, tmp_path: Path) -> None:
    variables = {"XDG_CONFIG_HOME": str(tmp_path / "configuration")}
    unit = tmp_path / "configuration" / "systemd" / "user" / f"{GATEWAY.unit}.service"
    done = program.run("gateway", "install", home=home, env=variables)
    assert done.status == 0
    written = unit.read_text()
    assert f"HERMES_HOME={home}" in written
    if shutil.which("systemctl") is not None:
        assert "systemctl --user enable --now hermes-gateway" in done.out
    unit.write_text("another")
    assert program.run("gateway", "install", home=home, env=variables).status == 0
    assert unit.read_text() == written
    assert program.run("gateway", "uninstall", home=home, env=variables).status == 0
    assert not unit.exists()
    gone = program.run("gateway", "uninstall", home=home, env=variables)
    assert gone.status == 1 and "`hermes gateway install`" in gone.err


def _words(unit: str) -> list[str]:
    """The values of Environment= as systemd reads them: quotes and backslashes as in a shell, %% is %, $ is itself."""
    lines = [line.removeprefix("Environment=") for line in unit.splitlines() if line.startswith("Environment=")]
    return [word.replace("%%", "%") for line in lines for word in shlex.split(line)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("name", ["home", "a home with spaces", '50% $HOME \'n "quotes" \\ back'])
def test_systemd_understands_the_unit(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / name))
    unit = tmp_path / "hermes-gateway.service"
    unit.write_text(GATEWAY.text())
    variables = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning", "SYSTEMD_LOG_LOCATION": "0"}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        env=variables,
        timeout=60,
        check=False,
    )
    assert f"HERMES_HOME={tmp_path}/{name}" in _words(unit.read_text())
    about = [line for line in (done.stdout + done.stderr).splitlines() if "hermes" in line]
    assert about == []


_LOGS_IN = """
from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Adapter, Capabilities, Setting

class Acme(Adapter):
    platform, title, logs_in = "acme", "Acme", True
    settings = (
        Setting(name="token", help="the token", variable="ACME_TOKEN", secret=True, required=True),
        Setting(name="device", help="which device", required=True),
    )
    capabilities = Capabilities(longest=100)

    async def login(self, show):
        if self.text("device") == "broken":
            raise PlatformRefused("nobody scanned the code")
        show("Scan this: ▀▄▀ " + self.text("device"))
        return {"token": "t-from-login"}

    async def check(self):
        if self.text("token") != "t-from-login":
            raise PlatformRefused("the token is wrong")
        return "@acme"

    async def disconnect(self):
        pass
"""


def _acme(home: Path, tmp_path: Path) -> Screen:
    folder = tmp_path / "outside"
    (folder / "acme_platform-1.0.dist-info").mkdir(parents=True)
    (folder / "acme_platform.py").write_text(_LOGS_IN)
    about = folder / "acme_platform-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-platform\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[hermes.platforms]\nacme = acme_platform:Acme\n")
    variables = program.environment(home, {"PYTHONPATH": str(folder)})
    return Screen([*program.PROGRAM, "gateway", "setup", "acme"], env=variables)


def test_a_login_together_with_the_owner_gives_the_settings_that_are_not_asked_for(home: Path, tmp_path: Path) -> None:
    with _acme(home, tmp_path) as shown:
        shown.wait_for("which device")
        shown.line("phone")
        shown.wait_for("Scan this: ▀▄▀ phone")
        shown.wait_for("✓ Logged in to Acme as @acme")
        shown.line("")
        shown.line("")
        shown.wait_for("Written.")
    assert 'ACME_TOKEN="t-from-login"' in (home / ".env").read_text()
    section = yaml.safe_load((home / "config.yaml").read_text())["platforms"]["acme"]
    assert section == {"token": "${ACME_TOKEN}", "device": "phone", "enabled": True}


def test_setup_of_email_asks_for_the_name_that_proves_senders_and_takes_none(home: Path, lab: Lab) -> None:
    for answer, written in (("mx.example.org", "mx.example.org"), ("", None)):
        with screen(home, lab, "email", "--no-check") as shown:
            for question, said in (
                ("the agent's own address", "hermes@example.org"),
                ("its password", "a-secret-word"),
                ("the server for incoming mail", "imap.example.org"),
                ("the server for outgoing mail", "smtp.example.org"),
                ("without it no sender is proven", answer),
                ("Your own user id", ""),
                ("Other user ids", ""),
            ):
                shown.wait_for(question)
                shown.line(said)
            shown.wait_for("Written.")
            assert shown.wait_until_over() == 0
        section = yaml.safe_load((home / "config.yaml").read_text())["platforms"]["email"]
        assert section.get("authserv_id") == written
        (home / "config.yaml").write_text(BEFORE)
        (home / ".env").unlink()
