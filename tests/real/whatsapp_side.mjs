// npm whatsapp-api-js, a client of the Cloud API by others: it checks and reads what the lab delivers, and sends to the lab.
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { WhatsAppAPI } = require("whatsapp-api-js");
const messages = require("whatsapp-api-js/messages");

const given = JSON.parse(process.argv[2]);
const redirected = (url, options) => fetch(String(url).replace("https://graph.facebook.com", given.base), options);
const api = new WhatsAppAPI({
  token: given.token, appSecret: given.secret, webhookVerifyToken: given.word, v: given.version, ponyfill: { fetch: redirected },
});

let seen = null;
api.on.message = async ({ contact, recipient, message, reply, received, phoneID }) => {
  seen = { kind: "message", phoneID, contact, recipient, message };
  if (given.echo) {
    await received("text");
    await reply(new messages.Text(`echo: ${message.text?.body ?? message.type}`), true);
  }
};
api.on.status = async ({ status, id, error, recipient }) => { seen = { kind: "status", status, id, error, recipient }; };

const out = { deliveries: [], sent: [] };
for (const { body, signature } of given.deliveries ?? []) {
  seen = null;
  try {
    await api.post(JSON.parse(body), body, signature);
    out.deliveries.push({ status: 200, seen });
  } catch (error) {
    out.deliveries.push({ status: error.httpStatus ?? 500, seen, error: String(error) });
  }
}
for (const query of given.verify ?? []) {
  try {
    out.deliveries.push({ status: 200, challenge: api.get(query) });
  } catch (error) {
    out.deliveries.push({ status: error.httpStatus ?? 500 });
  }
}
if (given.send) {
  const { Text, Image, Document, Audio, Interactive, Body, ActionButtons, Button, ActionList, ListSection, Row, Template, Language, BodyComponent, BodyParameter } = messages;
  const upload = async (data, name, mime) => {
    const form = new FormData();
    form.append("file", new Blob([data], { type: mime }), name);
    const answer = await api.uploadMedia(given.number, form);
    if (!answer.id) throw new Error(JSON.stringify(answer));
    return answer.id;
  };
  const buttons = new ActionButtons(new Button("1", "Yes"), new Button("2", "No"));
  const rows = ["one", "two", "three", "four"].map((word, at) => new Row(String(at), word));
  const list = [
    new Text("hello"), new Image(await upload("png", "a.png", "image/png"), true, "look"),
    new Document(await upload("pdf", "a.pdf", "application/pdf"), true, "read", "a.pdf"),
    new Audio(await upload("ogg", "a.ogg", "audio/ogg"), true),
    new Interactive(buttons, new Body("really?")),
    new Interactive(new ActionList("Choose", new ListSection("Choose", ...rows)), new Body("which?")),
    new Template(given.template, new Language("en_US"), new BodyComponent(new BodyParameter("later"))),
  ];
  for (const [at, message] of list.entries()) {
    const answer = await api.sendMessage(given.number, { phone: given.send, bsuid: undefined }, message, at === 0 ? given.quote : undefined);
    out.sent.push(answer.messages?.[0]?.id ?? answer);
  }
  const stored = await api.retrieveMedia(given.media, given.number);
  out.media = await (await api.fetchMedia(stored.url.replace(given.base, "https://graph.facebook.com"))).text();
}
if (given.types) {
  out.types = [];
  for (const type of given.types) {
    const form = new FormData();
    form.append("file", new Blob(["x"], { type }), "a.x");
    try {
      const answer = await api.uploadMedia(given.number, form);
      out.types.push(Boolean(answer.id));
    } catch (error) {
      out.types.push(false);
    }
  }
}
console.log(JSON.stringify(out));
