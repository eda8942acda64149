// A conversation: of a long one only what is near the eye is in the page; what another process writes appears by itself.
import { ask, atEnd, button, chips, confirmed, count, failed, link, main, make, owner, path, plural, readOnly, say, stay, toEnd } from "./dom.js";
import { drawHead, renewHead, setHead, unfolding } from "./head.js";
import { drawMessage } from "./message.js";
import { name } from "./rows.js";
import { watch as follow } from "./stream.js";
import { answerAgain, attachTalk, detachTalk, editMessage, shownStored } from "./talk.js";

const WINDOW = 300; // messages that are in the page at once
let open = null, live = null, go = null, busy = false, opened = 0, shownPosition = "";

export function setGo(other) {
  go = other;
  setHead({ go, branch, changed: session => { open.session = session; }, shown: () => open?.id, stop: () => { live?.close(); live = null; }, watch: () => watch() });
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

// ------------------------------------------------------------------------------------------------ messages
const can = { edit: editMessage, branch: message => branch(message.id), again: () => answerAgain() };
const draw = message => message.id === open?.session.summary ? drawMessage({ ...message, role: "system" }, can, "Summary") : drawMessage(message, can);
const drawFolded = message => drawMessage(message);
async function branch(at) {
  const from = open.id, made = await ask(`/api/do/branch/${path(from)}`, at ? { at_message: at } : {});
  await go(link(made.done));
  confirmed("This is a branch of its own.", async () => { await ask(`/api/do/trash/${path(made.done)}`, {}); go(link(from)); });
}
// What was undone last stays at hand below the messages.
function drawUndone(number) {
  if (number === open.undone) return;
  open.undone = number;
  open.hint.replaceChildren();
  if (!number) return;
  const back = async () => { await ask("/api/do/redo/" + path(open.id), {}); await refresh(); say("Brought back.", 5); };
  const box = unfolding(`${plural(number, "message")} undone`, "/api/undone/" + path(open.id), drawFolded, "compressed undone");
  open.hint.append(box, readOnly ? "" : button("Bring back", back, { title: "Show them again; what was written since is undone instead" }));
}

// ------------------------------------------------------------------------------------------------ a conversation
export async function showSession(id) {
  leave();
  chips.replaceChildren();
  const target = location.hash.match(/^#m(\d+)$/), mine = opened;
  const [session, data] = await Promise.all([ask("/api/session/" + path(id)), ask(`/api/messages/${path(id)}${target ? "?around=" + target[1] : ""}`)]);
  if (mine !== opened) return; // another page was opened meanwhile
  document.body.dataset.at = "session";
  document.title = name(session) + " · Hermes";
  const list = make("section", { id: "messages", ariaLabel: "Messages" }), hint = make("div", { className: "hint" });
  open = { id, list, hint, undone: 0, first: data.from, last: data.from + data.messages.length, total: data.total, session };
  list.append(...data.messages.map(draw));
  main.replaceChildren(...[drawHead(session), list]);
  if (!readOnly) main.append(attachTalk(id, { refresh, go, turn: session.turn, other: session.other }));
  if (readOnly) main.append(hint); else document.getElementById("talk").before(hint); // below a reply that is being written
  drawUndone(data.undone);
  if (target) aim(target[0].slice(1)); else toEnd();
  position(true);
  watch();
}
function watch() { // a hidden tab reads nothing until it is shown
  live?.close();
  live = null;
  if (!open || document.hidden) return;
  const mine = live = follow("session=" + open.id, state => { // the first one, too: something may have come between
    if (state === null) gone();
    else refresh().then(() => live === mine && renewHead()).catch(error => error.status === 404 ? gone() : failed(error));
  });
}
function gone() { // what was read stays; nothing more can be done with it
  if (!open) return;
  leave();
  const note = make("p", { className: "problem", role: "alert" }, "This conversation was put in the trash or deleted. ", owner && !readOnly ? make("a", { href: "/trash" }, "Open the trash") : null);
  main.querySelector(".head .actions")?.remove();
  main.querySelector("#talk")?.remove();
  main.append(note);
  toEnd();
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
    const data = await ask(`/api/messages/${path(mine.id)}${where}`);
    if (mine !== open) return;
    fresh(data);
    then();
  });
}
function fresh(data) {
  open.list.replaceChildren(...data.messages.map(draw));
  open.first = data.from; open.last = data.from + data.messages.length; open.total = data.total;
  position();
}
function position(first = false) { // only when it has changed: it must not replace another message in the status line
  const now = open.total ? `${count(open.first + 1)}–${count(open.last)} of ${plural(open.total, "message")}` : "No messages yet";
  if (first || now !== shownPosition) say(shownPosition = now);
  open.list.classList.toggle("at-end", open.last >= open.total);
}
export async function toFirst() { if (open) await jump("?from=0", () => { stay(); scrollTo(0, 0); }); }
export async function toLast() { if (open) await jump("", toEnd); }

// ------------------------------------------------------------------------------------------------ scrolling
async function load(where) {
  const mine = open, from = where === "before" ? Math.max(0, open.first - 100) : open.last;
  if (where === "before" ? open.first <= 0 : open.last >= open.total) return;
  const data = await ask(`/api/messages/${path(open.id)}?from=${from}`);
  if (mine !== open) return;
  open.total = data.total;
  const low = atEnd();
  if (where === "before") {
    const anchor = open.list.firstElementChild, top = anchor?.getBoundingClientRect().top;
    open.list.prepend(...data.messages.slice(0, open.first - data.from).map(draw));
    open.first = data.from;
    while (open.list.childElementCount > WINDOW) { open.list.lastElementChild.remove(); open.last--; }
    if (anchor) scrollBy(0, anchor.getBoundingClientRect().top - top);
  } else {
    const anchor = open.list.lastElementChild, top = anchor?.getBoundingClientRect().top;
    open.list.append(...data.messages.map(draw));
    open.last = data.from + data.messages.length;
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
  const reachesEnd = mine.last >= mine.total;
  const read = from => ask(`/api/messages/${path(mine.id)}?from=${from}`), all = behind;
  behind = false; // at once: the tab may be hidden again while this reads
  const data = await read(all ? mine.first : Math.max(mine.first, mine.last - 30)).catch(error => { behind ||= all; throw error; }), next = () => data.from + data.messages.length;
  while (all && next() <= mine.last && next() < data.total) {
    const more = await read(next());
    if (!more.messages.length) break;
    data.messages.push(...more.messages);
  }
  if (mine !== open) return;
  mine.total = data.total;
  if (data.total <= mine.first && mine.first) { // rewound
    const last = await ask(`/api/messages/${path(mine.id)}`);
    if (mine === open) fresh(last);
    return;
  }
  const low = atEnd(), was = mine.list.lastElementChild, height = mine.list.offsetHeight;
  data.messages.forEach((message, number) => {
    const place = data.from + number - mine.first, now = mine.list.children[place];
    if (!now && !reachesEnd) return;
    const drawn = draw(message);
    if (!now) mine.list.append(drawn);
    else if (now.id !== drawn.id || now.dataset.key !== drawn.dataset.key) {
      const folds = now.id === drawn.id ? [...now.querySelectorAll("details")].map(fold => fold.open) : [];
      drawn.querySelectorAll("details").forEach((fold, at) => { fold.open = Boolean(folds[at]); });
      now.replaceWith(drawn);
    }
  });
  while (mine.list.childElementCount > Math.max(0, data.total - mine.first)) mine.list.lastElementChild.remove();
  while (mine.list.childElementCount > WINDOW && low) { mine.list.firstElementChild.remove(); mine.first++; }
  mine.last = mine.first + mine.list.childElementCount;
  drawUndone(data.undone);
  shownStored();
  if (low && (was !== mine.list.lastElementChild || height !== mine.list.offsetHeight)) toEnd(); // what did not change does not move
  position();
}
