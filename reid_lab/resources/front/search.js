// Search page: a sentence or a crop against the gallery. Enter asks. A page without a kernel answers sentences by itself where
// it holds a text tower (`inpage.js`), and else offers the questions that it holds.
function render({ model, el }) {
  const field = h("input", { type: "search", class: "rl-ask", "aria-label": "question" });
  const known = h("datalist", { id: `rl-${Math.random().toString(36).slice(2)}` });
  field.setAttribute("list", known.id);

  let refused = "";       // a question without an answer here; what was found for another is not shown below it
  let redraw = () => {};
  let uncertainFirst = false;
  const marks = marking(model, () => redraw());
  const live = () => model.get("fixed").queries === undefined;

  // With a text tower the page answers what is typed, until a query is selected.
  let search = null;
  let typed = null;       // the answer to what was typed
  let typedAt = null;     // the query that was selected then
  const answersHere = () => !live() && Boolean(model.get("fixed").own);
  const hasField = () => live() || answersHere();
  const answerHere = (text) => {
    search ??= pageSearch(model.get("fixed").own);
    typed = search.answer(text, model.get("ui").k);
    typedAt = model.get("select").query;
    note.textContent = typed.message ? "" : "computed in this page";
    redraw();
  };

  const ask = () => {
    const text = field.value.trim(), { captions, reads } = model.get("fixed");
    note.textContent = "";
    if (answersHere()) {
      answerHere(text);
      return;
    }
    if (reads.length) { setState(model, { question: text }); return; }
    const found = Object.keys(captions).map(Number).find((q) => captions[q].toLowerCase().includes(text.toLowerCase()));
    refused = found === undefined ? text : "";
    redraw();
    if (found !== undefined) select(model, { query: found });
    else note.textContent = "No model was given: only the queries of the scene are answered.";
  };

  // A page that cannot embed a sentence has no field that looks as if it could.
  const OTHERS = 'reid_lab search FEATURES "what the person looks like" --html page.html';
  const held = (fixed, chosen) => {
    const text = (q) => fixed.captions[q] ?? fixed.names[q] ?? `query ${q}`;
    if (fixed.queries.length === 1) return h("span", { class: "rl-ask" }, text(fixed.queries[0]));
    return h("select", { class: "rl-ask", "aria-label": "question", onchange: (event) => select(model, { query: Number(event.target.value) }) },
      chosen === null ? h("option", { selected: true, disabled: true }, `${fixed.queries.length} questions`) : null,
      fixed.queries.map((q) => h("option", { value: q, selected: q === chosen }, text(q))));
  };
  const note = h("span", { class: "rl-mute", role: "status" });

  // Who answers other sentences: this page, or a command, and why not this page.
  const answeredBy = (fixed) => {
    if (live()) return null;
    if (fixed.own) return h("span", { class: "rl-here" }, fixed.own.about);
    return [h("span", {}, "other questions: ", h("code", {}, OTHERS)), fixed.why ? h("span", { class: "rl-here" }, fixed.why) : null];
  };

  const step = (by) => {
    const { query } = model.get("select"), { queries, n_query } = model.get("fixed"), n = queries ? queries.length : n_query;
    if (!n) return;
    const here = query === null ? (by > 0 ? -1 : 0) : queries ? queries.indexOf(query) : query, next = (here + by + n) % n;
    if (live() && model.get("ui").question) setState(model, { question: "" });
    typed = null;
    note.textContent = "";
    select(model, { query: queries ? queries[next] : next });
  };

  const choose = (row, add) => {
    const chosen = model.get("select").gallery, rest = add ? chosen.filter((r) => r !== row) : [];
    select(model, { gallery: chosen.includes(row) && (add || chosen.length === 1) ? rest : [...rest, row] });
  };

  const one = (item, chosen) => {
    const seen = item.cam === null ? null : `cam ${item.cam_name ?? item.cam}`;
    const person = item.pid < 0 ? item.name || "id ?" : `id ${item.pid_name ?? item.pid}`;
    const named = item.thumb?.missing !== undefined && item.thumb.missing === person; // in place of its picture
    const labels = [person, seen].filter((x) => x !== null);
    const below = named ? [seen].filter((x) => x !== null) : labels;
    const state = item.accepted === null ? "" : item.accepted ? ", above the threshold" : ", below the threshold";
    const score = fixedDigits(item.score, 3);
    const alt = `rank ${item.rank}, score ${score}${state}, ${labels.join(", ")}`;
    return h("li", { class: `rl-item ${item.accepted === false ? "rl-below" : ""}`, role: "option", tabindex: "0", "aria-label": alt, "data-row": item.row,
      "aria-selected": String(chosen.includes(item.row)), title: `gallery row ${item.row}${item.name ? `: ${item.name}` : ""}`,
      onclick: (event) => choose(item.row, event.ctrlKey || event.metaKey || event.shiftKey) },
      picture(item.thumb, ""), h("span", { class: "rl-line" }, h("b", {}, item.rank), h("span", {}, score)),
      h("small", {}, below.map((w) => h("span", {}, w))), marks.buttons(item.pair, `rank ${item.rank}`));
  };

  // In the order of the list, or those first whose score says least.
  const ordered = (items) => (uncertainFirst ? [...items].sort((x, y) => x.doubt - y.doubt) : items);
  const foot_ = (items) => {
    const pairs = items.some((item) => item.pair), ui = model.get("ui");
    return [pairs && marks.can() ? button("images nearest to the boundary first: a mark on them says most", uncertainFirst ? "best first" : "uncertain first",
      () => { uncertainFirst = !uncertainFirst; redraw(); }) : null,
    pairs ? marks.line() : null, pairs && live() && model.get("fixed").pairs.kept ? button("move the question by its marks", ui.refined ? "as asked" : "refine by marks",
      () => setState(model, { refined: !ui.refined })) : null];
  };

  // A key marks the image that has the focus.
  const mark_ = (items, element, key) => {
    const item = element && (items ?? []).find((i) => String(i.row) === element.dataset.row);
    if (item) marks.act(item.pair, key);
  };

  // What the model has seen, above everything that it says.
  const caveats = (lines) => lines.length ? h("p", { class: "rl-caveats" }, lines.map((line) => h("span", {}, line))) : null;

  // The sentence as the model reads it: what it does not read is struck through, and said to who cannot see that.
  const UNREAD = { u: "unknown to the model", c: "cut off: the sentence is too long" };
  const CUT_SHOWN = 8;    // of the words that are cut off at the end; the answer stays in sight
  const word = ([text, mark]) => [mark in UNREAD
    ? h("s", { title: UNREAD[mark] }, text, h("span", { class: "rl-sr" }, ` (not read: ${UNREAD[mark]})`)) : text, " "];
  const asked = (words) => {
    if (!words.length) return null;
    const firstCut = words.findIndex(([, mark]) => mark === "c");
    const shown = firstCut < 0 ? words : words.slice(0, firstCut + CUT_SHOWN);
    const further = words.length - shown.length;
    const rest = further > 0 ? `and ${further.toLocaleString("en")} further words, cut off; ` : "";
    return h("p", { class: "rl-asked" }, shown.map(word),
      h("small", { class: "rl-mute" }, `${rest}struck through: not read`));
  };

  // The best score is named once: above the strip, if it stands there.
  const withoutScore = (remarks, byChance) => {
    const [score, ...others] = remarks.split("; ");
    return byChance.startsWith(`${score}: `) ? others.join("; ") : remarks;
  };

  // Best scores of random sentences, and above them the scores of this list and the threshold, on one axis.
  const SVG = "http" + "://www.w3.org/2000/svg";
  const chance = (text, fixed, items) => {
    if (!text || !fixed.chance || !items.length) return null;
    const random = fixed.chance.best, listed = items.map((item) => item.score);
    const all = [...random, ...listed, ...(fixed.threshold === null ? [] : [fixed.threshold])];
    const low = Math.min(...all), span = Math.max(1e-6, Math.max(...all) - low);
    const at = (score) => `${(1 + 98 * (score - low) / span).toFixed(2)}%`;
    const shape = (name, attrs) => {
      const node = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
      return node;
    };
    const svg = shape("svg", { class: "rl-strip", role: "img", "aria-label": text });
    for (const score of random) svg.append(shape("line", { x1: at(score), x2: at(score), y1: 20, y2: 36, class: "rl-random" }));
    listed.forEach((score, i) => svg.append(shape("circle", { cx: at(score), cy: 10, r: i ? 3 : 5.5, class: i ? "rl-listed" : "rl-best" })));
    if (fixed.threshold !== null) svg.append(shape("line", { x1: at(fixed.threshold), x2: at(fixed.threshold), y1: 0, y2: 38, class: "rl-limit" }));
    const key = (kind, words) => h("span", {}, h("i", { class: `rl-key-${kind}` }), words);
    return h("figure", { class: "rl-chance" }, h("figcaption", {}, text), svg,
      h("div", { class: "rl-axis rl-mute" }, h("span", {}, fixedDigits(low, 2)), h("span", { class: "rl-keys" },
        key("best", "best score"), listed.length > 1 ? key("listed", "the other images") : null, key("random", `${random.length} ${fixed.chance.source}`),
        fixed.threshold === null ? null : key("limit", "threshold")), h("span", {}, fixedDigits(low + span, 2))));
  };

  const draw = ({ head, body, foot, root }, changed) => {
    if (changed.has("now") || changed.has("select")) refused = "";
    if (typed && model.get("select").query !== typedAt) {
      typed = null;
      note.textContent = "";
    }
    redraw = () => draw({ head, body, foot, root }, new Set());
    const focused = root.ownerDocument.activeElement?.closest?.(".rl-item")?.dataset.row ?? null;
    const now = refused ? { message: `No answer to “${refused}”.` } : typed ?? model.get("now");
    const ui = model.get("ui"), fixed = model.get("fixed"), chosen = model.get("select");
    if (changed.has("fixed")) fill(known, Object.values(fixed.captions).slice(0, 300).map((text) => h("option", { value: text })));
    if (!refused && (root.ownerDocument.activeElement !== field || changed.has("ui"))) field.value = (typed ? "" : ui.question) || now.query_text || "";
    const crop = ui.asks === "crop";
    field.placeholder = crop && live() ? "path of an image" : fixed.reads.includes("sentence") ? "what the person looks like" : "no model that reads text";
    const kinds = live() && fixed.reads.length > 1 ? h("select", { "aria-label": "kind of question", onchange: (event) => setState(model, { asks: event.target.value, question: "" }) },
      fixed.reads.map((kind) => h("option", { value: kind, selected: kind === ui.asks }, kind))) : null;
    const several = live() ? fixed.n_query > 0 : fixed.queries.length > (typed ? 0 : 1);
    const stands = typed ? "what was typed" : chosen.query === null ? "no query" : `query ${chosen.query}`;
    const step_ = several ? h("span", { class: "rl-group" }, button("previous query", "‹", () => step(-1)),
      h("span", {}, stands), button("next query", "›", () => step(1))) : null;
    if (!field.parentNode) {
      fill(head, h("span", { class: "rl-title" }), h("span", { class: "rl-group rl-form" }), h("span", { class: "rl-more" }), note);
      if (hasField()) head.children[1].append(field, known);
    }
    head.children[0].textContent = ui.title;
    if (typed) root.setAttribute("aria-label", typed.label);
    if (!hasField()) fill(head.children[1], held(fixed, chosen.query));
    fill(head.children[2], kinds, hasField() ? button("search", "search", ask) : null, " ", step_);
    const verdict = now.present === null || now.present === undefined ? null
      : h("p", { class: `rl-verdict ${now.present ? "rl-ok" : "rl-no"}` }, h("b", {}, now.present ? "✓ present" : "✕ nobody clears the threshold"), ` ${now.remarks}`);
    const query = now.crop ? h("figure", { class: "rl-query" }, picture(now.crop, now.query_text || "query"), h("figcaption", {}, now.query_name ?? "")) : null;
    const words = refused ? [] : now.words ?? [];
    const remarks = withoutScore(now.remarks ?? "", now.by_chance ?? "");
    const long = !live() && several && !words.length && (now.query_text ?? "").length > 60; // the choice shows its beginning
    fill(body, caveats(fixed.caveats ?? []), asked(words), long ? h("p", { class: "rl-asked" }, now.query_text) : null, verdict ?? (remarks ? h("p", { class: "rl-verdict" }, remarks) : null), chance(refused ? "" : now.by_chance, fixed, now.items ?? []), h("div", { class: "rl-found" }, query, now.message ? h("p", { class: "rl-message" }, now.message)
      : h("ol", { role: "listbox", "aria-label": "images found, best first", "aria-multiselectable": "true" }, ordered(now.items ?? []).map((item) => one(item, chosen.gallery)))));
    const keys = [hasField() ? "Enter asks" : null, several ? "↑ ↓ query" : null, "click selects"].filter(Boolean).join(" · ");
    fill(foot, h("span", {}, keys), answeredBy(fixed),
      (now.items ?? []).length ? button("select the images that were found in all views", "select all", () => select(model, { gallery: now.items.map((i) => i.row) })) : null, foot_(now.items ?? []));
    if (focused !== null) body.querySelector(`.rl-item[data-row="${focused}"]`)?.focus({ preventScroll: true });
    root.style.setProperty("--rl-k", Math.max(6, ui.k));
    root.onkeydown = (event) => {
      const inField = event.target === field, item = event.target.closest?.(".rl-item");
      const acts = { Enter: () => (inField ? ask() : item && choose(Number(item.dataset.row), event.ctrlKey || event.shiftKey)) };
      if (!inField) Object.assign(acts, { ArrowDown: () => step(1), ArrowUp: () => step(-1), ArrowRight: () => item?.nextElementSibling?.focus(),
        ArrowLeft: () => item?.previousElementSibling?.focus(), "/": () => root.querySelector("input.rl-ask, select.rl-ask")?.focus(), ...Object.fromEntries(marks.keys.map((key) => [key, () => mark_(now.items, item, key)])), Escape: () => select(model, { gallery: [] }) });
      if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
      if (event.target.closest("button") && !marks.keys.includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      acts[event.key]();
    };
  };
  return card(model, el, "search", draw);
}
