// Mattermost's own client: Client4 (REST) and WebSocketClient.
"use strict";
const { answer, tell } = require("./commands.cjs");
const WebSocket = require("ws");
globalThis.WebSocket = WebSocket; // Node 20 has none
globalThis.CloseEvent ??= class CloseEvent extends Event {
  constructor(kind, about) {
    super(kind);
    Object.assign(this, { code: about.code });
  }
};
const { Client4, WebSocketClient } = require("@mattermost/client");

let client, socket;

answer({
  login({ url, token }) {
    client = new Client4();
    client.setUrl(url);
    client.setToken(token);
    return client.getMe();
  },
  connect({ token }) {
    socket = new WebSocketClient({ minWebSocketRetryTime: 20, reconnectJitterRange: 1, newWebSocketFn: (at) => new WebSocket(at) });
    socket.addMessageListener((message) => tell(message.event, message));
    socket.addFirstConnectListener(() => tell("opened", null));
    socket.addReconnectListener(() => tell("reopened", null));
    socket.addMissedMessageListener(() => tell("missed", null));
    socket.addCloseListener((count) => tell("closed", count));
    socket.initialize(client.getWebSocketUrl(), token);
  },
  ping: () => new Promise((done) => socket.ping(done)),
  typing: ({ channel, root }) => new Promise((done) => socket.userTyping(channel, root, done)),
  disconnect: () => socket.close(),
  user: ({ id }) => client.getUser(id),
  channel: ({ id }) => client.getChannel(id),
  channels: () => client.getAllTeamsChannels(),
  latest: ({ channel, count }) => client.getPosts(channel, 0, count),
  since: ({ channel, since }) => client.getPostsSince(channel, since),
  post: ({ post }) => client.createPost(post),
  patch: ({ id, message }) => client.patchPost({ id, message }),
  upload({ channel, name, mime, data }) {
    const form = new FormData();
    form.append("files", new Blob([Buffer.from(data, "base64")], { type: mime }), name);
    form.append("channel_id", channel);
    return client.uploadFile(form);
  },
  async download({ id }) {
    const answer = await fetch(client.getFileUrl(id), client.getOptions({ method: "get" }));
    return { status: answer.status, mime: answer.headers.get("content-type"), data: Buffer.from(await answer.arrayBuffer()).toString("base64") };
  },
});
