// Above the messages: what a conversation is called, what is known of it, its relatives and files, and what can be done with it.
import { ask, button, confirmed, copy, count, link, make, path, plural, question, readOnly } from "./dom.js";
import { address } from "./chips.js";
import { facts, name, star } from "./rows.js";

// From read.js: `go` to another page, `branch`, which conversation is `shown`, and to `stop` and `watch` its changes.
let page = null;
export function setHead(other) { page = other; }

export function drawHead(session) {
  const tags = (session.tags || []).map(tag => make("span", { className: "tag" }, "#" + tag, readOnly ? null : button("×", () => changeTag(session, "untag", tag), { ariaLabel: `Remove the tag ${tag}`, className: "plain" })));
  const one = make("div", { className: "head" }, make("h1", { dir: "auto" }, star(session), name(session)),
    facts({ ...session, tags: [] }), tags.length ? make("div", { className: "tags" }, ...tags) : null, lineage(session), files(session), actions(session));
  one.dataset.key = JSON.stringify(session);
  return one;
}
// Reads the conversation again. What has the focus or is unfolded stays so.
export async function renewHead(id = page.shown()) {
  const data = await ask("/api/session/" + path(id));
  while (document.querySelector(".head:active")) await new Promise(requestAnimationFrame); // a button that is being pressed stays
  const now = document.querySelector(".head");
  if (page.shown() !== id || !now || now.dataset.key === JSON.stringify(data)) return;
  const drawn = drawHead(data), focused = now.contains(document.activeElement) ? document.activeElement.dataset.act : null;
  const folds = [...now.querySelectorAll("details")].map(fold => [fold.className, fold.open]);
  for (const fold of drawn.querySelectorAll("details")) fold.open = folds.some(([kind, open]) => open && kind === fold.className);
  const low = scrollY;
  now.replaceWith(drawn);
  if (focused) (drawn.querySelector(`[data-act="${focused}"]`) || drawn.querySelector("button")).focus({ preventScroll: true });
  if (scrollY !== low) scrollTo(0, low);
  document.title = name(data) + " · Hermes";
  page.changed(data);
}

// ------------------------------------------------------------------------------------------------ what can be done
async function act(session, action, body = {}) {
  const data = await ask(`/api/do/${action}/${path(session.id)}`, body);
  if (page.shown() === session.id && action !== "trash") await renewHead(session.id);
  return data;
}
async function changeTag(session, action, tag) {
  await act(session, action, { tag });
  confirmed(`${action === "tag" ? "Tagged" : "Removed the tag"} #${tag}.`, () => act(session, action === "tag" ? "untag" : "tag", { tag }));
}
function rename(session) {
  const before = session.title || "";
  question("Rename", { label: "Title", value: before, ok: "Rename", attempt: async title => {
    await act(session, "title", { title });
    confirmed(title ? "Renamed." : "Removed the title.", () => act(session, "title", { title: before }));
  } });
}
function tag(session) {
  question("Tag", { label: "Tag", ok: "Tag", attempt: async text => { if (text.trim()) await changeTag(session, "tag", text.trim()); } });
}
function toggle(session, on, [there, back], [did, undid]) { // pinned or not, archived or not
  const [action, reverse, text] = on ? [back, there, undid] : [there, back, did];
  return async () => { await act(session, action); confirmed(text, () => act(session, reverse)); };
}
async function trash(session) {
  page.stop(); // it would tell of a conversation that can't be read any more
  try { await act(session, "trash"); } catch (error) { page.watch(); throw error; }
  await page.go("/");
  confirmed("Put in the trash.", async () => { await act(session, "restore"); page.go(link(session.id)); });
}
function actions(session) {
  const box = make("div", { className: "actions" });
  const resume = "hermes -r " + (/^[\w.:@%+,=/][\w.:@%+,=/-]*$/.test(session.id) ? session.id : `'${session.id.replaceAll("'", "'\\''")}'`); // pasted into a shell
  const add = (key, text, does, props = {}) => { const made = button(text, does, props); made.dataset.act = key; box.append(made); };
  add("resume", "Resume in terminal", () => copy(resume, `Copied: ${resume}`), { title: `Copies the command: ${resume}` });
  if (!readOnly) {
    add("rename", "Rename", () => rename(session));
    add("tag", "Tag", () => tag(session));
    add("pin", session.pinned_at ? "Unpin" : "Pin", toggle(session, session.pinned_at, ["pin", "unpin"], ["Pinned: first in the list, and never pruned.", "No longer pinned."]));
    add("archive", session.archived_at ? "Unarchive" : "Archive", toggle(session, session.archived_at, ["archive", "unarchive"], ["Archived: out of the list, still found by a search.", "In the list again."]));
    add("branch", "Branch", () => page.branch(null), { title: "A new conversation that begins with this one" });
  }
  const forms = [["HTML", "html"], ["Markdown", "markdown"], ["JSON lines", "jsonl"]];
  box.append(make("details", { className: "menu export" }, make("summary", { className: "button" }, "Export"), make("div", { className: "choices" }, ...forms.map(([text, form]) => make("a", { href: `/export/${form}/${path(session.id)}`, download: "" }, text)))));
  if (!readOnly) add("trash", "Trash", () => trash(session), { className: "danger" });
  return box;
}

// ------------------------------------------------------------------------------------------------ files and relatives
function files(session) { // a file leads to the conversations that changed it, a number to its last change here
  if (!session.files.length) return null;
  const inside = session.cwd ? session.cwd.replace(/\/$/, "") + "/" : "";
  const lines = session.files.map(file => make("li", {},
    make("a", { href: address({ file: file.path }), title: `Conversations that changed ${file.path}` }, make("bdi", {}, inside && file.path.startsWith(inside) ? file.path.slice(inside.length) : file.path)), " ",
    make("a", { href: "#m" + file.message_id, className: "dim", ariaLabel: `Last change of ${file.path}` }, plural(file.changes, "change"))));
  return make("div", { className: "lineage" }, make("details", { className: "files" }, make("summary", {}, `Files changed (${count(session.files.length)})`), make("ul", {}, ...lines)));
}
function lineage(session) {
  if (session.family.length < 2 && session.part[1] < 2) return null;
  const branches = session.family.filter(one => one.kind === "branch").length;
  const heading = [session.part[1] > 1 ? `Part ${session.part[0]} of ${session.part[1]}` : "", branches ? plural(branches, "branch").replace("branchs", "branches") : ""].filter(Boolean).join(" · ") || "Relatives";
  const children = {};
  for (const one of session.family) (children[one.parent] ||= []).push(one);
  const draw = parent => make("ul", {}, ...(children[parent] || []).map(one => {
    const how = one.parent === null ? "" : one.kind === "branch" ? "branch: " : one.kind === "compression" || one.kind === null ? "continued: " : one.kind + ": ";
    const text = make("bdi", {}, name(one));
    const here = one.id === session.id ? make("strong", { ariaCurrent: "page" }, how, text) : make("a", { href: link(one.id) }, how, text);
    return make("li", {}, here, make("span", { className: "dim" }, ` ${plural(one.messages, "message")}`), children[one.id] ? draw(one.id) : null);
  }));
  const steps = make("span", { className: "steps" });
  if (session.previous) steps.append(make("a", { href: link(session.previous), rel: "prev" }, "← Previous part"));
  if (session.next) steps.append(make("a", { href: link(session.next), rel: "next" }, "Next part →"));
  if (session.parent && session.parent !== session.previous) steps.append(make("a", { href: link(session.parent) }, "↑ Branched from"));
  return make("div", { className: "lineage" }, make("details", { className: "relatives" }, make("summary", {}, heading), draw(null)), steps);
}
// A box whose messages are loaded when it is opened, a piece at a time.
export function unfolding(text, address, draw, className) {
  const box = make("details", { className }, make("summary", {}, text)), inside = make("div", {});
  const note = make("p", { className: "dim", role: "status" });
  let loading = false, next = 0, total = 1;
  const more = async () => { // one piece at a time, however often the box is opened and closed meanwhile
    if (loading) return;
    loading = true;
    inside.querySelector("button.more")?.remove();
    note.textContent = "Loading…";
    let failed = "";
    try {
      const data = await ask(`${address}?from=${next}`);
      note.before(...data.messages.map(message => draw(message)));
      next = data.from + data.messages.length;
      total = data.messages.length ? data.total : next;
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
