"use strict";
// Draws what is open, one chart after the other, and again where the width changes; opens what a
// link points into, and everything for the printer.
(() => {
  const kinds = { ...Charts.kinds, topology: Topology.draw };
  const widths = new WeakMap();

  function draw(figure) {
    const place = figure.querySelector(":scope > .plot");
    const width = Math.floor(figure.clientWidth);
    if (!width || widths.get(figure) === width) return;
    widths.set(figure, width);
    const made = kinds[figure.dataset.chart](figure, width);
    place.replaceChildren(...(Array.isArray(made) ? made : made ? [made] : []));
  }

  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const todo = new Set(figures);
  let busy = false;

  function next() {
    const until = performance.now() + 12;
    for (const figure of figures) {
      if (!todo.delete(figure)) continue;
      draw(figure);
      if (performance.now() > until) break;
    }
    busy = todo.size > 0;
    if (busy) setTimeout(next);
    else document.documentElement.dataset.charts = "drawn";
  }
  function later(some) {
    for (const figure of some) todo.add(figure);
    if (!busy) { busy = true; delete document.documentElement.dataset.charts; setTimeout(next); }
  }

  function reveal() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const inner = target.querySelector(":scope > details");
    if (inner) inner.open = true;
    for (let at = target.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
    target.scrollIntoView();
  }

  document.addEventListener("toggle", (event) => later(figures.filter((one) => event.target.contains(one))), true);
  window.addEventListener("hashchange", reveal);
  let timer;
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => later(figures), 150); });

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not(.figures):not([open])")];
    for (const one of closed) one.open = true;
    figures.forEach(draw);
  });
  window.addEventListener("afterprint", () => { for (const one of closed) one.open = false; });

  later(figures);
  reveal();
})();
