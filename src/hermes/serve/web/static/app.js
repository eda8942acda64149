// The page: a list, a search that answers as you type, and conversations of which only what is seen is in the page.
"use strict";
const main = document.getElementById("main"), chips = document.getElementById("chips"), query = document.getElementById("query");
const status = document.getElementById("status"), readOnly = document.body.dataset.readOnly === "true";
const filters = {};
let live = null, asked = 0;

function make(tag, props = {}, ...inside) {
  const one = Object.assign(document.createElement(tag), props);
  for (const part of inside) if (part !== null && part !== undefined) one.append(part);
  return one;
}
async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, options);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error || answer.statusText);
  return told;
}
function when(seconds) {
  if (!seconds) return "";
  const then = new Date(seconds * 1000);
  return then.toDateString() === new Date().toDateString() ? then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : then.toLocaleDateString();
}
function plural(number, noun) { return `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`; }
function say(text) { status.textContent = text; }
function path(id) { return id.split("/").map(encodeURIComponent).join("/"); }

// ------------------------------------------------------------------------------------------------ the list
function facts(session) {
  const told = [session.source, plural(session.message_count || 0, "message"), when(session.last_active), session.model, ...(session.tags || []).map(tag => "#" + tag)];
  return make("div", { className: "facts" }, told.filter(Boolean).join(" · "));
}
function row(session, ...more) {
  const link = make("a", { className: "row", href: "/s/" + path(session.id) },
    make("div", { className: "title" }, (session.pinned_at ? "★ " : "") + (session.title || session.preview || session.id)),
    session.title && session.preview ? make("div", { className: "preview dim" }, session.preview) : null, facts(session));
  return make("div", {}, link, ...more);
}
async function showList(offset = 0) {
  const params = new URLSearchParams({ ...filters, offset });
  const told = await ask("/api/sessions?" + params);
  if (!offset) { main.replaceChildren(); drawChips(told.sources); }
  if (!offset && !told.sessions.length) main.append(make("p", { className: "dim" }, "No conversations yet. Talk with `hermes`, or bring your history with `hermes sessions import --found`."));
  for (const session of told.sessions) main.append(row(session));
  if (told.more) {
    const more = make("button", {}, "More");
    more.onclick = () => { more.remove(); showList(offset + told.sessions.length); };
    main.append(more);
  }
  say(offset ? "" : plural(Object.values(told.sources).reduce((a, b) => a + b, 0), "conversation"));
}
function drawChips(sources) {
  if (sources) drawChips.sources = sources;
  const told = Object.keys(drawChips.sources || {}).map(name => ["source", name]);
  for (const role of query.value ? ["user", "assistant", "tool"] : []) told.push(["role", role]);
  chips.replaceChildren(...told.map(([name, value]) => {
    const chip = make("button", { className: "chip", type: "button" }, value);
    chip.setAttribute("aria-pressed", filters[name] === value);
    chip.onclick = () => { if (filters[name] === value) delete filters[name]; else filters[name] = value; drawChips(); begin(); };
    return chip;
  }));
}

// ------------------------------------------------------------------------------------------------ search
async function search() {
  const mine = ++asked, words = query.value.trim();
  if (!words) return showList();
  const told = await ask("/api/search?" + new URLSearchParams({ ...filters, q: words }));
  if (mine !== asked) return;
  drawChips(told.sources);
  main.replaceChildren();
  for (const group of told.groups) {
    const hits = group.hits.map(hit => {
      const link = make("a", { className: "hit", href: `/s/${path(group.session.id)}#m${hit.id}` });
      link.innerHTML = hit.html; // escaped by the server; the only tags are marks
      link.prepend(make("span", { className: "dim" }, `${hit.role} · ${when(hit.at)}  `));
      return link;
    });
    main.append(row(group.session, ...hits));
  }
  if (!told.groups.length) main.append(make("p", { className: "dim" }, "No messages match."));
  say(`${plural(told.groups.length, "conversation")} in ${told.ms} ms`);
}
let waiting = 0;
query.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { history.replaceState(null, "", query.value ? "/?q=" + encodeURIComponent(query.value) : "/"); leave(); search().catch(fail); }, 60);
});
document.getElementById("find").addEventListener("submit", event => { event.preventDefault(); search().catch(fail); });

// ------------------------------------------------------------------------------------------------ a conversation
const WINDOW = 300; // messages that are in the page at once
let open = null;
function leave() { if (live) live.close(); live = null; open = null; }
function drawMessage(message) {
  const copy = make("button", { type: "button", title: "Copy a link to this message" }, "#" + message.id);
  copy.onclick = () => { location.hash = "m" + message.id; navigator.clipboard?.writeText(location.href); };
  const told = [when(message.at), message.model, message.tokens[1] ? message.tokens[1] + " tokens" : "", message.cost ? "$" + message.cost.toFixed(4) : ""];
  const one = make("article", { className: "message " + message.role, id: "m" + message.id },
    make("header", {}, make("span", { className: "who" }, message.role), make("span", {}, told.filter(Boolean).join(" · ")), copy));
  const body = make("div", {});
  body.innerHTML = message.html; // made by the server: everything in it is escaped
  for (const block of body.querySelectorAll("pre")) {
    const button = make("button", { type: "button" }, "Copy");
    button.onclick = () => { navigator.clipboard?.writeText(block.textContent); button.textContent = "Copied"; };
    const frame = make("div", { className: "code" });
    block.tabIndex = 0; block.replaceWith(frame); frame.append(block, button);
  }
  one.append(body);
  return one;
}
async function showSession(id) {
  leave();
  chips.replaceChildren();
  const [session, target] = [await ask("/api/session/" + path(id)), location.hash.match(/^#m(\d+)$/)];
  document.title = session.title || session.id;
  const list = make("section", { id: "messages" });
  open = { id, list, first: 0, last: 0, total: 0 };
  main.replaceChildren(head(session), make("div", { id: "before" }), list, make("div", { id: "after" }));
  await load(target ? { around: target[1] } : {}, "fresh");
  if (target) { const one = document.getElementById(target[0].slice(1)); one?.classList.add("target"); one?.scrollIntoView({ block: "center" }); }
  else window.scrollTo(0, document.body.scrollHeight);
  watch();
}
function head(session) {
  const actions = make("div", { className: "actions" });
  const button = (text, act) => { const one = make("button", { type: "button" }, text); one.onclick = () => act().catch(fail); actions.append(one); };
  button("Copy resume command", async () => { await navigator.clipboard?.writeText("hermes -r " + session.id); say("hermes -r " + session.id); });
  if (!readOnly) {
    const act = (name, body = {}) => ask(`/api/do/${name}/${path(session.id)}`, body);
    button("Rename", async () => { const title = prompt("Title", session.title || ""); if (title !== null) { await act("title", { title }); begin(); } });
    button("Tag", async () => { const tag = prompt("Tag"); if (tag) { await act("tag", { tag }); begin(); } });
    button(session.pinned_at ? "Unpin" : "Pin", async () => { await act(session.pinned_at ? "unpin" : "pin"); begin(); });
    button(session.archived_at ? "Unarchive" : "Archive", async () => { await act(session.archived_at ? "unarchive" : "archive"); begin(); });
    button("Branch", async () => { const made = await act("branch"); go("/s/" + path(made.done)); });
    button("Trash", async () => { if (confirm("Put this conversation in the trash?")) { await act("trash"); go("/"); } });
  }
  const lineage = make("div", { className: "dim" });
  if (session.previous) lineage.append(make("a", { href: "/s/" + path(session.previous) }, "← before the compression"), " ");
  if (session.part[1] > 1) lineage.append(`part ${session.part[0]} of ${session.part[1]} `);
  if (session.next) lineage.append(make("a", { href: "/s/" + path(session.next) }, "continued →"), " ");
  if (session.parent && session.parent !== session.previous) lineage.append(make("a", { href: "/s/" + path(session.parent) }, "branched from"));
  return make("div", { className: "head" }, make("h1", {}, session.title || session.preview || session.id), facts({ ...session, message_count: session.messages }), lineage, actions);
}
async function load(params, where) {
  const told = await ask(`/api/messages/${path(open.id)}?` + new URLSearchParams(params));
  const drawn = told.messages.map(drawMessage), end = told.from + drawn.length;
  open.total = told.total;
  if (where === "before") {
    const anchor = open.list.firstElementChild, top = anchor?.getBoundingClientRect().top;
    open.list.prepend(...drawn.slice(0, open.first - told.from)); open.first = told.from;
    while (open.list.childElementCount > WINDOW) { open.list.lastElementChild.remove(); open.last--; }
    if (anchor) window.scrollBy(0, anchor.getBoundingClientRect().top - top);
  } else if (where === "after") {
    open.list.append(...drawn.slice(Math.max(0, open.last - told.from))); open.last = Math.max(open.last, end);
    while (open.list.childElementCount > WINDOW) {
      const height = open.list.firstElementChild.offsetHeight; open.list.firstElementChild.remove(); open.first++; window.scrollBy(0, -height);
    }
  } else { open.list.replaceChildren(...drawn); open.first = told.from; open.last = end; }
  say(`${open.first + 1}–${open.last} of ${plural(open.total, "message")}`);
}
let busy = false;
addEventListener("scroll", async () => {
  if (!open || busy) return;
  busy = true;
  try {
    if (scrollY < 600 && open.first > 0) await load({ from: Math.max(0, open.first - 100) }, "before");
    else if (scrollY + innerHeight > document.body.scrollHeight - 600 && open.last < open.total) await load({ from: open.last }, "after");
  } catch (error) { fail(error); } finally { busy = false; }
}, { passive: true });
function watch() {
  live = new EventSource("/api/live/" + path(open.id));
  live.onmessage = async event => {
    if (!open || Number(event.data) <= open.total) return;
    const atEnd = open.last >= open.total, low = scrollY + innerHeight > document.body.scrollHeight - 200;
    open.total = Number(event.data);
    if (atEnd) { await load({ from: open.last }, "after"); if (low) scrollTo(0, document.body.scrollHeight); }
  };
}

// ------------------------------------------------------------------------------------------------ insights
async function showInsights() {
  leave(); chips.replaceChildren();
  const told = await ask("/api/insights?days=30");
  main.replaceChildren(make("h1", {}, "The last 30 days"));
  for (const [name, value] of Object.entries(told)) {
    if (Array.isArray(value) && value.length && typeof value[0] === "object") drawBars(name, value);
    else if (value && typeof value === "object" && !Array.isArray(value)) {
      const numbers = Object.entries(value).filter(([, one]) => typeof one === "number");
      if (numbers.length) drawBars(name, numbers.map(([key, count]) => ({ key, count })));
    }
  }
}
function drawBars(name, rows) {
  const label = Object.keys(rows[0]).find(key => typeof rows[0][key] === "string"), number = Object.keys(rows[0]).find(key => typeof rows[0][key] === "number");
  if (!label || !number) return;
  const most = Math.max(...rows.map(one => one[number] || 0), 1);
  main.append(make("h2", {}, name.replaceAll("_", " ")));
  for (const one of rows.slice(0, 30)) {
    const bar = make("i"); bar.style.width = (100 * (one[number] || 0)) / most + "%";
    main.append(make("div", { className: "bar" }, make("span", {}, String(one[label])), make("span", {}, bar), make("span", { className: "dim" }, (one[number] || 0).toLocaleString())));
  }
}

// ------------------------------------------------------------------------------------------------ where we are
function fail(error) { main.replaceChildren(make("p", { role: "alert" }, "Error: " + error.message)); }
function go(where) { history.pushState(null, "", where); begin(); }
function begin() {
  const at = decodeURIComponent(location.pathname);
  document.title = "Hermes Sessions";
  if (at.startsWith("/s/")) return showSession(at.slice(3)).catch(fail);
  if (at === "/insights") return showInsights().catch(fail);
  leave();
  query.value = new URLSearchParams(location.search).get("q") || query.value;
  return (query.value ? search() : showList()).catch(fail);
}
addEventListener("popstate", begin);
document.addEventListener("click", event => {
  const link = event.target.closest("a");
  if (!link || link.origin !== location.origin || event.ctrlKey || event.metaKey || link.target || link.pathname.startsWith("/attachment")) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault(); go(link.pathname + link.search + link.hash);
});
addEventListener("keydown", event => {
  const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "Escape") { if (typing && query.value) { query.value = ""; history.replaceState(null, "", "/"); begin(); } else if (!typing && location.pathname !== "/") history.back(); query.blur(); return; }
  if (typing && event.key !== "Enter") return;
  const rows = [...main.querySelectorAll(".row, .hit")], at = rows.findIndex(one => one.classList.contains("on"));
  if (event.key === "/") { event.preventDefault(); query.focus(); query.select(); }
  else if ((event.key === "j" || event.key === "k") && rows.length) {
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)))];
    rows[at]?.classList.remove("on"); next.classList.add("on"); next.focus(); next.scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && typing && rows.length) { event.preventDefault(); rows[0].focus(); rows[0].classList.add("on"); query.blur(); }
});
begin();
