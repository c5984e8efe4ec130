// The search of a page without a kernel: the sentence is read by `tokens.js`, embedded by `tower.js`, and compared with the
// features of all images of the gallery, which are in the page. The answer is what `SearchPage.content` gives, word by word.
// `own`: tokenizer, tower, gallery (n, dim, features), rows (what is shown of each image), threshold, chance, remarks.

const BY_CHANCE_EQUAL = 1e-5; // scores that differ by less are equal

// How many of the rising `values` are below `limit`, or, with `alsoEqual`, not above it.
const countBelow = (values, limit, alsoEqual) => values.filter((value) => (alsoEqual ? value <= limit : value < limit)).length;

// Where the best score stands among those of random sentences.
function chanceSentence(score, chance) {
  const { best, percents } = chance;
  const n = best.length;
  if (n === 1 || best.at(-1) - best[0] <= 2 * BY_CHANCE_EQUAL)
    return `random sentences all score the same here (${fixedDigits(best[0], 3)}): scores of sentences say nothing`;
  const lower = countBelow(best, score - BY_CHANCE_EQUAL, false);
  const notHigher = countBelow(best, score + BY_CHANCE_EQUAL, true);
  const head = `best score ${fixedDigits(score, 3)}`;
  const twice = lower + notHigher; // equal ones count half
  if (twice === 2 * n) return `${head}: higher than that of all ${n} random sentences`;
  if (twice === 0) return `${head}: lower than that of all ${n} random sentences`;
  return `${head}: higher than that of ${percents[twice]} % of ${n} random sentences`;
}

// Places of a list in the order in which a mark is wanted: nearest to the threshold, or to the widest gap, first.
function placesByDoubt(scores, threshold) {
  const places = scores.map((_, place) => place);
  let boundary = threshold;
  if (boundary === null) {
    if (scores.length < 2) return places;
    const gaps = scores.slice(1).map((score, place) => scores[place] - score);
    const widest = gaps.indexOf(Math.max(...gaps));
    boundary = (scores[widest] + scores[widest + 1]) / 2;
  }
  const doubt = (place) => Math.abs(scores[place] - boundary);
  return places.sort((one, other) => doubt(one) - doubt(other) || one - other);
}

function pageSearch(own) {
  const reader = sentenceReader(own.tokenizer);
  const features = textTower(own.tower);
  const { n, dim } = own.gallery;
  const gallery = unpackArrays([{ name: "g", shape: [n, dim], bits: 32 }], own.gallery.features).g.values;

  // (n) cosines of a feature of length 1 and all images, whose features have length 1 as well
  const scoresOf = (feature) => own.rows.map((_, row) => {
    let product = 0;
    for (let d = 0; d < dim; d += 1) product += feature[d] * gallery[row * dim + d];
    return product;
  });

  // The best k images, best first
  const listed = (text, scores, k) => {
    const order = scores.map((_, row) => row).sort((one, other) => scores[other] - scores[one] || one - other).slice(0, k);
    const limit = own.threshold?.value ?? null;
    const items = order.map((row, place) => {
      const { b, b_pid, ...shown } = own.rows[row];
      const pair = b === undefined ? null : { a: "", question: text, a_pid: "", b, b_pid };
      const accepted = limit === null ? null : scores[row] >= limit;
      return { ...shown, row, rank: place + 1, score: scores[row], accepted, pair };
    });
    placesByDoubt(items.map((item) => item.score), limit).forEach((item, place) => { items[item].doubt = place; });
    return items;
  };

  // The answer in words; `present` is said by a sign of the page
  const sentenceOn = (items) => {
    const best = fixedDigits(items[0].score, 3);
    if (!own.threshold) return `best score ${best}; no threshold was given, so nothing is said about presence`;
    const limit = fixedDigits(own.threshold.value, 3);
    const accepted = items.filter((item) => item.accepted).length;
    if (!accepted) return `${limit}, ${own.threshold.misses} (best score ${best})`;
    return `${accepted} of the first ${items.length} images clear the threshold ${limit}, ${own.threshold.finds}`;
  };

  const refusal = (text, message) => ({ label: `Search, ${shortText(text)}: no answer`, message, query_text: text });

  const answer = (typed, k) => {
    const text = typed.trim();
    if (!text) return refusal(text, "a sentence is empty; say what the person looks like");
    const report = reader.read(text);
    if (!report.known) {
      const what = report.unknown.length ? `unknown: ${fewWords(report.unknown)}` : "it holds no word";
      return refusal(text, `the sentence ${shortText(text)} has no word that the tokenizer of the model knows (${what}); say what `
        + "the person looks like in the language of the captions that the model was trained with");
    }
    const items = listed(text, scoresOf(features(report.ids)), k);
    const remarks = [sentenceOn(items), report.note, ...own.remarks].filter(Boolean).join("; ");
    return {
      label: `Search, ${shortText(text)}: ${remarks}`,
      items,
      remarks,
      present: own.threshold ? items[0].accepted : null,
      by_chance: own.chance ? chanceSentence(items[0].score, own.chance) : "",
      words: report.note ? report.marks : [],
      query_text: text,
    };
  };

  return { answer };
}
