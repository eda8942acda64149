// The list of conversations and the search that answers while one types. Everything that narrows them is in the address.
import { ask, button, chips, count, link, main, make, money, owner, path, plural, query, say, time } from "./dom.js";

const NAMES = { source: "Source", role: "Role", model: "Model", tool: "Tool", tag: "Tag", folder: "Folder", file: "File", since: "Since", until: "Until", pinned: "Pinned", archived: "With archived" };
const KINDS = { source: "sources", model: "models", tool: "tools", tag: "tags", folder: "folders" };
const FIRST = 3; // hits of a conversation that are shown at once
const ENOUGH = 12, PIECES = 6; // conversations that are looked for, within so many pieces of hits
let facets = {}, asked = 0, request = null;

export function filters() {
  const found = {};
  for (const [name, value] of new URLSearchParams(location.search)) if ((name in NAMES || name === "q") && value) found[name] = value;
  return found;
}
export function address(wanted) {
  const text = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value)).toString();
  return text ? "/?" + text : "/";
}
function change(name, value) {
  const wanted = filters();
  if (value === null) delete wanted[name]; else wanted[name] = value;
  history.pushState(null, "", address(wanted));
  show();
}

// ------------------------------------------------------------------------------------------------ rows
const tagged = tags => (tags || []).map(tag => make("span", { className: "tag" }, "#" + tag));
export function facts(session) {
  const parts = [session.source, plural(session.message_count || 0, "message"), session.model, session.cwd && session.cwd.split("/").slice(-2).join("/"), session.cost ? money(session.cost) : null];
  const told = parts.filter(Boolean).flatMap(part => [make("bdi", {}, part), make("span", { className: "dot", ariaHidden: "true" }, "·")]).slice(0, -1);
  return make("div", { className: "facts" }, ...told, " ", ...tagged(session.tags));
}
export const name = session => session.title || session.preview || session.id;
function row(session, hits = []) {
  const head = make("div", { className: "line" },
    make("bdi", { className: "title" }, (session.pinned_at ? "★ " : "") + name(session)), time(session.last_active, "dim"));
  const open = make("a", { className: "row", href: link(session.id) }, head,
    session.title && session.preview && !hits.length ? make("div", { className: "preview dim" }, make("bdi", {}, session.preview)) : null, facts(session));
  if (session.archived_at) open.classList.add("archived");
  const more = hits.splice(FIRST), one = make("li", {}, open, ...hits);
  if (more.length) one.append(button(`${plural(more.length, "more hit")} here`, event => { event.target.replaceWith(...more); more[0].focus(); }, { className: "plain hits" }));
  return one;
}
function hit(session, found) {
  const one = make("a", { className: "hit", href: `${link(session.id)}#m${found.id}` });
  const text = make("bdi", {});
  text.innerHTML = found.html; // escaped by the server; the only tags are marks
  one.append(make("span", { className: "who " + found.role }, found.tool || found.role), " ", text);
  return one;
}

// ------------------------------------------------------------------------------------------------ what is shown
export function stopSearch() { asked++; request?.abort(); } // another page is opened: a late answer must not take its place
export async function show() {
  const wanted = filters(), mine = ++asked;
  if (document.activeElement !== query) query.value = wanted.q || "";
  drawChips(wanted);
  request?.abort();
  request = new AbortController();
  try {
    if (wanted.q) await search(wanted, mine); else await list(wanted, mine, 0);
  } catch (error) { if (error.name !== "AbortError") throw error; return; }
  if (mine === asked) refreshFacets().catch(() => {});
}
async function search(wanted, mine) {
  const started = performance.now(), lines = new Map(), list = make("ul", { className: "rows" });
  let hits = 0;
  const piece = async () => { // each piece brings conversations that are not there yet
    const params = new URLSearchParams(wanted);
    for (const id of lines.keys()) params.append("not", id);
    const told = await ask("/api/search?" + params, undefined, request.signal);
    if (mine !== asked) return null;
    for (const group of told.groups) {
      if (lines.has(group.session.id)) continue;
      hits += group.hits.length;
      const line = row(group.session, group.hits.map(one => hit(group.session, one)));
      lines.set(group.session.id, line);
      list.append(line);
    }
    return told;
  };
  const count = full => say(`${plural(hits, "hit")}${full ? " or more" : ""} in ${plural(lines.size, "conversation")} · ${took} ms`);
  let told = await piece();
  if (!told) return;
  const nothing = make("p", { className: "empty" }, "No messages match. ", Object.keys(wanted).length > 1 ? button("Search without filters", () => { history.pushState(null, "", address({ q: wanted.q })); show(); }) : "Fewer or other words may help; OR, \"phrases\" and word* are understood.");
  main.replaceChildren(make("h1", { className: "hidden" }, "Search results"), ...(told.note ? [make("p", { className: "empty" }, told.note)] : []), hits ? list : nothing);
  const took = Math.round(performance.now() - started);
  count(told.full);
  const more = async pieces => { // one conversation with many hits must not hide the others
    for (let number = 0; told?.full && number < pieces && (pieces === 1 || lines.size < ENOUGH); number++) told = await piece();
    main.querySelector("button.more")?.remove();
    if (!told) return;
    if (told.full) main.append(button("More conversations", () => more(1), { className: "more" }));
    count(told.full);
  };
  await more(PIECES);
}
async function list(wanted, mine, offset) {
  const told = await ask("/api/sessions?" + new URLSearchParams({ ...wanted, offset }), undefined, request.signal);
  if (mine !== asked) return;
  let rows = main.querySelector("ul.rows");
  if (!offset) {
    rows = make("ul", { className: "rows" });
    main.replaceChildren(make("h1", { className: "hidden" }, "Conversations"), rows);
    if (!told.sessions.length) main.append(Object.keys(wanted).length
      ? make("p", { className: "empty" }, "No conversations match these filters. ", button("Show all", () => { history.pushState(null, "", "/"); show(); }))
      : make("div", { className: "empty" }, make("p", {}, "No conversations yet."), owner ? make("p", {}, "Begin one with ", make("a", { href: "/new" }, "New"), " or ", make("code", {}, "hermes"), ", or bring your history with ", make("code", {}, "hermes sessions import --found"), ".") : null));
  }
  rows.append(...told.sessions.map(session => row(session)));
  main.querySelector("button.more")?.remove();
  if (told.more) {
    const more = button("More conversations", () => list(wanted, mine, offset + told.sessions.length), { className: "more" });
    main.append(more);
    new IntersectionObserver((seen, self) => { if (seen[0].isIntersecting) { self.disconnect(); if (more.isConnected) more.click(); } }, { rootMargin: "600px" }).observe(more);
  }
  say(offset || told.more ? plural(offset + told.sessions.length, "conversation") + (told.more ? " so far" : "") : plural(told.sessions.length, "conversation"));
}

// ------------------------------------------------------------------------------------------------ chips
async function refreshFacets() {
  facets = await ask("/api/facets");
  if (location.pathname === "/" && !chips.querySelector("details[open]") && !chips.contains(document.activeElement)) drawChips(filters());
}
function menu(title, ...inside) {
  const one = make("details", { className: "menu" }, make("summary", { className: "chip" }, title), make("div", { className: "choices" }, ...inside));
  one.addEventListener("toggle", () => { if (one.open) for (const other of chips.querySelectorAll("details[open]")) if (other !== one) other.open = false; });
  one.addEventListener("keydown", event => { if (event.key === "Escape") { event.stopPropagation(); one.open = false; one.querySelector("summary").focus(); } });
  return one;
}
function drawChips(wanted) {
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
  const back = days => { const then = new Date(Date.now() - days * 864e5); return `${then.getFullYear()}-${String(then.getMonth() + 1).padStart(2, "0")}-${String(then.getDate()).padStart(2, "0")}`; };
  const from = make("input", { type: "date", ariaLabel: "From" }), to = make("input", { type: "date", ariaLabel: "To" });
  const use = () => { const wanted = { ...filters(), since: from.value, until: to.value }; history.pushState(null, "", address(wanted)); show(); };
  return menu("Date", button("Today", () => change("since", back(0))), button("Last 7 days", () => change("since", back(6))), button("Last 30 days", () => change("since", back(29))),
    make("div", { className: "between" }, from, "–", to, button("Use", use)));
}

// ------------------------------------------------------------------------------------------------ typing, the trash
// The first letter is looked for at once; letters that are typed during a search, together after it.
let searching = false, again = false;
async function typed() {
  again = searching;
  if (searching) return;
  searching = true;
  try {
    do {
      again = false;
      const words = query.value.trim(), here = location.pathname === "/", wanted = here ? filters() : {};
      if (words) wanted.q = words; else { delete wanted.q; delete wanted.role; delete wanted.tool; }
      history[here ? "replaceState" : "pushState"](null, "", address(wanted));
      if (here) await show(); else dispatchEvent(new PopStateEvent("popstate"));
    } while (again);
  } catch (error) { say("Error: " + error.message); } finally { searching = false; }
}
query.addEventListener("input", typed);
document.getElementById("find").addEventListener("submit", event => event.preventDefault());

export async function showTrash() {
  chips.replaceChildren();
  const told = await ask("/api/trash");
  if (location.pathname !== "/trash") return;
  const rows = told.sessions.map(session => {
    const back = button("Restore", async () => { await ask("/api/do/restore/" + path(session.id), {}); await showTrash(); say("Restored.", 5); });
    return make("li", { className: "trashed" }, make("div", {}, make("bdi", { className: "title" }, session.title || session.id), make("div", { className: "dim" }, session.source, " · in the trash since ", time(session.trashed_at))), back);
  });
  main.replaceChildren(make("h1", {}, "Trash"), rows.length ? make("ul", { className: "rows" }, ...rows) : make("p", { className: "empty" }, "The trash is empty."));
  say(plural(rows.length, "conversation") + " in the trash");
}
