"""DingTalk's own SDK for Python (dingtalk-stream): what its robots upload, and reply by session webhooks.

The address of uploads is fixed in it: only that is changed, on the way out.
"""

import base64
import os

from commands import answer

state = {}


async def login(address, old, id, secret):
    os.environ["DINGTALK_OPENAPI_ENDPOINT"] = address
    import dingtalk_stream
    import requests

    original = requests.post
    requests.post = lambda url, **options: original(url.replace("https://oapi.dingtalk.com", old), **options)
    client = dingtalk_stream.DingTalkStreamClient(dingtalk_stream.Credential(id, secret))
    robot = dingtalk_stream.ChatbotHandler()
    robot.dingtalk_client = client
    state.update(client=client, robot=robot, message=dingtalk_stream.ChatbotMessage)
    return client.get_access_token()


async def upload(data, kind, name, mime):
    return state["client"].upload_to_dingtalk(base64.b64decode(data), kind, name, mime)


async def text(message, content):
    return state["robot"].reply_text(content, state["message"].from_dict(message))


async def markdown(message, title, content):
    return state["robot"].reply_markdown(title, content, state["message"].from_dict(message))


async def address_of(code):
    return state["robot"].get_image_download_url(code)


answer(login, upload, text, markdown, address_of)
