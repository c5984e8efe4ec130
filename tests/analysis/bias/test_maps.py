"Maps: each method takes the options of its own library and refuses others"
from pathlib import Path

import numpy as np
import pytest
from helpers.bias import scene

from reid_lab.analysis.bias.maps import project, sample_rows
from reid_lab.core.basics import stream
from reid_lab.retrieval.embeddings import Embeddings


def test_what_umap_compiles_is_kept_for_the_next_process():
    from umap import umap_, utils
    rng = np.random.default_rng(0)
    project(Embeddings(rng.normal(size=(12, 4)).astype("float32"), np.arange(12) % 3, np.arange(12) % 2), "umap")
    for function in (utils.fast_knn_indices, umap_.smooth_knn_dist):
        kept = Path(function.stats.cache_path)
        assert list(kept.glob(f"*.{function.py_func.__name__}-*.nbi")) and function.signatures


@pytest.mark.whole
@pytest.mark.parametrize("method, option", [("umap", dict(n_neighbors=4)), ("tsne", dict(perplexity=4)),
                                            ("pca", dict(whiten=True))])
def test_every_map_takes_the_options_of_its_library(method, option):
    e = Embeddings.concat(scene(1., n=8))
    plain, changed, again = project(e, method), project(e, method, **option), project(e, method, **option)
    assert np.isfinite(changed[["x", "y"]]).all(axis=None) and (changed.x == again.x).all()
    assert not np.allclose(changed.x, plain.x)


@pytest.mark.parametrize("method, option, words", [
    ("pca", dict(perplexity=5), "option of pca='perplexity' is not known.*Its value was 5"),
    ("umap", dict(perplexity=5), "option of umap='perplexity'"),
    ("tsne", dict(perplexty=5), "Did you mean 'perplexity'"), ("tsne", dict(n_neighbors=5), "choose one of"),
    ("umap", dict(random_state=1), "random_state=1: project sets.*use seed"),
    ("pca", dict(n_components=3), "two dimensions"), ("umap", dict(n_jobs=2), "n_jobs=2"),
    ("tnse", {}, "Did you mean 'tsne'")])
def test_maps_refuse_other_options(method, option, words):
    with pytest.raises(ValueError, match=words): project(scene(1.)[0], method, **option)


def test_pca_is_the_singular_value_decomposition():
    e = scene(2.)[0]
    x = e.numpy() - e.numpy().mean(0)
    _, _, v = np.linalg.svd(x, full_matrices=False)
    v = v[:2]*np.sign(v[:2][np.arange(2), abs(v[:2]).argmax(1)])[:, None]
    np.testing.assert_allclose(project(e, "pca")[["x", "y"]], x @ v.T, atol=1e-4)


def test_a_sample_of_rows_is_that_of_the_naive_form():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        e = Embeddings(rng.normal(size=(200, 3)), rng.integers(-1, 30, 200))
        real, keep, draw = np.flatnonzero(e.pid >= 0), [], stream(seed, "map")
        for pid in draw.permutation(np.unique(e.pid[real])):
            own = np.flatnonzero(e.pid == pid)
            if keep and len(keep) + len(own) > 60: break
            keep += own.tolist()
        assert sample_rows(e, 60, seed).tolist() == sorted(keep)
