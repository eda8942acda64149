// How a conversation looks in a list: its row with what is known of it, the hits in it, the day it belongs to.
import { button, link, make, money, plural, time, when } from "./dom.js";

const FIRST = 3; // hits of a conversation that are shown at once
const SIGNS = { cli: ">_", web: "◱", cron: "↻", batch: "≡" }; // the others: their first letter

export const name = session => session.title || session.preview || session.id;
export const star = session => session.pinned_at ? make("span", { className: "star", role: "img", ariaLabel: "Pinned" }, "★") : null;
export function sourceMark(source) {
  return make("span", { className: "source", ariaHidden: "true", title: source || "" }, SIGNS[source] || (source || "?").slice(0, 1).toUpperCase());
}
export function facts(session) {
  const folder = session.cwd && session.cwd.split("/").slice(-2).join("/");
  const parts = [session.source, plural(session.message_count || 0, "message"), session.model, folder, session.cost ? money(session.cost) : null];
  const items = parts.filter(Boolean).flatMap(part => [make("bdi", {}, part), make("span", { className: "dot", ariaHidden: "true" }, "·")]).slice(0, -1);
  const tags = (session.tags || []).map(tag => make("span", { className: "tag" }, "#" + tag));
  return make("div", { className: "facts" }, ...items, " ", ...tags);
}
export function row(session, hits = []) {
  const head = make("div", { className: "line" }, make("bdi", { className: "title" }, star(session), name(session)), time(session.last_active, "dim"));
  const preview = session.title && session.preview && !hits.length ? make("div", { className: "preview dim" }, make("bdi", {}, session.preview)) : null;
  const open = make("a", { className: "row", href: link(session.id) }, sourceMark(session.source), make("div", { className: "about" }, head, preview, facts(session)));
  if (session.archived_at) open.classList.add("archived");
  const more = hits.slice(FIRST), one = make("li", {}, open, ...hits.slice(0, FIRST));
  if (more.length) one.append(button(`${plural(more.length, "more hit")} here`, event => { event.target.replaceWith(...more); more[0].focus(); }, { className: "plain hits" }));
  one.dataset.id = session.id;
  return one;
}
export function hit(session, found) {
  const text = make("bdi", {});
  text.innerHTML = found.html; // escaped by the server; the only tags are marks
  return make("a", { className: "hit", href: `${link(session.id)}#m${found.id}` }, make("span", { className: "who " + found.role }, found.tool || found.role), " ", text, " ", time(found.at, "dim"));
}

// ------------------------------------------------------------------------------------------------ rows under their days
function dayOf(session) {
  if (session.pinned_at) return "Pinned";
  if (!session.last_active) return "Without a time";
  const then = new Date(session.last_active * 1000), midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight - then) / 864e5);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Previous 7 days";
  if (days <= 30) return "Previous 30 days";
  return isNaN(then) ? "Without a time" : then.toLocaleDateString("en", { month: "long", year: "numeric" });
}
const drawn = new WeakMap(); // list → Map(key → its line)
// Brings a list up to date. Lines that did not change stay as they are: the cursor and the focus stay on them.
export function drawRows(list, sessions, draw = row) {
  const before = drawn.get(list) || new Map(), now = new Map(), focused = list.contains(document.activeElement) ? document.activeElement.closest("li").dataset.id : null;
  const put = (key, made) => now.set(key, before.get(key) || made());
  let day = "";
  for (const session of sessions) {
    const mine = dayOf(session);
    if (mine !== day) { day = mine; put("day " + mine, () => make("li", { className: "day" }, make("h2", {}, mine))); }
    put(session.id + JSON.stringify(session) + when(session.last_active), () => draw(session));
  }
  let place = list.firstElementChild;
  for (const line of now.values()) {
    if (line === place) place = place.nextElementSibling;
    else list.insertBefore(line, place);
  }
  while (place) { const next = place.nextElementSibling; place.remove(); place = next; }
  drawn.set(list, now);
  if (focused && !list.contains(document.activeElement)) [...list.children].find(line => line.dataset.id === focused)?.querySelector("a").focus({ preventScroll: true });
}
