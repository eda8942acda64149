// One message: its header, its body, and what can be done with it. The server has made the HTML of the body.
import { button, count, make, money, readOnly, say, time } from "./dom.js";

const DIAGRAMS = "mermaid";

// `can` has what this place offers: edit(message), branch(message), again(); `name` is shown in place of the role.
export function drawMessage(message, can = {}, name = message.role) {
  const body = make("div", { className: "body", dir: "auto" });
  body.innerHTML = message.html; // everything in it is escaped
  finish(body);
  const one = make("article", { className: "message " + message.role, id: "m" + message.id }, header(message, can, name), body);
  one.dataset.key = JSON.stringify([message.html, message.ended]);
  return one;
}

function header(message, can, name) {
  const tools = make("span", { className: "tools" }, button("Copy", () => copyLater(markdownOf(message)), { title: "Copy this message as Markdown" }));
  if (!readOnly && can.again && message.role === "assistant") tools.append(button("Regenerate", can.again, { className: "again", title: "Answer again; this reply can be brought back" }));
  if (!readOnly && can.edit && message.role === "user") tools.append(button("Edit", () => can.edit(message), { title: "Change this message and send it again, in a branch" }));
  if (!readOnly && can.branch) tools.append(button("Branch", () => can.branch(message), { title: "A new conversation that begins with everything up to here" }));
  tools.append(make("a", { href: "#m" + message.id, className: "anchor", title: "A link to this message", ariaLabel: `Link to message ${message.id}` }, "#" + message.id));
  return make("header", {}, make("span", { className: "who" }, name), time(message.at),
    make("span", { className: "used", title: "Model, tokens and cost" }, used(message)),
    message.ended === "interrupted" ? make("span", { className: "state bad" }, "stopped") : null, tools);
}

function used(message) {
  const [input, output, read, written] = message.tokens, sent = (input || 0) + (read || 0) + (written || 0);
  return [message.model, sent || output ? `${count(sent)} in, ${count(output)} out` : "", message.cost ? money(message.cost) : ""].filter(Boolean).join(" · ");
}

// What was written in a message, as Markdown.
export async function markdownOf(message) {
  const place = new URL(message.said, location);
  place.searchParams.set("said", "1");
  const answer = await fetch(place);
  if (!answer.ok) throw new Error("this message is not there any more");
  return answer.text();
}

// Copy a text that arrives later: the browser allows it as long as the click is recent.
async function copyLater(text) {
  try {
    await navigator.clipboard.write([new ClipboardItem({ "text/plain": text.then(words => new Blob([words], { type: "text/plain" })) })]);
    say("Copied.", 4);
  } catch { say((await text).slice(0, 300)); }
}

// ------------------------------------------------------------------------------------------------ the body
// Code, tables and formulas of a body (or of a part of it) get what the page adds to them.
export function finish(body) {
  for (const block of body.querySelectorAll("pre")) frameCode(block);
  for (const table of body.querySelectorAll("table")) {
    const frame = make("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const one of body.querySelectorAll("pre, code, math")) one.dir = "ltr"; // also within text that is written from right to left
  for (const box of body.querySelectorAll(".task-list-item-checkbox")) box.ariaLabel = box.checked ? "done" : "to do";
}

function frameCode(block) {
  const language = [...(block.querySelector("code")?.classList || [])].find(name => name.startsWith("language-"))?.slice(9) || "";
  const bar = make("div", { className: "bar" }, make("span", {}, language || place(block)), language === DIAGRAMS ? diagramLink(block) : null,
    button("Copy", () => copyLater(Promise.resolve(block.textContent)), { ariaLabel: "Copy this code" }));
  const frame = make("div", { className: "code" });
  block.tabIndex = 0;
  block.replaceWith(frame);
  frame.append(bar, block);
}

// The library that draws these diagrams is larger than the whole page and needs styles that the page forbids. A reader who
// wants to see one follows this link: the diagram is behind the #, which browsers send to no server.
function diagramLink(block) {
  const state = new TextEncoder().encode(JSON.stringify({ code: block.textContent, mermaid: '{"theme": "default"}' }));
  const packed = btoa(Array.from(state, byte => String.fromCharCode(byte)).join(""));
  const title = "Opens mermaid.live, which draws the diagram in your browser";
  return make("a", { href: "https://mermaid.live/edit#base64:" + packed, target: "_blank", rel: "noopener noreferrer", title }, "Draw ↗");
}

function place(block) {
  if (block.closest(".result")) return "output";
  return block.parentElement.matches(".call") ? "arguments" : "";
}

// ------------------------------------------------------------------------------------------------ a body that grows
// Put blocks in place of those from a number on; what is before them is not touched.
export function replaceBlocks(body, from, blocks) {
  const scrolled = body.children[from]?.querySelector("pre")?.scrollLeft;
  while (body.children.length > from) body.lastElementChild.remove();
  for (const html of blocks) {
    const made = make("div", {});
    made.innerHTML = html; // made by the same code as that of a whole message
    finish(made);
    body.append(...made.children);
  }
  const grown = body.children[from]?.querySelector("pre");
  if (scrolled && grown) grown.scrollLeft = scrolled;
}
