"""A real Home Assistant, in an environment of its own, behind our proxy.

One a process (it takes some seconds to start); every lab on it has event types of its own. People are users with logins
who fire events, each in a conversation of their own; what the agent says is heard by a listener beside them.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import httpx

from tests.support.environments import environment, missing
from tests.support.labs.base import PEOPLE, until
from tests.support.labs.base import Lab as Base
from tests.support.labs.proxy import Proxy
from tests.support.ports import free_port

REQUIREMENTS = (
    "homeassistant==2025.4.4",
    "Pillow==11.1.0",
    "zeroconf==0.146.0",
    "hassil==2.2.3",
    "psutil-home-assistant==0.0.1",
    "securetar==2025.2.1",
    "cronsim==2.6",
    "home-assistant-frontend==20250411.0",
    "home-assistant-intents==2025.3.28",
    "ifaddr==0.2.0",
)
CLIENT = "http://127.0.0.1/"
PASSWORD = "correct-horse"
_NUMBERS = itertools.count(1)
_CONFIGURATION = """
homeassistant:
  name: The Lab
http:
  server_host: 127.0.0.1
  server_port: {port}
api:
websocket_api:
config:
onboarding:
person:
persistent_notification:
notify:
logger:
  default: critical
input_boolean:
  lamp:
    name: Lamp
input_number:
  warmth:
    name: Warmth
    min: 0
    max: 40
    unit_of_measurement: "°C"
automation:
  - alias: The bell
    triggers:
      - trigger: event
        event_type: hermes_bell
    actions:
      - event: hermes_from_automation
        event_data:
          text: Somebody rang
      - event: hermes_from_automation
        event_data:
          text: Somebody rang
          user: door
script:
  ask:
    sequence:
      - event: hermes_from_script
        event_data:
          text: "{{{{ text }}}}"
  broken:
    sequence:
      - action: nowhere.nothing
"""


def python_313() -> str:
    """An interpreter that this Home Assistant runs on; skips where there is none."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)  # whatever HOME says
    candidates = [shutil.which("python3.13"), *sorted(home.glob(".pyenv/versions/3.13*/bin/python3.13"))]
    for candidate in reversed([str(one) for one in candidates if one]):  # pyenv's own before its shim
        with suppress(OSError, subprocess.SubprocessError):
            outcome = subprocess.run([candidate, "-c", "print('yes')"], capture_output=True, text=True, timeout=30)
            if outcome.stdout.strip() == "yes":
                return candidate
    missing("Home Assistant needs Python 3.13")
    raise AssertionError


class Wire:
    """A WebSocket connection for tests, usable from any thread; its events are noted."""

    def __init__(self, url: str, token: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._url, self._token = url.replace("http", "ws", 1) + "/api/websocket", token
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}
        self._ready: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()
        self._ready.result(20)

    def ask(self, kind: str, **fields: Any) -> Any:
        """The result of a command."""
        number = next(self._numbers)
        answer: Future[Any] = Future()
        self._answers[number] = answer
        asyncio.run_coroutine_threadsafe(self._socket.send_json({"id": number, "type": kind, **fields}), self._loop)
        said = answer.result(20)
        assert said["success"], said
        return said.get("result")

    def close(self) -> None:
        """Hang up."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._socket.close(), self._loop)
            self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listen())
        except Exception as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._loop.close()

    async def _listen(self) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(self._url, max_msg_size=0) as self._socket:
            await self._socket.receive_json()
            await self._socket.send_json({"type": "auth", "access_token": self._token})
            assert (await self._socket.receive_json())["type"] == "auth_ok"
            self._ready.set_result(None)
            async for message in self._socket:
                said = message.json()
                if said["type"] == "event":
                    self.events.append(said["event"])
                elif said["type"] == "result":
                    self._answers.pop(said["id"]).set_result(said)


class House:
    """The server, until the process ends."""

    _only: House | None = None

    @classmethod
    def running(cls) -> House:
        """The server of this process."""
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def __init__(self) -> None:
        self._program = environment("homeassistant", REQUIREMENTS, python=python_313()) / "hass"
        self._folder = TemporaryDirectory(prefix="hermes-house-")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._owner = os.getpid()
        (Path(self._folder.name) / "configuration.yaml").write_text(_CONFIGURATION.format(port=self.port))
        atexit.register(self.close)
        self.start()
        self.http = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        self.token = self._onboard()
        self.wire = Wire(self.url, self.token)
        self.people = {who: self._add(who) for who in PEOPLE}  # (user id, token)

    def start(self) -> None:
        """Start it (again)."""
        with open(Path(self._folder.name) / "output", "ab") as output:
            self._process = subprocess.Popen(
                [str(self._program), "-c", self._folder.name, "--skip-pip"],
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,
            )
        until(self._answers, "Home Assistant does not start")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(3)  # it writes down what it must at once, and then waits for stragglers
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def close(self) -> None:
        """End it and forget everything."""
        if os.getpid() == self._owner:
            self.stop()
            self._folder.cleanup()

    def _answers(self) -> bool:
        assert self._process.poll() is None, (Path(self._folder.name) / "output").read_text()[-2000:]
        try:
            return httpx.get(f"{self.url}/api/", timeout=5, trust_env=False).status_code == 401
        except httpx.HTTPError:
            return False

    def _onboard(self) -> str:
        owner = {"client_id": CLIENT, "name": "Owner", "username": "owner", "password": PASSWORD, "language": "en"}
        code = self.http.post("/api/onboarding/users", json=owner).raise_for_status().json()["auth_code"]
        return self._long_lived(code, "agent")

    def _long_lived(self, code: str, name: str) -> str:
        asked = {"grant_type": "authorization_code", "code": code, "client_id": CLIENT}
        short = self.http.post("/auth/token", data=asked).raise_for_status().json()["access_token"]
        wire = Wire(self.url, short)
        try:
            return str(wire.ask("auth/long_lived_access_token", client_name=name, lifespan=30))
        finally:
            wire.close()

    def _add(self, who: str, group: str = "system-admin") -> tuple[str, str]:
        """A person with a login; (user id, token)."""
        user = self.wire.ask("config/auth/create", name=who.title(), group_ids=[group])["user"]["id"]
        self.wire.ask("config/auth_provider/homeassistant/create", user_id=user, username=who, password=PASSWORD)
        self.wire.ask("person/create", name=who.title(), user_id=user, device_trackers=[])
        flow = {"client_id": CLIENT, "handler": ["homeassistant", None], "redirect_uri": CLIENT}
        flow_id = self.http.post("/auth/login_flow", json=flow).raise_for_status().json()["flow_id"]
        entered = {"client_id": CLIENT, "username": who, "password": PASSWORD}
        code = self.http.post(f"/auth/login_flow/{flow_id}", json=entered).raise_for_status().json()["result"]
        return user, self._long_lived(code, who)

    def guest(self) -> str:
        """The token of somebody who is no administrator."""
        return self._add(f"guest{next(_NUMBERS)}", "system-users")[1]


class Lab(Base):
    """The house with event types of its own."""

    platform = "homeassistant"
    keeps = False  # an event that nobody listens to is gone
    places = frozenset({"dm"})
    can = frozenset({"drop"})

    def __init__(self) -> None:
        self.house = House.running()
        self.proxy = Proxy(self.house.port)
        self.number = next(_NUMBERS)
        self.message_event, self.reply_event = f"hermes_message_{self.number}", f"hermes_reply_{self.number}"
        self._listen()

    def _listen(self) -> None:
        self.listener = Wire(self.house.url, self.house.token)
        self.listener.ask("subscribe_events", event_type=self.reply_event)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "url": f"http://127.0.0.1:{self.proxy.port}",
            "token": self.house.token,
            "event_type": self.message_event,
            "reply_event": self.reply_event,
        }

    _waits = True

    def deliver_once(self) -> None:
        """From now on people speak whether the gateway listens or not."""
        self._waits = False

    def owed(self, kept: set[str]) -> set[str]:
        return kept

    def user_id(self, who: str) -> str:
        return self.house.people[who][0]

    def chat_id(self, where: str = "dm", who: str = "alice") -> str:
        return f"{who}-{self.number}"

    def fire(self, data: dict[str, Any], *, who: str = "alice", event: str | None = None) -> None:
        """A person fires an event."""
        headers = {"Authorization": f"Bearer {self.house.people[who][1]}"}
        path = f"/api/events/{event or self.message_event}"
        self.house.http.post(path, json=data, headers=headers).raise_for_status()

    def listeners(self) -> int:
        """How many listen for what people say: Home Assistant keeps nothing for those who come later."""
        headers = {"Authorization": f"Bearer {self.house.token}"}
        known = self.house.http.get("/api/events", headers=headers).raise_for_status().json()
        return sum(one["listener_count"] for one in known if one["event"] == self.message_event)

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True) -> str:
        if self._waits:
            until(self.listeners, "nobody listens")
        self.fire({"text": text, "conversation_id": self.chat_id(where, who)}, who=who)
        return text

    def call(self, service: str, **data: Any) -> None:
        """Somebody uses the house: `call("input_boolean.turn_on", entity_id=…)`."""
        headers = {"Authorization": f"Bearer {self.house.token}"}
        self.house.http.post(
            f"/api/services/{service.replace('.', '/')}", json=data, headers=headers
        ).raise_for_status()

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        chat = self.chat_id(where, who)
        return [e["data"]["text"] for e in list(self.listener.events) if e["data"]["conversation_id"] == chat]

    def notifications(self) -> dict[str, dict[str, Any]]:
        """The notifications on Home Assistant's own page, by id."""
        found = self.house.wire.ask("persistent_notification/get")
        return {one["notification_id"]: one for one in found if one["notification_id"].startswith("hermes_")}

    def drop(self) -> None:
        self.proxy.drop()
        until(lambda: not self.listeners(), "somebody still listens")

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return 0

    def threads(self) -> list[str]:
        return []

    def reset(self) -> None:
        self.proxy.reset()
        self.listener.events.clear()
        self.call("persistent_notification.dismiss_all")
        until(
            lambda: not self.notifications(), "no notification is left"
        )  # the call answers after a while, done or not

    def start(self) -> None:
        """Start the house again; whoever listened must listen again."""
        self.house.start()
        self.house.wire = Wire(self.house.url, self.house.token)
        self._listen()

    def stop(self) -> None:
        """End the house."""
        self.listener.close()
        self.house.wire.close()
        self.house.stop()

    def close(self) -> None:
        self.listener.close()
        self.proxy.close()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # a killed test run leaves no server behind
