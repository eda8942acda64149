// Twilio's own library for Node: as a client of the lab, and as the one that signs and checks webhook requests.
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const twilio = require("twilio");
const webhooks = require("twilio/lib/webhooks/webhooks");

const given = JSON.parse(process.argv[2]);
const out = {};

if (given.sign) {
  out.signatures = given.sign.map(({ url, fields }) => webhooks.getExpectedTwilioSignature(given.token, url, fields));
}
if (given.check) {
  out.valid = given.check.map(({ url, fields, signature }) => twilio.validateRequest(given.token, signature, url, fields));
}
if (given.send) {
  const client = twilio(given.sid, given.token);
  client.api.baseUrl = given.base;
  out.sent = [];
  for (const message of given.send) {
    try {
      const made = await client.messages.create(message);
      out.sent.push({ sid: made.sid, body: made.body, status: made.status, to: made.to, from: made.from, made: made.dateCreated });
    } catch (error) {
      out.sent.push({ status: error.status, code: error.code, message: error.message, moreInfo: error.moreInfo });
    }
  }
  out.account = (await client.api.v2010.accounts(given.sid).fetch()).friendlyName;
}
console.log(JSON.stringify(out));
