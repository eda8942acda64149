// WeCom's own SDK for AI bots, and two foreign implementations of WXBizMsgCrypt: the SDK's own and @wecom/crypto.
"use strict";
const { answer, tell } = require("./commands.cjs");
const { WSClient, WecomCrypto } = require("@wecom/aibot-node-sdk");
const other = require("@wecom/crypto");

let client;
const frames = new Map();

answer({
  connect({ url, bot, secret }) {
    client = new WSClient({ botId: bot, secret, wsUrl: url, reconnectInterval: 20, maxAuthFailureAttempts: 1, logger: console });
    client.on("message", (frame) => {
      frames.set(frame.headers.req_id, frame);
      tell("message", frame);
    });
    client.on("event", (frame) => tell("event", frame));
    client.on("disconnected", (reason) => tell("disconnected", reason));
    client.on("authenticated", () => tell("authenticated", null));
    return new Promise((done, failed) => {
      client.once("authenticated", () => done(null));
      client.once("error", failed);
      client.on("error", (error) => tell("error", String(error)));
      client.connect();
    });
  },
  disconnect: () => client.disconnect(),
  stream: ({ request, id, content, finish }) => client.replyStream(frames.get(request), id, content, finish),
  push: ({ chat, body }) => client.sendMessage(chat, body),
  async upload({ name, kind, data }) {
    return client.uploadMedia(Buffer.from(data, "base64"), { type: kind, filename: name });
  },
  media: ({ chat, kind, id }) => client.sendMediaMessage(chat, kind, id),
  async download({ url, key }) {
    const { buffer, filename } = await client.downloadFile(url, key);
    return { name: filename, data: buffer.toString("base64") };
  },
  sealed({ token, key, receiver, text, timestamp, nonce }) {
    const encrypt = other.encrypt(key, text, receiver);
    return [
      new WecomCrypto(token, key, receiver).encrypt(text, timestamp, nonce),
      { encrypt, signature: other.getSignature(token, timestamp, nonce, encrypt) },
    ];
  },
  opened({ token, key, receiver, encrypt, timestamp, nonce, signature }) {
    const sdk = new WecomCrypto(token, key, receiver);
    const { message, id } = other.decrypt(key, encrypt);
    return {
      texts: [sdk.decrypt(encrypt), message], receiver: id,
      signed: [sdk.verifySignature(signature, timestamp, nonce, encrypt), other.getSignature(token, timestamp, nonce, encrypt) === signature],
    };
  },
});
