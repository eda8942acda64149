"""WeCom's messages as events: those of AI bots are JSON, those of apps XML. A message is named by its id."""

from __future__ import annotations

import mimetypes
import re
from typing import Any
from xml.parsers import expat

from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Forwarded, Sender
from hermes.gateway.platforms._shared.http import attachment
from hermes.gateway.platforms._shared.receipt import dict_of, moment_of, text_of

REQUEST = "req_id"  # what a reply context has
_KINDS = {"image": "image", "voice": "audio", "video": "video", "file": "file", "shortvideo": "video"}
_MENTION = re.compile(r"^\s*@\S+(\s+|$)")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")

Fields = dict[str, str]


# ------------------------------------------------------------------------------------------------ AI bots


def bot_event(frame: dict[str, Any]) -> Event | None:
    """The message of a pushed frame; None where it has no id, chat or author."""
    body, headers = dict_of(frame.get("body")), dict_of(frame.get("headers"))
    author = dict_of(body.get("from"))
    number, user_id = text_of(body.get("msgid")), text_of(author.get("userid"))
    if not number or not user_id:
        return None
    if corp := text_of(author.get("corpid")):  # only where people of several organisations use the bot
        user_id = f"{corp}:{user_id}"
    group = body.get("chattype") == "group"
    chat_id = text_of(body.get("chatid")) if group else user_id
    if not chat_id:
        return None
    text, attachments = _bot_content(body, group)
    quote = dict_of(body.get("quote"))
    request = text_of(headers.get("req_id"))
    return Event(
        id=number,
        chat=Chat(platform="wecom", chat_id=chat_id, type=GROUP if group else DM),
        sender=Sender(
            user_id=user_id, name=user_id, proven=True
        ),  # WeCom authenticated the account; the connection is ours
        text=text,
        attachments=attachments,
        message_id=number,
        quoted=(_bot_content(quote, False)[0] or None) if quote else None,
        sent_at=moment_of(body.get("create_time"), 1),
        reply_context={REQUEST: request} if request else None,
    )


def to_whom(chat_id: str) -> str:
    """The id of a chat or person as WeCom's API takes it."""
    return chat_id.rpartition(":")[2]


def _bot_content(body: dict[str, Any], group: bool) -> tuple[str, tuple[Attachment, ...]]:
    kind = text_of(body.get("msgtype"))
    texts: list[str] = []
    files: list[Attachment] = []
    items = dict_of(body.get("mixed")).get("msg_item") if kind == "mixed" else [body]
    for item in items if isinstance(items, list) else []:
        item = dict_of(item)
        kind = text_of(item.get("msgtype"))
        content = dict_of(item.get(kind))
        if kind in ("text", "voice", "markdown"):
            texts.append(text_of(content.get("content")))
        elif kind in _KINDS and text_of(content.get("url")):
            files.append(_bot_file(kind, content))
        else:
            texts.append(f"[{kind or 'a message'} that can't be read here]")
    text = "\n".join(one for one in texts if one.strip())
    # WeCom does not say what the bot is called: another mention may be the first one.
    if group and text.count("@") == 1:
        text = _MENTION.sub("", text, count=1)
    return text.strip(), tuple(files)


def _bot_file(kind: str, content: dict[str, Any]) -> Attachment:
    name = text_of(content.get("name")) or text_of(content.get("filename"))
    mime = mimetypes.guess_type(name)[0] if name else None
    mime = mime or ("video/mp4" if kind == "video" else None)
    return attachment(
        name, mime, kind=_KINDS[kind], url=text_of(content.get("url")), key=text_of(content.get("aeskey"))
    )


# ------------------------------------------------------------------------------------------------ apps


def encrypted_part(body: bytes) -> str | None:
    """The encrypted part of a callback, found without parsing: its signature is checked first."""
    _, begins, rest = body.partition(b"<Encrypt>")
    inner, ends, _ = rest.partition(b"</Encrypt>")
    inner = inner.strip().removeprefix(b"<![CDATA[").removesuffix(b"]]>").strip()
    return inner.decode("ascii") if begins and ends and _BASE64.fullmatch(inner) else None


def fields_of(data: bytes) -> Fields:
    """The fields of a decrypted callback. ValueError where it is no XML, or declares a document type (and so entities)."""
    fields: Fields = {}
    path: list[str] = []

    def start(name: str, _: object) -> None:
        path.append(name)
        if len(path) == 2:
            fields[name] = ""

    def end(_: str) -> None:
        path.pop()

    def words(text: str) -> None:
        if len(path) >= 2:
            fields[path[1]] += text

    def refuse(*_: object) -> None:
        raise ValueError("a document type is not accepted")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, words
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(_CONTROL.sub("", data.decode("utf-8")), True)
    except expat.ExpatError as error:
        raise ValueError(f"not XML: {expat.errors.messages[error.code]}") from None
    return fields


def app_event(fields: Fields) -> Event | None:
    """A message to an app; None for events, and where it has no id or author."""
    number, user_id, kind = fields.get("MsgId", ""), fields.get("FromUserName", ""), fields.get("MsgType", "")
    if not number or not user_id or kind == "event":
        return None
    text, forwarded = "", None
    attachments: tuple[Attachment, ...] = ()
    if kind == "text":
        text = fields.get("Content", "").strip()
    elif kind in _KINDS and fields.get("MediaId"):
        attachments = (_app_file(kind, fields),)
    elif kind == "link":
        card = (fields.get(one, "") for one in ("Title", "Description", "Url"))
        forwarded = Forwarded(text="\n".join(filter(None, card)))  # the words of the page
    elif kind == "location":
        place = fields.get("Label", "")
        text = f"[Location] {place} ({fields.get('Location_X', '')}, {fields.get('Location_Y', '')})"
    else:
        text = f"[{kind or 'a message'} that can't be read here]"
    return Event(
        id=number,
        chat=Chat(platform="wecom", chat_id=user_id),
        sender=Sender(user_id=user_id, name=user_id, proven=True),  # … and signed the callback (client.py)
        text=text,
        attachments=attachments,
        message_id=number,
        forwarded=forwarded,
        sent_at=moment_of(fields.get("CreateTime"), 1),
    )


def _app_file(kind: str, fields: Fields) -> Attachment:
    name = fields.get("FileName") or None
    mime = mimetypes.guess_type(name)[0] if name else None
    mime = mime or {"voice": "audio/amr", "video": "video/mp4", "shortvideo": "video/mp4"}.get(kind)
    return attachment(name, mime, kind=_KINDS[kind], media_id=fields["MediaId"])
