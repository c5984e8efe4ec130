// Failure browser: queries, worst first, beside what was measured for the selected one. ↑ ↓ move, t ticks, x crosses, c comments.
function render({ model, el }) {
  const list = h("ol", { class: "rl-rows", role: "listbox", "aria-label": "queries, worst first" }), one = h("div", { class: "rl-one" });
  const signs = { tick: "✓", cross: "✕" };
  let shown = []; // queries that pass the filters, in the order of the list
  let uncertainFirst = false, redraw = () => {};
  const marks = marking(model, () => redraw());

  const live = () => model.get("fixed").queries === undefined;
  const passes = (row) => {
    const { show, reason } = model.get("ui"), mark = (model.get("now").marks ?? {})[row.q] ?? "";
    const { reasons, queries } = model.get("fixed");
    const kept = show === "all" || (show === "failures" ? row.failed : show === "open" ? row.failed && !mark : mark === show);
    return kept && (!reason || row.why.some((j) => reasons[j].name === reason)) && (!queries || queries.includes(row.q));
  };

  const step = (by) => {
    if (!shown.length) return;
    const at = shown.indexOf(model.get("select").query);
    select(model, { query: shown[at < 0 ? 0 : Math.max(0, Math.min(shown.length - 1, at + by))] });
  };

  const say = (values) => {
    const { query } = model.get("select");
    if (query !== null && live()) model.send({ mark: { query, ...values } });
  };
  const mark = (kind) => say({ mark: model.get("now").one?.note.mark === kind ? "" : kind });

  const row = (r, reasons) => {
    const sign = (model.get("now").marks ?? {})[r.q] ?? "", person = r.pid < 0 ? "id unknown" : `id ${r.pid}`;
    const why = r.why.map((j) => reasons[j].name), text = r.text ?? (r.cam === null ? person : `${person} · cam ${r.cam}`);
    return h("li", { class: "rl-row", role: "option", "data-q": r.q, tabindex: "-1", onclick: () => select(model, { query: r.q }),
      "aria-label": `query ${r.q}, ${sign}, rank ${r.first}, ${why.join(", ") || "no reason"}: ${text}` },
      h("span", { class: `rl-sign rl-${sign}` }, signs[sign] ?? ""), h("b", {}, r.q), h("span", { class: "rl-what" }, text),
      h("span", { class: "rl-mute" }, `rank ${r.first}`), h("small", { class: "rl-mute" }, why.join(" · ")));
  };

  const image = (name, side, kind) => h("figure", { class: `rl-side ${kind}` },
    side.text ? h("blockquote", {}, side.text) : h("span", { class: "rl-frame" }, picture(side.thumb, `${name}, id ${side.pid}`),
      kind ? h("span", { class: "rl-badge", "aria-hidden": "true" }, kind === "rl-ok" ? "✓" : "✕") : null),
    h("figcaption", {}, h("b", {}, name), [side.pid < 0 ? "id unknown" : `id ${side.pid}`, side.cam === null ? null : `cam ${side.cam}`,
      side.score === undefined ? null : side.score.toFixed(3)].filter((x) => x !== null).join(" · "), marks.buttons(side.pair, name)));

  const share = (value, kind) => h("span", { class: `rl-share ${kind}`, style: `--rl-w:${value ?? 0}%` }, value === null ? "?" : `${Math.round(value)} %`);
  const reason = (r) => h("tr", { class: r.holds ? "" : "rl-dim", title: `${r.how}; holds if ${r.test} ${r.unit}` },
    h("td", { "aria-label": r.holds ? "holds" : "does not hold" }, r.holds ? "●" : "○"), h("th", { scope: "row" }, r.name),
    h("td", {}, r.shown), h("td", {}, share(r.failures, "rl-bad"), share(r.successes, "rl-good")),
    h("td", { class: "rl-mute" }, r.verdict));

  const comment = (note) => {
    const field = h("input", { type: "text", "aria-label": "comment", placeholder: "comment (c)", maxlength: "500", onchange: () => say({ comment: field.value }) });
    field.value = note.comment;
    return field;
  };

  const detail = (now) => {
    if (now.message || !now.one) return h("p", { class: "rl-message" }, now.message ?? "Choose a query: click one, or press ↓.");
    const o = now.one, note = o.note;
    const act = (kind, key) => h("button", { type: "button", class: `rl-button rl-act rl-${kind}`, "aria-pressed": String(note.mark === kind),
      "aria-label": kind, title: `${kind} (${key})`, onclick: () => mark(kind) }, signs[kind]);
    return [h("div", { class: "rl-three" }, image("query", o.query, ""), image("best wrong", o.wrong, "rl-no"), image("best right", o.right, "rl-ok")),
      h("p", { class: "rl-rank" }, `${o.failed ? "Failure" : "Success"}: first right image at rank ${o.first} · AP ${o.AP} %`),
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { colspan: "3" }, "reason"), h("th", {}, "of failures | successes"), h("th", {}, "for failures"))),
        h("tbody", {}, o.reasons.map(reason))),
      model.get("fixed").keeps && live() ? h("div", { class: "rl-note" }, act("tick", "t"), act("cross", "x"), comment(note),
        button("write the ticked queries as a figure", "figure", () => model.send({ figure: 1 })))
        : h("p", { class: "rl-mute" }, [note.mark, note.comment].filter(Boolean).join(": ") || (live() ? "Ticks need a file: FailureBrowser(tags='tags.json')." : "Ticks and comments need a kernel.")),
      o.others.map((text) => h("p", { class: "rl-mute" }, text))];
  };

  const choice = (name, value, options, act) => h("label", { class: "rl-group" }, name, h("select", { "aria-label": name, onchange: (event) => act(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text))));

  const keys = (event, root) => {
    if (event.target.closest("input")) {
      if (event.key === "Escape" || event.key === "Enter") root.focus();
      return;
    }
    if (event.target.closest("select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = { ArrowDown: () => step(1), ArrowUp: () => step(-1), PageDown: () => step(8), PageUp: () => step(-8), Home: () => step(-Infinity),
      End: () => step(Infinity), t: () => mark("tick"), x: () => mark("cross"), c: () => root.querySelector(".rl-note input")?.focus() };
    const one_ = model.get("now").one; // a mark is on the best wrong image, with Shift on the best right one
    for (const key of marks.keys) {
      acts[key] = () => marks.act(one_?.wrong.pair, key);
      acts[key.toUpperCase()] = () => marks.act(one_?.right.pair, key);
    }
    if (!acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  };

  let drawn = "";
  const draw = ({ head, body, foot, root }) => {
    redraw = () => draw({ head, body, foot, root });
    const now = model.get("now"), fixed = model.get("fixed"), ui = model.get("ui"), { query } = model.get("select");
    const want = JSON.stringify([uncertainFirst, ui.show, ui.reason, now.marks ?? {}, fixed.rows.length, fixed.rows.slice(0, 50)]);
    if (want !== drawn) { // the list is drawn anew only if it has changed
      const rows = fixed.rows.filter(passes);
      if (uncertainFirst) rows.sort((x, y) => x.doubt - y.doubt);
      shown = rows.map((r) => r.q);
      fill(list, rows.map((r) => row(r, fixed.reasons)));
      drawn = want;
    }
    for (const old of list.querySelectorAll('[aria-selected="true"]')) old.setAttribute("aria-selected", "false");
    const at = list.querySelector(`[data-q="${query}"]`);
    at?.setAttribute("aria-selected", "true");
    if (at) list.scrollTop = Math.max(0, Math.min(list.scrollTop, at.offsetTop - 4), at.offsetTop + at.offsetHeight - list.clientHeight + 4);
    const base = (r) => `${r.name}: ${Math.round(r.failures ?? 0)} % | ${Math.round(r.successes ?? 0)} %`;
    fill(head, h("span", { class: "rl-title" }, ui.title),
      choice("show", ui.show, Object.entries(fixed.show), (show) => setState(model, { show })),
      choice("reason", ui.reason, [["", "any"], ...fixed.reasons.map((r) => [r.name, base(r)])], (name) => setState(model, { reason: name })),
      choice("order", uncertainFirst ? "doubt" : "worst", [["worst", "worst first"], ["doubt", "uncertain first"]], (order) => { uncertainFirst = order === "doubt"; redraw(); }),
      h("span", { class: "rl-mute" }, `${shown.length} shown`), h("span", { class: "rl-mute" }, now.summary ?? ""));
    if (root.ownerDocument.activeElement?.closest(".rl-note input") && one.dataset.q === String(query)) one.querySelector(".rl-note input").blur();
    fill(one, detail(now));
    one.dataset.q = query;
    if (!list.parentNode) fill(body, list, one);
    list.hidden = !fixed.rows.length;
    if (!shown.length && fixed.rows.length) fill(list, h("li", { class: "rl-mute" }, "No query passes these filters."));
    fill(foot, h("span", {}, live() ? "↑ ↓ query · t tick · x cross · c comment" : "↑ ↓ query"), h("span", {}, "bars: share of failures, of successes, for which the reason holds"),
      marks.can() ? h("span", {}, "s d: best wrong image · S D: best right image") : null, fixed.rows.length ? marks.line() : null);
    root.dataset.shown = String(shown.length);
    root.onkeydown = (event) => keys(event, root);
  };
  return card(model, el, "failures", draw);
}
