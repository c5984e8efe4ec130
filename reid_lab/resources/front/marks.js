// Marks on pairs: same, different, merge, split. With a kernel they go into its file; without one they are kept here, and a
// button writes them as a file that `reid_lab labels` and `reid_lab search --marks` read.
const MARK_KINDS = {
  same: { key: "s", sign: "✓", text: "same person" },
  different: { key: "d", sign: "✕", text: "different person" },
  merge: { key: "m", sign: "⊕", text: "merge their identities" },
  split: { key: "p", sign: "⊖", text: "split: not of this identity" },
};

const pairKey = (pair) => JSON.stringify([pair.a || `sentence: ${pair.question.trim()}`, pair.b].sort());

// What was marked in this page. A page that is a file may have no storage: then marks last until it is closed.
function pageMarks(id) {
  const place = `reid_lab marks ${id}`;
  let kept = true, list = [];
  try { list = JSON.parse(globalThis.localStorage.getItem(place) ?? "[]"); } catch { kept = false; }
  if (!Array.isArray(list)) list = [];
  const followers = new Set();
  const asText = (mark) => JSON.stringify([pairKey(mark), mark.kind, mark.time]);
  return {
    follow: (f) => followers.add(f),
    // Marks of files; the storage may hold the same ones. The last mark on a pair counts, also where it is in a file.
    begin(marks) {
      const known = new Set(list.map(asText));
      list = [...list, ...marks.filter((mark) => !known.has(asText(mark)))].sort((x, y) => Date.parse(x.time) - Date.parse(y.time));
    },
    kind: (pair) => list.findLast((mark) => pairKey(mark) === pairKey(pair))?.kind,
    counted: () => [...new Map(list.map((mark) => [pairKey(mark), mark])).values()].filter((mark) => mark.kind !== "none").length,
    isKept: () => kept,
    text: () => list.map((mark) => `${JSON.stringify(mark)}\n`).join(""),
    add(mark) {
      list.push(mark);
      try { globalThis.localStorage.setItem(place, JSON.stringify(list)); } catch { kept = false; }
      followers.forEach((f) => f());
    },
  };
}

// Buttons, keys and the line below a view; `redraw` is called when a mark has changed without a kernel.
function marking(model, redraw) {
  const fixed = () => model.get("fixed"), live = () => fixed().queries === undefined;
  globalThis.reidLab ??= {};
  let store = null;
  const page = () => {
    if (!store) {
      store = globalThis.reidLab.marks ??= pageMarks(fixed().pairs.id);
      store.begin(fixed().pairs.earlier ?? []);
      store.follow(redraw);
    }
    return store;
  };
  const can = () => Boolean(fixed().pairs?.can);
  const state = (pair) => { const kind = live() ? pair.mark : page().kind(pair); return kind === "none" ? "" : kind ?? ""; };
  const kinds = (pair) => ["same", "different", ...(!pair.a_pid || !pair.b_pid ? [] : pair.a_pid === pair.b_pid ? ["split"] : ["merge"])];
  const set = (pair, kind) => {
    if (!can() || !pair || !kinds(pair).includes(kind)) return;
    const { a, b, question, a_pid, b_pid } = pair;
    const mark = { kind: state(pair) === kind ? "none" : kind, b, a, question, a_pid, b_pid };
    if (live()) model.send({ pair: mark });
    else page().add({ ...mark, time: new Date().toISOString().replace("Z", "+00:00") });
  };
  const download = () => {
    const link = h("a", { href: URL.createObjectURL(new Blob([page().text()], { type: "application/jsonl" })), download: fixed().pairs.file });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return {
    can, state, set,
    act: (pair, key) => { const kind = Object.keys(MARK_KINDS).find((k) => MARK_KINDS[k].key === key); if (kind) set(pair, kind); },
    keys: Object.values(MARK_KINDS).map((kind) => kind.key),
    buttons: (pair, about) => can() && pair ? h("span", { class: "rl-marks", role: "group", "aria-label": `mark ${about}` }, kinds(pair).map((kind) => {
      const { key, sign, text } = MARK_KINDS[kind];
      return h("button", { type: "button", class: `rl-button rl-mark-${kind}`, tabindex: "-1", "aria-pressed": String(state(pair) === kind),
        "aria-label": `${text}: ${about}`, title: `${text} (${key})`, onclick: (event) => { event.stopPropagation(); set(pair, kind); } }, sign);
    })) : null,
    line: () => {
      const pairs = fixed().pairs;
      if (!pairs) return null;
      if (!pairs.can) return h("span", {}, pairs.why);
      if (live()) return h("span", {}, `${MARK_KINDS.same.key} same · ${MARK_KINDS.different.key} different: into ${pairs.file}`);
      const n = page().counted();
      return [h("span", {}, "s same · d different"), h("span", { role: "status", class: "rl-count" }, `${n} ${n === 1 ? "mark" : "marks"}${page().isKept() ? "" : ", kept until this page is closed"}`),
        button(`download the marks as ${pairs.file}`, "download marks", download, !page().text())];
    },
  };
}
