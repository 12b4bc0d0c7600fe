// Line charts drawn as SVG: those in view at once, those near it when there is time. A new value redraws the lines
// only: zoom, hidden series and the reading line stay. A chart that is zoomed asks the server for all points of that part.
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const HEIGHT = 210, HIGH = 380, SOON = "800px", ASKED = 4000, SETTLED = 150, TOP = 10, BOTTOM = 26, LEFT = 52, RIGHT = 10;

  const svg = (name, attributes, parent) => {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(node);
    return node;
  };
  const html = (name, cls, parent, words) => {
    const node = document.createElement(name);
    if (cls) node.className = cls;
    if (words !== undefined) node.textContent = words;
    if (parent) parent.appendChild(node);
    return node;
  };

  const ticks = (low, high, wanted) => {
    const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
    return found;
  };
  const figure = (number, unit) => {
    if (number === null || number === undefined) return "–";
    const size = Math.abs(number);
    let words;
    if (size !== 0 && size < 0.001) words = number.toExponential(2).replace(/\.?0+e/, "e");
    else if (size >= 1000) words = number.toLocaleString("en", { maximumFractionDigits: 0 });
    else words = String(Number(number.toPrecision(4)));
    return unit ? `${words} ${unit}` : words;
  };
  // At the latest after a moment: a busy page is never idle.
  const later = (act) => (window.requestIdleCallback ? requestIdleCallback(act, { timeout: 200 }) : setTimeout(act, 50));
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  const legend = (place, lines, hidden, change) => {
    place.replaceChildren();
    for (const { key, name, colour, dash } of lines) {
      const button = html("button", "chart-key", place);
      button.type = "button";
      html("span", dash ? "swatch dashed" : "swatch", button).style.setProperty("--own", colour);
      html("span", "", button, name);
      const show = () => button.setAttribute("aria-pressed", String(!hidden.has(key)));
      button.onclick = () => {
        if (!hidden.delete(key)) hidden.add(key);
        show();
        change();
      };
      show();
    }
  };

  class Chart {
    constructor(root, hidden) {
      this.root = root;
      this.hidden = hidden ?? new Set(); // keys of lines
      this.zoom = null;
      this.fine = null; // lines of the zoomed part by key, once the server has answered
      this.cursor = null;
      this.near = false;
      const head = html("div", "chart-head", root);
      this.title = html("figcaption", "chart-title", head);
      this.legend = html("div", "chart-legend", head);
      this.depth = html("span", "chart-depth", head);
      this.reset = this.button(head, () => this.look(null));
      this.reset.hidden = true;
      this.size = this.button(head, () => { root.classList.toggle("wide"); this.name_size(); this.draw(); });
      this.stage = html("div", "chart-stage", root);
      this.svg = svg("svg", { role: "img", tabindex: "0", height: HEIGHT }, this.stage);
      this.tip = html("div", "chart-tip", this.stage);
      this.tip.hidden = true;
      this.summary = html("p", "chart-summary", root);
      this.listen();
      this.room = 0; // pixels across; told here, because asking for it would lay out the page again for every chart
      new ResizeObserver(([stage]) => { this.room = stage.contentRect.width; this.draw(); }).observe(this.stage);
    }

    button(parent, act) {
      const made = html("button", "chart-button", parent);
      made.type = "button";
      made.onclick = act;
      return made;
    }

    listen() {
      let from = null;
      const at = (event) => event.clientX - this.svg.getBoundingClientRect().left;
      this.svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") from = at(event); });
      this.svg.addEventListener("pointermove", (event) => {
        this.cursor = this.value_at(at(event));
        if (from !== null) this.brush(from, at(event));
        this.read();
      });
      this.svg.addEventListener("pointerup", (event) => {
        if (from !== null && Math.abs(at(event) - from) > 8) {
          this.look([from, at(event)].map((x) => this.value_at(x)).sort((a, b) => a - b));
        }
        from = null;
        this.band?.setAttribute("width", 0);
      });
      this.svg.addEventListener("pointerleave", () => { from = null; this.cursor = null; this.read(); });
      this.svg.addEventListener("dblclick", () => this.look(null));
      this.svg.addEventListener("blur", () => { this.cursor = null; this.read(); });
      this.svg.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      const [low, high] = this.range ?? [0, 1];
      const stride = (high - low) / 40;
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        const move = event.key === "ArrowRight" ? stride : -stride;
        this.cursor = Math.min(high, Math.max(low, (this.cursor ?? (move > 0 ? low - stride : high + stride)) + move));
      } else if (event.key === "+" || event.key === "-") {
        const half = (high - low) * (event.key === "+" ? 0.25 : 1), [first, last] = this.reach();
        const middle = this.cursor ?? (low + high) / 2, next = [Math.max(first, middle - half), Math.min(last, middle + half)];
        this.look(next[0] <= first && next[1] >= last ? null : next);
      } else if (event.key === "Escape") { this.cursor = null; this.look(null); } else return;
      event.preventDefault();
      this.read();
    }

    update(value) {
      this.value = value;
      this.title.textContent = value.title;
      this.summary.textContent = value.summary;
      this.summary.classList.toggle("sr", Boolean(value.shared));
      this.reset.textContent = value.words.reset;
      this.name_size();
      this.svg.setAttribute("aria-label", `${value.title}. ${value.summary}`);
      const names = JSON.stringify(value.series.map((s) => [s.key, s.name, s.colour]));
      if (names !== this.names) { this.names = names; this.name(); }
      if (this.zoom) this.ask();
      this.draw();
    }

    name_size() {
      const wide = this.root.classList.contains("wide");
      this.size.textContent = wide ? "\u2921" : "\u2922";
      this.size.title = wide ? this.value.words.narrow : this.value.words.wide;
      this.size.setAttribute("aria-label", `${this.size.title}: ${this.value.title}`);
      this.size.setAttribute("aria-pressed", String(wide));
    }

    look(zoom) {
      this.zoom = zoom;
      this.fine = null;
      this.draw();
      clearTimeout(this.waiting);
      if (zoom) this.waiting = setTimeout(() => this.ask(), SETTLED);
    }

    async ask() {
      const [start, end] = this.zoom, mine = (this.asked = (this.asked ?? 0) + 1);
      const lines = this.value.series.filter((s) => s.ask);
      const points = Math.floor(ASKED / Math.sqrt(Math.max(lines.length, 1)));
      const answers = await Promise.all(lines.map((s) =>
        fetch(`${s.ask}&start=${start}&end=${end}&points=${points}`).then((a) => (a.ok ? a.json() : null), () => null)));
      if (mine !== this.asked || !this.zoom) return;
      this.fine = new Map();
      answers.forEach((told, i) => {
        if (told) this.fine.set(lines[i].key, { x: told.x, y: told.y.map((y) => (y === null ? null : y * lines[i].scale)), of: told.points });
      });
      this.draw();
    }

    name() {
      const named = this.value.shared ? [] : this.value.series;
      legend(this.legend, named.length > 1 ? named : [], this.hidden, () => this.draw());
    }

    shown() {
      const kept = this.value.series.filter((s) => !this.hidden.has(s.follows ?? s.key) && s.x.length);
      return kept.map((s) => ({ ...s, ...(this.fine?.get(s.key) ?? {}) })).filter((s) => s.x.length);
    }

    reach() {
      const all = this.value.series.filter((s) => s.x.length);
      return [Math.min(...all.map((s) => s.x[0])), Math.max(...all.map((s) => s.x[s.x.length - 1]))];
    }

    say_depth(series) {
      this.depth.textContent = "";
      if (!this.zoom || !this.fine || !series.length) return;
      const [shown, all] = [series.reduce((n, s) => n + s.x.length, 0), series.reduce((n, s) => n + s.of, 0)];
      const words = shown >= all ? this.value.words.exact : this.value.words.part;
      this.depth.textContent = words.replace("{shown}", shown.toLocaleString("en")).replace("{all}", all.toLocaleString("en"));
    }

    extent(series) {
      let low = Infinity, high = -Infinity, bottom = Infinity, top = -Infinity;
      for (const s of series) { low = Math.min(low, s.x[0]); high = Math.max(high, s.x[s.x.length - 1]); }
      if (this.zoom) [low, high] = this.zoom;
      for (const s of series) s.y.forEach((y, i) => {
        if (y === null || s.x[i] < low || s.x[i] > high) return;
        bottom = Math.min(bottom, y); top = Math.max(top, y);
      });
      for (const mark of this.value.marks || []) { top = Math.max(top, mark.y); bottom = Math.min(bottom, mark.y); }
      if (bottom > top) { bottom = 0; top = 1; }
      if (this.value.zero) bottom = Math.min(bottom, 0);
      const margin = (top - bottom || Math.abs(top) || 1) * 0.08;
      return { low, high: high > low ? high : low + 1, bottom: this.value.zero ? bottom : bottom - margin, top: top + margin };
    }

    value_at(pixel) {
      const [low, high] = this.range ?? [0, 1];
      const share = (pixel - LEFT) / (this.width - LEFT - RIGHT);
      return low + Math.min(1, Math.max(0, share)) * (high - low);
    }

    draw() {
      const width = this.room;
      if (!width || !this.near || !this.value) return;
      this.width = width;
      this.height = this.root.classList.contains("wide") ? HIGH : HEIGHT;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
      this.svg.setAttribute("height", this.height);
      this.svg.replaceChildren();
      this.reset.hidden = !this.zoom;
      const series = this.shown();
      this.say_depth(series);
      if (!series.length) {
        this.range = null;
        this.tip.hidden = true;
        const words = svg("text", { x: width / 2, y: this.height / 2, class: "chart-empty", "text-anchor": "middle" }, this.svg);
        words.textContent = this.value.words.empty;
        return;
      }
      const e = this.extent(series);
      this.range = [e.low, e.high];
      this.x = (v) => LEFT + ((v - e.low) / (e.high - e.low)) * (width - LEFT - RIGHT);
      this.y = (v) => TOP + (1 - (v - e.bottom) / (e.top - e.bottom)) * (this.height - TOP - BOTTOM);
      this.axes(e, width);
      this.plot(series, width);
      this.read();
    }

    axes(e, width) {
      for (const at of ticks(e.bottom, e.top, 4)) {
        svg("line", { x1: LEFT, x2: width - RIGHT, y1: this.y(at), y2: this.y(at), class: "chart-grid" }, this.svg);
        svg("text", { x: LEFT - 8, y: this.y(at) + 4, "text-anchor": "end", class: "chart-tick" }, this.svg).textContent = figure(at);
      }
      const room = Math.max(2, Math.floor(width / 85));
      for (const at of ticks(e.low, e.high, room)) {
        if (this.value.whole && at % 1) continue;
        const edge = this.x(at) > width - RIGHT - 16 ? "end" : "middle";
        svg("text", { x: Math.min(this.x(at), width - RIGHT), y: this.height - 8, "text-anchor": edge, class: "chart-tick" }, this.svg).textContent = figure(at);
      }
    }

    plot(series, width) {
      const id = `clip-${Math.random().toString(36).slice(2)}`;
      const clip = svg("clipPath", { id }, svg("defs", {}, this.svg));
      svg("rect", { x: LEFT - 3, y: 0, width: width - LEFT - RIGHT + 6, height: this.height - BOTTOM + 3 }, clip);
      const group = svg("g", { "clip-path": `url(#${id})` }, this.svg);
      for (const mark of this.value.marks || []) {
        svg("line", { x1: LEFT, x2: width - RIGHT, y1: this.y(mark.y), y2: this.y(mark.y), class: "chart-mark" }, group);
        svg("text", { x: width - RIGHT - 4, y: this.y(mark.y) - 5, "text-anchor": "end", class: "chart-tick" }, group).textContent = mark.label;
      }
      for (const s of series) {
        let path = "", pen = false;
        s.y.forEach((y, i) => {
          if (y === null) { pen = false; return; }
          path += `${pen ? "L" : "M"}${this.x(s.x[i]).toFixed(1)} ${this.y(y).toFixed(1)}`;
          pen = true;
        });
        const line = svg("path", { d: path, class: s.faint ? "chart-line faint" : "chart-line", "stroke-dasharray": s.dash || "none" }, group);
        line.style.stroke = s.colour;
        const alone = (i) => (s.y[i - 1] ?? null) === null && (s.y[i + 1] ?? null) === null;
        s.y.forEach((y, i) => {
          if (y !== null && (s.dots || alone(i))) svg("circle", { cx: this.x(s.x[i]), cy: this.y(y), r: 3, class: "chart-dot" }, group).style.fill = s.colour;
        });
      }
      this.band = svg("rect", { y: TOP, height: this.height - TOP - BOTTOM, width: 0, class: "chart-band" }, this.svg);
      this.rule = svg("line", { y1: TOP, y2: this.height - BOTTOM, class: "chart-rule", visibility: "hidden" }, this.svg);
    }

    brush(from, to) {
      this.band?.setAttribute("x", Math.max(LEFT, Math.min(from, to)));
      this.band?.setAttribute("width", Math.abs(to - from));
    }

    read() {
      const series = this.shown();
      if (this.cursor === null || !this.range || !series.length) {
        this.tip.hidden = true;
        this.rule?.setAttribute("visibility", "hidden");
        return;
      }
      const near = series.filter((s) => !s.faint).map((s) => ({ s, i: nearest(s.x, this.cursor) }));
      const best = near.reduce((a, b) => (Math.abs(a.s.x[a.i] - this.cursor) <= Math.abs(b.s.x[b.i] - this.cursor) ? a : b));
      const at = best.s.x[best.i], pixel = this.x(at);
      this.rule.setAttribute("x1", pixel);
      this.rule.setAttribute("x2", pixel);
      this.rule.setAttribute("visibility", "visible");
      this.tip.replaceChildren();
      html("div", "chart-tip-x", this.tip, `${this.value.x || ""} ${figure(at)}`.trim());
      for (const { s, i } of near) {
        const row = html("div", "chart-tip-row", this.tip);
        html("span", "swatch", row).style.setProperty("--own", s.colour);
        html("span", "", row, s.name);
        html("b", "", row, figure(s.y[i], s.unit ?? this.value.unit));
      }
      this.tip.hidden = false;
      const wide = this.tip.offsetWidth;
      this.tip.style.left = `${pixel + 14 + wide > this.width ? Math.max(0, pixel - wide - 14) : pixel + 14}px`;
    }
  }

  // Charts side by side. Where they share their lines, one legend above them hides a line in all. Their value is text:
  // an object of as many numbers would be copied and watched piece by piece on its way here, which takes longer than all else.
  window.atelierBoard = (element, props, watch) => {
    const board = element.querySelector(".charts"), names = element.querySelector(".board-legend");
    const charts = new Map(), hidden = new Set();
    let named = "";
    const sight = new IntersectionObserver((seen) => {
      for (const one of seen) {
        const chart = [...charts.values()].find((each) => each.root === one.target);
        if (!chart || !one.isIntersecting) continue;
        sight.unobserve(one.target);
        const begin = () => { chart.near = true; chart.draw(); };
        if (one.boundingClientRect.top < innerHeight && one.boundingClientRect.bottom > 0) begin();
        else later(begin);
      }
    }, { rootMargin: SOON });
    const show = () => {
      const { charts: values = [], lines = [] } = JSON.parse(props.value || "{}");
      if (named !== JSON.stringify(lines)) {
        named = JSON.stringify(lines);
        legend(names, lines, hidden, () => charts.forEach((chart) => chart.draw()));
      }
      for (const [key, chart] of charts) if (!values.some((value) => value.key === key)) { chart.root.remove(); charts.delete(key); }
      values.forEach((value, place) => {
        if (!charts.has(value.key)) {
          const chart = new Chart(html("figure", "chart"), value.shared ? hidden : null);
          charts.set(value.key, chart);
          sight.observe(chart.root);
        }
        const chart = charts.get(value.key);
        if (board.children[place] !== chart.root) board.insertBefore(chart.root, board.children[place] ?? null);
        chart.update(value);
      });
    };
    show();
    watch("value", show);
  };
})();
