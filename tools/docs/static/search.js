// Search in the sections of all pages. They come with the site as `pages.js`, so that it also works from a disk.
(() => {
  "use strict";
  const MOST = 60, AROUND = 110;
  const wordsOf = text => text.toLowerCase().match(/[\p{L}\p{N}_@.+-]*[\p{L}\p{N}]/gu) || [];
  const query = new URLSearchParams(location.search).get("q") || "";
  const wanted = [...new Set(wordsOf(query))];
  const phrase = query.trim().toLowerCase();

  // how well a heading answers: the whole query, each of its words, or a part of a word
  function headingScore(heading) {
    const text = heading.toLowerCase(), words = wordsOf(text);
    if (text === phrase) return 100;
    if (text.replace(/[^\p{L}\p{N} ]/gu, " ").trim() === phrase) return 90;
    let score = 0;
    for (const word of wanted) {
      if (words.includes(word)) score += 25;
      else if (text.includes(word)) score += 10;
    }
    return score/Math.max(1, Math.sqrt(words.length));
  }

  function sectionScore(page, [heading, , text]) {
    const body = text.toLowerCase();
    let score = 2*headingScore(heading) + headingScore(page.title), found = 0;
    for (const word of wanted) {
      const times = body.split(word).length - 1;
      const named = heading.toLowerCase().includes(word) || page.title.toLowerCase().includes(word);
      if (times || named) found += 1;
      score += 4*Math.log1p(times);
    }
    return found === wanted.length ? score : 0;
  }

  // the text around the first place that holds a word of the query, its words marked
  function excerpt(text) {
    const at = Math.max(0, Math.min(...wanted.map(w => text.toLowerCase().indexOf(w)).filter(i => i >= 0), text.length));
    const from = Math.max(0, at >= text.length ? 0 : at - AROUND);
    const part = text.slice(from, from + 2*AROUND + 40);
    const line = document.createElement("p");
    line.className = "context";
    if (from) line.append("… ");
    const escaped = wanted.map(w => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    for (const piece of part.split(new RegExp(`(${escaped.join("|")})`, "gi"))) {
      const marked = wanted.includes(piece.toLowerCase());
      const node = marked ? document.createElement("mark") : document.createTextNode(piece);
      if (marked) node.textContent = piece;
      line.append(node);
    }
    if (from + part.length < text.length) line.append(" …");
    return line;
  }

  function show(found) {
    const list = document.getElementById("search-results");
    for (const {page, section} of found.slice(0, MOST)) {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = page.url + (section[1] ? "#" + section[1] : "");
      link.textContent = page.title;
      item.append(link);
      if (section[0] && section[0] !== page.title) item.append(` · ${section[0]}`);
      item.append(excerpt(section[2]));
      list.append(item);
    }
    const n = found.length, pages = n === 1 ? "1 page" : `${n} pages`;
    document.getElementById("search-summary").textContent = !wanted.length ? "Write a word into the search field."
      : n ? `${pages} found for “${query}”` + (n > MOST ? `; the best ${MOST}` : "") + "."
      : `No page holds “${query}”. Try fewer or shorter words.`;
  }

  const found = [];
  for (const page of wanted.length ? window.PAGES : []) {
    let best = null;
    for (const section of page.sections) {
      const score = sectionScore(page, section);
      if (score > 0 && (!best || score > best.score)) best = {page, section, score};
    }
    if (best) found.push(best);
  }
  found.sort((a, b) => b.score - a.score || a.page.url.localeCompare(b.page.url));
  show(found);
})();
