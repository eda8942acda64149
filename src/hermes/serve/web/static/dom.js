// What every part of the page uses: elements, requests, times, dialogs.
export const main = document.getElementById("main"), chips = document.getElementById("chips"), query = document.getElementById("query");
export const readOnly = document.body.dataset.readOnly === "true", owner = document.body.dataset.owner === "true";

export function make(tag, props = {}, ...inside) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name in one && name !== "list" && name !== "form") one[name] = value; else one.setAttribute(name, value);
  }
  for (const part of inside.flat()) if (part !== null && part !== undefined && part !== false) one.append(part);
  return one;
}
export function button(text, act, props = {}) {
  const one = make("button", { type: "button", ...props }, text);
  one.addEventListener("click", async event => { try { await act(event); } catch (error) { failed(error); } });
  return one;
}
export async function ask(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try { answer = await fetch(path, { ...options, signal }); }
  catch (error) { if (error.name === "AbortError") throw error; throw new Error("hermes web does not answer; is it still running?"); }
  const data = (answer.headers.get("content-type") || "").includes("json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw Object.assign(new Error(data.error || answer.statusText), { status: answer.status });
  return data;
}
// "14:05" today, "3 Mar, 14:05" this year, "3 Mar 2024, 14:05" before: a time stands beside every date.
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
export function when(seconds) {
  if (!seconds) return "";
  const then = new Date(seconds * 1000), now = new Date();
  const clock = [then.getHours(), then.getMinutes()].map(number => String(number).padStart(2, "0")).join(":");
  if (then.toDateString() === now.toDateString()) return clock;
  const year = then.getFullYear() === now.getFullYear() ? "" : ` ${then.getFullYear()}`;
  return `${then.getDate()} ${MONTHS[then.getMonth()]}${year}, ${clock}`;
}
export function time(seconds, className = "") {
  if (!seconds) return null;
  const then = new Date(seconds * 1000);
  if (isNaN(then)) return null; // a time that no calendar has
  return make("time", { dateTime: then.toISOString(), title: then.toLocaleString(), className }, when(seconds));
}
export const count = number => Number(number || 0).toLocaleString();
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const money = usd => usd === null || usd === undefined ? "" : "$" + (usd >= 1 ? usd.toFixed(2) : usd.toPrecision(2));
export const path = id => id.split("/").map(encodeURIComponent).join("/");
export const link = id => "/s/" + path(id);

// The page follows the end of a conversation until its reader moves up or opens something: what is read stays where it is.
let end = -1; // where the page last scrolled to; -1: its reader went elsewhere
const below = () => document.documentElement.scrollHeight - innerHeight - scrollY;
export function toEnd() { scrollTo(0, document.documentElement.scrollHeight); end = scrollY; }
export const atEnd = () => below() < 30 || (end >= 0 && scrollY >= end - 2);
export function stay() { end = -1; }
addEventListener("scroll", () => { if (scrollY < end - 2) stay(); }, { passive: true });
main.addEventListener("click", event => { if (event.target.closest("summary")) stay(); });

// The line of what is shown (how many, where); with `seconds`, what was done is confirmed for so long, and can be undone.
export function say(text, seconds = 0) {
  if (seconds) confirmed(text, null, seconds); else document.getElementById("status").textContent = text;
}
let quiet = 0;
const toast = document.getElementById("toast");
export function confirmed(text, undo = null, seconds = 8) {
  clearTimeout(quiet);
  const back = undo && button("Undo", () => { hush(); return undo(); }, { className: "undo", title: "Undo (u)" });
  liftToast();
  toast.replaceChildren(make("span", {}, text), ...(back ? [back] : []));
  const wait = () => { quiet = setTimeout(() => { if (toast.matches(":hover, :focus-within")) wait(); else hush(); }, seconds * 1000); };
  wait();
}
export function liftToast() { // above the prompt box and its questions
  const box = document.getElementById("talk")?.getBoundingClientRect(), isBelow = box && innerHeight - box.bottom > 90;
  toast.style.bottom = box && !isBelow ? `${innerHeight - box.top + 8}px` : "";
}
export function hush() { clearTimeout(quiet); toast.replaceChildren(); }
export function failed(error) { confirmed("Error: " + error.message, null, 12); }
export async function copy(text, message) {
  try { await navigator.clipboard.writeText(text); confirmed(message || "Copied.", null, 4); }
  catch { confirmed(text, null, 20); }
}

// A dialog that asks for one text. An error of `attempt` is shown beside the text, and the dialog stays.
export function question(title, { label = "", value = "", ok = "OK", attempt }) {
  const dialog = document.getElementById("ask"), input = document.getElementById("ask-value"), problem = document.getElementById("ask-problem");
  const complain = text => { problem.textContent = text; input.setAttribute("aria-invalid", text ? "true" : "false"); };
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-label").textContent = label;
  document.getElementById("ask-ok").textContent = ok;
  input.value = value;
  complain("");
  const before = document.activeElement; // it may be drawn again meanwhile
  const close = () => { dialog.close(); if (!before.isConnected) document.querySelector(`[data-act="${before.dataset.act}"]`)?.focus({ preventScroll: true }); };
  document.getElementById("ask-cancel").onclick = close;
  dialog.querySelector("form").onsubmit = async event => { // Enter in the field, too
    event.preventDefault();
    try { await attempt(input.value); close(); } catch (error) { complain(error.message); input.focus(); }
  };
  dialog.showModal();
  input.select();
}
