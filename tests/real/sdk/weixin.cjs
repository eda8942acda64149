// Tencent's own WeChat channel (for OpenClaw): its modules for the iLink API, the CDN, sending, and the login by QR code.
// Of the program that it extends it needs three small functions about folders and files, which are given here.
"use strict";
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { register } = require("node:module");
const { pathToFileURL } = require("node:url");
const { answer } = require("./commands.cjs");

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "weixin-sdk-"));
process.env.OPENCLAW_STATE_DIR = folder;
process.on("exit", () => fs.rmSync(folder, { recursive: true, force: true }));
const host = `data:text/javascript,
  export const resolvePreferredOpenClawTmpDir = () => ${JSON.stringify(folder)};
  export const withFileLock = (file, options, work) => work();
  export const normalizeAccountId = (id) => String(id);
  export const loadConfig = () => ({});
  export const writeConfigFile = () => {};`;
const hooks = `export const resolve = (name, context, next) =>
  name.startsWith("openclaw/") ? { url: ${JSON.stringify(host)}, shortCircuit: true } : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);

const root = path.join(process.env.NODE_PATH, "@tencent-weixin", "openclaw-weixin", "dist", "src");
const load = (name) => import(pathToFileURL(path.join(root, name)));
const vendor = Promise.all(["api/api.js", "cdn/upload.js", "cdn/pic-decrypt.js", "messaging/send.js", "auth/login-qr.js"].map(load));

// The address of the login is fixed in it: only that is changed, on the way out.
const real = globalThis.fetch;
let login = "";
globalThis.fetch = (address, options) => real(String(address).replace("https://ilinkai.weixin.qq.com", login), options);

function saved(name, data) {
  const file = path.join(folder, name);
  fs.writeFileSync(file, Buffer.from(data, "base64"));
  return file;
}

answer({
  notifyStart: async (options) => (await vendor)[0].notifyStart(options),
  notifyStop: async (options) => (await vendor)[0].notifyStop(options),
  updates: async (options) => (await vendor)[0].getUpdates(options),
  config: async (options) => (await vendor)[0].getConfig(options),
  typing: async (options) => (await vendor)[0].sendTyping(options),
  text: async ({ to, text, opts }) => (await vendor)[3].sendMessageWeixin({ to, text, opts }),
  async picture({ to, data, opts, cdn }) {
    const [, upload, , send] = await vendor;
    const uploaded = await upload.uploadFileToWeixin({ filePath: saved("a.png", data), toUserId: to, opts, cdnBaseUrl: cdn });
    return send.sendImageMessageWeixin({ to, text: "", uploaded, opts });
  },
  async file({ to, data, name, opts, cdn }) {
    const [, upload, , send] = await vendor;
    const uploaded = await upload.uploadFileAttachmentToWeixin({ filePath: saved("file", data), fileName: name, toUserId: to, opts, cdnBaseUrl: cdn });
    return send.sendFileMessageWeixin({ to, text: "", fileName: name, uploaded, opts });
  },
  async download({ param, key, cdn, url }) {
    return (await (await vendor)[2].downloadAndDecryptBuffer(param, key, cdn, "file", url)).toString("base64");
  },
  async login({ url }) {
    login = url;
    const qr = (await vendor)[4];
    const begun = await qr.startWeixinLoginWithQr({ apiBaseUrl: url, force: true });
    return { begun, ...(await qr.waitForWeixinLogin({ sessionKey: begun.sessionKey, apiBaseUrl: url, timeoutMs: 20000 })) };
  },
});
