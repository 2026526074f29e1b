"use strict";
// Draws the graphs of a run from the data block, line by line and side by side, and opens what is known about a value.
// Everything from the model becomes text nodes; nothing is ever parsed as markup.
(() => {
  const data = JSON.parse(document.getElementById("graph-data").textContent);
  const text = (number) => data.strings[number];
  const byId = (name) => document.getElementById(name);
  const CONTEXT = 3, FOLDED = 9, MORE = 200, HITS = 50;
  const NAME = 0, CODE = 1, TYPE = 2, MODULE = 3, SOURCE = 4, BY = 5, OPERANDS = 6, STANDS_FOR = 7;
  const STATE = "state:";
  const last = data.steps.length - 1;
  const comparisons = data.comparisons.length
    ? data.comparisons
    : [{ before: 0, after: 0, parts: [data.steps[0].rows.length] }];
  const [lines, panel, hits, found, search, select] = ["lines", "panel", "hits", "found", "search", "step"].map(byId);
  let current = 0; // place in comparisons
  let rows = []; // of it: [left, right, mark, words], -1 where a side has no line
  let shown = []; // for each row its element, once it is drawn
  let visited = -1; // place in rows of the line that had the focus last, -1 where none had
  let opener = null; // what had the focus when the panel was opened

  const make = (tag, kind, ...children) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    made.append(...children);
    return made;
  };
  const button = (label, kind, run) => {
    const made = make("button", kind, label);
    made.type = "button";
    if (run) made.addEventListener("click", run);
    return made;
  };
  const valueOf = (step, place) => data.values[data.steps[step].rows[place]];
  const placeOf = (step, name) => data.steps[step].rows.findIndex((each) => data.values[each][NAME] === name);
  const isMarked = (row) => row[2] !== "";

  // ---- lines ----

  const show = (number) => {
    current = number;
    if (select) select.value = String(number);
    byId("step-back")?.toggleAttribute("disabled", number === 0);
    byId("step-on")?.toggleAttribute("disabled", number === comparisons.length - 1);
    for (const each of document.querySelectorAll(".drawn")) each.hidden = Number(each.dataset.comparison) !== number;
    rows = [];
    let left = 0, right = 0;
    for (const part of comparisons[number].parts) {
      if (typeof part === "number") {
        for (let count = 0; count < part; count++) rows.push([left++, right++, "", ""]);
      } else {
        rows.push(part);
        left += part[0] >= 0;
        right += part[1] >= 0;
      }
    }
    draw();
  };

  const draw = () => {
    shown = new Array(rows.length);
    visited = -1;
    const fragment = document.createDocumentFragment();
    const head = make("div", "row heads");
    const { before, after } = comparisons[current];
    head.append(make("div", "side", data.steps[before].name), make("div", "side", data.steps[after].name));
    fragment.append(head);
    const folded = rows.some(isMarked) ? FOLDED : MORE; // a graph in which nothing changed is there to be read
    let start = 0;
    while (start < rows.length) {
      let end = start;
      while (end < rows.length && isMarked(rows[end]) === isMarked(rows[start])) end++;
      if (isMarked(rows[start])) {
        const block = make("div", "block");
        for (let place = start; place < end; place++) block.append(rowOf(place));
        fragment.append(block);
      } else {
        const first = start === 0 ? start : Math.min(end, start + CONTEXT);
        const final = end === rows.length ? end : Math.max(first, end - CONTEXT);
        for (let place = start; place < first; place++) fragment.append(rowOf(place));
        if (final - first < folded) for (let place = first; place < final; place++) fragment.append(rowOf(place));
        else fragment.append(fold(first, final));
        for (let place = final; place < end; place++) fragment.append(rowOf(place));
      }
      start = end;
    }
    lines.classList.toggle("many", fragment.querySelectorAll(".row").length > 1000);
    lines.replaceChildren(fragment);
    const first = lines.querySelector(".line");
    if (first) first.tabIndex = 0;
  };

  const fold = (from, to) => {
    const made = make("div", "fold");
    made.dataset.from = from;
    made.dataset.to = to;
    const count = to - from;
    const open = (begin, end) => unfold(made, begin, end);
    if (count > MORE) {
      made.append(
        make("span", "", `${count.toLocaleString("en")} unchanged lines: `),
        button(`first ${MORE}`, "", () => open(from, from + MORE)),
        button(`last ${MORE}`, "", () => open(to - MORE, to)),
        button("all", "", () => open(from, to)),
      );
    } else {
      made.append(button(`… ${count} unchanged lines`, "", () => open(from, to)));
    }
    return made;
  };

  const unfold = (made, begin, end) => {
    const from = Number(made.dataset.from), to = Number(made.dataset.to);
    const fragment = document.createDocumentFragment();
    if (begin > from) fragment.append(fold(from, begin));
    for (let place = begin; place < end; place++) fragment.append(rowOf(place));
    if (end < to) fragment.append(fold(end, to));
    lines.classList.toggle("many", lines.querySelectorAll(".row").length + end - begin > 1000);
    const had = made.contains(document.activeElement);
    made.replaceWith(fragment);
    if (had) focusLine(shown[begin].querySelector(".line"));
  };

  const rowOf = (place) => {
    const [left, right, mark, words] = rows[place];
    const { before, after } = comparisons[current];
    const row = make("div", mark ? "row marked" : "row");
    row.dataset.row = place;
    row.append(sideOf(before, left, mark[0] || " ", words, "before"), sideOf(after, right, mark[1] || " ", words, "after"));
    shown[place] = row;
    return row;
  };

  const KINDS = { "-": "removed", "+": "added", "~": "changed", ">": "moved", " ": "same" };
  const SIGNS = { "-": "−", "+": "+", "~": "~", ">": "↕", " ": " " };
  const sideOf = (step, place, mark, words, where) => {
    const side = make("div", `side ${KINDS[mark]} ${where}`);
    if (place < 0) return side.classList.add("none"), side;
    const value = valueOf(step, place);
    const line = button("", "line");
    line.tabIndex = -1;
    line.dataset.step = step;
    line.dataset.node = value[NAME];
    if (mark !== " ") line.append(make("span", "hidden", `${KINDS[mark]}: `));
    line.append(make("span", "sign", SIGNS[mark]), make("span", "code", value[CODE]));
    const more = [text(value[TYPE]), where === "after" ? words : ""].filter(Boolean).join("; ");
    if (more) line.append(make("span", "type", `  # ${more}`));
    side.append(line);
    return side;
  };

  const focusLine = (line) => {
    if (!line) return;
    for (const each of lines.querySelectorAll('.line[tabindex="0"]')) each.tabIndex = -1;
    line.tabIndex = 0;
    line.focus({ preventScroll: true });
    line.scrollIntoView({ block: "nearest" });
  };

  /** Draws a row where it is folded, with some around it, and returns its element. */
  const reveal = (place) => {
    if (!shown[place]) {
      const made = [...lines.querySelectorAll(".fold")].find(
        (each) => Number(each.dataset.from) <= place && place < Number(each.dataset.to),
      );
      unfold(made, Math.max(Number(made.dataset.from), place - 10), Math.min(Number(made.dataset.to), place + 11));
    }
    return shown[place];
  };

  const goTo = (step, name) => {
    const has = (each) => each.before === step || each.after === step;
    if (!has(comparisons[current])) show(comparisons.findIndex(has));
    const side = comparisons[current].after === step ? 1 : 0;
    const place = placeOf(step, name);
    const row = rows.findIndex((each) => each[side] === place);
    if (row < 0) return null;
    const line = reveal(row).querySelector(side ? ".after .line" : ".before .line");
    line.scrollIntoView({ block: "center" });
    return line;
  };

  const change = (way) => {
    const at = visited < 0 && way < 0 ? rows.length : visited;
    for (let place = at + way; place >= 0 && place < rows.length; place += way) {
      const starts = isMarked(rows[place]) && !(place > 0 && isMarked(rows[place - 1]));
      if (starts && shown[place]) {
        const line = shown[place].querySelector(".line");
        focusLine(line);
        return line.scrollIntoView({ block: "center" });
      }
    }
    found.textContent = way > 0 ? "No change below." : "No change above.";
  };

  const move = (event) => {
    const line = event.target.closest(".line");
    if (!line || !["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const side = line.closest(".before") ? ".before .line" : ".after .line";
    const other = side === ".before .line" ? ".after .line" : ".before .line";
    if (event.key === "ArrowLeft") return focusLine(line.closest(".row").querySelector(".before .line"));
    if (event.key === "ArrowRight") return focusLine(line.closest(".row").querySelector(".after .line"));
    const all = [...lines.querySelectorAll(".row:not(.heads)")];
    const ways = { ArrowUp: -1, ArrowDown: 1 };
    let place = all.indexOf(line.closest(".row"));
    place = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : place + ways[event.key];
    const row = all[place];
    if (row) focusLine(row.querySelector(side) || row.querySelector(other));
  };

  // ---- search ----

  const look = () => {
    const wanted = search.value.trim().toLowerCase();
    hits.replaceChildren();
    found.textContent = "";
    if (!wanted) return;
    const { before, after } = comparisons[current];
    let count = 0;
    const seen = new Set();
    for (const step of new Set([after, before])) {
      for (const number of data.steps[step].rows) {
        const value = data.values[number];
        const said = [value[CODE], text(value[MODULE]), text(value[SOURCE]), text(value[TYPE])].join("\n").toLowerCase();
        if (seen.has(number) || !said.includes(wanted)) continue;
        seen.add(number);
        if (++count <= HITS) {
          const hit = button(value[CODE], "node", () => open(step, value[NAME]));
          hits.append(make("li", "", hit, ` ${data.steps[step].name}`));
        }
      }
    }
    found.textContent = `${count.toLocaleString("en")} found${count > HITS ? `, the first ${HITS} listed` : ""}`;
  };

  // ---- one value ----

  /** The names worth reading to see what a value depends on: the whole proof, or the way to what was lost. */
  const chain = (start) => {
    const proved = (name) => data.facts[name][5];
    const known = (name) => data.facts[name][4].map(text).filter((each) => data.facts[each]);
    if (proved(start)) {
      const order = new Set(), stack = [start];
      while (stack.length) {
        const name = stack.pop();
        if (!order.has(name)) {
          order.add(name);
          stack.push(...known(name).reverse());
        }
      }
      return [...order];
    }
    const path = [start];
    for (;;) {
      const lost = known(path[path.length - 1]).find((name) => !proved(name));
      if (!lost || path.includes(lost)) return path;
      path.push(lost);
    }
  };

  const link = (step, name) => (placeOf(step, name) < 0 ? name : button(name, "node", () => open(step, name)));
  const several = (step, names) => {
    const made = make("p", "names");
    names.slice(0, 60).forEach((name, number) => made.append(number ? ", " : "", link(step, name)));
    if (names.length > 60) made.append(`, … ${names.length - 60} more`);
    return made;
  };

  const proof = (name) => {
    const fact = data.facts[name];
    const names = chain(name);
    const list = make("ol", "proof");
    for (const each of names.slice(0, 100)) {
      const [, , because, at] = data.facts[each];
      list.append(make("li", "", link(0, each), ` (${text(at)}): ${text(because)}`));
    }
    const laid = text(fact[1]) ? `, laid out ${text(fact[1])}` : "";
    const title = fact[5] ? "Proof" : "Why it is not token-only";
    return [
      make("h3", "", title),
      make("p", "", `${name} depends on: ${text(fact[0])}${laid}`),
      list,
      ...(names.length > 100 ? [make("p", "quiet", `${names.length - 100} more steps`)] : []),
    ];
  };

  const tableOf = (step, names) => {
    const held = new Map(data.steps[step].state.map((place) => [data.state[place][0], data.state[place].slice(1)]));
    const body = make("tbody", "");
    const heads = ["name", "kind", "dtype and shape", "bytes", "shares memory with"];
    const head = make("tr", "", ...heads.map((each) => make("th", "", each)));
    for (const name of names) {
      const [kind, type, bytes, shares] = held.get(name) || ["constant", "", 0, []];
      const cells = [name, kind, type, `${bytes.toLocaleString("en")} B`, shares.join(", ")];
      body.append(make("tr", "", ...cells.map((each) => make("td", "", each))));
    }
    const wide = make("div", "wide", make("table", "", make("thead", "", head), body));
    wide.tabIndex = 0;
    return wide;
  };

  /** Whose memory a value of the first graph stands on, and what else does. */
  const memory = (name) => {
    const rootsOf = (each) => data.memory[each] ?? [[each, "must"]];
    const roots = rootsOf(name), own = new Set(roots.map(([root]) => root));
    const names = data.steps[0].rows.map((each) => data.values[each][NAME]);
    const others = names.filter((each) => each !== name && rootsOf(each).some(([root]) => own.has(root)));
    const stands = roots.filter(([root]) => root !== name).map(([root, kind]) => `${kind} stand on the memory of ${root}`);
    if (!others.length && !stands.length) return [make("h3", "", "Memory"), make("p", "", "Shared with no other value.")];
    const said = stands.length ? [make("p", "", `${name} ${stands.join(", ")}`)] : [];
    return [make("h3", "", "Memory"), ...said, make("p", "", `${others.length} value(s) may share it:`), several(0, others)];
  };

  const open = (step, name) => {
    const place = placeOf(step, name);
    if (place < 0) return;
    if (panel.hidden) opener = document.activeElement;
    const line = goTo(step, name);
    for (const each of lines.querySelectorAll(".chosen")) each.classList.remove("chosen");
    line?.classList.add("chosen");
    const value = valueOf(step, place);
    const operands = value[OPERANDS].map(text);
    const reads = [...new Set(operands.filter((each) => !each.startsWith(STATE)))];
    const tables = [...new Set(operands.filter((each) => each.startsWith(STATE)).map((each) => each.slice(STATE.length)))];
    const readers = data.steps[step].rows.map((each) => data.values[each]).filter((each) => each[OPERANDS].some((one) => text(one) === name));
    const origin = value[STANDS_FOR].map(text);
    const places = [text(value[MODULE]) && `module ${text(value[MODULE])}`, text(value[SOURCE])].filter(Boolean).join(", ");
    const close = button("Close", "close", shut);
    close.setAttribute("aria-label", "Close what is known about this value");
    const proved = step === 0 ? [name] : origin.length ? origin : [name];
    panel.replaceChildren(
      close,
      make("h2", "", name),
      make("pre", "", value[CODE]),
      make("p", "quiet", [text(value[TYPE]), places, `in ${data.steps[step].name}`].filter(Boolean).join(" · ")),
      ...(text(value[BY]) ? [make("p", "", `Added by ${text(value[BY])}, in the place of:`), several(0, origin)] : []),
      ...proved.filter((each) => data.facts[each]).flatMap(proof),
      make("h3", "", `Reads ${reads.length}`),
      several(step, reads),
      make("h3", "", `Read by ${readers.length}`),
      several(step, readers.map((each) => each[NAME])),
      ...(step === 0 ? memory(name) : []),
      ...(tables.length ? [make("h3", "", "State and tables"), tableOf(step, tables)] : []),
    );
    panel.hidden = false;
    document.body.classList.add("open");
    line?.scrollIntoView({ block: "center" });
    panel.scrollTop = 0;
    panel.focus({ preventScroll: true });
  };

  const shut = () => {
    panel.hidden = true;
    document.body.classList.remove("open");
    const chosen = lines.querySelector(".chosen");
    if (opener?.isConnected && opener !== document.body) opener.focus({ preventScroll: true });
    else focusLine(chosen);
  };

  /** The step to show a value in that the page names without one: the current ones first. */
  const stepWith = (name) => {
    const { before, after } = comparisons[current];
    return [before, after, 0, last].find((step) => placeOf(step, name) >= 0);
  };

  // ---- events ----

  const openFrom = (element) => {
    const { node, step } = element.dataset;
    const where = step === undefined ? stepWith(node) : Number(step);
    if (where !== undefined) open(where, node);
  };
  document.addEventListener("click", (event) => {
    const named = event.target.closest("[data-node]");
    if (named) openFrom(named);
  });
  const step = (way) => {
    const next = current + way;
    if (next >= 0 && next < comparisons.length) show(next), look();
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel.hidden) return shut();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const drawn = event.target.closest?.("g[data-node]");
    if (drawn && (event.key === "Enter" || event.key === " ")) return event.preventDefault(), openFrom(drawn);
    if (event.target.matches?.("input, select, textarea")) return;
    const keys = { "[": () => step(-1), "]": () => step(1), n: () => change(1), p: () => change(-1), "/": () => search.focus() };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  lines.addEventListener("keydown", move);
  lines.addEventListener("focusin", (event) => (visited = Number(event.target.closest(".row")?.dataset.row ?? visited)));
  search.addEventListener("input", look);
  select?.addEventListener("change", () => (show(Number(select.value)), look()));
  byId("step-back")?.addEventListener("click", () => step(-1));
  byId("step-on")?.addEventListener("click", () => step(1));
  byId("change-back").addEventListener("click", () => change(-1));
  byId("change-on").addEventListener("click", () => change(1));
  show(0);
})();
