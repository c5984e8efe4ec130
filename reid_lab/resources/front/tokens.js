// The tokenizer of a page that answers sentences by itself: the rules of `reid_lab.data.text` for captions of which only small
// letters ("letters"), or letters and digits ("plain"), are read. What a rule of Python does to other signs is left out where
// it makes no difference: all of them end a word.

const PLACEHOLDER = /(\[UNK\]|\[MASK\])/u;
const BLANKS = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u; // of Python's `str.split`
const NOT_ASCII = /[^\x00-\x7f]/u;
const QUOTES = /[\u2018\u2019\u02bc\u00b4\u2032]/gu;
const WITHOUT_ACCENT = { ß: "ss", æ: "ae", œ: "oe", ø: "o", ł: "l", đ: "d", ð: "d", þ: "th", ı: "i" };
const MOST_LETTERS = 100; // of a word; a longer one is unknown
const READ_WORD = ".";
const UNKNOWN_WORD = "u";
const CUT_WORD = "c";

const splitWords = (text) => text.split(BLANKS).filter((word) => word !== "");

// Tags and entities of HTML. With every `<` written as an entity the parser finds no tag, so that it reads entities alone.
function withoutMarkup(text) {
  if (!text.includes("<") && !text.includes("&")) return text;
  const escaped = text.replaceAll("\0", " ").replaceAll("<", "&lt;");
  const read = new DOMParser().parseFromString(escaped, "text/html").body.textContent;
  return read.replace(/<[^<>]{0,200}>/gu, " ");
}

// `accents` is a pattern of the signs that are written onto the one before.
function cleanCaption(raw, form, accents) {
  let text = withoutMarkup(raw);
  if (NOT_ASCII.test(text)) text = text.replace(QUOTES, "'").normalize("NFKC").replace(QUOTES, "'");
  text = text.toLowerCase();
  if (NOT_ASCII.test(text)) {
    text = text.replace(/[ßæœøłđðþı]/gu, (letter) => WITHOUT_ACCENT[letter]);
    text = text.normalize("NFKD").replace(accents, "");
  }
  if (form === "letters") text = text.replaceAll("'", "");
  const words = text.match(form === "letters" ? /[a-z]+/gu : /[0-9a-z]+/gu);
  return (words ?? []).join(" ");
}

// A sign that cannot be seen, as Python writes it.
function escapedSign(sign) {
  const short = { "\t": "\\t", "\n": "\\n", "\r": "\\r" }[sign];
  if (short) return short;
  const code = sign.codePointAt(0).toString(16);
  if (code.length <= 2) return `\\x${code.padStart(2, "0")}`;
  return code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
}

// A text as Python writes it, in one line and not longer than a line.
function shortText(text, most = 40) {
  const signs = [...text];
  const kept = signs.length > most ? `${signs.slice(0, most - 3).join("")}...` : text;
  const escaped = kept.replaceAll("\\", "\\\\").replace(/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, escapedSign);
  if (kept.includes("'") && !kept.includes('"')) return `"${escaped}"`;
  return `'${escaped.replaceAll("'", "\\'")}'`;
}

function fewWords(words, limit = 4) {
  const distinct = [...new Set(words)];
  const more = distinct.length - limit;
  const text = distinct.slice(0, limit).map((word) => shortText(word)).join(", ");
  return more > 0 ? `${text} and ${more.toLocaleString("en")} more` : text;
}

// Letters or a symbol, but not one letter alone.
function hasMeaning(text) {
  if (text.length === 1 && !NOT_ASCII.test(text)) return false;
  return /[\p{L}\p{So}]/u.test(text);
}

// Pieces to ids, and what of a sentence is read. `tokenizer`: vocab, unk, mask, cls, sep, pad, length, clean, accents.
function sentenceReader(tokenizer) {
  const index = new Map(tokenizer.vocab.map((piece, id) => [piece, id]));
  const ranges = tokenizer.accents.map(([first, last]) => `\\u{${first.toString(16)}}-\\u{${last.toString(16)}}`);
  const accents = new RegExp(`[${ranges.join("")}]`, "gu");
  const room = tokenizer.length - 2; // without start and end
  const looks = new Map(); // word of a sentence -> { tokens, known }

  // The longest piece that a word begins with, then that of the rest; a word with a rest that is no piece is unknown.
  const idsOfWord = (word) => {
    if (word === "[UNK]") return [tokenizer.unk];
    if (word === "[MASK]") return [tokenizer.mask];
    if (word.length > MOST_LETTERS) return [tokenizer.unk];
    const ids = [];
    let start = 0;
    while (start < word.length) {
      let end = word.length;
      let id;
      while (end > start) {
        id = index.get((start ? "##" : "") + word.slice(start, end));
        if (id !== undefined) break;
        end -= 1;
      }
      if (id === undefined) return [tokenizer.unk];
      ids.push(id);
      start = end;
    }
    return ids;
  };

  // Placeholders stand for unknown and masked words, and are left alone.
  const idsOf = (text) => {
    const parts = text.split(PLACEHOLDER);
    const clean = parts.map((part) => (PLACEHOLDER.test(part) ? part : cleanCaption(part, tokenizer.clean, accents)));
    return splitWords(clean.join(" ")).flatMap(idsOfWord);
  };

  // The words that were made of one word between blanks, each as its ids.
  const chunksOf = (ids) => {
    const chunks = [];
    for (const id of ids) {
      if (chunks.length && tokenizer.vocab[id].startsWith("##")) chunks.at(-1).push(id);
      else chunks.push([id]);
    }
    return chunks;
  };

  const decode = (ids) => ids.map((id) => tokenizer.vocab[id]).join(" ").replaceAll(" ##", "");

  // true, false, or null for what counts neither way, such as one letter
  const isKnown = (word, given) => {
    let ids = given;
    let text = word;
    if (PLACEHOLDER.test(word)) {
      text = splitWords(word.split(PLACEHOLDER).filter((part) => !PLACEHOLDER.test(part)).join(" ")).join(" ");
      ids = idsOf(text);
    }
    if (!hasMeaning(text)) return null;
    const parts = chunksOf(ids).map((chunk) => ({ n: chunk.length, unknown: chunk.includes(tokenizer.unk), text: decode(chunk) }));
    if (parts.some((part) => part.unknown && part.text === "[UNK]")) return false;
    const meaningful = parts.filter((part) => hasMeaning(part.text));
    if (meaningful.length) return meaningful.every((part) => part.n === 1 || part.text.length >= 2 * part.n);
    return parts.some((part) => part.text !== "" && !NOT_ASCII.test(part.text)) ? null : false;
  };

  const look = (word) => {
    if (!looks.has(word)) {
      const ids = idsOf(word);
      looks.set(word, { tokens: ids.length, known: isKnown(word, ids) });
    }
    return looks.get(word);
  };

  // How many of the first words fit, by halving: the tokens of a beginning grow with its words.
  const nFitting = (words) => {
    let fit = 0;
    let over = words.length;
    while (over - fit > 1) {
      const middle = Math.floor((fit + over) / 2);
      if (idsOf(words.slice(0, middle).join(" ")).length <= room) fit = middle;
      else over = middle;
    }
    return fit;
  };

  // One line on unknown words and on what is cut off; empty if every word is read.
  const noteOn = (report) => {
    const notes = [];
    if (report.unknown.length) notes.push(`unknown to the tokenizer: ${fewWords(report.unknown)}`);
    if (report.cut.length) {
      const n = report.cut.length;
      const words = n === 1 ? "a word is" : `${n.toLocaleString("en")} words are`;
      const from = `from word ${report.fit + 1} on (${shortText(report.cut.join(" "))})`;
      notes.push(`${words} cut off, ${from}: ${room + 2} of ${report.tokens.toLocaleString("en")} tokens are read`);
    }
    return notes.join("; ");
  };

  // What the tower reads, and what becomes of each word of the sentence.
  const read = (text) => {
    const words = splitWords(text);
    const ids = idsOf(text);
    let tokens = words.reduce((sum, word) => sum + look(word).tokens, 0);
    if (tokens > room || NOT_ASCII.test(text)) tokens = ids.length;
    const fit = tokens <= room ? words.length : nFitting(words);
    const unknown = words.filter((word) => look(word).known === false);
    const missing = new Set(unknown);
    const mark = (word, place) => {
      if (place >= fit) return CUT_WORD;
      return missing.has(word) ? UNKNOWN_WORD : READ_WORD;
    };
    const report = { unknown, fit, cut: words.slice(fit), tokens: tokens + 2 };
    return {
      ids: [tokenizer.cls, ...ids.slice(0, room), tokenizer.sep],
      known: words.filter((word) => look(word).known === true).length,
      unknown,
      marks: words.map((word, place) => [word, mark(word, place)]),
      note: noteOn(report),
    };
  };

  return { read };
}
