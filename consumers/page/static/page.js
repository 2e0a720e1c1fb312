// The live part of a page: one event stream while the tab is seen, its snapshots morphed in; charts beside it.
"use strict";
(() => {
  const view = document.getElementById("view");
  let source = null, lastId = "";
  const path = () => location.pathname + location.search;
  function open() {
    if (source || document.hidden || !("live" in view.dataset)) return;
    const after = lastId ? "&after=" + encodeURIComponent(lastId) : "";
    source = new EventSource("/events?of=" + encodeURIComponent(path()) + after);
    source.addEventListener("view", (event) => {
      lastId = event.lastEventId;
      Idiomorph.morph(view, event.data, { morphStyle: "innerHTML" });
    });
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); }
    };
  }
  function close() { if (source) { source.close(); source = null; } }
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  open();
})();
