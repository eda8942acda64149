// One connection to the server for all tabs of a browser: a browser has no more than six, and as many tabs would use them up.
// This runs as a shared worker; where a browser has none, in each tab (stream.js). A tab says what it watches ("list",
// "session=ID", "turn=ID") and receives its news: a state, or the events of a turn; null: there is no such thing.
const watchers = []; // {port, topic, seen}: what a tab watches, and the state, or the number of events, that it received last
let source = null, open = "", planned = 0;

function address() {
  const topics = [...new Set(watchers.map(one => one.topic))];
  return topics.map(topic => topic.replace(/=(.*)$/s, (_, id) => "=" + encodeURIComponent(id))).join("&");
}
function connect() {
  planned = 0;
  const wanted = address();
  if (wanted === open && source && source.readyState !== EventSource.CLOSED) return;
  source?.close();
  source = null;
  open = wanted;
  if (!wanted) return;
  const mine = source = new EventSource("/api/events?" + wanted);
  mine.onmessage = message => {
    const { topic, news } = JSON.parse(message.data);
    for (const one of watchers.filter(other => other.topic === topic)) tell(one, news);
  };
  mine.onerror = () => { if (mine.readyState === EventSource.CLOSED) plan(5000); }; // refused; otherwise the browser tries again
}
// A connection that is made again tells states and turns from the beginning: what a tab has had is left out.
function tell(one, news) {
  if (Array.isArray(news)) {
    const fresh = news.filter(event => event.n === undefined || event.n >= one.seen); // without a number: always new
    for (const event of news) if (event.n >= one.seen) one.seen = event.n + 1;
    if (fresh.length) one.port.postMessage({ topic: one.topic, news: fresh });
  } else if (one.seen !== news || news === null) {
    one.seen = news;
    one.port.postMessage({ topic: one.topic, news });
  }
}
function plan(milliseconds) {
  clearTimeout(planned);
  planned = setTimeout(connect, milliseconds);
}
function forget(port, topic) {
  for (let at = watchers.length - 1; at >= 0; at--) if (watchers[at].port === port && (!topic || watchers[at].topic === topic)) watchers.splice(at, 1);
}
export function join(port) {
  port.onmessage = ({ data: { watch, leave } }) => {
    forget(port, watch || leave);
    if (watch) watchers.push({ port, topic: watch, seen: watch.startsWith("turn=") ? 0 : undefined });
    if (watch) open = ""; // also what is watched already: its state goes to the tab that asks
    plan(watch || !watchers.length ? 0 : 2000); // an unwatched topic may stay in the stream for a moment
  };
  port.start?.();
}
if ("onconnect" in self) self.onconnect = event => join(event.ports[0]);
