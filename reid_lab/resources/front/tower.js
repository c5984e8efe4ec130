// A small text tower in plain JavaScript: ids of tokens -> a feature of length 1. Shapes stand behind each step: L tokens of
// a sentence, D numbers a token, H heads, E numbers of a feature. Sums are made in 64 bits, weights are stored in 16.

// A number of 16 bits: 1 of sign, 5 of exponent, 10 of fraction.
function halfAsNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

// Arrays that follow each other in one text of base64: `list` says name, shape and bits of each -> name: { shape, values }
function unpackArrays(list, packed) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const arrays = {};
  let place = 0;
  for (const { name, shape, bits } of list) {
    const values = new Float32Array(shape.reduce((product, n) => product * n, 1));
    for (let i = 0; i < values.length; i += 1) {
      values[i] = bits === 16 ? halfAsNumber(view.getUint16(place, true)) : view.getFloat32(place, true);
      place += bits / 8;
    }
    arrays[name] = { shape, values };
  }
  return arrays;
}

// The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  quick_gelu: (x) => x / (1 + Math.exp(-1.702 * x)),
};

// Rows (L,D) are a list of L arrays.
const addRows = (one, other) => one.map((row, i) => row.map((value, j) => value + other[i][j]));

// (L,in) -> (L,out); the weight is (out,in), the bias (out) or missing
function linear(rows, weight, bias) {
  const [nOut, nIn] = weight.shape;
  return rows.map((row) => {
    const out = new Float64Array(nOut);
    for (let o = 0; o < nOut; o += 1) {
      let sum = bias ? bias.values[o] : 0;
      for (let i = 0; i < nIn; i += 1) sum += weight.values[o * nIn + i] * row[i];
      out[o] = sum;
    }
    return out;
  });
}

// (L,D) -> (L,D): each token with mean 0 and variance 1, then scaled and shifted
function layerNorm(rows, weight, bias, eps) {
  return rows.map((row) => {
    const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
    const scale = 1 / Math.sqrt(variance + eps);
    return row.map((value, i) => (value - mean) * scale * weight.values[i] + bias.values[i]);
  });
}

// Scores of one token -> shares that sum to 1
function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

// (L,3D) of queries, keys and values -> (L,D): for each head, the values that a token attends to. With `causal` a token sees
// none behind it.
function attend(qkv, heads, causal) {
  const width = qkv[0].length / 3;
  const perHead = width / heads;
  const out = qkv.map(() => new Float64Array(width));
  for (let head = 0; head < heads; head += 1) {
    const query = head * perHead;
    const key = width + query;
    const value = 2 * width + query;
    qkv.forEach((row, i) => {
      const seen = causal ? qkv.slice(0, i + 1) : qkv;
      const shares = softmax(seen.map((other) => {
        let product = 0;
        for (let d = 0; d < perHead; d += 1) product += row[query + d] * other[key + d];
        return product / Math.sqrt(perHead);
      }));
      seen.forEach((other, j) => {
        for (let d = 0; d < perHead; d += 1) out[i][query + d] += shares[j] * other[value + d];
      });
    });
  }
  return out;
}

// The tower of a record: heads, layers, eps, act, causal, pool, normed (`before` or `behind` a part), arrays and their list.
function textTower(record) {
  const arrays = unpackArrays(record.list, record.arrays);
  const act = ACTIVATIONS[record.act];
  const apply = (rows, name) => linear(rows, arrays[`${name}.weight`], arrays[`${name}.bias`]);
  const norm = (rows, name) => (arrays[`${name}.weight`]
    ? layerNorm(rows, arrays[`${name}.weight`], arrays[`${name}.bias`], record.eps) : rows);
  const rowOf = (table, row) => {
    const width = table.shape[1];
    return Float64Array.from(table.values.subarray(row * width, (row + 1) * width));
  };

  // A part of a layer, with what it adds to: normalised before it (CLIP) or behind the sum (BERT)
  const withResidual = (rows, name, part) => {
    if (record.normed === "before") return addRows(rows, part(norm(rows, name)));
    return norm(addRows(rows, part(rows)), name);
  };

  // (L,D) -> (L,D)
  const layer = (rows, name) => {
    const attention = (x) => apply(attend(apply(x, `${name}.qkv`), record.heads, record.causal), `${name}.out`);
    const feedForward = (x) => apply(apply(x, `${name}.up`).map((row) => row.map(act)), `${name}.down`);
    return withResidual(withResidual(rows, `${name}.norm_1`, attention), `${name}.norm_2`, feedForward);
  };

  // (L,D) -> (D): the last token, the first one, or the mean of all
  const pooled = (rows) => {
    if (record.pool === "last") return rows.at(-1);
    if (record.pool === "first") return rows[0];
    return rows[0].map((_, d) => rows.reduce((sum, row) => sum + row[d], 0) / rows.length);
  };

  // L ids, start and end included -> (E), of length 1
  return (ids) => {
    const words = ids.map((id) => rowOf(arrays.words, id));
    const places = ids.map((_, i) => rowOf(arrays.places, i));
    let rows = norm(addRows(words, places), "norm_in");
    for (let i = 0; i < record.layers; i += 1) rows = layer(rows, `layers.${i}`);
    const [feature] = apply([pooled(norm(rows, "norm_out"))], "project");
    const length = Math.hypot(...feature);
    return feature.map((value) => value / length);
  };
}
