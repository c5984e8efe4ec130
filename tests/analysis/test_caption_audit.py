"Reports on captions against naive counts"
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.captioning import Wrong, captioned, photo_of

from reid_lab.analysis import caption_audit
from reid_lab.datasets.captioning import run as caption_run, traces as T
from reid_lab.datasets.image_sets import tiny_table


def test_reports_against_naive_counts():
    truths, records = captioned(20)
    records = records + [caption_run.caption_image(photo_of(), Wrong("audit", None), retries=1)]
    ops = Counter(c.op for r in records if r.T3 for c in r.T3.trace_corr)
    edits = caption_audit.edit_table(records).set_index("op")
    assert edits.n.to_dict() == {o: ops[o] for o in T.OPS}
    assert edits.share.tolist() == pytest.approx([100*ops[o]/sum(ops.values()) for o in T.OPS])
    assert edits.captions["edit"] == pytest.approx(100*np.mean([any(c.op == "edit" for c in r.T3.trace_corr)
                                                                 for r in records if r.T3]))
    one = caption_audit.record_summary(records).iloc[0]
    assert (one.images, one.ok, one.rejected) == (21, 20, 1) and one.retries == pytest.approx(1/21)
    words = [len(r.caption.replace("-", " ").split()) for r in records if r.status == "ok"]
    lengths = caption_audit.length_table(records).set_index("captions_of")
    assert lengths.max_words["refined"] == max(words) and lengths.avg_words["refined"] == pytest.approx(np.mean(words))
    assert (lengths.avg_words["AERI-PEDES"], lengths.max_words["AERI-PEDES"]) == (38.6, 105)
    cover = caption_audit.coverage_table(records).set_index("attribute")
    used = sum(any(s.attribute == "gender" and s.used for s in r.T2.trace_gen) for r in records)
    assert cover.said["gender"] == pytest.approx(100*used/21)


def test_similarity_is_the_cosine_of_each_pair():
    from reid_lab.models.weights.shipped import shipped
    from reid_lab.models.zoo import create_model
    clip, table = create_model("clip_tiny", weights=shipped()["clip_tiny"][1]), tiny_table(3, 1)
    said = ["a man in red", "", "a woman with a bag"]
    got = caption_audit.pair_similarity(clip, table, said, quiet=True)
    with torch.inference_mode():
        for i in (0, 2):
            img = torch.from_numpy(table.images([i], clip.size)).permute(0, 3, 1, 2)/255
            a, b = clip.eval().encode_image(img)[0], clip.encode_text(clip.tokenizer([said[i]]))[0]
            assert got[i] == pytest.approx(float(a @ b/(a.norm()*b.norm())), abs=1e-4)
    assert np.isnan(got[1])
