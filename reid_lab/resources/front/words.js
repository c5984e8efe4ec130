// Words of a caption: a click or the space bar masks one, Escape brings all back; a caption of one's own is typed above them.
function render({ model, el }) {
  let at = 0; // word that the keyboard is on
  let typed = null; // what stands in the field, until it is sent

  const toggle = (i) => {
    const gone = model.get("now").words.map((w, j) => (w.gone ? j : -1)).filter((j) => j >= 0);
    const single = Array.isArray(model.get("fixed").queries); // a page knows single words only
    select(model, { words: gone.includes(i) ? gone.filter((j) => j !== i) : single ? [i] : [...gone, i] });
  };

  const go = (query) => { at = 0; select(model, { query }); };

  const step = (by) => {
    const { queries, n_query } = model.get("fixed"), { query } = model.get("select");
    const all = queries ?? { length: n_query, indexOf: (q) => q };
    const next = ((query === null ? (by > 0 ? -1 : 0) : all.indexOf(query)) + by + all.length) % all.length;
    go(queries ? queries[next] : next);
  };

  const move = (to, root) => {
    at = Math.max(0, Math.min(model.get("now").words.length - 1, to));
    root.querySelectorAll(".rl-word").forEach((w, i) => w.setAttribute("tabindex", i === at ? "0" : "-1"));
    root.querySelector(`[data-at="${at}"]`)?.focus();
  };

  const keys = (event, root) => {
    if (event.target.closest("input, select")) return;
    const acts = {
      ArrowRight: () => move(event.target.dataset.at === undefined ? at : at + 1, root), ArrowLeft: () => move(at - 1, root),
      Home: () => move(0, root), End: () => move(Infinity, root), ArrowDown: () => step(1), ArrowUp: () => step(-1),
      Escape: () => select(model, { words: [] }),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  };

  const word = (w, i, top, live) => {
    const worth = w.value === undefined ? "" : `; adds ${w.value.toFixed(3)} to the margin, rank without it ${w.rank}`;
    const long = w.value === undefined ? 0 : 100 * Math.abs(w.value) / top;
    return h("button", { type: "button", class: `rl-word ${w.gone ? "rl-gone" : ""} ${w.stop ? "rl-stop" : ""}`, "data-at": i, disabled: !live,
      tabindex: i === at ? "0" : "-1", "aria-pressed": String(w.gone), "aria-label": `${w.text}${w.gone ? ", masked" : ""}${worth}`,
      title: `${w.gone ? "masked; click to bring it back" : "click to mask"}${worth}`, onclick: () => { at = i; toggle(i); } },
      h("span", {}, w.text), h("i", { class: w.value < 0 ? "rl-harm" : "", style: `width:${long.toFixed(1)}%` }));
  };

  const field = (own) => h("input", { class: "rl-own", type: "text", maxlength: "2000", placeholder: "type a caption, press Enter", value: typed,
    "aria-label": "a caption of your own", oninput: (event) => { typed = event.target.value; },
    onkeydown: (event) => {
      event.stopPropagation();
      if (event.key !== "Enter" || !event.target.value.trim()) return;
      typed = null;
      setState(model, { text: event.target.value });
      if (own !== null) go(own);
    } });

  return card(model, el, "words", ({ head, body, foot, root }) => {
    const now = model.get("now"), { title, variant } = model.get("ui"), { query } = model.get("select"), { n_query, own, queries } = model.get("fixed");
    const words = now.words ?? [], live = words.some((w) => w.value !== undefined), page = Array.isArray(queries);
    const top = Math.max(1e-9, ...words.map((w) => Math.abs(w.value ?? 0)));
    at = Math.min(at, Math.max(0, words.length - 1));
    const active = root.ownerDocument.activeElement, focused = root.contains(active) ? active.dataset.at ?? (active.tagName === "INPUT" ? "own" : null) : null;
    const caret = focused === "own" ? active.selectionStart : 0;
    fill(head,
      h("span", { class: "rl-title" }, title || "Words of the caption"),
      h("span", { class: "rl-group" }, button("previous caption", "‹", () => step(-1)),
        h("span", {}, query === null ? "no query" : now.own ? "typed" : `query ${query}`), button("next caption", "›", () => step(1)),
        h("span", { class: "rl-mute" }, `of ${n_query}`)),
      h("span", { class: "rl-mute rl-sum" }, now.summary ?? ""),
      page || own === null ? null : h("span", { class: "rl-group rl-push" }, h("select", { "aria-label": "how words go",
        onchange: (event) => setState(model, { variant: event.target.value }) },
        [["unk", "mask"], ["delete", "remove"]].map(([value, text]) => h("option", { value, selected: value === variant }, text)))));
    fill(body, page || own === null ? null : field(own),
      now.message ? h("p", { class: "rl-message" }, now.message) : null,
      words.length ? h("div", { class: "rl-caption-words", role: "group", "aria-label": "words of the caption" }, words.map((w, i) => word(w, i, top, live))) : null);
    fill(foot, words.length ? [h("span", {}, h("i", { class: "rl-bar" }), "adds to the margin"), h("span", {}, h("i", { class: "rl-bar rl-harm" }), "takes from it"),
      h("span", {}, `← → move · Space ${page ? "mask one word" : "mask"} · Esc all back · ↑ ↓ caption`)] : null);
    root.onkeydown = (event) => keys(event, root);
    const again = focused === "own" ? root.querySelector(".rl-own") : focused !== null ? root.querySelector(`[data-at="${at}"]`) : null;
    again?.focus({ preventScroll: true });
    if (focused === "own") again?.setSelectionRange(caret, caret);
  });
}
