// Messages made by baileys itself, encoded and decoded as on the wire, and read by the bridge; and what the bridge writes, taken by baileys.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const given = JSON.parse(process.argv[2]);
const from = (name) => import(pathToFileURL(`${given.bridge}/${name}`).href);
const { CIPHERTEXT, EDIT, REVOKE, eventOf, hasFile, unwrapped } = await from("reading.js");
const { contentOf, quotedOf } = await from("writing.js");
const { Files } = await from("storage.js");
const { BufferJSON, generateWAMessageContent, generateWAMessageFromContent, normalizeMessageContent, proto } =
  await import(pathToFileURL(createRequire(`${given.bridge}/`).resolve("baileys")).href);

const ALICE = "15005550101@s.whatsapp.net";
const GROUP = "120363041234567890@g.us";
const key = { remoteJid: ALICE, id: "A1", fromMe: false };
const bytes = Buffer.from("abc");
const thumbnail = { jpegThumbnail: "eHh4eA==" };
const logger = { debug() {}, info() {}, warn() {}, error() {}, trace() {}, child() { return this; } };
const options = { logger, userJid: ALICE, upload: async () => ({ mediaUrl: "https://mmg.whatsapp.net/x", directPath: "/x" }) };
const vcard = "BEGIN:VCARD\nTEL;type=CELL;waid=491:+49 1\nEND:VCARD";

const said = { // as baileys' sendMessage takes it
  text: { text: "hello" },
  mention: { text: "@1 hi", mentions: ["1@s.whatsapp.net"] },
  edit: { text: "hello!", edit: key },
  delete: { delete: key },
  reaction: { react: { key, text: "👍" } },
  location: { location: { degreesLatitude: 1, degreesLongitude: 2, name: "Berlin" } },
  contact: { contacts: { displayName: "Ada", contacts: [{ displayName: "Ada", vcard }] } },
  poll: { poll: { name: "Which?", values: ["a", "b"], selectableCount: 1 } },
  document: { document: bytes, mimetype: "text/plain", fileName: "a.txt", caption: "see" },
  image: { image: bytes, mimetype: "image/png", caption: "look", ...thumbnail },
  video: { video: bytes, mimetype: "video/mp4", ...thumbnail },
  voice: { audio: bytes, mimetype: "audio/ogg", ptt: true, seconds: 1, waveform: Buffer.alloc(64) },
  "round video": { video: bytes, mimetype: "video/mp4", ptv: true, ...thumbnail },
  "picture to see once": { image: bytes, mimetype: "image/png", viewOnce: true, ...thumbnail },
  event: { event: { name: "Party", description: "at home", startDate: new Date(1_800_000_000_000) } },
  invitation: { groupInvite: { jid: GROUP, inviteCode: "c", subject: "Friends", inviteExpiration: 1, text: "join us" } },
  "row of a list": { listReply: { title: "Tea", listType: 1, singleSelectReply: { selectedRowId: "r" } } },
  button: { buttonReply: { displayText: "Yes", id: "y", index: 0 }, type: "template" },
  "older button": { buttonReply: { displayText: "No", id: "n" }, type: "plain" },
  pin: { pin: key, type: 1, time: 86400 },
  "disappearing messages": { disappearingMessagesInChat: 86400 },
};

function read(content, more = {}, key = {}) {
  const made = generateWAMessageFromContent(ALICE, content, { userJid: ALICE, timestamp: new Date(1_800_000_000_000), ...more });
  const whole = { ...made, key: { ...made.key, remoteJid: ALICE, fromMe: false, id: "B1", ...key }, pushName: "Alice" };
  return proto.WebMessageInfo.decode(proto.WebMessageInfo.encode(whole).finish());
}

const out = { events: {}, kinds: {}, written: {} };
for (const [name, content] of Object.entries(said)) {
  const made = await generateWAMessageContent(content, options);
  out.events[name] = eventOf(read(made), normalizeMessageContent);
}
const text = await generateWAMessageContent({ text: "disappears" }, options);
out.events["disappearing text"] = eventOf(read({ ephemeralMessage: { message: text } }), normalizeMessageContent);
out.events.quote = eventOf(read(text, { quoted: { key, message: { conversation: "before" } } }), normalizeMessageContent);
out.events.forward = eventOf(read({ extendedTextMessage: { text: "/new", contextInfo: { isForwarded: true, forwardingScore: 1 } } }), normalizeMessageContent);
out.events["forwarded picture"] = eventOf(read({ imageMessage: { caption: "yes", mimetype: "image/png", contextInfo: { isForwarded: true } } }), normalizeMessageContent);
const place = await generateWAMessageContent({ location: { degreesLatitude: 1, degreesLongitude: 2 } }, options);
out.events["quote by a location"] = eventOf(read(place, { quoted: { key, message: { conversation: "before" } } }), normalizeMessageContent);
out.events.group = eventOf(read(text, {}, { remoteJid: GROUP, participant: ALICE }), normalizeMessageContent);
out.events.keys = eventOf(read({ senderKeyDistributionMessage: { groupId: GROUP } }), normalizeMessageContent);
out.events["keys and a text"] = eventOf(read({ senderKeyDistributionMessage: { groupId: GROUP }, conversation: "hi" }), normalizeMessageContent);

// Every kind of message that WhatsApp's own description has: with nothing in it, or, if it is one around another, with a text in it.
for (const name of given.kinds) {
  out.kinds[name] = [name === "conversation" ? "x" : {}, { message: { conversation: "x" } }].some((content) => {
    const event = eventOf({ key: { remoteJid: ALICE, id: "C1" }, message: { [name]: content } }, normalizeMessageContent);
    return event && (event.text || event.files || event.type !== "message");
  });
}

// A message with a file as the bridge stores it: what is needed to fetch the file comes back byte by byte.
const file = read(await generateWAMessageContent(said.image, options));
const files = new Files(given.folder, BufferJSON, (content) => proto.Message.fromObject(content));
files.put("x", file);
const back = files.get("x");
const inside = unwrapped(back.message, normalizeMessageContent);
out.stored = hasFile(inside) && Buffer.compare(inside.imageMessage.mediaKey, file.message.imageMessage.mediaKey) === 0;

const { MESSAGE_EDIT, REVOKE: revoke } = proto.Message.ProtocolMessage.Type;
out.numbers = [[REVOKE, revoke], [EDIT, MESSAGE_EDIT], [CIPHERTEXT, proto.WebMessageInfo.StubType.CIPHERTEXT]];

for (const about of given.files) {
  out.written[about.name] = Object.keys(await generateWAMessageContent(contentOf(about, bytes), { ...options, ...thumbnail }))[0];
}
const me = { id: "15550783881:7@s.whatsapp.net" };
for (const [chat, sender] of [[ALICE, ALICE], [GROUP, ALICE], [GROUP, me.id]]) {
  const quoted = quotedOf(chat, { id: "A1", sender, text: "before" }, me);
  const made = generateWAMessageFromContent(chat, text, { userJid: me.id, quoted });
  const { stanzaId, participant, quotedMessage } = made.message.extendedTextMessage.contextInfo;
  out.written[`${chat} ${sender}`] = { stanzaId, participant, text: quotedMessage.conversation };
}
console.log(JSON.stringify(out));
