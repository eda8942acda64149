// What was typed and not sent, by conversation: it survives leaving the page. Kept by this browser alone.
const PREFIX = "hermes draft ";
const spare = new Map(); // where the browser keeps nothing (a private window, a full disk)
const key = id => PREFIX + (id || "new conversation");

export function draft(id) {
  try { return localStorage.getItem(key(id)) ?? spare.get(id) ?? ""; } catch { return spare.get(id) ?? ""; }
}
export function keepDraft(id, text) {
  spare.delete(id);
  try {
    if (text) localStorage.setItem(key(id), text); else localStorage.removeItem(key(id));
  } catch { if (text) spare.set(id, text); }
}
