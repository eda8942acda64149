// What happens on the server, as this tab wants to know it: the list, a conversation, a turn. hub.js has the connection.
import { join } from "./hub.js";

const listeners = new Map(); // topic → the functions called with its news
let port = null;
function hub() {
  if (port) return port;
  if (self.SharedWorker) port = new SharedWorker("/static/hub.js", { type: "module", name: "hermes" }).port;
  else { const channel = new MessageChannel(); port = channel.port1; join(channel.port2); }
  port.onmessage = ({ data: { topic, news } }) => { for (const tell of [...(listeners.get(topic) || [])]) tell(news); };
  return port;
}
// Calls `tell` with the state of a thing at once and after each change (a turn: with its events); null: there is no such thing.
export function watch(topic, tell) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(tell);
  hub().postMessage({ watch: topic });
  return { close() {
    if (!listeners.get(topic)?.delete(tell) || listeners.get(topic).size) return;
    listeners.delete(topic);
    hub().postMessage({ leave: topic });
  } };
}
addEventListener("pagehide", () => port?.postMessage({ leave: "" }));
addEventListener("pageshow", event => { if (event.persisted) for (const topic of listeners.keys()) hub().postMessage({ watch: topic }); });
