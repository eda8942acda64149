// Above the messages of a conversation: its title, what can be done with it, its relatives, the files it changed; and the
// boxes that unfold messages that are not shown, a piece at a time.
import { ask, button, copy, count, link, make, path, plural, question, readOnly, say } from "./dom.js";
import { address, facts, name } from "./find.js";

// `act` has what the conversation offers: again(), branch(), close(), watch(), go(place).
export function head(session, act) {
  const change = (action, body = {}) => ask(`/api/do/${action}/${path(session.id)}`, body);
  return make("div", { className: "head" }, make("h1", { dir: "auto" }, (session.pinned_at ? "★ " : "") + name(session)),
    facts({ ...session, tags: [] }), tags(session, change, act), lineage(session), files(session), actions(session, change, act));
}

function tags(session, change, act) {
  const all = (session.tags || []).map(tag => make("span", { className: "tag" }, "#" + tag,
    readOnly ? null : button("×", async () => { await change("untag", { tag }); await act.again(); }, { ariaLabel: `Remove the tag ${tag}`, className: "plain" })));
  return all.length ? make("div", { className: "tags" }, ...all) : null;
}

function actions(session, change, act) {
  const done = async (action, body) => { await change(action, body); await act.again(); };
  async function rename() {
    const title = await question("Rename", { label: "Title", value: session.title || "" });
    if (title === null) return;
    await done("title", { title });
    say("Renamed.", 4);
  }
  async function tag() {
    const word = await question("Tag", { label: "Tag", value: "" });
    if (!word) return;
    await done("tag", { tag: word });
    say("Tagged.", 4);
  }
  const resume = "hermes -r " + (/^[\w.:@%+,=/][\w.:@%+,=/-]*$/.test(session.id) ? session.id : `'${session.id.replaceAll("'", "'\\''")}'`); // pasted into a shell
  const all = make("div", { className: "actions" }, button("Resume in terminal", () => copy(resume, `Copied: ${resume}`), { title: `Copies the command: ${resume}` }));
  if (!readOnly) all.append(
    button("Rename", rename),
    button("Tag", tag),
    button(session.pinned_at ? "Unpin" : "Pin", () => done(session.pinned_at ? "unpin" : "pin")),
    button(session.archived_at ? "Unarchive" : "Archive", () => done(session.archived_at ? "unarchive" : "archive")),
    button("Branch", act.branch, { title: "A new conversation that begins with this one" }));
  const forms = [["HTML", "html"], ["Markdown", "markdown"], ["JSON lines", "jsonl"]]
    .map(([text, form]) => make("a", { href: `/export/${form}/${path(session.id)}`, download: "" }, text));
  all.append(make("details", { className: "menu" }, make("summary", { className: "button" }, "Export"), make("div", { className: "choices" }, ...forms)));
  if (!readOnly) all.append(button("Trash", () => trash(change, act), { className: "danger" }));
  return all;
}
async function trash(change, act) {
  if (!await question("Put this conversation in the trash?", { text: "It can be restored from the trash.", ok: "Put in the trash" })) return;
  act.close(); // it would tell of a conversation that can't be read any more
  try { await change("trash"); } catch (error) { act.watch(); throw error; }
  act.go("/");
  say("In the trash.", 6);
}
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
  const told = [session.part[1] > 1 ? `Part ${session.part[0]} of ${session.part[1]}` : "", branches ? plural(branches, "branch").replace("branchs", "branches") : ""].filter(Boolean).join(" · ") || "Relatives";
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
  return make("div", { className: "lineage" }, make("details", {}, make("summary", {}, told), draw(null)), steps);
}
// A box whose messages are asked for when it is opened, a piece at a time.
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
      const told = await ask(`${address}?from=${next}`);
      note.before(...told.messages.map(message => draw(message)));
      next = told.from + told.messages.length;
      total = told.messages.length ? told.total : next;
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
