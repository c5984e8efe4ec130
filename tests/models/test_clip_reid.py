"""CLIP-ReID: parameter counts by our own arithmetic, features, prompts and the losses of stage 2."""
import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.losses import image as losses
from reid_lab.losses.basics import terms
from reid_lab.models.clip_reid import CLIPReID, Prompts
from reid_lab.models.clip_towers import clip_model
from reid_lab.models.zoo import sample_batch

SIZE = (64, 32)


TINY_CLIP = dict(dim=48, vision=dict(width=64, layers=2, head_width=32, patch_size=16),
                 text=dict(width=48, layers=2, heads=2))


def block(D): return 4*D*D + 4*D + 8*D*D + 5*D + 4*D  # attention, feed-forward of four times the width, two norms


def clip_reid_parameters(n_ids, n_patches, D, E, layers, T, text_layers, patch=16):
    image = 3*patch*patch*D + D + (n_patches + 1)*D + 2*D + layers*block(D) + 2*D + D*E
    text = 77*T + text_layers*block(T) + 2*T + T*E
    return image + text + 4*T*n_ids + (2 + n_ids)*(D + E)


@pytest.mark.parametrize("name, kw, want, dim", [
    ("clip_reid_b16", dict(n_ids=1041), clip_reid_parameters(1041, 16*8, 768, 512, 12, 512, 12), 1280),
    ("clip_reid_b16", dict(n_ids=5, stride=12), clip_reid_parameters(5, 21*10, 768, 512, 12, 512, 12), 1280),
    ("clip_reid_tiny", dict(n_ids=9), clip_reid_parameters(9, 32, 96, 64, 3, 64, 2), 160)])
def test_parameters_and_width(name, kw, want, dim, parameters_and_width):
    assert parameters_and_width(name, **kw) == (want, dim)


def test_f11_f12_fp_are_where_the_paper_takes_them():
    torch.manual_seed(0)
    clip = clip_model(SIZE, **TINY_CLIP).eval()
    model, seen = CLIPReID(clip, 4, SIZE).eval(), {}
    img = torch.rand(2, 3, *SIZE)
    hooks = [b.register_forward_hook(lambda m, i, o, k=k: seen.__setitem__(k, o))
             for k, b in enumerate(clip.visual.transformer.resblocks)]
    joint = clip.visual(model.pixels(img))
    for h in hooks: h.remove()
    f11, f12, fp = model.towers(img)
    assert torch.allclose(f11, seen[0][:, 0], atol=1e-5)
    assert torch.allclose(f12, clip.visual.ln_post(seen[1][:, 0]), atol=1e-5) and torch.allclose(fp, joint, atol=1e-5)
    assert torch.equal(model.raw_features(img), torch.cat(model.towers(img)[1:], 1))


def test_a_prompt_is_the_sentence_it_stands_for():
    torch.manual_seed(0)
    clip, bpe = clip_model(SIZE, **TINY_CLIP).eval(), SimpleTokenizer()
    model = CLIPReID(clip, 3, SIZE)
    with torch.no_grad():
        words = [bpe.encode(w)[0] for w in ("red", "hat", "blue", "bag")]
        model.prompts.learned[1] = clip.token_embedding.weight[words]
        ours = model.text(model.prompts(torch.tensor([1])))
        theirs = clip.encode_text(bpe("A photo of a red hat blue bag person."))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert model.prompts(torch.tensor([0, 1])).shape == (2, 12, 48)
    with torch.no_grad():                               # other words, and another number of them
        other = Prompts(clip.token_embedding, 2, before="A picture of", after="woman walking.", n=3)
        other.learned[1] = clip.token_embedding.weight[words[:3]]
        ours = model.text(other(torch.tensor([1])))
        theirs = clip.encode_text(bpe("A picture of red hat blue woman walking."))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_stage_2_losses_against_loops(tiny):
    model = tiny("clip_reid").eval()
    batch = sample_batch(SIZE)
    out = model(batch)
    f11, f12, fp = model.towers(batch["img"])
    def ce(s): return losses.label_smoothing(s, batch["label"], .1)

    assert torch.allclose(out["id_loss"],
                          .25*(ce(model.heads[0](model.necks[0](f12))) + ce(model.heads[1](model.necks[1](fp)))))
    assert torch.allclose(out["triplet_loss"], sum(losses.triplet(f, batch["pid"], .3) for f in (f11, f12, fp)))
    texts = torch.cat([model.text(model.prompts(torch.tensor([i]))) for i in range(4)])
    assert torch.allclose(out["i2t_loss"], ce(fp @ texts.T), atol=1e-4)
    off = tiny("clip_reid", w_id=0., w_triplet=0., w_i2t=0.)(batch)
    assert all(v == 0 for v in terms(off).values())


def test_sentences_travel_with_the_weights(tmp_path, tiny):
    a, b = tiny("clip_reid"), tiny("clip_reid")
    with torch.no_grad(): a.prompts.learned.mul_(9)
    a.text_cache()
    save_weights(a, tmp_path/"m.safetensors")
    load_weights(b, tmp_path/"m.safetensors")
    assert b.texts_ready and torch.equal(a.texts, b.texts)
    batch = sample_batch(SIZE)
    assert torch.equal(a.eval()(batch)["i2t_loss"], b.eval()(batch)["i2t_loss"])


def test_scores_are_those_of_f12():
    torch.manual_seed(0)
    model, img = CLIPReID(clip_model(SIZE, **TINY_CLIP), 4, SIZE).eval(), torch.rand(2, 3, *SIZE)
    with torch.no_grad():
        f12 = model.towers(img)[1]
        assert torch.equal(model.logits(img), model.heads[0](model.necks[0](f12))) and len(model.heads) > 1
