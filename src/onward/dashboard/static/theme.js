// Before anything is drawn: what the reader chose, and that there are scripts.
(() => {
  "use strict";
  const root = document.documentElement;
  root.dataset.script = "yes";
  try {
    const chosen = localStorage.getItem("onward-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch { /* private windows forget */ }
})();
