"use strict";
// What a page does besides being read. Text is only ever set as text: nothing that a run holds becomes markup here.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (name, attributes = {}, text) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const draw = (name, attributes = {}, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const brief = (value) => String(Number(value.toPrecision(3)));

  // Sections, named in the bar.
  const contents = document.getElementById("contents");
  all("main h2").forEach((heading, i) => {
    heading.id ||= `section-${i + 1}`;
    contents.append(make("a", { href: `#${heading.id}` }, heading.dataset.short || heading.textContent));
  });

  // Tables: a click or Enter on a header sorts; long ones can be filtered.
  const numeric = (text) => {
    const found = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?/i.exec(text.trim().replace("−", "-").replaceAll(",", ""));
    return found ? Number(found[0]) : NaN;
  };
  const compare = (words, a, b) => {
    if (words) return a.localeCompare(b, "en", { numeric: true });
    const [x, y] = [numeric(a), numeric(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b);
    return x - y;
  };
  all("table").forEach((table) => {
    const body = table.tBodies[0];
    if (!body || !table.tHead || body.rows.length < 3) return;
    const original = [...body.rows];
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      if (!header.textContent.trim()) return;
      const button = make("button", { type: "button" });
      button.append(...header.childNodes);
      header.append(button);
      const words = header.classList.contains("text");
      const order = words ? ["ascending", "descending"] : ["descending", "ascending"];
      button.addEventListener("click", () => {
        const next = order[order.indexOf(header.getAttribute("aria-sort")) + 1];
        headers.forEach((other) => other.removeAttribute("aria-sort"));
        const rows = [...original];
        if (next) {
          header.setAttribute("aria-sort", next);
          const text = (row) => row.cells[column]?.textContent ?? "";
          const missing = (row) => !words && Number.isNaN(numeric(text(row)));
          rows.sort((a, b) => missing(a) - missing(b)
            || (next === "ascending" ? 1 : -1) * compare(words || missing(a), text(a), text(b)));
        }
        body.append(...rows);
      });
    });
    if (original.length > 10) {
      const box = make("div", { class: "filter" });
      const input = make("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows" });
      const count = make("output", {}, `${original.length} rows`);
      input.addEventListener("input", () => {
        const wanted = input.value.trim().toLowerCase();
        original.forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
        const left = original.filter((row) => !row.hidden).length;
        count.textContent = wanted ? `${left} of ${original.length} rows` : `${original.length} rows`;
      });
      box.append(input, count);
      (table.closest(".scroll") ?? table).before(box);
    }
  });

  // Commands can be copied.
  all("pre").forEach((pre) => {
    const box = make("div", { class: "copied" });
    const button = make("button", { type: "button" }, "Copy");
    pre.replaceWith(box);
    box.append(pre, button);
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(pre.textContent);
      } catch {
        getSelection().selectAllChildren(pre);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Select and copy";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  });

  // Figures that plotly draws.
  all("script.plotly-data").forEach((script) => {
    const figure = JSON.parse(script.textContent);
    Plotly.newPlot(script.previousElementSibling, figure.data, figure.layout, { displayModeBar: false, responsive: true });
  });

  // What says more when it is pointed at or focused: the title of a part of a drawing, or the lines of data-tip.
  const tip = make("div", { id: "tip", role: "tooltip", hidden: "" });
  document.body.append(tip);
  const say = (target, lines) => {
    tip.replaceChildren(make("b", {}, lines[0]), ...lines.slice(1).map((line) => make("div", {}, line)));
    tip.hidden = false;
    const place = target.getBoundingClientRect(), own = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.right + 8, innerWidth - own.width - 4))}px`;
    tip.style.top = `${place.top - own.height - 6 > 0 ? place.top - own.height - 6 : place.bottom + 6}px`;
  };
  const hide = () => { tip.hidden = true; };
  const tells = (part, lines) => {
    for (const event of ["mouseenter", "focus"]) part.addEventListener(event, () => say(part, lines));
    for (const event of ["mouseleave", "blur"]) part.addEventListener(event, hide);
    part.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  };
  all("[data-tip]").forEach((part) => tells(part, part.dataset.tip.split("\n")));
  all("main svg > * title").forEach((title) => {
    const part = title.parentNode, text = title.textContent;
    title.remove();
    part.setAttribute("aria-label", text);
    part.setAttribute("role", "img");
    const cut = text.lastIndexOf(": ");
    tells(part, cut < 0 ? [text] : [text.slice(0, cut), ...text.slice(cut + 2).split("; ")]);
  });

  // The circuit: a node shows its edges, an edge its ends; left and right go from node to node, up and down to its edges.
  all("svg.graph").forEach((graph) => {
    const nodes = all(".node", graph), edges = all(".edge", graph);
    const ends = (edge) => [edge.dataset.source, edge.dataset.target];
    const light = (part) => {
      const shown = part?.classList.contains("node")
        ? edges.filter((edge) => ends(edge).includes(part.dataset.node)) : part ? [part] : [];
      const names = new Set(shown.flatMap(ends));
      if (part?.dataset.node) names.add(part.dataset.node);
      graph.classList.toggle("lighting", Boolean(part));
      edges.forEach((edge) => edge.classList.toggle("lit", shown.includes(edge)));
      nodes.forEach((node) => node.classList.toggle("lit", names.has(node.dataset.node)));
    };
    let home = nodes[0];
    [...nodes, ...edges].forEach((part) => {
      part.setAttribute("tabindex", part === home ? "0" : "-1");
      for (const event of ["mouseenter", "focus"]) part.addEventListener(event, () => light(part));
      for (const event of ["mouseleave", "blur"]) part.addEventListener(event, () => light(null));
      part.addEventListener("focus", () => {
        if (part.classList.contains("node")) home = part;
        nodes.forEach((node) => node.setAttribute("tabindex", node === home ? "0" : "-1"));
      });
      part.addEventListener("click", () => part.focus());
      part.addEventListener("keydown", (event) => {
        const across = (event.key === "ArrowRight") - (event.key === "ArrowLeft");
        const along = (event.key === "ArrowUp") - (event.key === "ArrowDown");
        if (!across && !along) return;
        event.preventDefault();
        const ring = across ? nodes : [home, ...edges.filter((edge) => ends(edge).includes(home.dataset.node)).reverse()];
        const at = across ? nodes.indexOf(home) : ring.indexOf(part);
        ring[(at + across + along + ring.length) % ring.length].focus();
      });
    });
  });

  // The map: hovering tells, a click or Enter shows the component in the panel, arrow keys move.
  const data = document.getElementById("explored");
  if (!data) return;
  const explored = JSON.parse(data.textContent);
  const cells = all(".cell[data-c]");
  const panel = document.getElementById("panel");
  const tell = (cell) => {
    const item = explored.items[cell.dataset.c];
    say(cell, [item.name, ...item.lines.slice(0, 5).map(([k, v]) => `${k}: ${v}`)]);
  };
  // Rings lie over all cells, or a neighbour would cover half of them.
  const rings = { chosen: draw("rect", { class: "ring", rx: 3 }), focus: draw("rect", { class: "ring focus", rx: 3 }) };
  const ring = (kind, cell) => {
    if (!cell) return rings[kind].remove();
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(cell.getAttribute(name)));
    const room = kind === "chosen" ? 0 : 2.5;
    Object.entries({ x: x - room, y: y - room, width: width + 2 * room, height: height + 2 * room })
      .forEach(([name, value]) => rings[kind].setAttribute(name, value));
    return cell.ownerSVGElement.append(rings[kind]);
  };

  const curve = (item) => {
    const { slope, bend, end, low, high, exact } = item.curve;
    const [width, height, left, right, top, bottom] = [340, 190, 44, 14, 10, 24];
    const parabola = slope !== null && bend !== null ? (a) => slope * a + bend * a * a : null;
    const ends = [0, end, low, high, slope, parabola?.(1)].filter((v) => v !== null && v !== undefined);
    if (parabola && bend) {
      const turn = -slope / (2 * bend);
      if (turn > 0 && turn < 1) ends.push(parabola(turn));
    }
    const [min, max] = [Math.min(...ends), Math.max(...ends)], room = (max - min || 1) * 0.06;
    const x = (a) => left + a * (width - left - right);
    const y = (v) => top + (max + room - v) / (max - min + 2 * room || 1) * (height - top - bottom);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img",
      "aria-label": `What is known of the response of ${item.name}` });
    svg.append(draw("path", { class: "axis", d: `M${x(0)} ${y(0)}H${x(1)}`, style: "stroke-width:1" }));
    for (const v of new Set([min, 0, max])) {
      if (v !== 0 && Math.abs(y(v) - y(0)) < 14) continue;
      svg.append(draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, brief(v)));
    }
    for (const a of [0, 0.5, 1]) {
      svg.append(draw("path", { class: "grid", d: `M${x(a)} ${top}V${height - bottom}`, style: "stroke-width:1" }),
        draw("text", { x: x(a), y: height - 6, "text-anchor": "middle" }, a ? String(a) : "a = 0"));
    }
    if (slope !== null) svg.append(draw("path", { class: "tangent", d: `M${x(0)} ${y(0)}L${x(1)} ${y(slope)}` }));
    if (parabola) {
      const points = Array.from({ length: 41 }, (_, i) => `${x(i / 40).toFixed(1)} ${y(parabola(i / 40)).toFixed(1)}`);
      svg.append(draw("path", { class: "parabola", d: `M${points.join("L")}` }));
    }
    if (low !== null && high !== null && !exact) {
      svg.append(draw("path", { class: "interval", d: `M${x(1)} ${y(low)}V${y(high)}M${x(1) - 4} ${y(low)}h8M${x(1) - 4} ${y(high)}h8` }));
    }
    svg.append(draw("circle", { class: "end", cx: x(0), cy: y(0), r: 4 }));
    if (end !== null) svg.append(draw("circle", { class: exact ? "end" : "end open", cx: x(1), cy: y(end), r: 4.5 }));
    return svg;
  };
  const strip = (values, name) => {
    const [width, height, pad] = [340, 34, 8];
    const [min, max] = [Math.min(0, ...values), Math.max(0, ...values)];
    const x = (v) => pad + (v - min) / (max - min || 1) * (width - 2 * pad);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Value of ${name} on each prompt` });
    svg.append(draw("path", { class: "grid", d: `M${pad} 11H${width - pad}` }), draw("path", { class: "axis", d: `M${x(0)} 3V19` }));
    values.forEach((v) => svg.append(draw("circle", { class: v < 0 ? "negative" : "positive", cx: x(v), cy: 11, r: 4, "fill-opacity": 0.45, "stroke-opacity": 0.8 })));
    const label = (v, anchor) => draw("text", { x: x(v), y: 31, "text-anchor": anchor }, brief(v));
    if (min < 0) svg.append(label(min, "start"));
    if (max > 0) svg.append(label(max, "end"));
    if (x(0) > 60 && x(0) < width - 60 || min === 0) svg.append(draw("text", { x: x(0), y: 31, "text-anchor": min === 0 ? "start" : "middle" }, "0"));
    return svg;
  };
  const swatch = (name) => {
    const svg = draw("svg", { viewBox: "0 0 14 14", class: "curve", "aria-hidden": "true" });
    if (name === "exact" || name === "estimate") svg.append(draw("circle", { class: name === "exact" ? "end" : "end open", cx: 7, cy: 7, r: 4 }));
    else svg.append(draw("path", { class: name, d: "M0 7H14" }));
    return svg;
  };
  const show = (index) => {
    const item = explored.items[index];
    if (!item) return;
    const mine = (cell) => cell.dataset.c === String(index);
    cells.forEach((cell) => cell.setAttribute("aria-pressed", String(mine(cell))));
    ring("chosen", cells.find(mine));
    const list = make("dl");
    item.lines.forEach(([k, v]) => list.append(make("dt", {}, k), make("dd", {}, v)));
    panel.replaceChildren(make("h3", {}, item.name), list);
    if (item.curve) {
      const key = make("ul", { class: "key" });
      item.key.forEach(([kind, text]) => {
        const entry = make("li");
        entry.append(...(kind ? [swatch(kind)] : []), text);
        key.append(entry);
      });
      panel.append(make("h4", {}, explored.curve_title), curve(item), key);
      const note = make("p", {}, explored.curve_note);
      if (explored.command) {
        note.append(make("code", {}, explored.command.replace("NAME", /^\w+$/.test(item.name) ? item.name : `'${item.name}'`)));
      }
      panel.append(note);
    }
    if (item.prompts && item.prompts.length > 1) panel.append(make("h4", {}, explored.prompts_title), strip(item.prompts, item.name));
  };
  const home = cells.find((cell) => cell.dataset.c === String(explored.first)) ?? cells[0];
  cells.forEach((cell) => {
    cell.setAttribute("tabindex", cell === home ? "0" : "-1");
    cell.addEventListener("mouseenter", () => tell(cell));
    cell.addEventListener("mouseleave", hide);
    cell.addEventListener("focus", () => {
      cells.forEach((other) => other.setAttribute("tabindex", other === cell ? "0" : "-1"));
      if (!cell.matches(":focus-visible")) return;
      ring("focus", cell);
      tell(cell);
    });
    cell.addEventListener("blur", () => { ring("focus", null); hide(); });
    cell.addEventListener("click", () => { cell.focus(); show(cell.dataset.c); });
    cell.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") show(cell.dataset.c);
      else if (event.key === "Escape") hide();
      else if (event.key.startsWith("Arrow")) {
        const across = (event.key === "ArrowRight") - (event.key === "ArrowLeft");
        const down = (event.key === "ArrowDown") - (event.key === "ArrowUp");
        const [column, row] = [Number(cell.dataset.x), Number(cell.dataset.y)];
        // The nearest cell that way: rows and columns may have gaps.
        const ahead = cells.filter((other) => across
          ? Number(other.dataset.y) === row && across * (other.dataset.x - column) > 0
          : Number(other.dataset.x) === column && down * (other.dataset.y - row) > 0);
        const gap = (other) => Math.abs(other.dataset.x - column) + Math.abs(other.dataset.y - row);
        ahead.sort((a, b) => gap(a) - gap(b))[0]?.focus();
      } else return;
      event.preventDefault();
    });
  });
  all("button.link[data-c]").forEach((button) => button.addEventListener("click", () => {
    show(button.dataset.c);
    panel.scrollIntoView({ block: "center" });
  }));
  show(explored.first);
})();
