// The filters above the list: which are on, and what else there is to filter by. All of them are in the address.
import { ask, button, chips, count, make } from "./dom.js";

const NAMES = { source: "Source", role: "Role", model: "Model", tool: "Tool", tag: "Tag", folder: "Folder", file: "File", since: "Since", until: "Until", pinned: "Pinned", archived: "With archived" };
const KINDS = { source: "sources", model: "models", tool: "tools", tag: "tags", folder: "folders" };
const FRESH = 30_000; // milliseconds
let facets = {}, read = -FRESH, show = null;

export function setShow(other) { show = other; }
export function filters() {
  const found = {};
  for (const [name, value] of new URLSearchParams(location.search)) if ((name in NAMES || name === "q") && value) found[name] = value;
  return found;
}
export function address(wanted) {
  const text = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value)).toString();
  return text ? "/?" + text : "/";
}
export function narrowTo(wanted) {
  history.pushState(null, "", address(wanted));
  return show();
}
function change(name, value) {
  const wanted = filters();
  if (value === null) delete wanted[name]; else wanted[name] = value;
  return narrowTo(wanted);
}
// Tags and folders whose name has what was typed: [filter, value, conversations].
export function named(words) {
  const typed = words.toLowerCase().replace(/["*#]/g, "").trim();
  const fits = value => typed.length > 1 && value.split("/").slice(-2).join("/").toLowerCase().includes(typed);
  return ["tag", "folder"].flatMap(name => Object.entries(facets[KINDS[name]] || {}).filter(([value]) => fits(value)).map(([value, number]) => [name, value, number])).slice(0, 6);
}
export async function refreshFacets() {
  if (performance.now() - read < FRESH) return;
  read = performance.now();
  facets = await ask("/api/facets");
  if (location.pathname === "/" && !chips.querySelector("details[open]") && !chips.contains(document.activeElement)) drawChips(filters());
}
function menu(title, ...inside) {
  const one = make("details", { className: "menu" }, make("summary", { className: "chip" }, title), make("div", { className: "choices" }, ...inside));
  one.addEventListener("toggle", () => { if (one.open) for (const other of chips.querySelectorAll("details[open]")) if (other !== one) other.open = false; });
  return one;
}
export function drawChips(wanted) {
  const set = Object.keys(NAMES).filter(name => wanted[name]).map(name => {
    const text = name === "pinned" || name === "archived" ? NAMES[name] : `${NAMES[name]}: ${wanted[name]}`;
    return button([make("bdi", {}, text), " ×"], () => change(name, null), { className: "chip on", ariaLabel: `Remove the filter ${text}` });
  });
  const free = [];
  for (const [name, kind] of Object.entries(KINDS)) {
    if (wanted[name] || (name === "tool" && !wanted.q)) continue;
    const values = Object.entries(facets[kind] || {});
    if (values.length) free.push(menu(NAMES[name], ...values.map(([value, number]) => button([make("bdi", {}, value), make("span", { className: "dim" }, count(number))], () => change(name, value)))));
  }
  if (wanted.q && !wanted.role) free.push(menu(NAMES.role, ...["user", "assistant", "tool", "system"].map(role => button(role, () => change("role", role)))));
  if (!wanted.since && !wanted.until) free.push(dates());
  if (!wanted.q && !wanted.pinned) free.push(button("Pinned", () => change("pinned", "1"), { className: "chip" }));
  if (!wanted.q && !wanted.archived) free.push(button("With archived", () => change("archived", "1"), { className: "chip" }));
  chips.replaceChildren(...set, ...free);
}
function dates() {
  const back = days => {
    const then = new Date(Date.now() - days * 864e5);
    return `${then.getFullYear()}-${String(then.getMonth() + 1).padStart(2, "0")}-${String(then.getDate()).padStart(2, "0")}`;
  };
  const from = make("input", { type: "date", ariaLabel: "From" }), to = make("input", { type: "date", ariaLabel: "To" });
  return menu("Date", button("Today", () => change("since", back(0))), button("Last 7 days", () => change("since", back(6))), button("Last 30 days", () => change("since", back(29))),
    make("div", { className: "between" }, from, "–", to, button("Use", () => narrowTo({ ...filters(), since: from.value, until: to.value }))));
}
