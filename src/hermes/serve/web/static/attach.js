// Files that go with the next message: chosen by a button, dropped on the page, or pasted.
import { button, make, plural } from "./dom.js";

let target = null; // the form that takes what is dropped, anywhere on the page
function dropping(event, over) {
  if (!target?.form.isConnected || !event.dataTransfer?.types.includes("Files")) return false;
  event.preventDefault(); // else the browser would leave the page and open the file
  target.form.classList.toggle("dropping", over);
  return true;
}
addEventListener("dragover", event => dropping(event, true));
addEventListener("dragleave", event => dropping(event, false));
addEventListener("drop", event => { if (dropping(event, false)) target.add(event.dataTransfer.files); });

// `box` takes what is pasted; `changed` is called when there are more or fewer files.
export function attachments(box, form, changed) {
  let files = [];
  const chosen = make("input", { type: "file", multiple: true, hidden: true });
  const list = make("ul", { className: "files", ariaLabel: "Files that go with the message" });
  const clip = button("Attach", () => chosen.click(), { className: "plain", title: "Attach files or pictures" });

  function draw() {
    list.replaceChildren(...files.map(file => make("li", {}, make("bdi", {}, file.name), " ", make("span", { className: "dim" }, size(file.size)),
      button("×", () => { files = files.filter(one => one !== file); draw(); }, { className: "plain", ariaLabel: `Remove ${file.name}` }))));
    changed();
  }
  function add(more) {
    files = [...files, ...more];
    draw();
  }
  chosen.addEventListener("change", () => { add(chosen.files); chosen.value = ""; box.focus(); });
  box.addEventListener("paste", event => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add(event.clipboardData.files);
  });
  target = { form, add };
  return {
    list, clip, chosen, add,
    count: () => files.length,
    take() { const taken = files; files = []; draw(); return taken; },
  };
}

export const encoded = files => Promise.all(files.map(async file => ({ name: file.name, type: file.type, data: await base64(file) })));
export const described = names => names.length ? `${plural(names.length, "file")}: ${names.join(", ")}` : "";

function base64(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(new Error(`${file.name} can't be read; attach it again`));
    reader.readAsDataURL(file);
  });
}
const size = bytes => bytes < 1000 ? plural(bytes, "byte") : bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
