// WeCom's own SDK for AI bots.
"use strict";
const { answer, tell } = require("./commands.cjs");
const { WSClient } = require("@wecom/aibot-node-sdk");

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
});
