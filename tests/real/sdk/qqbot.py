"""QQ's own SDK for Python (qq-botpy).

The SDK has no setting for its addresses: only those are changed, on the way out.
"""

import asyncio
from urllib.parse import urlsplit

import aiohttp
import botpy
from botpy.http import Route
from yarl import URL

from commands import answer, tell

state = {}


def shown(message, **more):
    files = [
        {"url": one.url, "filename": one.filename, "content_type": one.content_type} for one in message.attachments
    ]
    return {"id": message.id, "content": message.content, "event_id": message.event_id, "attachments": files, **more}


class Bot(botpy.Client):
    async def on_ready(self):
        tell("ready to talk", self.robot.name)

    async def on_resumed(self):
        tell("resumed", None)

    async def on_c2c_message_create(self, message):
        state["messages"][message.id] = message
        tell("c2c", shown(message, author=message.author.user_openid))

    async def on_group_at_message_create(self, message):
        state["messages"][message.id] = message
        tell("group", shown(message, author=message.author.member_openid, group=message.group_openid))


async def connect(url, app, secret):
    parts = urlsplit(url)
    Route.SCHEME, Route.DOMAIN = parts.scheme, parts.netloc
    original = state.setdefault("post", aiohttp.ClientSession.post)
    base = URL(url)

    def post(self, url, **options):
        return original(self, str(url).replace("https://bots.qq.com", str(base).rstrip("/")), **options)

    aiohttp.ClientSession.post = post
    bot = Bot(intents=botpy.Intents(public_messages=True), bot_log=False, ext_handlers=False)
    state.update(bot=bot, messages={}, intents=bot.intents)

    async def run():
        try:
            async with bot:
                await bot.start(appid=app, secret=secret)
        except Exception as error:
            tell("failed", str(error))

    state["task"] = asyncio.create_task(run())
    return bot.intents


async def disconnect():
    await state["bot"].close()
    state["task"].cancel()
    await asyncio.gather(state["task"], return_exceptions=True)


async def reply(id, **options):
    return await state["messages"][id].reply(**options)


async def person(openid, **options):
    return await state["bot"].api.post_c2c_message(openid, **options)


async def file(openid, url):
    return await state["bot"].api.post_c2c_file(openid, file_type=1, url=url)


answer(connect, disconnect, reply, person, file)
