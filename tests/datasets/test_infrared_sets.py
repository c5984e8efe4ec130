"SYSU-MM01, RegDB and LLCM: folders written by hand as their loaders describe them, and every way in which one is wrong"
import numpy as np
import pytest
from helpers.by_hand import picture
from scipy.io import savemat

from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.infrared_sets import load_sysu, sysu_draws, unfit_infrared
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.retrieval.draws import apply_protocol
from reid_lab.retrieval.protocols import PROTOCOLS

pytestmark = pytest.mark.usefixtures("no_user_settings")


def write(root, images, texts):
    for name in images: picture(root/name)
    for name, text in texts.items():
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        (root/name).write_text(text)
    return root


# mangye16/Cross-Modal-Re-ID-baseline:data_manager.py, wuancong/SYSU-MM01:README.md
# people 1, 2 train, 3 validates, 6 and 25 are tested; 533 is in no list; 25 is never indoors
SYSU = ["cam1/0001/0001.jpg", "cam1/0001/0002.jpg", "cam3/0001/0001.jpg", "cam2/0002/0001.jpg", "cam6/0002/0004.jpg",
        "cam4/0003/0001.jpg", "cam6/0003/0001.jpg",
        "cam1/0006/0001.jpg", "cam1/0006/0002.jpg", "cam1/0006/0003.jpg", "cam2/0006/0001.jpg", "cam3/0006/0001.jpg",
        "cam6/0006/0001.jpg", "cam4/0025/0001.jpg", "cam5/0025/0001.jpg", "cam5/0025/0002.jpg", "cam6/0025/0001.jpg",
        "cam5/0533/0001.jpg"]
SYSU_LISTS = {"exp/train_id.txt": "1,2\n", "exp/val_id.txt": "3", "exp/test_id.txt": "6,25\n",
              "exp/available_id.txt": "1,2,3,6,25\n"}


@pytest.fixture
def sysu(tmp_path): return write(tmp_path/"SYSU-MM01", SYSU, SYSU_LISTS)


# one of ten pairs of lists; labels count the people of a list in the order in which they appear
BACK, FRONT = "Visible/285/male_back_v_05528_285.bmp", "Visible/117/male_front_v_01486_117.bmp"
WOMAN, MAN = "Visible/2/female_back_v_06300_2.bmp", "Visible/168/male_front_v_04111_168.bmp"


def thermal(path): return path.replace("Visible", "Thermal").replace("_v_", "_t_")


def regdb_lists(trial, train, test):
    for split, paths in dict(train=train, test=test).items():
        for word, name in dict(visible=str, thermal=thermal).items():
            yield f"idx/{split}_{word}_{trial}.txt", "".join(f"{name(path)} {i}\n" for i, path in enumerate(paths))


REGDB = dict([*regdb_lists(1, [BACK, FRONT], [WOMAN, MAN]), *regdb_lists(2, [WOMAN, FRONT], [MAN, BACK])])


@pytest.fixture
def regdb(tmp_path):
    images = {line.split()[0] for text in REGDB.values() for line in text.splitlines()}
    return write(tmp_path/"RegDB", images, REGDB)


# ZYK100/LLCM:DEEN/data_manager.py and data_loader.py; person 3 is tested, 4 is in no list
LLCM = ["vis/0001/0001_c01_s185535_f7010_vis.jpg", "vis/0351/0351_c06_s200656_f4830_vis.jpg",
        "nir/0001/0001_c01_s185535_f7015_nir.jpg", "nir/0351/0351_c09_s200656_f4830_nir.jpg",
        "test_vis/cam1/0003/0003_c01_s185734_f3195_vis.jpg", "test_vis/cam3/0003/0003_c03_s185734_f3195_vis.jpg",
        "test_vis/cam1/0004/0004_c01_s185734_f3195_vis.jpg",
        "test_nir/cam1/0003/0003_c01_s185734_f3195_nir.jpg", "test_nir/cam2/0003/0003_c02_s185734_f3195_nir.jpg"]
LLCM_LISTS = {"idx/train_vis.txt": f"{LLCM[0]} 0\n{LLCM[1]} 1\n", "idx/train_nir.txt": f"{LLCM[2]} 0\n{LLCM[3]} 1\n",
              "idx/test_id.txt": "3\n"}


@pytest.fixture
def llcm(tmp_path): return write(tmp_path/"LLCM", LLCM, LLCM_LISTS)


def rows(t): return [*zip(t["path"], t["pid"], t["cam_name"], t["modality"], t["split"], t["role"])]


def error(name, folder, **kw):
    with pytest.raises(TableError) as e: load_dataset(name, folder, **kw)
    return str(e.value)


def test_sysu(sysu):
    t = load_dataset("sysu-mm01", sysu.parent, check="all")
    assert sorted(t["path"]) == sorted(SYSU[:-1]) and t.further == ["modality"]
    got = {path: rest for path, *rest in rows(t)}
    assert got["cam3/0001/0001.jpg"] == [1, "3", "infrared", "train", "both"]
    assert got["cam6/0003/0001.jpg"] == [3, "6", "infrared", "val", "query"]
    assert got["cam2/0006/0001.jpg"] == [6, "2", "visible", "test", "gallery"]
    assert got["cam6/0025/0001.jpg"] == [25, "6", "infrared", "test", "query"]
    assert (t["cam"] + 1).astype(str).tolist() == t["cam_name"].tolist()
    merged = load_dataset("sysu-mm01", sysu, merge_val=True)
    assert set(merged["split"]) == {"train", "test"} and set(merged.where(pid=3)["role"]) == {"both"}
    report = doctor("sysu-mm01", sysu)
    assert report.ok and "left out: 1 images of 1 people that exp does not name" in str(report)
    assert "query: 2 ids, 3 images; published: 96, 3803" in str(report)
    assert "train: 2 ids, 5 images; published: 296, 30213" in str(report)
    assert "published: 395, 34167" in str(doctor("sysu-mm01", sysu, merge_val=True))


def test_official_galleries_of_sysu(sysu):
    "The cells of rand_perm_cam.mat: camera, person, then a row of numbers of images a trial"
    cells = np.empty((6, 1), object)
    rng = np.random.default_rng(0)
    for cam in range(6):
        cells[cam, 0] = np.empty((533, 1), object)
        for pid in range(533):
            n = sum(name.startswith(f"cam{cam + 1}/{pid + 1:04d}/") for name in SYSU)
            cells[cam, 0][pid, 0] = np.array([rng.permutation(n) + 1 for _ in range(10)]).reshape(10, n)
    savemat(sysu/"exp"/"rand_perm_cam.mat", dict(rand_perm_cam=cells))
    t = load_dataset("sysu-mm01", sysu)
    assert t.further == ["modality", *(f"draw{k}" for k in range(1, 11))]
    for trial in range(10):  # as the MATLAB program draws: rand_perm_cam{cam}{id}(trial, 1:k)
        for k in (1, 2):
            want = {f"cam{cam}/{pid:04d}/{number:04d}.jpg" for cam in (1, 2, 4, 5) for pid in (6, 25)
                    for number in cells[cam - 1, 0][pid - 1, 0][trial, :k]}
            place = t[f"draw{trial + 1}"]
            assert set(t["path"][(place >= 1) & (place <= k)]) == want
    (sysu/"exp"/"rand_perm_cam.mat").rename(sysu.parent/"orders.mat")
    assert "draw1" not in load_dataset("sysu-mm01", sysu).frame
    again = load_sysu(sysu, draws=sysu.parent/"orders.mat")
    assert again["draw7"].tolist() == t["draw7"].tolist()
    assert sysu_draws(again, sysu.parent/"orders.mat")["draw7"].tolist() == t["draw7"].tolist()
    (sysu.parent/"orders.mat").write_text("none")
    with pytest.raises(TableError, match="does not hold the orders.*data_split"):
        load_sysu(sysu, draws=sysu.parent/"orders.mat")


def test_faults_of_sysu(sysu):
    (sysu/"exp"/"test_id.txt").write_text("6,25,77")
    assert "1 people of exp have no image: 77" in str(doctor("sysu-mm01", sysu))
    (sysu/"exp"/"test_id.txt").write_text("\n")
    assert "the list 'exp/test_id.txt' is empty" in error("sysu-mm01", sysu)
    (sysu/"exp"/"test_id.txt").write_text("6,2,5x")
    text = error("sysu-mm01", sysu)
    assert "id 2 is in two lists [exp/train_id.txt and exp/test_id.txt]" in text
    assert "an id is no number [exp/test_id.txt line 1 ('5x')]" in text
    (sysu/"exp"/"test_id.txt").write_text("6,25")
    picture(sysu/"cam1"/"0006"/"copy of 1.jpg")
    assert "1 of 6 paths do not parse (expected such as cam1/0001/0001.jpg)" in error("sysu-mm01", sysu)
    assert len(load_dataset("sysu-mm01", sysu, skip=True)) == len(SYSU) - 1
    (sysu/"cam6").rename(sysu/"six")
    (sysu/"exp"/"val_id.txt").unlink()
    text = error("sysu-mm01", sysu)
    assert "the folder 'cam6' is missing" in text and "the list 'exp/val_id.txt' is missing" in text
    (sysu/"cam2"/"0002"/"0001.jpg").write_text("not an image")
    (sysu/"six").rename(sysu/"cam6")
    (sysu/"exp"/"val_id.txt").write_text("3")
    assert "is text" in str(doctor("sysu-mm01", sysu, skip=True))


def test_regdb(regdb):
    t = load_dataset("regdb", regdb, check="all")
    assert rows(t)[0] == ("Visible/285/male_back_v_05528_285.bmp", 285, "1", "visible", "train", "both")
    assert rows(t)[-1] == ("Thermal/168/male_front_t_04111_168.bmp", 168, "2", "infrared", "test", "both")
    assert len(t) == 8
    second = load_dataset("regdb", regdb, trial=2)  # labels are others, people are the same
    assert {*second["pid"][second["split"] == "train"]} == {2, 117}
    by_path = lambda table: dict(zip(table["path"], table["pid"]))
    assert by_path(second) == by_path(t)
    assert "train: 2 ids, 4 images; published: 206, 4120" in str(doctor("regdb", regdb, trial=2))
    with pytest.raises(ValueError, match="trial=11"): load_dataset("regdb", regdb, trial=11)
    assert "the list 'idx/train_visible_3.txt' is missing" in error("regdb", regdb, trial=3)


def test_faults_of_regdb(regdb):
    file = regdb/"idx"/"train_visible_1.txt"
    whole = file.read_text()
    file.write_text(whole.replace("117.bmp 1", "117.bmp 0"))
    assert "label 0 stands for pid 117, 285 [idx/train_visible_1.txt]" in error("regdb", regdb)
    file.write_text(whole.replace("Visible/117", "Visible/118"))
    assert "1 of 2 paths do not parse" in error("regdb", regdb)
    file.write_text(whole.replace("Visible/117/male_front_v_01486", "Thermal/117/male_front_t_01486"))
    assert "1 images are not visible" in error("regdb", regdb)
    file.write_text(whole + "Visible/117/male_front_v_01487_117.bmp\n")
    assert "a line is not 'path label' [idx/train_visible_1.txt line 3" in error("regdb", regdb)
    file.write_text(whole + "Visible/2/female_back_v_06310_2.bmp 2\n")
    assert "1 id(s) in both train and test: [2]" in error("regdb", regdb)
    file.write_text(whole.replace("/", "\\"))  # a list made on Windows
    assert len(load_dataset("regdb", regdb)) == 8
    file.write_text(whole)
    (regdb/"Thermal"/"2"/"female_back_t_06300_2.bmp").unlink()
    report = str(doctor("regdb", regdb))
    assert "Thermal: some files are missing, 1 of 4 images" in report
    with pytest.warns(UserWarning, match="dropped 1 of 8 images"): t = load_dataset("regdb", regdb, drop_bad=True)
    assert len(t) == 7


def test_llcm(llcm):
    t = load_dataset("llcm", llcm, check="all")
    assert t["path"].tolist() == [*LLCM[:6], *LLCM[7:]]
    assert rows(t)[1][1:] == (351, "6", "visible", "train", "both")
    assert rows(t)[3][1:] == (351, "9", "infrared", "train", "both")
    assert rows(t)[5][1:] == (3, "3", "visible", "test", "both")
    report = str(doctor("llcm", llcm))
    assert "left out: 1 images of 1 people that idx/test_id.txt does not name" in report
    assert "test: 1 ids, 4 images; published: 351, 15846" in report
    (llcm/"idx"/"test_id.txt").write_text("3,9")
    assert "1 people of idx/test_id.txt have no image: 9" in str(doctor("llcm", llcm))
    picture(llcm/"test_nir"/"cam3"/"0003"/"0003_c03_s185734_f3195_nir.jpg")  # there is no such camera: never read
    assert len(load_dataset("llcm", llcm)) == 8
    (llcm/"test_nir").rename(llcm/"nir_test")
    assert "the folder 'test_nir' is missing" in error("llcm", llcm)


@pytest.mark.parametrize("name", ["sysu-mm01", "regdb", "llcm"])
def test_exporter_writes_the_layout_by_hand(name, request, tmp_path):
    root = request.getfixturevalue(name.partition("-")[0])
    t = load_dataset(name, root)
    again = load_dataset(name, export_world(t, name, tmp_path/"again"))
    assert rows(again) == rows(t)
    files = lambda folder: {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    was, now = files(root), files(tmp_path/"again")
    assert {path: now[path] for path in t["path"]} == {path: was[path] for path in t["path"]}
    if name == "regdb": assert {k for k in now if "_1.txt" in k} <= {k for k in now if was.get(k) == now[k]}
    lists = {"sysu-mm01": SYSU_LISTS, "regdb": {}, "llcm": LLCM_LISTS}[name]
    for file, text in lists.items(): assert now[file].decode().split() == text.split()


def test_any_table_gets_numbers_of_cameras(tmp_path):
    "Two visible cameras and one infrared one, wherever they are numbered; paths that do not fit are made anew"
    from helpers.layouts import small_infrared
    t = small_infrared("sysu-mm01")
    t = t.assign(cam=t["cam"].replace({0: 17, 1: 4, 2: 8}), path=t["path"])
    got = load_dataset("sysu-mm01", export_world(t, "sysu-mm01", tmp_path/"s"))
    assert sorted({(a, b) for a, b in zip(got["cam_name"], got["modality"])}) == [
        ("1", "visible"), ("2", "visible"), ("3", "infrared")]
    assert sorted(zip(got["pid"], got["modality"])) == sorted(zip(t["pid"], t["modality"]))
    both = t.assign(cam=0)
    with pytest.raises(TableError, match=r"cameras \[0\] have no number"): export_world(both, "sysu-mm01", tmp_path/"x")
    assert unfit_infrared(both.where(split=["train", "test"]), "regdb") == []
    sketch = t.assign(modality=["sketch"]*len(t))
    with pytest.raises(TableError, match="neither visible nor infrared"): export_world(sketch, "llcm", tmp_path/"y")
    bare = ReidTable(t.frame.drop(columns="modality"), None, t.reader)
    with pytest.raises(TableError, match="needs the column 'modality'"): export_world(bare, "regdb", tmp_path/"z")


def test_protocols_of_the_records_are_registered():
    for name in ("sysu-mm01", "regdb", "llcm"):
        spec = DATASETS[name]
        assert spec.protocols and set(spec.protocols) <= set(PROTOCOLS)
        table_columns = {"pid", "cam", "path", "split", "role", *spec.columns}
        for protocol in spec.protocols:
            for side in ("queries", "gallery"): assert set(PROTOCOLS[protocol].columns(side)) <= table_columns


@pytest.mark.parametrize("protocol, asks, searched", [
    ("sysu.all", 3, 4), ("sysu.indoor", 3, 2), ("sysu.all-10", 3, 7), ("regdb.v2t", 2, 2), ("regdb.t2v", 2, 2),
    ("llcm.i2v", 2, 2), ("llcm.v2i", 2, 2)])
def test_a_protocol_on_a_loaded_folder(protocol, asks, searched, request):
    "People 6 (cameras 1, 2) and 25 (4, 5) of SYSU-MM01: one image of each person and camera is drawn, ten at most"
    root = request.getfixturevalue(protocol.partition(".")[0])
    t = load_dataset({"SYSU-MM01": "sysu-mm01"}.get(root.name, root.name.lower()), root)
    plan = apply_protocol(t.query().frame, t.gallery().frame, protocol)
    assert {(len(drawn.queries), len(drawn.gallery)) for drawn in plan.draws} == {(asks, searched)}
