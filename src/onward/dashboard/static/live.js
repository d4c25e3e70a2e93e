// Everything works without this. With it, pages are live, times are the reader's, and there are keys.
(() => {
  "use strict";
  const body = document.body, root = document.documentElement;

  // -- light and dark
  document.getElementById("theme")?.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("onward-theme", root.dataset.theme); } catch { /* private windows forget */ }
  });

  // -- small screens
  if (matchMedia("(max-width: 720px)").matches) for (const one of document.querySelectorAll("details[data-fold]")) one.open = false;

  const here = document.querySelector(".top nav [aria-current]");
  if (here) { const list = here.closest("nav"); list.scrollLeft = here.offsetLeft - list.offsetLeft - (list.clientWidth - here.offsetWidth) / 2; }

  // -- times
  const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const today = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  const words = (seconds) => {
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]]) {
      if (seconds < size) continue;
      const rest = { d: ["h", 3600], h: ["m", 60], m: ["s", 1] }[unit];
      const left = Math.floor((seconds % size) / rest[1]);
      return `${Math.floor(seconds / size)}${unit}${left ? ` ${left}${rest[0]}` : ""}`;
    }
    return `${Math.floor(seconds)}s`;
  };
  const stale = document.getElementById("stale");
  // While nothing new comes, times count from when the page was read: else a worker that lives would seem to die here.
  const now = () => { const taken = stale && !stale.hidden && document.querySelector("time[data-taken]"); return taken ? new Date(taken.dateTime) : Date.now(); };
  const tell = (within) => {
    for (const time of within.querySelectorAll("time[datetime]")) {
      const moment = new Date(time.dateTime);
      if (isNaN(moment)) continue;
      if ("ago" in time.dataset) {
        const seconds = (now() - moment) / 1000;
        time.title = whole.format(moment);
        time.textContent = seconds < 0 ? `in ${words(-seconds)}` : `${words(seconds)} ago`;
      } else if (!time.dataset.told) {
        time.dataset.told = "yes";
        time.title = time.dateTime;
        time.textContent = (moment.toDateString() === new Date().toDateString() ? today : whole).format(moment);
      }
    }
  };
  tell(document);
  setInterval(() => { if (!document.hidden) tell(document); }, 1000);

  // -- live parts
  const connection = document.getElementById("connection");
  const say = (text, state) => { if (connection && connection.textContent !== text) { connection.textContent = text; connection.dataset.state = state; } };
  // What is not new is said where it cannot be overlooked.
  const old = (text, since) => {
    say("Not up to date", "lost");
    if (!stale) return;
    const taken = document.querySelector("time[data-taken]");
    const told = `${text}${since ? ` First noticed at ${when(since)};` : ""}${taken ? ` ${since ? "w" : "W"}hat is shown was read at ${when(taken.dateTime)}.` : ""}`;
    if (stale.dataset.told === told) return;
    stale.dataset.told = told;
    const head = document.createElement("strong");
    head.textContent = "Not up to date.";
    stale.replaceChildren(head, ` ${told}`);
    stale.hidden = false;
    tell(document);
  };
  const fresh = (text) => { say(text, "live"); if (stale && !stale.hidden) { stale.hidden = true; delete stale.dataset.told; } };
  const when = (text) => { const moment = new Date(text); return (moment.toDateString() === new Date().toDateString() ? today : whole).format(moment); };
  const holds = (part) => part.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select");
  const selects = (part) => String(getSelection()) && part.contains(getSelection().anchorNode);
  // What came while somebody typed or selected in a part; until it is let go, the page is as old as it says.
  const held = new Map();
  let newest = null;
  const bring = (changed, at) => {
    if (at) newest = at;
    for (const [id, html] of Object.entries(changed)) held.set(id, html);
    for (const [id, html] of [...held]) {
      const part = document.getElementById(id);
      if (part && (holds(part) || selects(part))) continue;
      held.delete(id);
      if (part) replace(part, html);
    }
    if (held.size || !newest) return;
    for (const time of document.querySelectorAll("time[data-taken]")) { time.dateTime = newest; delete time.dataset.told; }
    tell(document);
  };
  setInterval(() => { if (held.size && !document.hidden) bring({}); }, 500);
  const replace = (part, html) => {
    const ticked = new Set([...part.querySelectorAll("input:checked")].map((box) => box.id));
    const opened = new Map([...part.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
    const scrolled = [...part.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
    const focused = part.contains(document.activeElement) ? where(document.activeElement) : null;
    const at = where(part.querySelector(".at"));
    const parsed = new DOMParser().parseFromString(html, "text/html");
    part.replaceChildren(...parsed.body.childNodes);
    for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.id);
    for (const one of part.querySelectorAll("details[id]")) if (opened.has(one.id)) one.open = opened.get(one.id);
    [...part.querySelectorAll(".scroll, pre")].forEach((one, n) => { if (scrolled[n]) [one.scrollLeft, one.scrollTop] = scrolled[n]; });
    if (at) find(part, at)?.closest("[data-row]")?.classList.add("at");
    if (focused) find(part, focused)?.focus();
    tell(part);
  };
  const where = (element) => element && (element.id ? `#${CSS.escape(element.id)}` : (element.href ? element : element.querySelector?.("a[href]"))?.getAttribute?.("href"));
  const find = (part, place) => place.startsWith("#") ? part.querySelector(place) : [...part.querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === place);

  const every = Math.max(Number(body.dataset.every) || 0, 1) * 1000;
  const parts = () => [...document.querySelectorAll("[data-live][id]")];
  let stream = null, polling = null, failures = 0;
  const stop = () => { stream?.close(); stream = null; clearTimeout(polling); polling = null; };
  const poll = async () => {
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.ok) {
        const found = parts().map((part) => page.getElementById(part.id)).filter(Boolean);
        bring(Object.fromEntries(found.map((part) => [part.id, part.innerHTML])), page.querySelector("time[data-taken]")?.dateTime);
        fresh("");
      } else old(page.querySelector("[data-words]")?.textContent || `The dashboard answered ${answer.status}.`, page.querySelector("time[data-since]")?.dateTime);
    } catch { old("The dashboard's server does not answer."); }
    polling = setTimeout(poll, every * 2);
  };
  const listen = () => {
    if (stream || polling || !parts().length || !body.dataset.every) return;
    if (!window.EventSource || failures > 3) { poll(); return; }
    stream = new EventSource(`${body.dataset.base}live?at=${encodeURIComponent(body.dataset.at)}`);
    stream.addEventListener("parts", (event) => {
      failures = 0;
      const told = JSON.parse(event.data);
      bring(told.parts, told.at);
      fresh(held.size ? "Held while you type or select" : "Live");
    });
    stream.addEventListener("refused", (event) => { failures = 0; const told = JSON.parse(event.data); old(told.words, told.since); });
    stream.addEventListener("error", () => {
      say("Not up to date: trying again.", "lost");
      failures += 1;
      if (failures > 1) old("The dashboard's server does not answer.");
      if (failures > 3 || stream?.readyState === 2) { stop(); polling = setTimeout(() => { polling = null; listen(); }, every * 2); }
    });
  };
  // A tab that nobody looks at asks for nothing.
  document.addEventListener("visibilitychange", () => { stop(); if (!document.hidden) { failures = 0; listen(); } });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", () => { if (!document.hidden) listen(); });

  // -- pages that could not be shown
  const retry = async () => {
    if (!document.hidden) try { if ((await fetch(location.href, { method: "HEAD" })).status !== 503) { location.reload(); return; } } catch { /* not yet */ }
    setTimeout(retry, 3000);
  };
  if (body.dataset.retries !== undefined) setTimeout(retry, 3000);

  // -- keys
  const dialog = document.getElementById("keys");
  document.getElementById("help")?.addEventListener("click", () => dialog?.showModal());
  const move = (step) => {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (!rows.length) return;
    const now = rows.findIndex((row) => row.classList.contains("at"));
    const row = rows[Math.min(Math.max(now < 0 ? 0 : now + step, 0), rows.length - 1)];
    rows.forEach((one) => one.classList.toggle("at", one === row));
    row.querySelector("a[href]")?.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog?.open) return;
    if (event.target.matches("input:not([type=checkbox]), textarea, select")) { if (event.key === "Escape") event.target.blur(); return; }
    const row = document.querySelector("[data-row].at");
    const keys = {
      "/": () => document.getElementById("search")?.focus(),
      "j": () => move(1), "k": () => move(-1),
      "x": () => row?.querySelector("input[type=checkbox]")?.click(),
      "?": () => dialog?.showModal(),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
})();
