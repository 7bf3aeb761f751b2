"use strict";
// What the reader chooses to see: how many runs all trends show, and which criteria of all phases.
// Without scripts everything is shown, and nothing asks.
(() => {
  const RANGES = [7, 14, 30, 60], FEW_CRITERIA = 10;

  function make(tag, text, ...inside) {
    const made = document.createElement(tag);
    made.append(text, ...inside);
    return made;
  }

  // One range for all trends of the page, to be chosen at each of them.
  function chooseRange() {
    const figures = [...document.querySelectorAll('figure[data-chart="trends"]')];
    const count = (figure) => figure.querySelector("tbody").rows.length;
    const ranges = RANGES.filter((range) => figures.some((figure) => count(figure) > range));
    if (!ranges.length) return;
    const selects = figures.map((figure) => {
      const select = make("select", "", ...[["", `all ${count(figure)}`], ...ranges.map((range) => [range, `the last ${range}`])].map(([value, words]) => {
        const option = make("option", words);
        option.value = value;
        return option;
      }));
      const choice = make("p", "", make("label", "Runs shown in all trends: ", select));
      choice.className = "note screen choice";
      figure.querySelector(".plot").before(choice);
      return select;
    });
    const choose = (event) => {
      for (const select of selects) select.value = event.target.value;
      for (const figure of figures) figure.dataset.last = event.target.value;
      document.dispatchEvent(new CustomEvent("redraw", { detail: figures }));
    };
    for (const select of selects) select.addEventListener("change", choose);
  }

  // The rows of all tables of criteria, with the names in each: those that passed share one.
  function listRows() {
    return [...document.querySelectorAll("table.criteria tbody tr")].map((row) => {
      const [result, head, message] = row.cells, many = head.querySelector("details");
      const names = many ? many.querySelector(".note").textContent.split(", ") : [head.textContent];
      return { row, many, names, phase: row.closest(".phase"), common: `${result.textContent} ${message.textContent}` };
    });
  }

  function findCriteria() {
    const all = listRows(), total = all.reduce((sum, one) => sum + one.names.length, 0);
    if (total <= FEW_CRITERIA) return;
    const phases = [...document.querySelectorAll(".phase")], parts = phases.map((phase) => phase.querySelector("details"));
    const field = make("input", ""), said = make("output", "");
    field.type = "search";
    const choice = make("p", "", make("label", "Find a criterion by its name, result or message: ", field), " ", said);
    choice.className = "note screen choice";
    phases[0].before(choice);
    let before = null; // which phases were open

    const find = (text) => {
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      const opened = before || parts.map((part) => part.open);
      const found = new Map();
      let count = 0;
      for (const { row, many, names, phase, common } of all) {
        const matching = names.filter((name) => words.every((word) => `${name} ${common}`.toLowerCase().includes(word)));
        row.hidden = !matching.length;
        if (many) many.open = words.length > 0 && matching.length > 0 && matching.length < names.length;
        count += matching.length;
        if (matching.length) found.set(phase, true);
      }
      phases.forEach((phase, at) => {
        phase.hidden = words.length > 0 && !found.has(phase);
        parts[at].open = words.length ? found.has(phase) : opened[at];
      });
      before = words.length ? opened : null;
      document.body.classList.toggle("finding-criteria", words.length > 0); // the rest of their phases is hidden
      if (!words.length) window.dispatchEvent(new Event("resize")); // charts that were hidden are drawn
      said.textContent = words.length ? `${count} of ${total} criteria, in ${found.size} of ${phases.length} phases` : "";
    };
    field.addEventListener("input", () => find(field.value));
    addEventListener("beforeprint", () => find("")); // paper does not show what was searched for
    addEventListener("afterprint", () => find(field.value));
  }

  chooseRange();
  findCriteria();
})();
