// A turn while it runs: the message that was sent, the reply as it is written, tools at work, and the agent's questions.
// Each part goes as soon as the record has it and the conversation shows it.
import { ask, atEnd, button, make, toEnd } from "./dom.js";
import { drawMessage, replaceBlocks } from "./message.js";

// `flow` stands below the stored messages, `questions` above the prompt, where they are always seen. `notices` come after the
// reply and stay until the next one, so that its end moves nothing.
export function replyView() {
  const notices = make("div", { className: "notices", ariaLive: "polite" });
  const flow = make("section", { className: "reply", ariaLabel: "Reply in progress", ariaBusy: "false" });
  const questions = make("div", { className: "questions", ariaLive: "assertive" });
  let sent = null, text = null, thoughts = null, before = 0;

  const lastStored = () => Number(document.querySelector("#messages")?.lastElementChild?.id.slice(1) || 0);

  function clear() {
    for (const one of [sent, text, thoughts]) one?.remove();
    flow.replaceChildren();
    questions.replaceChildren();
    sent = text = thoughts = null;
    flow.ariaBusy = "false";
  }
  // At once, before the server answers.
  function begin(words, files) {
    clear();
    notices.replaceChildren();
    before = lastStored();
    sent = article("user");
    sent.querySelector(".body").append(make("p", { className: "plainly" }, words), files ? make("p", { className: "dim" }, files) : "");
    if (words || files) flow.append(sent); else sent = null;
    wait();
    toEnd();
  }
  function wait() {
    flow.ariaBusy = "true";
    if (!text) write();
  }
  function write() {
    text = article("assistant");
    text.querySelector(".body").classList.add("streaming", "waiting");
    flow.append(text);
  }
  function article(role) {
    return drawMessage({ role, id: "", html: "", at: Date.now() / 1000, tokens: [] });
  }
  function html(event) {
    wait();
    const body = text.querySelector(".body");
    body.classList.remove("waiting");
    replaceBlocks(body, event.from, event.blocks);
  }
  function thought(words) {
    if (!thoughts) {
      thoughts = make("details", { className: "reasoning" }, make("summary", {}, "Reasoning…"), make("pre", { dir: "auto" }));
      wait();
      text.before(thoughts);
    }
    thoughts.lastElementChild.append(words);
  }
  // A tool begins: the text before it is stored, and what follows is another message.
  function next() {
    text?.remove();
    thoughts?.remove();
    text = thoughts = null;
    before = lastStored();
    wait();
  }
  // What the list of messages shows now is not shown here again.
  function stored() {
    const fresh = [...document.querySelectorAll("#messages > .message")].filter(one => Number(one.id.slice(1)) > before);
    if (sent && fresh.some(one => one.matches(".user"))) { sent.remove(); sent = null; }
    if (text && fresh.some(one => one.matches(".assistant"))) { text.remove(); thoughts?.remove(); text = thoughts = null; }
  }
  function notice(words) {
    notices.append(make("p", { className: "notice dim" }, words));
  }
  function asking(event, turn) {
    const answer = yes => button(yes ? "Allow" : "Decline", () => ask("/api/answer/" + turn, { question: event.id, yes }), { className: yes ? "danger" : "primary" });
    const no = answer(false);
    questions.append(make("div", { className: "asking", role: "alertdialog", id: "q" + event.id, ariaLabel: "The agent asks" },
      event.detail ? make("pre", { tabIndex: 0 }, event.detail) : null, make("p", {}, ...inCode(event.text)), make("div", { className: "actions" }, no, answer(true))));
    setTimeout(() => no.focus());
  }
  function inCode(text) { // "Run `a command`? (why it is asked)"
    const [, before, code, after] = text.match(/^([^`]*)`(.*)`([^`]*)$/s) || [];
    return code ? [before, make("code", {}, code), after] : [text];
  }
  const answered = id => document.getElementById("q" + id)?.remove();

  // The page follows the end of the reply while its reader is there.
  function following(change) {
    const low = atEnd();
    change();
    if (low) toEnd();
  }
  return { flow, notices, questions, clear, begin, wait, html, thought, next, stored, notice, asking, answered, following };
}
