// Talking: a prompt box, the reply while it is written, the agent's questions. What is stored is shown by read.js.
import { ask, atEnd, button, make, path, say, toEnd } from "./dom.js";
import { watch } from "./stream.js";

const drafts = new Map(); // what was typed and not sent, by conversation: it survives leaving the page and coming back
let source = null, current = null, listen = null;
export function detachTalk() { source?.close(); source = current = listen = null; }
document.addEventListener("visibilitychange", () => listen?.());

// `id` null: a new conversation. `refresh` shows what was stored since.
export function attachTalk(id, { refresh, go, turn = null, other = null }) {
  const reply = make("div", { className: "reply", ariaLive: "polite" });
  const problem = make("p", { className: "problem", role: "alert" });
  const box = make("textarea", { id: "prompt", rows: 2, placeholder: id ? "Reply…" : "Ask anything…", maxLength: 200000 });
  const send = make("button", { type: "submit", className: "primary" }, "Send");
  const stop = button("Stop", () => ask("/api/stop/" + current, {}), { className: "danger", hidden: true });
  const form = make("form", { className: "talk" }, make("label", { className: "hidden", htmlFor: "prompt" }, "Message"), box, make("div", { className: "actions" }, stop, send));
  const place = make("div", { id: "talk" }, reply, problem, form);
  const state = { text: null, tools: new Map() };

  const working = on => { send.hidden = on; stop.hidden = !on; };
  const typed = () => { if (box.value) drafts.set(id, box.value); else drafts.delete(id); box.rows = Math.min(10, Math.max(2, box.value.split("\n").length)); };
  const write = text => { box.value = text; typed(); };
  function words(kind) {
    if (!state[kind]) {
      state[kind] = kind === "thought" ? make("pre", {}) : make("div", { className: "body streaming", dir: "auto" });
      reply.append(kind === "thought" ? make("details", { className: "reasoning" }, make("summary", {}, "Reasoning"), state[kind]) : state[kind]);
    }
    return state[kind];
  }
  function clear() { state.text = state.thought = null; state.tools.clear(); reply.replaceChildren(); }
  async function take(event) {
    const was = atEnd();
    switch (event.kind) {
      case "text": if (event.anew && state.text) state.text.textContent = ""; words("text").append(event.text); break;
      case "thought": words("thought").append(event.text); break;
      case "notice": reply.append(make("p", { className: "notice dim" }, event.text)); break;
      case "tool": {
        if (state.text || state.thought) { await refresh(); state.text?.remove(); state.thought?.closest("details").remove(); state.text = state.thought = null; }
        const given = event.given.command || event.given.query || JSON.stringify(event.given);
        const line = make("p", { className: "running" }, make("b", {}, event.name), " ", make("code", {}, String(given).slice(0, 300)), " …");
        state.tools.set(event.id, line);
        reply.append(line);
        break;
      }
      case "result": state.tools.get(event.id)?.remove(); state.tools.delete(event.id); await refresh(); break;
      case "question": reply.append(asking(event)); break;
      case "answered": document.getElementById("q" + event.id)?.remove(); break;
      case "followed": drafts.set(event.session, box.value); drafts.delete(id); go("/s/" + path(event.session), true); return;
      case "error": problem.textContent = event.text; await end(); break;
      case "done": await end(); if (event.interrupted) say("Stopped; what had arrived is kept.", 6); break;
    }
    if (was) toEnd();
  }
  function asking(event) {
    const answer = yes => button(yes ? "Allow" : "Decline", () => ask("/api/answer/" + current, { question: event.id, yes }), { className: yes ? "danger" : "primary" });
    const no = answer(false), one = make("div", { className: "asking", role: "alertdialog", id: "q" + event.id, ariaLabel: "The agent asks" }, make("p", {}, event.text), make("div", { className: "actions" }, no, answer(true)));
    setTimeout(() => no.focus());
    return one;
  }
  async function end() {
    source?.close();
    source = current = null;
    await refresh();
    clear();
    working(false);
    if (!document.activeElement || document.activeElement === document.body) box.focus({ preventScroll: true });
  }
  function follow(number) {
    current = number;
    working(true);
    listen();
  }
  listen = () => { // not in a hidden tab; when it is shown, the turn is told from its beginning
    source?.close();
    source = null;
    if (!current || document.hidden) return;
    clear();
    let queue = Promise.resolve();
    const mine = source = watch("turn=" + current, events => {
      if (events === null) { if (source === mine) { problem.textContent = "The connection to this turn is lost; the record has what was said."; end(); } return; }
      for (const event of events) queue = queue.then(() => { if (source === mine || event.kind === "done") return take(event); }).catch(error => { problem.textContent = error.message; });
    });
  };
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const text = box.value;
    if (!text.trim() || current) return;
    if (send.disabled) return;
    send.disabled = true;
    problem.textContent = "";
    write("");
    try {
      const told = await ask(id ? "/api/talk/" + path(id) : "/api/talk", { text });
      if (!place.isConnected) return; // its reader went elsewhere meanwhile
      if (told.session !== id) { drafts.set(told.session, box.value); drafts.delete(id); go("/s/" + path(told.session)); return; }
      follow(told.turn);
    } catch (error) { problem.textContent = error.message; write([text, box.value].filter(Boolean).join("\n")); } finally { send.disabled = false; }
  });
  box.addEventListener("keydown", event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); } });
  box.addEventListener("input", typed);
  write(drafts.get(id) || "");
  if (turn) follow(turn);
  else if (other) problem.textContent = `Another process (${other}) is answering here at the moment.`;
  return place;
}
