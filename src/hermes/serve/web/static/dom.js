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
  one.addEventListener("click", async event => { try { await act(event); } catch (error) { say("Error: " + error.message); } });
  return one;
}
export async function ask(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try { answer = await fetch(path, { ...options, signal }); }
  catch (error) { if (error.name === "AbortError") throw error; throw new Error("hermes web does not answer; is it still running?"); }
  const told = (answer.headers.get("content-type") || "").includes("json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(told.error || answer.statusText);
  return told;
}
export function when(seconds) {
  if (!seconds) return "";
  const then = new Date(seconds * 1000), now = new Date();
  if (then.toDateString() === now.toDateString()) return then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const year = then.getFullYear() === now.getFullYear() ? {} : { year: "numeric" };
  return then.toLocaleDateString([], { day: "numeric", month: "short", ...year });
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

let quiet = 0;
export function say(text, seconds = 0) {
  const status = document.getElementById("status");
  clearTimeout(quiet);
  status.textContent = text;
  if (seconds) quiet = setTimeout(() => { status.textContent = ""; }, seconds * 1000);
}
export async function copy(text, told) {
  try { await navigator.clipboard.writeText(text); say(told || "Copied.", 4); }
  catch { say(text); }
}

// One question in a dialog: with `value` a text is asked for (null: cancelled), without it yes or no.
export function question(title, { text = "", label = "", value, ok = "OK" } = {}) {
  const dialog = document.getElementById("ask"), input = document.getElementById("ask-value"), wants = value !== undefined;
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-text").textContent = text;
  document.getElementById("ask-label").textContent = label;
  document.getElementById("ask-ok").textContent = ok;
  document.getElementById("ask-label").hidden = input.hidden = !wants;
  input.value = value || "";
  dialog.returnValue = "";
  dialog.showModal();
  if (wants) input.select();
  return new Promise(done => dialog.addEventListener("close", () => {
    const yes = dialog.returnValue === "ok";
    done(wants ? (yes ? input.value : null) : yes);
  }, { once: true }));
}
// In a dialog, Enter in the field means OK.
document.getElementById("ask-value").addEventListener("keydown", event => {
  if (event.key === "Enter") { event.preventDefault(); document.getElementById("ask").close("ok"); }
});
