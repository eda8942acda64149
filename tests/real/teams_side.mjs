// Microsoft's Bot Framework SDK for Node: it receives what the lab delivers, and answers it by its own connector client.
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { CardFactory, CloudAdapter, MessageFactory, TeamsActivityHandler, TurnContext } = require("botbuilder");
const connector = require("botframework-connector");

const given = JSON.parse(process.argv[2]);
console.error = console.warn = () => {}; // its own log of refused tokens

// The SDK's login (MSAL) takes addresses with https alone, so the token is asked for here, by Microsoft's reference.
async function login() {
  const form = { grant_type: "client_credentials", client_id: given.app, client_secret: given.secret, scope: given.scope };
  const answer = await fetch(given.login, { method: "POST", body: new URLSearchParams(form) });
  return (await answer.json()).access_token;
}

class Factory extends connector.ServiceClientCredentialsFactory {
  async isValidAppId(id) { return id === given.app; }
  async isAuthenticationDisabled() { return false; }
  async createCredentials() {
    return { signRequest: async (request) => { request.headers.set("authorization", `Bearer ${given.bearer}`); return request; } };
  }
}

given.bearer = await login();
const authentication = connector.BotFrameworkAuthenticationFactory.create(
  "", true, given.login, given.scope, given.issuer, "https://token.botframework.com", given.metadata, given.metadata, "urn:test",
  new Factory(), new connector.AuthenticationConfiguration(), undefined, { noRetryPolicy: true },
);
const adapter = new CloudAdapter(authentication);
let turnError = null;
adapter.onTurnError = async (_, error) => { turnError = `${error.message} ${error.statusCode ?? ""}`; };

const seen = [];
function note(kind, context, more = {}) {
  const { activity } = context;
  seen.push({
    kind, id: activity.id, conversation: activity.conversation.id, type: activity.conversation.conversationType,
    aad: activity.from.aadObjectId ?? null, at: activity.timestamp?.getTime() ?? null, ...more,
  });
}

class Bot extends TeamsActivityHandler {
  constructor() {
    super();
    this.onMessage(async (context, next) => {
      const mentioned = TurnContext.getMentions(context.activity).some((one) => one.mentioned.id === context.activity.recipient.id);
      const text = TurnContext.removeRecipientMention(context.activity);
      note("message", context, { text, mentioned, files: (context.activity.attachments ?? []).map((one) => one.contentType) });
      await context.sendActivity({ type: "typing" });
      const sent = await context.sendActivity(MessageFactory.text(`echo: ${text}`));
      await context.updateActivity({ type: "message", id: sent.id, text: `echo: ${text}.`, textFormat: "markdown" });
      const proactive = TurnContext.getConversationReference(context.activity); // not bound to the message
      await adapter.continueConversationAsync(given.app, proactive, async (later) => {
        await later.sendActivity({ type: "message", text: "later", textFormat: "markdown" });
      });
      if (given.offer) {
        const card = { description: "a.txt", sizeInBytes: 3, acceptContext: given.offer, declineContext: given.offer };
        const attachment = { contentType: "application/vnd.microsoft.teams.card.file.consent", name: "a.txt", content: card };
        await context.sendActivity(MessageFactory.attachment(attachment));
      }
      await next();
    });
    this.onTeamsMessageEditEvent(async (context, next) => { note("edit", context, { text: context.activity.text }); await next(); });
    this.onTeamsMessageSoftDeleteEvent(async (context, next) => { note("delete", context); await next(); });
  }
  async handleTeamsFileConsentAccept(context, answer) { note("accept", context, { context: answer.context, place: answer.uploadInfo }); }
  async handleTeamsFileConsentDecline(context, answer) { note("decline", context, { context: answer.context }); }
}

const bot = new Bot();
const out = [];
for (const { activity, authorization } of given.deliveries) {
  seen.length = 0;
  turnError = null;
  const response = { code: 0, status(code) { this.code = code; return this; }, header() {}, send(body) { this.body = body; }, end() {} };
  const request = { method: "POST", headers: { Authorization: authorization }, body: activity };
  await adapter.process(request, response, (context) => bot.run(context));
  out.push({ status: response.code, seen: [...seen], error: turnError, said: response.body ?? null });
}
console.log(JSON.stringify(out));
