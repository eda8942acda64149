// Where we are, links within the page, and the keys.
import { chips, main, make, query, readOnly, owner, say } from "./dom.js";
import { filters, show, showTrash, stopSearch } from "./find.js";
import { aimAt, leave, setGo, showSession, toFirst, toLast } from "./read.js";
import { attachTalk } from "./talk.js";
import { showInsights } from "./insights.js";

if (readOnly) document.getElementById("to-new").remove();
if (!owner) document.getElementById("to-trash").remove();
if (readOnly && owner) document.getElementById("to-trash").remove();

const kept = new Map(); // how far down each address was scrolled
let where = location.href;
function fail(error) {
  leave();
  main.replaceChildren(make("p", { role: "alert", className: "problem" }, error.message), make("p", {}, make("a", { href: "/" }, "All conversations")));
  say("");
}
function go(place, instead = false) {
  history[instead ? "replaceState" : "pushState"](null, "", place);
  begin();
}
setGo(go);
async function begin() {
  kept.set(where, scrollY);
  where = location.href;
  const at = decodeURIComponent(location.pathname);
  document.title = "Hermes Sessions";
  leave();
  stopSearch();
  for (const one of document.querySelectorAll(".top nav a")) { if (one.pathname === location.pathname) one.ariaCurrent = "page"; else one.removeAttribute("aria-current"); }
  try {
    if (at.startsWith("/s/")) { query.value = ""; await showSession(at.slice(3)); return; }
    if (at === "/insights") await showInsights();
    else if (at === "/trash") await showTrash();
    else if (at === "/new" && !readOnly) showNew();
    else await show();
    scrollTo(0, kept.get(where) || 0);
  } catch (error) { fail(error); }
}
function showNew() {
  chips.replaceChildren();
  document.title = "New conversation · Hermes";
  main.replaceChildren(make("h1", {}, "New conversation"), make("p", { className: "dim" }, "It is kept like every other one: hermes -c continues it in the terminal."), attachTalk(null, { refresh: async () => {}, go }));
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
    if (link.classList.contains("anchor")) navigator.clipboard?.writeText(location.href).then(() => say("Link copied.", 4), () => {});
    aimAt(link.hash.slice(1)).catch(fail);
    return;
  }
  go(link.pathname + link.search + link.hash);
});

// ------------------------------------------------------------------------------------------------ keys
document.getElementById("to-keys").addEventListener("click", () => document.getElementById("keys").showModal());
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
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key === "Escape") {
    if (document.activeElement === query) {
      query.blur();
      if (query.value || filters().q) { query.value = ""; go("/"); }
    } else if (typing) document.activeElement.blur();
    else if (location.pathname !== "/") { if (history.length > 1) history.back(); else go("/"); }
    else if (location.search) go("/");
    return;
  }
  if (document.activeElement === query && (event.key === "Enter" || event.key === "ArrowDown")) { event.preventDefault(); query.blur(); move(0); return; }
  if (typing) return;
  const keys = { "/": () => { query.focus(); query.select(); }, j: () => move(1), k: () => move(-1), n: () => readOnly || go("/new"), g: toFirst, G: toLast, "?": () => document.getElementById("keys").showModal() };
  if (event.key in keys) { event.preventDefault(); keys[event.key](); }
});
begin();
