// Talking: the prompt box with its files and its model, sending, and following a turn. What is stored is shown by read.js.
import { attachments, described, encoded } from "./attach.js";
import { ask, button, liftToast, make, path, say } from "./dom.js";
import { draft, keepDraft } from "./drafts.js";
import { markdownOf } from "./message.js";
import { replyView } from "./reply.js";
import { watch } from "./stream.js";

let shown = null; // the box in the page
let begun = null; // the turn that began another session, which the page opens next: it may be over by then, with an error
export function detachTalk() { shown?.stopListening(); shown = null; }
export const shownStored = () => shown?.view.stored();
export const editMessage = message => shown?.edit(message);
export const answerAgain = () => shown?.send({ again: true });
document.addEventListener("visibilitychange", () => shown?.listen());

// `id` null: a new conversation. `refresh` shows what was stored since.
export function attachTalk(id, { refresh, go, turn = null, other = null }) {
  let source = null, current = null, sending = false, instead = null, chosen = "";
  const view = replyView();
  const problem = make("p", { className: "problem", role: "alert" });
  const box = make("textarea", { id: "prompt", rows: 2, placeholder: id ? "Reply…" : "Ask anything…", maxLength: 200000 });
  const sendButton = make("button", { type: "submit", className: "primary" }, "Send");
  const stop = button("Stop", () => ask("/api/stop/" + current, {}), { className: "danger", hidden: true });
  const model = make("select", { ariaLabel: "Model", title: "The model that answers in this conversation", hidden: true });
  const form = make("form", { className: "talk" });
  const files = attachments(box, form, () => { problem.textContent = ""; });
  const editing = make("p", { className: "editing", hidden: true },
    make("span", {}, "Editing a message: it is sent in a branch, and this conversation stays as it is. "),
    button("Cancel", stopEditing, { className: "plain" }));
  form.append(make("label", { className: "hidden", htmlFor: "prompt" }, "Message"), files.list, box,
    make("div", { className: "under" }, files.clip, files.chosen, model, make("div", { className: "actions" }, stop, sendButton)));
  const place = make("div", { id: "talk" }, view.questions, problem, editing, form);

  // ---------------------------------------------------------------------------------------------- the prompt
  function typed() {
    if (!instead) keepDraft(id, box.value);
    box.rows = Math.min(10, Math.max(2, box.value.split("\n").length));
  }
  function write(text) { box.value = text; typed(); }
  async function edit(message) {
    const text = await markdownOf(message);
    instead = message.id;
    editing.hidden = false;
    write(text);
    box.focus();
  }
  function stopEditing() {
    instead = null;
    editing.hidden = true;
    write(draft(id));
  }
  const working = on => { sendButton.hidden = on; stop.hidden = !on; place.classList.toggle("working", on); };

  // ---------------------------------------------------------------------------------------------- the model
  async function drawModels() {
    const data = await ask(id ? "/api/models/" + path(id) : "/api/models");
    model.replaceChildren(...data.models.map(name => make("option", { value: name, selected: name === data.model }, name)));
    model.hidden = data.models.length < 2;
  }
  model.addEventListener("change", async () => {
    chosen = model.value;
    if (!id) return; // it goes with the first message
    try {
      await ask("/api/models/" + path(id), { model: chosen });
      say(`From now on ${chosen} answers here.`, 5);
    } catch (error) { problem.textContent = error.message; }
  });

  // ---------------------------------------------------------------------------------------------- sending
  async function send(more = {}) {
    const text = more.again ? "" : box.value;
    if (current || sending || (!more.again && !text.trim() && !files.count())) return;
    sending = sendButton.disabled = true;
    problem.textContent = "";
    const taken = more.again ? [] : files.take(), edited = more.again ? null : instead;
    if (!more.again) { if (edited) stopEditing(); else write(""); }
    view.begin(text, described([...taken].map(file => file.name)));
    try {
      const body = { ...more, text, files: await encoded(taken), instead_of: edited, model: id ? "" : chosen };
      const data = await ask(id ? "/api/talk/" + path(id) : "/api/talk", body);
      if (!place.isConnected) return; // its reader went elsewhere meanwhile
      if (data.session === id) { follow(data.turn); await refresh(); return; }
      begun = data;
      if (!edited) moveDraft(data.session);
      go("/s/" + path(data.session));
    } catch (error) {
      view.clear();
      if (taken.length) files.add(taken);
      if (edited) { instead = edited; editing.hidden = false; }
      if (!more.again) write(edited ? text : [text, box.value].filter(Boolean).join("\n"));
      problem.textContent = error.message;
    } finally { sending = sendButton.disabled = false; }
  }
  function moveDraft(session) { // what was typed meanwhile belongs to where the conversation goes on
    keepDraft(session, box.value);
    keepDraft(id, "");
  }
  form.addEventListener("submit", event => { event.preventDefault(); send(); });
  box.addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
    if (event.key === "Escape" && instead) { event.stopPropagation(); stopEditing(); }
  });
  box.addEventListener("input", typed);

  // ---------------------------------------------------------------------------------------------- a turn
  function follow(number) {
    current = number;
    working(true);
    listen();
  }
  function stopListening() { source?.close(); source = null; }
  function listen() { // not in a hidden tab; when it is shown, the turn is replayed from its beginning
    stopListening();
    if (!current || document.hidden) return;
    view.questions.replaceChildren();
    view.notices.replaceChildren();
    view.wait();
    let queue = Promise.resolve();
    const mine = source = watch("turn=" + current, events => {
      if (events === null && source === mine) lost();
      const taken = event => source === mine || event.kind === "done" ? take(event) : null;
      for (const event of events || []) queue = queue.then(() => taken(event)).catch(error => { problem.textContent = error.message; });
    });
  }
  function lost() {
    problem.textContent = "The connection to this turn is lost; the record has what was said.";
    end();
  }
  async function take(event) {
    switch (event.kind) {
      case "html": view.following(() => view.html(event)); break;
      case "thought": view.following(() => view.thought(event.text)); break;
      case "notice": view.following(() => view.notice(event.text)); break;
      case "tool": await refresh(); view.following(view.next); break;
      case "result": await refresh(); break;
      case "question": view.asking(event, current); liftToast(); await refresh(); break;
      case "answered": view.answered(event.id); await refresh(); break;
      case "followed": moveDraft(event.session); go("/s/" + path(event.session), true); break;
      case "error": await end(); failed(event.text); break;
      case "done": await end(); say(event.interrupted ? "Stopped; what had arrived is kept." : "The reply is complete."); break;
    }
  }
  function failed(text) {
    problem.replaceChildren(text, " ", button("Try again", () => send({ again: true })));
  }
  async function end() {
    stopListening();
    current = null;
    await refresh();
    view.clear();
    working(false);
    if (!document.activeElement || document.activeElement === document.body) box.focus({ preventScroll: true });
  }

  shown = { view, listen, stopListening, edit, send };
  write(draft(id));
  drawModels().catch(() => {}); // the endpoint does not say which models it has: the one in use answers
  if (begun?.session === id) turn = begun.turn;
  begun = null;
  if (turn) follow(turn);
  else if (other) problem.textContent = `Another process (${other}) is answering here at the moment.`;
  const both = document.createDocumentFragment();
  both.append(view.flow, view.notices, place);
  return both;
}
