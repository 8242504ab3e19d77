"use strict";
// Every five seconds the parts that live are replaced by those of a new page.
// What is being typed stays.
async function refresh() {
  if (document.hidden) return;
  try {
    const response = await fetch(location.href);
    if (!response.ok) throw new Error(response.statusText);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(part.id);
      if (next && next.innerHTML !== part.innerHTML) part.replaceWith(next);
    }
    document.body.classList.remove("outdated");
  } catch {
    document.body.classList.add("outdated");
  }
}
setInterval(refresh, 5000);
