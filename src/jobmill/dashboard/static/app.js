// Jobmill dashboard: theme, zone, live updates, keys, selection, dialogs, copy.
(() => {
  const root = document.documentElement, store = window.localStorage;
  const $ = (q, el = document) => el.querySelector(q), $$ = (q, el = document) => [...el.querySelectorAll(q)];
  const theme = store.getItem("theme");
  if (theme) root.dataset.theme = theme; // before the first paint: this script is not deferred

  // The server writes times in the zone of the visitor: it learns it from a cookie.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && !document.cookie.includes("jobmill_zone=" + zone)) {
    document.cookie = "jobmill_zone=" + zone + ";path=/;max-age=31536000;samesite=strict";
    if (document.cookie.includes("jobmill_zone=" + zone)) location.replace(location);
  }

  function toggleTheme() {
    const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    store.setItem("theme", root.dataset.theme = dark ? "light" : "dark");
  }
  let paused = store.getItem("live") === "off", last = 0, again;
  function showLive() {
    for (const b of $$(".live")) {
      b.setAttribute("aria-pressed", paused);
      b.textContent = paused ? "Paused" : "Live";
    }
  }
  function toggleLive() {
    store.setItem("live", (paused = !paused) ? "off" : "on");
    showLive();
    if (!paused) refresh();
  }
  // What the visitor is doing stays: an open dialog, a selected text, a field.
  const writes = e => /^(INPUT|TEXTAREA|SELECT)$/.test(e?.tagName) && e.type !== "checkbox";
  const busy = () => paused || $("dialog[open]") || !getSelection().isCollapsed || writes(document.activeElement);
  function refresh() {
    clearTimeout(again);
    const wait = last + 900 - Date.now();
    if (wait > 0) { again = setTimeout(refresh, wait); return; }
    last = Date.now();
    if (!busy()) htmx.trigger("#main", "refresh");
  }
  htmx.registerExtension("jobmill", {
    // What the visitor has opened, ticked or written stays as it is.
    htmx_before_morph_attr: (el, d) => !(d.attrName === "open" || d.attrName === "hidden" && el.id === "stale" || /^(checked|value)$/.test(d.attrName) && el.matches("input") || d.attrName === "aria-pressed"),
    htmx_before_morph_node: (el, d) => !el.matches?.("form:not(.inline)"),
  });

  const rows = () => $$("tbody[data-rows] tr, ul[data-rows] > li");
  let prefix = false;
  function move(step) {
    const all = rows(), at = all.findIndex(r => r.contains(document.activeElement));
    const next = all[Math.min(all.length - 1, Math.max(0, at + step))];
    if (next) $("a.name, a", next)?.focus();
  }
  const row = () => rows().find(r => r.contains(document.activeElement)), press = k => $("[data-key=" + k + "]:not([hidden] *)")?.click();

  document.addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey || store.getItem("keys") === "off") return;
    if ($("dialog[open]") || writes(e.target)) return;
    const k = e.key;
    if (prefix) { prefix = false; $("[data-go='" + CSS.escape(k) + "']")?.click(); return; }
    const act = {
      g: () => { prefix = true; setTimeout(() => prefix = false, 1500); },
      "/": () => $("[type=search]")?.focus(), j: () => move(1), k: () => move(-1),
      x: () => row() && $("[type=checkbox]", row())?.click(), l: toggleLive, t: toggleTheme, "?": () => $("#keys").showModal(),
      R: () => press("R"), C: () => press("C"), D: () => press("D"),
    }[k];
    if (act) { e.preventDefault(); act(); }
  });

  function count() {
    const bulk = $(".bulk"), all = $("#all"); if (!bulk || !all) return;
    const boxes = $$("td [type=checkbox]"), n = boxes.filter(b => b.checked).length;
    all.checked = n > 0 && n === boxes.length; all.indeterminate = n > 0 && n < boxes.length;
    bulk.hidden = !n;
    $("[data-n]").textContent = n === 1 ? "1 job selected" : n + " jobs selected";
  }

  document.addEventListener("DOMContentLoaded", () => {
    count(); showLive();
    const tab = $(".tabs [aria-current]"); if (tab) tab.parentNode.scrollLeft = tab.offsetLeft - 150;
    const keys = $("#keys-on"); if (keys) keys.checked = store.getItem("keys") !== "off";
    const body = document.body, stale = on => { const s = $("#stale"); if (s) s.hidden = !on; };
    for (const topic of ["second", "queues", "workers", "slow"])
      body.addEventListener(topic, () => { stale(false); if ($("#main")?.dataset.live?.split(" ").includes(topic)) refresh(); });
    body.addEventListener("down", () => stale(true));
    body.addEventListener("htmx:sse:error", () => stale(true));
    body.addEventListener("htmx:before:request", e => { if (e.target.id === "main" && busy()) e.preventDefault(); });
    body.addEventListener("htmx:after:swap", () => { count(); showLive(); const d = $("#dialog"); if (d.childElementCount && !d.open) d.showModal(); });
    $("#dialog")?.addEventListener("close", e => e.target.replaceChildren());
    document.addEventListener("change", e => {
      if (e.target.id === "all") $$("td [type=checkbox]").forEach(b => b.checked = e.target.checked);
      if (e.target.id === "keys-on") store.setItem("keys", e.target.checked ? "on" : "off");
      count();
    });
    document.addEventListener("click", async e => {
      const b = e.target.closest("button"); if (!b) return;
      const d = b.dataset;
      if (d.open) $("#" + d.open).showModal();
      if (d.do === "theme") toggleTheme();
      if (d.do === "live") toggleLive();
      if (d.do === "close") { e.preventDefault(); b.closest("dialog")?.close(); if (!b.closest("dialog")) history.back(); }
      if (d.do === "clear") { e.preventDefault(); $$("td [type=checkbox]").forEach(x => x.checked = false); count(); }
      if (d.copy) {
        const from = $("#" + d.copy);
        try { await navigator.clipboard.writeText(from.textContent); b.textContent = "Copied"; }
        catch { getSelection().selectAllChildren(from); b.textContent = "Press Ctrl+C"; } // plain HTTP
      }
    });
  });
})();
