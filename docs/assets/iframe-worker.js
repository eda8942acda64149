// The search runs in a worker, and browsers start none for a page that was opened from the disk: there a hidden frame
// runs the worker's script. (The theme would load a library for it from another server.)
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<!doctype html><script src="${new URL(address, location)}"></script>`;
      this.inside = new Promise((ready) => {
        frame.onload = () => {
          frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          ready(frame.contentWindow);
        };
      });
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.inside.then((window) => window.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
