// A conversation: of a long one only what is near the eye is in the page; what another process writes appears by itself.
import { ask, atEnd, button, chips, confirmed, copy, count, failed, link, main, make, money, path, plural, readOnly, say, stay, time, toEnd } from "./dom.js";
import { name } from "./find.js";
import { drawHead, renewHead, setHead } from "./head.js";
import { watch as follow } from "./stream.js";
import { attachTalk, detachTalk } from "./talk.js";

const WINDOW = 300; // messages that are in the page at once
let open = null, live = null, go = null, busy = false, opened = 0, said = "";

export function setGo(other) {
  go = other;
  setHead({ go, branch, changed: told => { open.session = told; }, shown: () => open?.id, stop: () => live?.close(), watch: () => watch() });
}
export function leave() {
  live?.close();
  live = open = null;
  opened++;
  detachTalk();
}
// Answers may come late and in any order: each change of the list begins when the one before it is done.
let turn = Promise.resolve();
function inTurn(act) {
  const mine = turn.then(act);
  turn = mine.catch(() => {});
  return mine;
}

// ------------------------------------------------------------------------------------------------ one message
function used(message) {
  const [input, output, read, written] = message.tokens, sent = (input || 0) + (read || 0) + (written || 0);
  return [message.model, sent || output ? `${count(sent)} in, ${count(output)} out` : "", message.cost ? money(message.cost) : ""].filter(Boolean).join(" · ");
}
function drawMessage(message, { folded = false } = {}) {
  const header = make("header", {}, make("span", { className: "who" }, message.id === open?.session.summary ? "Summary" : message.role), time(message.at), make("span", { className: "used", title: "Model, tokens and cost" }, used(message)));
  if (message.ended === "interrupted") header.append(make("span", { className: "state bad" }, "stopped"));
  const tools = make("span", { className: "tools" });
  tools.append(button("Copy", () => copy(body.innerText), { title: "Copy this message" }));
  if (!readOnly && !folded) tools.append(button("Branch", () => branch(message.id), { title: "A new conversation that begins with everything up to here" }));
  tools.append(make("a", { href: "#m" + message.id, className: "anchor", title: "A link to this message", ariaLabel: `Link to message ${message.id}` }, "#" + message.id));
  header.append(tools);
  const body = make("div", { className: "body", dir: "auto" });
  body.innerHTML = message.html; // made by the server: everything in it is escaped
  for (const block of body.querySelectorAll("pre")) {
    const frame = make("div", { className: "code" });
    block.tabIndex = 0;
    block.replaceWith(frame);
    frame.append(block, button("Copy", () => copy(block.textContent), { ariaLabel: "Copy this code" }));
  }
  for (const table of body.querySelectorAll("table")) { const frame = make("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: "Table" }); table.replaceWith(frame); frame.append(table); }
  const one = make("article", { className: "message " + message.role, id: "m" + message.id }, header, body);
  one.dataset.key = JSON.stringify([message.html, message.ended]);
  return one;
}
async function branch(at) {
  const from = open.id, made = await ask(`/api/do/branch/${path(from)}`, at ? { at_message: at } : {});
  await go(link(made.done));
  confirmed("This is a branch of its own.", async () => { await ask(`/api/do/trash/${path(made.done)}`, {}); go(link(from)); });
}

// ------------------------------------------------------------------------------------------------ a conversation
export async function showSession(id) {
  leave();
  chips.replaceChildren();
  const target = location.hash.match(/^#m(\d+)$/), mine = opened;
  const [session, told, running] = await Promise.all([ask("/api/session/" + path(id)), ask(`/api/messages/${path(id)}${target ? "?around=" + target[1] : ""}`), ask("/api/running/" + path(id))]);
  if (mine !== opened) return; // another page was opened meanwhile
  document.body.dataset.at = "session";
  document.title = name(session) + " · Hermes";
  const list = make("section", { id: "messages", ariaLabel: "Messages" });
  open = { id, list, first: told.from, last: told.from + told.messages.length, total: told.total, session };
  list.append(...told.messages.map(drawMessage));
  main.replaceChildren(...[drawHead(session), before(session), list].filter(Boolean));
  if (!readOnly) main.append(attachTalk(id, { refresh, go, turn: running.turn, other: running.other }));
  if (target) aim(target[0].slice(1)); else toEnd();
  position(true);
  watch();
}
function watch() { // a hidden tab reads nothing until it is shown
  live?.close();
  live = null;
  if (!open || document.hidden) return;
  live = follow("session=" + open.id, state => { if (state !== null) refresh().then(() => renewHead()).catch(failed); }); // the first one, too: something may have come between
}
document.addEventListener("visibilitychange", () => { behind = true; watch(); });
export function aim(id) {
  const one = document.getElementById(id);
  document.querySelectorAll(".target").forEach(other => other.classList.remove("target"));
  if (!one) return false;
  for (let fold = one.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  one.classList.add("target");
  stay();
  one.scrollIntoView({ block: "center" });
  return true;
}
export function aimAt(id) { // a link within the conversation, to a message that may not be in the page
  return aim(id) || !open ? Promise.resolve() : jump(`?around=${id.slice(1)}`, () => aim(id));
}
function jump(where, then) {
  const mine = open;
  return inTurn(async () => {
    if (mine !== open) return;
    const told = await ask(`/api/messages/${path(mine.id)}${where}`);
    if (mine !== open) return;
    fresh(told);
    then();
  });
}
function fresh(told) {
  open.list.replaceChildren(...told.messages.map(drawMessage));
  open.first = told.from; open.last = told.from + told.messages.length; open.total = told.total;
  position();
}
function position(first = false) { // said when it has changed: it must not wipe away what else was said
  const now = open.total ? `${count(open.first + 1)}–${count(open.last)} of ${plural(open.total, "message")}` : "No messages yet";
  if (first || now !== said) say(said = now);
}
export async function toFirst() { if (open) await jump("?from=0", () => { stay(); scrollTo(0, 0); }); }
export async function toLast() { if (open) await jump("", toEnd); }

// ------------------------------------------------------------------------------------------------ above the messages
// What a summary stands for: the messages of the part before, shown here on demand, a piece at a time.
function before(session) {
  if (!session.compressed) return null;
  const text = `Show what was compressed (${plural(session.compressed, "message")})`;
  const box = make("details", { className: "compressed" }, make("summary", {}, text)), inside = make("div", {});
  const note = make("p", { className: "dim", role: "status" });
  let loading = false, next = 0, total = 1;
  const more = async () => { // one piece at a time, however often the box is opened and closed meanwhile
    if (loading) return;
    loading = true;
    inside.querySelector("button.more")?.remove();
    note.textContent = "Loading…";
    let failed = "";
    try {
      const told = await ask(`/api/compressed/${path(session.id)}?from=${next}`);
      note.before(...told.messages.map(message => drawMessage(message, { folded: true })));
      next = told.from + told.messages.length;
      total = told.messages.length ? told.total : next;
    } catch (error) { failed = "Error: " + error.message; }
    loading = false;
    note.textContent = failed;
    if (next < total) note.after(button(failed ? "Try again" : "More of them", more, { className: "more" }));
  };
  inside.append(note);
  box.append(inside);
  box.addEventListener("toggle", () => { if (box.open && !next) more(); });
  return box;
}

// ------------------------------------------------------------------------------------------------ scrolling
async function load(where) {
  const mine = open, from = where === "before" ? Math.max(0, open.first - 100) : open.last;
  if (where === "before" ? open.first <= 0 : open.last >= open.total) return;
  const told = await ask(`/api/messages/${path(open.id)}?from=${from}`);
  if (mine !== open) return;
  open.total = told.total;
  const low = atEnd();
  if (where === "before") {
    const anchor = open.list.firstElementChild, top = anchor?.getBoundingClientRect().top;
    open.list.prepend(...told.messages.slice(0, open.first - told.from).map(drawMessage));
    open.first = told.from;
    while (open.list.childElementCount > WINDOW) { open.list.lastElementChild.remove(); open.last--; }
    if (anchor) scrollBy(0, anchor.getBoundingClientRect().top - top);
  } else {
    const anchor = open.list.lastElementChild, top = anchor?.getBoundingClientRect().top;
    open.list.append(...told.messages.map(drawMessage));
    open.last = told.from + told.messages.length;
    while (open.list.childElementCount > WINDOW) { open.list.firstElementChild.remove(); open.first++; }
    if (anchor) scrollBy(0, anchor.getBoundingClientRect().top - top);
  }
  if (low && where === "before" && open.last >= open.total) toEnd(); else stay(); // the places of before are others now
  position();
}
async function onScroll() {
  if (!open || busy) return;
  busy = true;
  try {
    const height = document.documentElement.scrollHeight, mine = open;
    const wanted = scrollY < 1200 && open.first > 0 ? "before" : scrollY + innerHeight > height - 1200 && open.last < open.total ? "after" : "";
    if (wanted) await inTurn(() => mine === open ? load(wanted) : null);
  } catch (error) { failed(error); } finally { busy = false; }
}
addEventListener("scroll", onScroll, { passive: true });

// ------------------------------------------------------------------------------------------------ live
let refreshing = null, wanted = false, behind = false; // behind: hidden meanwhile, so that any message here may have changed
export function refresh() { // one at a time; a change during it is looked at afterwards
  if (refreshing) { wanted = true; return refreshing; }
  refreshing = (async () => {
    do { wanted = false; await inTurn(renew); } while (wanted);
  })().finally(() => { refreshing = null; });
  return refreshing;
}
async function renew() {
  const mine = open;
  if (!mine) return;
  const toldAll = mine.last >= mine.total;
  const read = from => ask(`/api/messages/${path(mine.id)}?from=${from}`), all = behind;
  behind = false; // at once: the tab may be hidden again while this reads
  const told = await read(all ? mine.first : Math.max(mine.first, mine.last - 30)).catch(error => { behind ||= all; throw error; }), next = () => told.from + told.messages.length;
  while (all && next() <= mine.last && next() < told.total) {
    const more = await read(next());
    if (!more.messages.length) break;
    told.messages.push(...more.messages);
  }
  if (mine !== open) return;
  mine.total = told.total;
  if (told.total <= mine.first && mine.first) { // rewound
    const last = await ask(`/api/messages/${path(mine.id)}`);
    if (mine === open) fresh(last);
    return;
  }
  const low = atEnd(), was = mine.list.lastElementChild, height = mine.list.offsetHeight;
  told.messages.forEach((message, number) => {
    const place = told.from + number - mine.first, now = mine.list.children[place];
    if (!now && !toldAll) return;
    const drawn = drawMessage(message);
    if (!now) mine.list.append(drawn);
    else if (now.id !== drawn.id || now.dataset.key !== drawn.dataset.key) {
      const folds = now.id === drawn.id ? [...now.querySelectorAll("details")].map(fold => fold.open) : [];
      drawn.querySelectorAll("details").forEach((fold, at) => { fold.open = Boolean(folds[at]); });
      now.replaceWith(drawn);
    }
  });
  while (mine.list.childElementCount > Math.max(0, told.total - mine.first)) mine.list.lastElementChild.remove();
  while (mine.list.childElementCount > WINDOW && low) { mine.list.firstElementChild.remove(); mine.first++; }
  mine.last = mine.first + mine.list.childElementCount;
  if (low && (was !== mine.list.lastElementChild || height !== mine.list.offsetHeight)) toEnd(); // what did not change does not move
  position();
}
