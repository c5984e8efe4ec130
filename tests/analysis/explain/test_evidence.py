"Evidence for a map of one image: planted truths, and what the maps are measured by"
import numpy as np
import pytest
import torch
from helpers.readers import TOK

from reid_lab.analysis.explain.evidence import (
    key_words,
    map_evidence,
    measured_maps,
    one_map,
    read_positions,
    telling,
    verdict,
    word_saliency,
)
from reid_lab.analysis.explain.places import Score
from reid_lab.widgets.attention import trust_lines


def planted(img): return img[:, 0, 8:24, 8:24].mean((1, 2))


def test_evidence_for_a_planted_map_and_against_its_reverse():
    torch.manual_seed(0)
    img = torch.rand(1, 3, 64, 32)*.3
    img[:, 0, 8:24, 8:24] = 1
    heat = np.zeros((64, 32))
    heat[8:24, 8:24] = 1
    good = map_evidence(planted, img, heat, "deletion", n=19)["deletion"]
    bad = map_evidence(planted, img, -heat, "deletion", n=19)["deletion"]
    assert verdict(good["beats"], 19)[0] and not verdict(bad["beats"], 19)[0]
    assert verdict(bad["beats"], 19)[1].startswith("not better than random")
    assert good["own"][0] == pytest.approx(1)
    assert (good["low"] <= good["mean"]).all() and (good["mean"] <= good["high"]).all()
    assert [verdict(b/19, 19)[0] for b in (18, 18.5, 19)] == [False, False, True]


def test_a_word_is_found_where_the_tokenizer_reads_it(clip):
    text = "A man, in a red coat!"
    said, at = read_positions(TOK, text)
    assert len(at) == 6 and telling(text) == [1, 4, 5] and [said.split()[j] for j in at[4]] == ["red"]
    with torch.no_grad(): to = clip.encode_text(TOK(["red bag"]))[0]
    for how in ("occlusion", "gradients"): assert word_saliency(clip, text, to, how).shape == (6,)
    img = torch.rand(1, 3, 64, 32)
    heat, score = one_map(clip, img, "occlusion", text, 4)
    with torch.no_grad():
        t = clip.encode_text(TOK([said, said.replace("red ", "")]))
        want = clip.encode_image(img) @ (t[0] - t[1])
    assert isinstance(score, Score) and torch.allclose(score(img), want, atol=1e-5)


@pytest.mark.parametrize("name, own", [("irra_tiny", "cross-attention"), ("cfam_tiny", "queries"),
                                       ("cfan_tiny", "queries")])
def test_all_maps_of_models_that_are_not_shipped_are_measured(name, own):
    told, known = trust_lines(measured_maps(), name), measured_maps().set_index(["model", "method"]).loc[name]
    assert set(told) == {"gradcam", "hirescam", "layercam", "occlusion", "rollout", own, "centre"}
    assert (known.n >= 500).all() and known.believed["occlusion"] and told["occlusion"].startswith("believed over 620")
    assert (known.pointing < known.chance_person)[own] and told[own].startswith("not believed over 620")
    assert told[own].endswith("not shown to beat a blob in the centre")


@pytest.mark.parametrize("text, most, words", [
    ("A man in a red coat, blue jeans and white sneakers with a black bag.", 5, "coat, jeans sneakers bag."),
    ("A man in a red coat, blue jeans and white shoes with a black bag.", 2, "coat, jeans"),
    ("The woman in a red coat.", 5, "woman red coat."), ("Somebody.", 5, "Somebody."), ("the of a", 5, ""), ("", 5, ""),
    ("A lady in a [UNK] coat and a hat.", 1, "coat"), ("She wears a coat.", 0, "")])
def test_key_words_name_what_is_worn_first(text, most, words):
    found = key_words(text, most)
    assert [text.split()[i] for i in found] == words.split() and found == sorted(set(found))


def test_key_words_are_read_by_the_tokenizer():
    "Words behind the end of what a tokenizer reads have no map"
    long = "A man " + "who walks "*TOK.context_length + "in a red coat with a bag."
    n = len(long.split())
    assert key_words(long)[-1] == n - 1 and max(key_words(long, tokenizer=TOK)) < TOK.context_length
