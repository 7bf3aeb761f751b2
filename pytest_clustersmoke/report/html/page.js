"use strict";
// Draws the charts of open sections one after the other, and again when the width changes. With very
// many charts, those far from the screen wait until it comes near them. Opens the section that a link
// points into.
(() => {
  const kinds = { ...Charts.kinds, topology: Topology.draw, curves: Curves.draw, ...Progress.kinds };
  const widths = new WeakMap();

  function draw(figure) {
    const place = figure.querySelector(":scope > .plot");
    const width = Math.floor(figure.clientWidth);
    if (!width || widths.get(figure) === width) return;
    widths.set(figure, width);
    const made = kinds[figure.dataset.chart](figure, width);
    place.replaceChildren(...(Array.isArray(made) ? made : made ? [made] : []));
    if (place.scrollWidth > place.clientWidth && !place.hasAttribute("tabindex")) place.tabIndex = 0; // arrow keys scroll it
    const wrong = place.querySelector(".label.wrong");
    if (!wrong) return;
    const { x, width: wide } = wrong.getBBox();
    place.scrollLeft = x + wide / 2 - width / 2; // in a picture wider than the page, scroll to the unexpected link
  }

  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const MANY = 32, SCREENS = 2;
  const todo = new Set(figures), far = new Set();
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
  function isFar(figure) {
    const { top, bottom } = figure.getBoundingClientRect();
    return top > innerHeight * (1 + SCREENS) || bottom < -innerHeight * SCREENS;
  }
  function later(some) {
    const many = figures.filter((one) => one.clientWidth).length > MANY;
    for (const figure of some) {
      const away = many && isFar(figure);
      (away ? far : todo).add(figure);
      (away ? todo : far).delete(figure);
    }
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
  document.addEventListener("redraw", ({ detail }) => { for (const figure of detail) widths.delete(figure); later(detail); });
  window.addEventListener("hashchange", reveal);
  let scrolled;
  window.addEventListener("scroll", () => {
    clearTimeout(scrolled);
    if (far.size) scrolled = setTimeout(() => later([...far]), 50);
  }, { passive: true });
  let timer;
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => later(figures), 150); });

  window.addEventListener("beforeprint", () => figures.forEach(draw));

  later(figures);
  reveal();
})();
