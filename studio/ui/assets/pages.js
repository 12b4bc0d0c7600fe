// Small manners of the pages: paging through rows, choosing runs, copying, the page's title. No state lives here.
(() => {
  // Past an end of what is here, a button asks the page for the row beyond.
  const turn = (pager, move) => {
    const pages = [...pager.querySelectorAll(":scope > .leaf")];
    const now = pages.findIndex((page) => !page.hidden);
    const next = Math.min(pages.length - 1, Math.max(0, now + move));
    if (next === now) return;
    pages.forEach((page, i) => { page.hidden = i !== next; });
    pager.querySelector(".pager-at").textContent = pages[next].dataset.label;
    for (const [way, end] of [["-1", 0], ["1", pages.length - 1]]) {
      const button = pager.querySelector(`[data-turn='${way}']`), beyond = button.dataset.beyond;
      button.disabled = next === end && !beyond;
      if (next === end && beyond) Object.assign(button.dataset, { action: "row", id: beyond });
      else delete button.dataset.action;
    }
  };

  const chosen = () => [...document.querySelectorAll("input[data-run]:checked")].map((box) => box.dataset.run);
  const compare = () => {
    const runs = chosen();
    for (const bar of document.querySelectorAll("[data-compare]")) {
      bar.querySelector("[data-compare-words]").textContent =
        runs.length < 2 ? bar.dataset.none : bar.dataset.some.replace("{n}", runs.length);
      const go = bar.querySelector("a");
      go.classList.toggle("off", runs.length < 2);
      if (runs.length < 2) { go.removeAttribute("href"); go.setAttribute("aria-disabled", "true"); }
      else { go.href = `/compare?runs=${runs.join(",")}`; go.removeAttribute("aria-disabled"); }
    }
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-turn], [data-copy]");
    if (!button) return;
    if (button.dataset.turn) turn(button.closest(".pager"), Number(button.dataset.turn));
    else navigator.clipboard?.writeText(document.getElementById(button.dataset.copy)?.textContent ?? "").then(() => {
      const before = button.textContent;
      button.textContent = button.dataset.done;
      setTimeout(() => { button.textContent = before; }, 1500);
    });
  });
  // What a token is: said when it is pointed at, so that a page of thousands stays light.
  document.addEventListener("pointerover", (event) => {
    const token = event.target.closest?.(".tok > i");
    if (token && !token.title) token.title = `${token.dataset.t} · ${token.parentNode.dataset.about}`;
  });
  document.addEventListener("change", (event) => { if (event.target.matches?.("input[data-run]")) compare(); });

  // The page's title is the last one that something on it names: the bar names the page, a heading the thing shown.
  const name = () => {
    const named = document.querySelectorAll("[data-title]");
    if (named.length) document.title = named[named.length - 1].dataset.title;
  };

  // Gradio shows the errors of queued events only, and ours are not queued: what a handler refuses is told here.
  let told;
  const tell = ({ title, error }) => {
    told?.remove();
    told = document.createElement("div");
    told.className = "note bad told";
    told.setAttribute("role", "alert");
    const head = document.createElement("b");
    head.textContent = title ?? "";
    told.append(head, " ", new DOMParser().parseFromString(error, "text/html").body.textContent);
    told.addEventListener("click", (event) => event.currentTarget.remove());
    document.body.append(told);
    const mine = told;
    setTimeout(() => mine.remove(), 12000);
  };
  const ask = window.fetch;
  window.fetch = async (...given) => {
    const answer = await ask(...given);
    if (answer.status === 500 && new URL(answer.url).pathname.startsWith("/gradio_api/run/"))
      answer.clone().json().then((said) => { if (said.visible && said.error) tell(said); }, () => {});
    return answer;
  };

  // A pane hands clicks on its own [data-action] buttons to its page's handler, after a question where one is due.
  window.atelierPane = (element, trigger, watch) => {
    watch("value", name);
    element.addEventListener("click", (event) => {
      const button = event.target.closest("[data-action]");
      if (!button || (button.dataset.confirm && !window.confirm(button.dataset.confirm))) return;
      trigger("act", { action: button.dataset.action, id: button.dataset.id ?? "" });
      if (button.dataset.action === "row" && !element.querySelector(".pager")) document.querySelector(".learn")?.scrollIntoView({ block: "nearest" });
    });
    element.addEventListener("change", (event) => {
      if (event.target.matches("[data-go]") && event.target.value) trigger("act", { action: event.target.dataset.go, id: event.target.value });
    });
  };
  window.atelierBar = (element, props, watch) => {
    name();
    setTimeout(name, 400); // Gradio writes its own title once it is done
    watch("value", name);
  };
  window.atelierFollow = (element, props, watch) => {
    const end = () => { const box = element.querySelector(".log"); if (box) box.scrollTop = box.scrollHeight; };
    end();
    let near = true;
    element.addEventListener("scroll", (event) => {
      const box = event.target;
      near = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    }, true);
    watch("value", () => { if (near) end(); });
  };
  window.atelierTable = (element, props, watch) => watch("value", compare);
})();
