// Feishu's own SDK: the API client and the long connection.
"use strict";
const { answer, tell } = require("./commands.cjs");
const lark = require("@larksuiteoapi/node-sdk");

const KINDS = ["im.message.receive_v1", "im.message.recalled_v1", "card.action.trigger"];
let client, socket, failing = 0;

function dispatcher() {
  const handles = {};
  for (const kind of KINDS)
    handles[kind] = (data) => {
      if (failing-- > 0) throw new Error("the handler fails");
      tell(kind, data);
    };
  return new lark.EventDispatcher({ loggerLevel: lark.LoggerLevel.warn }).register(handles);
}

async function bytes(resource) {
  const parts = [];
  for await (const part of resource.getReadableStream()) parts.push(part);
  return Buffer.concat(parts).toString("base64");
}

const im = () => client.im.v1;
answer({
  login({ url, app, secret }) {
    const kept = new Map(); // the token; the SDK's own cache outlives a client
    const cache = { get: async (key) => kept.get(key), set: async (key, value) => !!kept.set(key, value) };
    client = new lark.Client({ appId: app, appSecret: secret, domain: url, cache, loggerLevel: lark.LoggerLevel.error });
    return client.request({ method: "GET", url: "/open-apis/bot/v3/info" });
  },
  connect({ url, app, secret }) {
    return new Promise((done, failed) => {
      socket = new lark.WSClient({
        appId: app, appSecret: secret, domain: url, loggerLevel: lark.LoggerLevel.warn,
        onReady: done, onError: failed, onReconnecting: () => tell("reconnecting", null), onReconnected: () => tell("reconnected", null),
      });
      socket.start({ eventDispatcher: dispatcher() });
    });
  },
  disconnect: () => socket.close({ force: true }),
  fail: ({ times }) => void (failing = times),
  user: ({ id }) => client.contact.v3.user.get({ path: { user_id: id }, params: { user_id_type: "open_id" } }),
  create: ({ data }) => im().message.create({ params: { receive_id_type: "chat_id" }, data }),
  reply: ({ id, data }) => im().message.reply({ path: { message_id: id }, data }),
  patch: ({ id, content }) => im().message.patch({ path: { message_id: id }, data: { content } }),
  read: ({ id }) => im().message.get({ path: { message_id: id } }),
  image: ({ data }) => im().image.create({ data: { image_type: "message", image: Buffer.from(data, "base64") } }),
  file: ({ kind, name, data }) => im().file.create({ data: { file_type: kind, file_name: name, file: Buffer.from(data, "base64") } }),
  async resource({ id, key, kind }) {
    return bytes(await im().messageResource.get({ path: { message_id: id, file_key: key }, params: { type: kind } }));
  },
});
