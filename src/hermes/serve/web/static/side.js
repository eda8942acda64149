// The list beside a conversation: what was listed or found last, so that one walks from conversation to conversation.
import { ask, failed, link, make, time } from "./dom.js";
import { lastList, onListChange } from "./find.js";
import { drawRows, name, star } from "./rows.js";

const side = document.getElementById("side"), rows = make("ul", { className: "rows" });
const head = make("a", { className: "back", href: "/" }, "← All conversations"); // a name also before the list is here
let shown = { at: "/", sessions: [], known: false }, here = null;
side.append(head, rows);

export const back = () => shown.at;
function line(session) {
  const facts = make("div", { className: "facts" }, session.source, make("span", { className: "dot", ariaHidden: "true" }, "·"), time(session.last_active));
  const one = make("li", {}, make("a", { className: "other", href: link(session.id) + (session.hit ? "#m" + session.hit : "") }, make("bdi", { className: "title" }, star(session), name(session)), facts));
  one.dataset.id = session.id;
  return one;
}
function draw() {
  const words = new URL(shown.at, location.origin).searchParams.get("q");
  head.href = shown.at;
  head.textContent = words ? `← Results for “${words}”` : shown.at === "/" ? "← All conversations" : "← The list";
  drawRows(rows, shown.sessions, line);
  mark(false);
}
function mark(follow) {
  for (const other of rows.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
  const current = here && [...rows.children].find(one => one.dataset.id === here)?.querySelector("a");
  if (!current) return;
  current.ariaCurrent = "page";
  if (follow) current.scrollIntoView({ block: "nearest" });
}
async function read() {
  const query = new URL(shown.at, location.origin).searchParams;
  if (query.get("q")) return; // what was found stays as it was found
  const data = await ask("/api/sessions?" + query);
  const rest = shown.sessions.slice(data.sessions.length).filter(one => !data.sessions.some(other => other.id === one.id));
  shown = { ...shown, sessions: data.next === null ? data.sessions : [...data.sessions, ...rest], known: true };
  draw();
}
export function showSide(id) {
  here = id;
  if (lastList().known && shown !== lastList()) { shown = lastList(); draw(); }
  mark(true);
  if (!shown.known) read().then(() => mark(true)).catch(failed);
}
onListChange(() => { if (here && location.pathname.startsWith("/s/") && !document.hidden) read().catch(failed); });
// The address of the conversation so many lines further on; null at an end.
export function neighbour(step) {
  const at = shown.sessions.findIndex(one => one.id === here), next = shown.sessions[at < 0 ? 0 : at + step];
  return next ? link(next.id) + (next.hit ? "#m" + next.hit : "") : null;
}
