// Keeps #part of a page current, and filters, sorts and pages without a reload. Links and forms work without it, too.
(() => {
  "use strict";
  const part = document.getElementById("part");
  if (!part) return;
  const said = document.getElementById("said");
  const pause = document.getElementById("pause");
  const seconds = Number(part.dataset.refresh);
  let shown = "", latest = 0, timer = 0, typing = 0, isPaused = false;

  // Read aloud; and seen by everybody where what the page shows is old.
  const say = (text, isOld = false) => {
    if (said.textContent !== text) said.textContent = text;
    said.className = isOld ? "note bad" : "hidden";
  };
  const plan = () => {
    clearTimeout(timer);
    if (!isPaused) timer = setTimeout(() => load(location.href, false), 1000 * seconds);
  };

  // What has the keyboard, what is unfolded and how far is scrolled stay as they are. Boxes that scroll have a label.
  const boxes = () => [...part.querySelectorAll("[tabindex]")];
  const label = (box) => box?.getAttribute("aria-label") ?? box?.getAttribute("aria-labelledby") ?? "";
  function show(text) {
    if (text === shown) return;
    const active = part.contains(document.activeElement) ? document.activeElement : null;
    const focus = active?.id, focused = active?.matches("[tabindex]") ? label(active) : "";
    const scrolled = new Map(boxes().map((box) => [label(box), [box.scrollLeft, box.scrollTop]]));
    const unfolded = [...part.querySelectorAll("details[open]")].map((each) => each.id);
    shown = text;
    part.innerHTML = text;
    for (const id of unfolded) { const found = document.getElementById(id); if (found) found.open = true; }
    for (const box of boxes()) [box.scrollLeft, box.scrollTop] = scrolled.get(label(box)) ?? [0, 0];
    const again = focus ? document.getElementById(focus) : focused && boxes().find((box) => label(box) === focused);
    again?.focus?.({preventScroll: true});
  }

  function isReading() {
    const selection = getSelection();
    return document.hidden || (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  }

  async function load(address, isAsked) {
    if (!isAsked && isReading()) return plan();
    const mine = ++latest, target = new URL(address, location.href);
    target.searchParams.set("part", "1");
    try {
      const answer = await fetch(target, {credentials: "same-origin"});
      const text = await answer.text();
      if (mine !== latest) return;
      if (answer.status === 401) return location.reload();
      if (!answer.ok) say(`It cannot be read now, what is shown is old: ${text}`, true);
      else {
        show(text);
        if (isAsked) say(part.querySelector("[data-said]")?.textContent.trim() ?? "");
        else if (said.className !== "hidden") say("");
      }
    } catch {
      if (mine === latest) say("This page gets no answer: what it shows is old.", true);
    }
    plan();
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-into]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    history.pushState(null, "", link.href);
    load(link.href, true);
  });
  addEventListener("popstate", () => load(location.href, true));

  const form = document.querySelector("form[data-into]");
  function filter() {
    const given = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    const now = new URLSearchParams(location.search);
    for (const name of ["sort", "order"]) now.has(name) ? given.set(name, now.get(name)) : given.delete(name);
    const address = `${form.getAttribute("action")}?${given}`;
    history.replaceState(null, "", address);
    load(address, true);
  }
  // Half a name of a namespace is one that may not be listed.
  const isWhole = (event) => event.target.name === "namespace";
  form?.addEventListener("input", (event) => { if (!isWhole(event)) { clearTimeout(typing); typing = setTimeout(filter, 250); } });
  form?.addEventListener("change", (event) => { if (isWhole(event)) { clearTimeout(typing); filter(); } });
  form?.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typing); filter(); });

  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    plan();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !isPaused) load(location.href, false); });
  plan();
})();
