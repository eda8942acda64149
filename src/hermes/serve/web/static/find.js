// The list of conversations and the search that answers while one types. Both are live; what narrows them is in the address.
import { address, drawChips, filters, named, narrowTo, refreshFacets, setShow } from "./chips.js";
import { ask, button, chips, confirmed, failed, main, make, owner, path, plural, query, readOnly, say, time } from "./dom.js";
import { drawRows, facts, hit, name, row, sourceMark } from "./rows.js";
import { watch } from "./stream.js";

export { address, facts, filters, name };
const ENOUGH = 12, PIECES = 6; // conversations that are looked for, within so many pieces of hits
const TITLES = 5; // conversations found by their title that are shown at once
const MOST_RENEWED = 10; // pages of the list that are read again when it changes
let latest = 0, request = null;
let listed = { at: "/", sessions: [], known: false }; // what was listed last, for the list beside a conversation

export const lastList = () => listed;
export function stopSearch() { latest++; request?.abort(); } // another page is opened: a late answer must not take its place
export async function show() {
  const wanted = filters(), mine = ++latest;
  if (document.activeElement !== query) query.value = wanted.q || "";
  drawChips(wanted);
  document.body.dataset.at = wanted.q ? "search" : "list";
  request?.abort();
  request = new AbortController();
  try {
    if (wanted.q) await search(wanted, mine); else await list(wanted, mine);
  } catch (error) { if (error.name !== "AbortError") throw error; return; }
  if (mine === latest) setTimeout(() => refreshFacets().then(() => drawSuggested(filters()), () => {})); // after the rows
}
setShow(show);
const get = (where, params) => ask(`${where}?${new URLSearchParams(params)}`, undefined, request.signal);

// ------------------------------------------------------------------------------------------------ the list
async function list(wanted, mine) {
  const data = await get("/api/sessions", wanted);
  if (mine !== latest) return;
  const rows = make("ul", { className: "rows" }), state = { rows, wanted, sessions: data.sessions, next: data.next };
  const isNew = !data.sessions.length && !Object.keys(wanted).length;
  if (isNew) document.body.dataset.at = "welcome";
  main.replaceChildren(...(isNew ? [welcome()] : [make("h1", {}, heading(wanted)), rows]));
  if (!data.sessions.length && !isNew) main.append(nothingHere());
  draw(state, mine);
}
function heading(wanted) {
  return wanted.file ? "Conversations that changed a file" : wanted.archived ? "All conversations" : wanted.pinned ? "Pinned conversations" : "Conversations";
}
function draw(state, mine) {
  listed = { at: address(state.wanted), sessions: state.sessions, known: true };
  drawRows(state.rows, state.sessions);
  main.querySelector("button.more")?.remove();
  if (state.next !== null) {
    const more = button("More conversations", () => extend(state, mine), { className: "more" });
    main.append(more);
    new IntersectionObserver((seen, self) => { if (seen[0].isIntersecting) { self.disconnect(); if (more.isConnected) more.click(); } }, { rootMargin: "600px" }).observe(more);
  }
  say(state.sessions.length ? plural(state.sessions.length, "conversation") + (state.next === null ? "" : " so far") : "");
  current = { state, mine };
}
async function extend(state, mine) {
  const data = await get("/api/sessions", { ...state.wanted, offset: state.next });
  if (mine !== latest) return;
  const known = new Set(state.sessions.map(one => one.id));
  state.sessions = [...state.sessions, ...data.sessions.filter(one => !known.has(one.id))];
  state.next = data.next;
  draw(state, mine);
}
// The list changed, here or in another process: read again what is shown of it.
let current = null, renewing = false, again = false;
async function renewList() {
  if (!current || current.mine !== latest || document.hidden) return;
  again = renewing;
  if (renewing) return;
  renewing = true;
  try {
    do {
      again = false;
      const { state, mine } = current, found = new Map();
      let next = 0;
      for (let page = 0; next !== null && (page === 0 || found.size < state.sessions.length) && page < MOST_RENEWED; page++) {
        const data = await get("/api/sessions", { ...state.wanted, offset: next });
        for (const one of data.sessions) found.set(one.id, one);
        next = data.next;
      }
      if (mine !== latest) return;
      if (!state.sessions.length !== !found.size) return await show(); // the first one, or the last one gone
      state.sessions = [...found.values()];
      state.next = next;
      draw(state, mine);
    } while (again);
  } catch (error) { if (error.name !== "AbortError") failed(error); } finally { renewing = false; }
}
function nothingHere() {
  return make("div", { className: "empty" }, make("p", { className: "lead" }, "No conversations match these filters."), button("Show all", () => narrowTo({}), { className: "primary" }));
}
function welcome() {
  const way = (title, ...content) => make("li", {}, make("h3", {}, title), make("p", {}, ...content));
  const command = text => make("code", {}, text);
  return make("div", { className: "empty" }, make("h1", { className: "lead" }, "No conversations yet."), owner ? make("ul", { className: "ways" },
    readOnly ? null : way("Talk here", make("a", { href: "/new" }, "Begin a conversation"), " in this page, or press ", make("kbd", {}, "n"), "."),
    way("Talk in the terminal", "Type ", command("hermes"), " in any folder. The conversation appears here while you talk."),
    way("Bring your history", command("hermes sessions import --found"), " takes in what other programs on this machine have kept.")) : null);
}

// ------------------------------------------------------------------------------------------------ the search
async function search(wanted, mine) {
  const started = performance.now(), lines = new Map(), list = make("ul", { className: "rows" });
  const titles = get("/api/sessions", wanted); // at the same time as the first piece of hits
  let hits = 0;
  const piece = async () => { // each piece brings conversations that are not there yet
    const params = new URLSearchParams(wanted);
    for (const id of lines.keys()) params.append("not", id);
    const data = await get("/api/search", params);
    if (mine !== latest) return null;
    for (const group of data.groups) {
      if (lines.has(group.session.id)) continue;
      hits += group.hits.length;
      const line = row(group.session, group.hits.map(one => hit(group.session, one)));
      lines.set(group.session.id, { line, session: group.session, first: group.hits[0].id });
      list.append(line);
    }
    return data;
  };
  let [data, byTitle] = await Promise.all([piece(), wanted.role || wanted.tool ? { sessions: [] } : titles]);
  if (!data || mine !== latest) return;
  const took = Math.round(performance.now() - started);
  main.replaceChildren(make("h1", {}, "Results for ", make("q", {}, wanted.q)), ...titled(byTitle.sessions), make("div", { id: "suggested" }),
    ...(hits ? [make("h2", { className: "group" }, "Messages"), ...(data.note ? [make("p", { className: "dim" }, data.note)] : []), list] : byTitle.sessions.length ? [] : [nothingFound(wanted)]));
  drawSuggested(wanted);
  const finish = full => {
    say(`${byTitle.sessions.length ? plural(byTitle.sessions.length, "title") + " · " : ""}${plural(hits, "hit")}${full ? " or more" : ""} in ${plural(lines.size, "conversation")} · ${took} ms`);
    const found = [...lines.values()].map(one => ({ ...one.session, hit: one.first }));
    listed = { at: address(wanted), sessions: [...byTitle.sessions.filter(one => !lines.has(one.id)), ...found], known: true };
  };
  finish(data.full);
  const more = async pieces => { // one conversation with many hits must not hide the others; a letter typed meanwhile comes first
    for (let number = 0; data?.full && number < pieces && !typedMore && (pieces === 1 || lines.size < ENOUGH); number++) data = await piece();
    main.querySelector("button.more")?.remove();
    if (!data) return;
    if (data.full) main.append(button("More conversations", () => more(1), { className: "more" }));
    finish(data.full);
  };
  await more(PIECES);
}
function drawSuggested(wanted) { // tags and folders that are called so
  const box = document.getElementById("suggested"), found = wanted.q ? named(wanted.q).filter(([kind]) => !wanted[kind]) : [];
  if (!box) return;
  const links = found.map(([kind, value, number]) => make("a", { className: "chip", href: address({ [kind]: value }) },
    kind === "tag" ? "#" : "▸ ", make("bdi", {}, kind === "tag" ? value : value.split("/").slice(-2).join("/")), " ", make("span", { className: "dim" }, plural(number, "conversation"))));
  box.replaceChildren(...(links.length ? [make("h2", { className: "group" }, "Tags and folders"), make("div", { className: "suggested" }, ...links)] : []));
}
function titled(sessions) {
  if (!sessions.length) return [];
  const rows = sessions.map(session => row(session)), rest = rows.splice(TITLES);
  const list = make("ul", { className: "rows titled" }, ...rows);
  const more = rest.length ? [button(plural(rest.length, "more conversation"), event => { event.target.remove(); list.append(...rest); rest[0].querySelector("a").focus(); }, { className: "plain hits" })] : [];
  return [make("h2", { className: "group" }, "Conversations"), list, ...more];
}
function nothingFound(wanted) {
  const narrowed = Object.keys(wanted).length > 1;
  const tip = (...content) => make("li", {}, ...content), words = text => make("code", {}, text);
  return make("div", { className: "empty" }, make("p", { className: "lead" }, "No messages match."),
    narrowed ? make("p", {}, "Filters are on. ", button("Search without filters", () => narrowTo({ q: wanted.q }), { className: "primary" })) : null,
    make("ul", { className: "tips" },
      tip("Fewer words, or other ones: every word has to occur in a message."),
      tip(words("deploy*"), " finds words that begin so, ", words('"exact words"'), " a phrase."),
      tip(words("docker OR podman"), " finds either, ", words("python NOT java"), " leaves out."),
      tip("Titles, tags and folders are searched as well; what is in the ", owner ? make("a", { href: "/trash" }, "trash") : "trash", " is not.")));
}

// ------------------------------------------------------------------------------------------------ typing, live, the trash
// The first letter is looked for at once; letters that are typed during a search, together after it.
let searching = false, typedMore = false;
async function typed() {
  typedMore = searching;
  if (searching) return;
  searching = true;
  try {
    do {
      typedMore = false;
      const words = query.value.trim(), here = location.pathname === "/", wanted = here ? filters() : {};
      if (words) wanted.q = words; else { delete wanted.q; delete wanted.role; delete wanted.tool; }
      history[here ? "replaceState" : "pushState"](null, "", address(wanted));
      if (here) await show(); else dispatchEvent(new PopStateEvent("popstate"));
    } while (typedMore);
  } catch (error) { failed(error); } finally { searching = false; }
}
query.addEventListener("input", typed);
document.getElementById("find").addEventListener("submit", event => event.preventDefault());

const changed = new Set(); // called when the list changed
export function onListChange(tell) { changed.add(tell); }
function listChanged() { // at once as well: something may have come between the first answer and this
  if (location.pathname === "/" && !filters().q) renewList();
  if (location.pathname === "/trash") showTrash().catch(failed);
  for (const tell of changed) tell();
}
watch("list", listChanged);
document.addEventListener("visibilitychange", () => { if (!document.hidden) listChanged(); });

export async function showTrash() {
  chips.replaceChildren();
  const data = await ask("/api/trash");
  if (location.pathname !== "/trash") return;
  const rows = data.sessions.map(session => {
    const act = async action => { await ask(`/api/do/${action}/${path(session.id)}`, {}); await showTrash(); (main.querySelector(".trashed button") || main).focus(); };
    const back = button("Restore", async () => { await act("restore"); confirmed("Restored.", () => act("trash")); });
    const about = make("div", { className: "about" }, make("bdi", { className: "title" }, session.title || session.id), make("div", { className: "facts" }, session.source, " · in the trash since ", time(session.trashed_at)));
    return make("li", { className: "trashed" }, sourceMark(session.source), about, readOnly ? null : back);
  });
  const empty = make("div", { className: "empty" }, make("p", { className: "lead" }, "The trash is empty."), make("p", {}, "A conversation that you put in the trash can be restored from here."));
  main.replaceChildren(make("h1", {}, "Trash"), rows.length ? make("ul", { className: "rows" }, ...rows) : empty);
  say(plural(rows.length, "conversation") + " in the trash");
}
