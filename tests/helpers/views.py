"One of every interactive view, scenes with odd labels, and notebooks that show them"
import nbformat
import numpy as np

from reid_lab.analysis.bias.maps import project_pair
from reid_lab.analysis.open_set import Threshold
from reid_lab.data.text import WordPiece
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.attention import AttentionView
from reid_lab.widgets.cameras import AdaptedMap, AdaptedScene, CameraBars, PairMatrix
from reid_lab.widgets.failures import FailureBrowser
from reid_lab.widgets.maps import FeatureMap
from reid_lab.widgets.scene import RankedList, Scene
from reid_lab.widgets.search import SearchPage
from reid_lab.widgets.words import WordLab

EVIL = "</script><img src=x onerror=alert(1)>"
TOK = WordPiece.train(["a man in red"]*3, vocab_size=60, context_length=16)
MODEL = create_model("clip_tiny", tokenizer=TOK, size=(64, 32))
VIEWS = {"list": (RankedList, RankedList), "words": (WordLab, WordLab),
         "attention": (AttentionView, lambda scene, **kw: AttentionView(scene, MODEL, n=2, **kw)),
         "map": (FeatureMap, lambda scene, **kw: FeatureMap(scene, project_pair(scene.q, scene.g, "pca"), **kw)),
         "failures": (FailureBrowser, FailureBrowser),
         "search": (SearchPage, lambda scene, **kw: SearchPage(scene, threshold=Threshold(.5, .1, .1, 40, 12), **kw)),
         "adapted map": (AdaptedMap,
                         lambda scene, **kw: AdaptedMap(scene, project_pair(scene.q, scene.g, "pca"), **kw)),
         "cameras": (CameraBars, lambda scene, **kw: CameraBars(AdaptedScene(scene), **kw)),
         "pairs": (PairMatrix, PairMatrix)}
LABELS = {  # what may be odd about identities and cameras -> (pid, cam) of 60 rows
    "ordinary": (np.arange(60) % 12, np.arange(60) % 5), "one camera": (np.arange(60) % 12, np.zeros(60, int)),
    "one identity": (np.zeros(60, int), np.arange(60) % 5), "one of each": (np.zeros(60, int), np.zeros(60, int)),
    "unknown identities": (np.full(60, -1), np.arange(60) % 5), "no cameras": (np.arange(60) % 12, None),
    "some junk": (np.arange(60) % 13 - 1, np.arange(60) % 5),
    "some cameras unknown": (np.arange(60) % 12, np.arange(60) % 5 - 1),
    "unknown cameras": (np.arange(60) % 12, np.full(60, -1))}


def embedded(labels="ordinary", n=60):
    pid, cam = LABELS[labels]
    emb = np.random.default_rng(0).normal(size=(n, 8)).astype("float32") + np.eye(n, 8)
    return Embeddings(emb, pid, cam, path=[f"folder/{i}.jpg" for i in range(n)])


def make_scene(labels="ordinary", *images, captions=None, **kw):
    "Of 20 queries and 40 gallery images, or of 20 captions"
    e = embedded(labels)
    text = Embeddings(e.emb[:20], e.pid[:20], None if e.cam is None else e.cam[:20], caption=captions)
    return Scene(text if captions else e[:20], e[20:], *images, **kw)


def lost_files(folder):
    "20 queries and 40 gallery images, all of which are deleted after the scene was made"
    from PIL import Image
    files = [folder/f"crop{i}.png" for i in range(60)]
    for f in files: Image.new("RGB", (32, 64), "red").save(f)
    scene = make_scene("ordinary", files[20:], files[:20], query=0)
    for f in files: f.unlink()
    return scene


CELLS = """import numpy as np
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.analysis.bias.maps import project_pair
from reid_lab.widgets.scene import RankedList, Scene
from reid_lab.widgets.maps import FeatureMap
from reid_lab.widgets.view import Board
rng = np.random.default_rng(0); n = 5000
pid, cam = np.arange(n) % 250, np.arange(n) % 6
e = Embeddings((rng.normal(size=(250, 32))[pid] + rng.normal(size=(n, 32))).astype("float32"), pid, cam)
colour = rng.integers(40, 220, (250, 3))
crop = lambda r: np.clip(colour[pid[r]] + rng.integers(-25, 25, (64, 32, 3)), 0, 255).astype("uint8")
paint = lambda rows: [crop(r) for r in rows]
scene = Scene(e[:500], e[500:], lambda rows: paint([r + 500 for r in rows]), paint, query=1)
points = FeatureMap(scene, project_pair(e[:500], e[500:], "pca", n=n))
# %%
Board(points, RankedList(scene))
""".split("# %%\n")
COCKPIT = """import numpy as np
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.cameras import cockpit
from reid_lab.widgets.scene import Scene
rng = np.random.default_rng(0); n = 3000
pid, cam = np.arange(n) % 150, rng.integers(0, 5, n)
who, shift = rng.normal(size=(150, 64)), rng.normal(size=(5, 64))
e = Embeddings((who[pid] + shift[cam] + rng.normal(size=(n, 64))).astype("float32"), pid, cam)
scene = Scene(e[:600], e[600:], query=1)
# %%
cockpit(scene, n=600, method="DART3-LITE")
""".split("# %%\n")


def write_notebook(path, cells=CELLS):
    cells = [nbformat.v4.new_code_cell(c) for c in cells]
    kernel = dict(name="python3", display_name="python3", language="python")
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=dict(kernelspec=kernel)), path)
    return path
