// The sums as plots (SVG, drawn here), each with its numbers as a table.
import { ask, chips, count, link, main, make, money, plural, say } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
function svg(tag, attributes, ...inside) {
  const one = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.append(...inside);
  return one;
}
const tip = text => { const one = svg("title", {}); one.textContent = text; return one; };
const short = number => number >= 1e9 ? (number / 1e9).toFixed(1) + "G" : number >= 1e6 ? (number / 1e6).toFixed(1) + "M" : number >= 1e4 ? Math.round(number / 1e3) + "K" : count(number);
const sum = tokens => tokens.input + tokens.output + tokens.cache_read + tokens.cache_write;

function table(heads, rows) {
  return make("details", {}, make("summary", {}, "Table"), make("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: "Table" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map(head => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map((cell, at) => make(at ? "td" : "th", at ? {} : { scope: "row" }, cell))))))));
}
function figure(title, plot, heads, rows) {
  return make("figure", {}, make("figcaption", {}, make("h2", {}, title)), plot, table(heads, rows));
}
// Columns side by side: one for each day.
function columns(title, values, format) {
  const width = 420, height = 110, most = Math.max(...values.map(([, value]) => value), 0), step = width / Math.max(values.length, 1);
  const one = svg("svg", { viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": `${title} by day, at most ${format(most)}`, class: "plot" });
  one.append(svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "axis" }));
  values.forEach(([day, value], at) => {
    const tall = most ? Math.max(value ? 2 : 0, (value / most) * (height - 14)) : 0;
    one.append(svg("rect", { x: at * step + step * 0.1, y: height - tall, width: Math.max(step * 0.8, 0.5), height: tall, rx: Math.min(2, step / 4), class: "mark" }, tip(`${day}: ${format(value)}`)));
  });
  const text = (x, anchor, words, y = height + 14) => { const made = svg("text", { x, y, "text-anchor": anchor, class: "label" }); made.textContent = words; return made; };
  if (values.length) one.append(text(0, "start", values[0][0]), text(width, "end", values[values.length - 1][0]), text(width, "end", format(most), 11));
  return one;
}
// Bars below each other: one for each name.
function bars(values, format) {
  const most = Math.max(...values.map(([, value]) => value), 0), rows = values.map(([name, value, href]) => {
    const bar = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "bar", "aria-hidden": "true" }, svg("rect", { x: 0, y: 0, width: most ? Math.max(value ? 0.5 : 0, (value / most) * 100) : 0, height: 10, class: "mark" }));
    return make("li", {}, href ? make("a", { href, className: "name" }, make("bdi", {}, name)) : make("bdi", { className: "name", title: name }, name), bar, make("span", { className: "value" }, format(value)));
  });
  return make("ul", { className: "bars" }, ...rows);
}
function heat(grid) {
  const most = Math.max(...grid.flat(), 0), cell = 16, left = 34, one = svg("svg", { viewBox: `0 0 ${left + 24 * cell} ${7 * cell + 18}`, role: "img", "aria-label": "Messages by weekday and hour", class: "plot" });
  const text = (x, y, words, anchor = "end") => { const made = svg("text", { x, y, class: "label", "text-anchor": anchor }); made.textContent = words; return made; };
  grid.forEach((row, day) => {
    one.append(text(left - 6, day * cell + 12, DAYS[day]));
    row.forEach((value, hour) => one.append(svg("rect", { x: left + hour * cell + 1, y: day * cell + 1, width: cell - 2, height: cell - 2, rx: 2, class: value ? "mark" : "none", "fill-opacity": value ? 0.15 + 0.85 * (value / most) : 1 }, tip(`${DAYS[day]} ${String(hour).padStart(2, "0")}:00: ${plural(value, "message")}`))));
  });
  for (const hour of [0, 6, 12, 18]) one.append(text(left + hour * cell + 2, 7 * cell + 14, String(hour).padStart(2, "0"), "start"));
  return one;
}
const MOST = 12; // bars of a plot; the last one is all others together
const named = (rows, of) => [...rows.slice(0, rows.length > MOST ? MOST - 1 : MOST).map(of),
  ...(rows.length > MOST ? [[`${count(rows.length - MOST + 1)} more`, rows.slice(MOST - 1).map(of).reduce((all, [, value]) => all + value, 0)]] : [])];
const LONGEST = 400; // the longest period that is shown from its first day on, also if that has no messages
function everyDay(data, days) { // days without messages are days, too
  const found = [], known = data.usage_by_day, names = Object.keys(known);
  if (!names.length) return found;
  const first = days > LONGEST ? names[0] : data.local[0].slice(0, 10), last = data.local[1].slice(0, 10);
  for (let at = Date.parse(first), end = Date.parse(last); at <= end; at += 864e5) { // dates alone are UTC here
    const name = new Date(at).toISOString().slice(0, 10);
    found.push([name, known[name] || { messages: 0, tokens: 0, cost_usd: null }]);
  }
  return found;
}
function moment(seconds, zone) { // as the record's owner has it, not the browser
  const form = { dateStyle: "medium", timeStyle: "short" };
  try { return new Intl.DateTimeFormat([], { ...form, timeZone: zone }).format(seconds * 1000); }
  catch { return new Intl.DateTimeFormat([], form).format(seconds * 1000); } // a zone that the browser does not know
}
export async function showInsights() {
  chips.replaceChildren();
  const days = Number(new URLSearchParams(location.search).get("days")) || 30;
  const here = location.href, data = await ask("/api/insights?days=" + days), usage = everyDay(data, days);
  if (location.href !== here) return; // another page was opened meanwhile
  const periods = make("nav", { className: "periods", ariaLabel: "Period" }, ...[7, 30, 90, 365].map(one => make("a", { href: "/insights?days=" + one, className: "chip" + (one === days ? " on" : ""), ...(one === days ? { ariaCurrent: "page" } : {}) }, one === 365 ? "A year" : plural(one, "day"))),
    make("a", { className: "json", href: "/api/insights?days=" + days, title: `hermes insights --days ${days} --json`, download: `insights-${days}.json` }, "JSON"));
  const number = (value, name) => make("div", { className: "number" }, make("strong", {}, value), make("span", { className: "dim" }, name));
  const totals = make("div", { className: "numbers" }, number(count(data.conversations), "conversations"), ...(data.automated_runs ? [number(count(data.automated_runs), "automated runs")] : []), number(count(data.messages), "messages"), number(count(data.tool_calls), "tool calls"), number(short(sum(data.tokens)), "tokens"), number(money(data.cost.usd) || "—", data.cost.unknown_sessions ? `cost, without ${plural(data.cost.unknown_sessions, "session")} of unknown price` : "cost"), number(count(data.streaks.current), "days in a row"));
  const [from, to] = data.local.map(one => one.slice(0, 16).replace("T", " ")), span = make("p", { className: "dim" }, `${from} to ${to}, ${data.timezone}`);
  main.replaceChildren(make("h1", {}, "Insights"), periods, span, totals);
  if (!data.sessions) { main.append(make("p", { className: "empty" }, "No conversations in this time.")); say(""); return; }
  const plots = make("div", { className: "plots" });
  const daily = (title, key, show, exact = show) => figure(title, columns(title, usage.map(([day, used]) => [day, used[key] || 0]), show), ["Day", title], usage.map(([day, used]) => [day, exact(used[key] || 0)]));
  const known = key => usage.some(([, used]) => used[key]); // many histories have neither tokens nor prices
  plots.append(daily("Messages", "messages", count));
  if (known("tokens")) plots.append(daily("Tokens", "tokens", short, count));
  if (known("cost_usd")) plots.append(daily("Cost", "cost_usd", value => money(value) || "$0"));
  const counted = data.by_model.some(one => sum(one.tokens)); // without tokens, the number of replies
  const models = data.by_model.map(one => [one.model || "(no model recorded)", counted ? sum(one.tokens) : one.replies, one]);
  if (models.length) plots.append(figure(counted ? "Models, by tokens" : "Models, by replies", bars(named(models, ([name, value]) => [name, value]), short), ["Model", "Replies", "Tokens", "Cost"], models.map(([name, , one]) => [name, count(one.replies), count(sum(one.tokens)), money(one.cost_usd) || "—"])));
  const sources = data.by_source.toSorted((one, other) => other.messages - one.messages);
  plots.append(figure("Sources, by messages", bars(named(sources, one => [one.source, one.messages]), count), ["Source", "Conversations", "Automated runs", "Messages", "Tokens", "Cost"], sources.map(one => [one.source, count(one.conversations), count(one.automated_runs), count(one.messages), count(sum(one.tokens)), money(one.cost_usd) || "—"])));
  plots.append(figure("Hours and weekdays", heat(data.by_weekday_hour), ["", ...Array.from({ length: 24 }, (_, hour) => String(hour).padStart(2, "0"))], data.by_weekday_hour.map((row, day) => [DAYS[day], ...row.map(count)])));
  if (data.by_tool.length) plots.append(figure("Tools, by calls", bars(named(data.by_tool, one => [one.tool, one.calls]), count), ["Tool", "Calls", "Sessions"], data.by_tool.map(one => [one.tool, count(one.calls), count(one.sessions)])));
  if (data.longest.length) plots.append(figure("Longest conversations", bars(data.longest.map(one => [one.title || one.preview || one.id, one.messages, link(one.id)]), count), ["Conversation", "Last message", "Messages", "Cost"], data.longest.map(one => [one.title || one.preview || one.id, moment(one.last_active, data.timezone), count(one.messages), money(one.cost_usd) || "—"])));
  main.append(plots);
  say(`The last ${plural(days, "day")}`);
}
