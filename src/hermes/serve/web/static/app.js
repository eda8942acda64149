// Where we are, links within the page, and the keys.
import { chips, confirmed, hush, main, make, owner, query, readOnly, say } from "./dom.js";
import { address, filters, show, showTrash, stopSearch } from "./find.js";

if (readOnly) document.getElementById("to-new").remove();
if (!owner || readOnly) document.getElementById("to-trash").remove();

// The parts of a conversation are loaded with the first one that is opened.
let read = null, side = null;
async function loadReader() {
  if (read) return;
  [read, side] = await Promise.all([import("./read.js"), import("./side.js")]);
  read.setGo(go);
}

const scrolled = new Map(); // how far down each address was scrolled
let where = location.href;
function fail(error) {
  read?.leave();
  const text = error.message.slice(0, 1).toUpperCase() + error.message.slice(1);
  main.replaceChildren(make("div", { className: "empty" }, make("h1", { role: "alert", className: "lead" }, text), make("a", { href: "/", className: "button" }, "All conversations")));
  say("");
}
function go(place, instead = false) {
  history[instead ? "replaceState" : "pushState"](null, "", place);
  return begin();
}
async function begin() {
  scrolled.set(where, scrollY);
  const from = new URL(where).pathname, at = decoded(location.pathname);
  where = location.href;
  document.title = "Hermes Sessions";
  read?.leave();
  stopSearch();
  hush();
  for (const one of document.querySelectorAll(".top nav a")) { if (one.pathname === location.pathname) one.ariaCurrent = "page"; else one.removeAttribute("aria-current"); }
  try {
    if (at.startsWith("/s/")) {
      query.value = "";
      const here = location.href;
      await loadReader();
      if (location.href !== here) return;
      side.showSide(at.slice(3));
      await read.showSession(at.slice(3));
      return;
    }
    if (at !== "/") document.body.dataset.at = at.slice(1);
    if (at === "/insights") await (await import("./insights.js")).showInsights();
    else if (at === "/trash") await showTrash();
    else if (at === "/new" && !readOnly) await showNew();
    else await show();
    scrollTo(0, scrolled.get(where) || 0);
    if (from.startsWith("/s/")) standAt(from);
  } catch (error) { fail(error); }
}
function decoded(place) {
  try { return decodeURIComponent(place); } catch { return place; }
}
function standAt(place) { // in the list again: on the conversation that was left
  const row = [...main.querySelectorAll(".row")].find(one => one.pathname === place);
  if (!row || document.activeElement !== document.body) return;
  row.classList.add("on");
  row.focus({ preventScroll: true });
}
async function showNew() {
  await loadReader();
  const { attachTalk } = await import("./talk.js");
  if (location.pathname !== "/new") return;
  chips.replaceChildren();
  document.title = "New conversation · Hermes";
  const hint = make("p", { className: "dim" }, "Kept like every other conversation; ", make("code", {}, "hermes -c"), " continues it in the terminal.");
  main.replaceChildren(make("h1", {}, "What is on your mind?"), hint, attachTalk(null, { refresh: async () => {}, go }));
  say("");
  document.getElementById("prompt").focus();
}
addEventListener("popstate", begin);
addEventListener("hashchange", () => { where = location.href; });
document.addEventListener("click", event => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  const link = event.target.closest("a");
  if (!link || link.origin !== location.origin || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute("download") || link.classList.contains("skip")) return;
  event.preventDefault();
  if (link.hash && link.pathname === location.pathname) {
    history.pushState(null, "", link.hash);
    where = location.href;
    if (link.classList.contains("anchor")) navigator.clipboard?.writeText(location.href).then(() => confirmed("Link copied.", null, 4), () => {});
    read.aimAt(link.hash.slice(1)).catch(fail);
    return;
  }
  go(link.pathname + link.search + link.hash);
});

// ------------------------------------------------------------------------------------------------ keys
const showKeys = () => document.getElementById("keys").showModal();
document.getElementById("to-keys").addEventListener("click", showKeys);
function move(step) {
  const rows = [...main.querySelectorAll(".row, .hit, .message")], at = rows.findIndex(one => one.classList.contains("on"));
  if (!rows.length) return;
  const seen = at < 0 ? rows.findIndex(one => one.getBoundingClientRect().bottom > 80) : at + step;
  const next = rows[Math.max(0, Math.min(rows.length - 1, seen))];
  rows[at]?.classList.remove("on");
  next.classList.add("on");
  if (next.matches(".message")) next.tabIndex = -1;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}
function walk(step) { // from conversation to conversation, as the list has them
  const place = side && location.pathname.startsWith("/s/") ? side.neighbour(step) : null;
  if (place) go(place);
}
// One level up: out of a menu or a field, from a search to everything, from a page to the list. Never further.
function up() {
  const active = document.activeElement, menu = document.querySelector("details.menu[open]");
  if (menu) { menu.open = false; menu.querySelector("summary").focus(); return; }
  if (active === query && !query.value) { query.blur(); return; }
  if (active !== query && /^(INPUT|TEXTAREA|SELECT)$/.test(active.tagName)) { active.blur(); return; }
  if (location.pathname !== "/") { go(side && location.pathname.startsWith("/s/") ? side.back() : "/"); return; }
  const { q, role, tool, ...rest } = filters();
  query.value = "";
  if (q) go(address(rest)); else if (location.search) go("/");
}
const keys = {
  "/": () => { query.focus(); query.select(); }, j: () => move(1), k: () => move(-1), "[": () => walk(-1), "]": () => walk(1),
  n: () => readOnly || go("/new"), g: () => read?.toFirst(), G: () => read?.toLast(), u: () => document.querySelector("#toast .undo")?.click(), "?": showKeys,
};
addEventListener("keydown", event => {
  const graph = event.getModifierState("AltGraph"); // how some keyboards type brackets
  if (event.metaKey || event.isComposing || (!graph && (event.ctrlKey || event.altKey)) || document.querySelector("dialog[open]")) return;
  const active = document.activeElement;
  if (event.key === "Escape") { event.preventDefault(); up(); return; }
  if (active === query && (event.key === "Enter" || event.key === "ArrowDown")) { event.preventDefault(); query.blur(); move(0); return; }
  if (event.key in keys && !/^(INPUT|TEXTAREA|SELECT)$/.test(active.tagName)) { event.preventDefault(); keys[event.key](); }
});
begin();
