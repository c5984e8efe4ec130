"Released checkpoints of APTM and CAMeL, stated again from their descriptions: names, shapes, and a plain forward"
import math
import re

import torch
import torch.nn.functional as F

W, HEADS, VOCAB = 24, 2, 60


def authors_names(state):
    "Swin's tensors as its authors save them: a stage ends with its halving, indices and masks are stored"
    out = {}
    for k, v in state.items():
        out[re.sub(r"layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", k)] = v
        if k.endswith("bias_table"):
            out[k.replace("bias_table", "index")] = torch.zeros(49, 49, dtype=torch.long)
            out[k.replace("attn.relative_position_bias_table", "attn_mask")] = torch.zeros(64, 49, 49)
    return out


LINEAR = ("weight", "bias")


def text_shapes(width, wide, vocab, image, mlm=True, positions=512):
    "Names and shapes of the text side in a released checkpoint of APTM or CAMeL"
    at, ffn = "text_encoder." + "bert."*mlm, 4*width
    out = {f"{at}embeddings.word_embeddings.weight": (vocab, width),
           f"{at}embeddings.position_embeddings.weight": (positions, width),
           f"{at}embeddings.token_type_embeddings.weight": (2, width), f"{at}embeddings.position_ids": (1, positions)}
    norms, linears = [f"{at}embeddings.LayerNorm"], {}
    for i in range(12):
        layer = f"{at}encoder.layer.{i}."
        for kind in ("attention", "crossattention")[:1 + (i > 5)]:
            kv = image if kind == "crossattention" else width
            linears |= {f"{layer}{kind}.self.query": (width, width), f"{layer}{kind}.self.key": (width, kv),
                        f"{layer}{kind}.self.value": (width, kv), f"{layer}{kind}.output.dense": (width, width)}
            norms.append(f"{layer}{kind}.output.LayerNorm")
        linears |= {f"{layer}intermediate.dense": (ffn, width), f"{layer}output.dense": (width, ffn)}
        norms.append(f"{layer}output.LayerNorm")
    if mlm:
        head = "text_encoder.cls.predictions."
        linears |= {f"{head}transform.dense": (width, width), f"{head}decoder": (vocab, width)}
        norms.append(f"{head}transform.LayerNorm")
        out[f"{head}bias"] = (vocab,)
    linears |= {"text_proj": (wide, width), "itm_head.0": (2*width, width), "itm_head.3": (2, 2*width)}
    for n, s in linears.items(): out |= {f"{n}.weight": s, f"{n}.bias": s[:1]}
    for n in norms: out |= {f"{n}.{k}": (width,) for k in LINEAR}
    return out | {f"itm_head.1.{k}": (2*width,) for k in LINEAR} | {"temp": ()}


def image_head_shapes(image, wide, mlp):
    if not mlp: return {"vision_proj.weight": (wide, image), "vision_proj.bias": (wide,)}
    sizes = {"0": (image,), "1": (wide, image), "3": (wide, wide)}
    return {f"vision_proj.{i}.{k}": s if k == "weight" else s[:1] for i, s in sizes.items() for k in LINEAR}


def drawn(shapes, seed=0):
    g = torch.Generator().manual_seed(seed)
    out = {k: torch.randn(s, generator=g)*(.2 if len(s) > 1 else .1) for k, s in shapes.items()}
    for k in out:
        if k.endswith((".LayerNorm.weight", "itm_head.1.weight", "vision_proj.0.weight")) and out[k].ndim == 1:
            out[k] += 1
        if k.endswith("position_ids"): out[k] = torch.arange(512)[None]
        if k == "temp": out[k] = torch.tensor(.05)
    return out


def released_attention(s, at, x, kv, mask, heads):
    q, k, v = (F.linear(t, s[f"{at}.self.{n}.weight"], s[f"{at}.self.{n}.bias"])
               for n, t in (("query", x), ("key", kv), ("value", kv)))
    d, out = q.shape[-1]//heads, []
    for h in range(heads):
        a = q[..., h*d:h*d + d] @ k[..., h*d:h*d + d].transpose(1, 2)/math.sqrt(d)
        if mask is not None: a = a.masked_fill(~mask[:, None], -torch.inf)
        out.append(a.softmax(-1) @ v[..., h*d:h*d + d])
    y = F.linear(torch.cat(out, -1), s[f"{at}.output.dense.weight"], s[f"{at}.output.dense.bias"])
    return released_norm(s, f"{at}.output.LayerNorm", x + y)


def released_norm(s, at, x, eps=1e-12): return F.layer_norm(x, x.shape[-1:], s[f"{at}.weight"], s[f"{at}.bias"], eps)


def released_layers(s, x, mask, layers, img=None, bert="text_encoder.bert"):
    "BERT's layers as in the released program, under its names"
    for i in layers:
        at = f"{bert}.encoder.layer.{i}"
        x = released_attention(s, f"{at}.attention", x, x, mask, HEADS)
        if img is not None: x = released_attention(s, f"{at}.crossattention", x, img, None, HEADS)
        y = F.gelu(F.linear(x, s[f"{at}.intermediate.dense.weight"], s[f"{at}.intermediate.dense.bias"]))
        x = released_norm(s, f"{at}.output.LayerNorm", x + F.linear(y, s[f"{at}.output.dense.weight"],
                                                                    s[f"{at}.output.dense.bias"]))
    return x


def released_outputs(s, tok, tokens, mlp, bert="text_encoder.bert"):
    "Text embedding, image embedding of the first token, ITM logits, MLM logits"
    mask, e = tokens != 0, f"{bert}.embeddings"
    x = s[f"{e}.word_embeddings.weight"][tokens] + s[f"{e}.position_embeddings.weight"][:tokens.shape[1]]
    x = released_norm(s, f"{e}.LayerNorm", x + s[f"{e}.token_type_embeddings.weight"][0])
    x = released_layers(s, x, mask, range(6), bert=bert)
    both = released_layers(s, x, mask, range(6, 12), tok, bert)
    lin = lambda n, t: F.linear(t, s[f"{n}.weight"], s[f"{n}.bias"])
    v = tok[:, 0]
    if mlp: v = lin("vision_proj.3", F.gelu(lin("vision_proj.1", released_norm(s, "vision_proj.0", v, 1e-5))))
    else: v = lin("vision_proj", v)
    itm = lin("itm_head.3", F.gelu(released_norm(s, "itm_head.1", lin("itm_head.0", both[:, 0]), 1e-5)))
    out = [F.normalize(lin("text_proj", x[:, 0]), dim=1), F.normalize(v, dim=1), itm]
    head = "text_encoder.cls.predictions"
    if f"{head}.bias" in s:
        y = released_norm(s, f"{head}.transform.LayerNorm", F.gelu(lin(f"{head}.transform.dense", both)))
        out.append(y @ s[f"{e}.word_embeddings.weight"].T + s[f"{head}.bias"])
    return out
