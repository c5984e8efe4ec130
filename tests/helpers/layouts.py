"A small table for every layout"
from reid_lab.data.table import ReidTable
from reid_lab.datasets.aerial import aerial_table
from reid_lab.datasets.clothes_sets import CLOTHES_FORMS, prcc_rows
from reid_lab.datasets.dg_sets import DG_SETS, dg_rows
from reid_lab.datasets.export import LAYOUTS
from reid_lab.datasets.folder_sets import folder_rows
from reid_lab.datasets.ground_air_sets import GROUND_AIR_FORMS, GROUND_AIR_LAYOUTS
from reid_lab.datasets.image_sets import IMAGE_SETS, tiny_table
from reid_lab.datasets.infrared_sets import INFRARED_FORMS, infrared_rows
from reid_lab.datasets.multimodal_sets import orbench_rows
from reid_lab.datasets.occluded_sets import OCCLUDED_FORMS
from reid_lab.datasets.registry import DATASETS
from reid_lab.datasets.sketch_sets import sketch_rows
from reid_lab.datasets.tracklet_sets import TRACKLET_FORMS, TRACKLET_LAYOUTS
from reid_lab.datasets.vehicle_sets import VEHICLE_FORMS, VEHICLE_LISTS

AERIAL = ["aeri-pedes", "tbapr"]  # see also test_aerial
FROM_DISK = [name for name, d in DATASETS.items() if d.folder]
FOLDER_FORMS = CLOTHES_FORMS | OCCLUDED_FORMS | VEHICLE_FORMS
# image-only sets: see also test_image_sets
TEXT = [name for name, spec in LAYOUTS.items() if "captions" in spec.keeps and not spec.needs]


def small_folder_set(layout):
    "A table of people in two outfits, covered under their first camera, in the order of the folders"
    t = tiny_table(8, 4, 0, roles=True)
    t = t.assign(pid=t["pid"] + 1, clothes=1000 * (t["pid"] + 1) + 1 + (t["cam"] > 1), occluded=t["cam"] == 0)
    form = FOLDER_FORMS[layout]
    t = prcc_rows(t) if layout == "prcc" else folder_rows(t.where(split=["train", "test"]), form)
    names = [part.subset for part in form.folders]
    if layout == "p-dukemtmc-reid": t = t.take(t["occluded"].argsort(kind="stable"))   # whole people come first
    f = t.frame.assign(at=[names.index(s if s != "test" else r) for s, r in zip(t["split"], t["role"])])
    in_folder = f.cam.where((f.split == "test") & (layout == "prcc"), 0)   # cameras of PRCC are folders in testing
    f = f.assign(folder=in_folder).sort_values(["at", "folder"], kind="stable").drop(columns=["at", "folder"])
    if form.anew: f = f.assign(pid=f.pid.rank(method="dense").astype("int64"))   # testing counts on from training
    if not DATASETS[layout].cameras: f = f.assign(cam=-1)
    return t._with(f)


def small_infrared(layout):
    "People under two visible cameras and an infrared one, in the order of the folders or lists"
    t = tiny_table(8, 3, 0)
    cam = [0, 1, 2 if layout == "sysu-mm01" else 3] * 8  # LLCM has no infrared camera 3
    t = t.assign(pid=t["pid"] + 1, cam=cam, modality=["visible", "visible", "infrared"] * 8)
    f = infrared_rows(t, layout).frame
    first = ["cam"] if layout == "sysu-mm01" else ["test", "dark", "at"]
    in_folder = f.cam.where((f.split == "test") & (layout == "llcm"), 0)   # cameras of LLCM are folders in testing
    f = f.assign(test=f.split == "test", dark=f.modality == "infrared", at=in_folder)
    return t._with(f.sort_values([*first, "pid"], kind="stable").drop(columns=["test", "dark", "at"]))


def small_ground_air(layout):
    "People under a drone, a fixed and a worn camera, or under drones alone, in the order of the folders or lists"
    t = tiny_table(8, 3, 0, roles=True)
    t = t.assign(view=t["cam"].map({0: "aerial", 1: "ground", 2: "ground"}))
    if layout in GROUND_AIR_FORMS: t = t.assign(cam=t["cam"].map({0: 0, 1: 3, 2: 2}))
    f = GROUND_AIR_LAYOUTS[layout].rows(t).frame
    if layout == "prai-1581": return t._with(f)
    in_folder = f.cam.where((f.split == "test") & (layout == "ag-reid"), 0)   # its cameras are folders in testing
    f = f.assign(at=f.role.map(dict(both=0, query=1, gallery=2)), folder=in_folder)
    return t._with(f.sort_values(["at", "folder", "pid", "cam"], kind="stable").drop(columns=["at", "folder"]))


def small_tracklets(layout):
    "People past two cameras in walks of two frames, in the order of the lists or folders"
    t = tiny_table(8, 4, 0, roles=True).where(split=["train", "test"])
    cam = [0, 0, 1, 1] * (len(t) // 4)
    t = t.assign(pid=t["pid"] + 1, cam=cam, track=[row // 2 for row in range(len(t))],
                 role=["query" if c == 0 else "gallery" for c in cam])
    f = TRACKLET_LAYOUTS[layout].rows(t).frame
    f = f.assign(role=f.role.where(f.split == "test", "both"), test=f.split == "test")
    first = {"mars": ["test"], "ilids-vid": ["cam"], "dukemtmc-videoreid": ["test", "role"]}[layout]
    f = f.sort_values(first, kind="stable", ascending=[name != "role" for name in first])
    numbers = f.drop_duplicates("track").sort_values("test", kind="stable").track   # training first
    return t._with(f.assign(track=f.track.map({old: new for new, old in enumerate(numbers, 1)})).drop(columns="test"))


def small_orbench():
    "People with two visible images, a sentence each, and one of every other kind"
    t = tiny_table(8, 5, 1).where(split=["train", "test"])
    kinds = ["visible", "visible", "infrared", "colour pencil", "sketch"]
    return orbench_rows(t.assign(cam=-1, modality=kinds*(len(t)//5)))


def small_sketches():
    "People with two photographs and a sketch, photographs first"
    t = tiny_table(8, 3, 0).where(split=["train", "test"])
    n = len(t) // 3
    return sketch_rows(t.assign(cam=[1, 2, 0] * n, modality=["visible", "visible", "sketch"] * n))


def small(layout):
    "A table as the layout gives it back"
    if layout == "pku-sketch": return small_sketches()
    if layout == "luperson": return tiny_table(8, 2, 0)
    if layout == "orbench": return small_orbench()
    if layout == "ufine3c":  # test only, and a column of its own
        t = tiny_table(n_ids=8, per_id=2).where(split="test")
        return t._with(t.frame.assign(source=["A"] * 2 + ["B"] * 2))
    if layout in AERIAL: return aerial_table()
    if layout in FOLDER_FORMS: return small_folder_set(layout)
    if layout in INFRARED_FORMS: return small_infrared(layout)
    if layout in GROUND_AIR_LAYOUTS: return small_ground_air(layout)
    if layout in VEHICLE_LISTS:
        t = tiny_table(8, 3, 0, roles=True).where(split=["train", "test"])
        if layout == "vehicleid": return t.assign(cam=[-1]*len(t), role=["both"]*len(t))
        f = t.frame.assign(cam=t["cam"] + 9, at=t["role"].map(dict(both=0, query=1, gallery=2)))
        return t._with(f.sort_values("at", kind="stable").drop(columns="at"))
    if layout in TRACKLET_FORMS: return small_tracklets(layout)
    if layout in TEXT: return tiny_table(n_ids=8, per_id=2, n_captions=1 if layout == "mals" else 2)
    t = tiny_table(8, 2, 0, roles=True)
    if layout in DG_SETS:  # in the order of the folders
        form, t = DG_SETS[layout], dg_rows(t, layout)
        first = ["cam"] if form.parts[-1].cam else ["split", "role"] if "role" in LAYOUTS[layout].keeps else []
        f = t.frame.assign(pid=t["pid"] + form.parts[0].first + (layout == "cuhk02"))
        return t._with(f.sort_values([*first, "pid"], kind="stable", key=lambda c: c.map(
            dict(train=0, test=1, query=2, gallery=3, both=0)) if c.name in ("split", "role") else c))
    f = t.frame.sort_values("role", key=lambda r: r.map({"both": 0, "query": 1, "gallery": 2}), kind="stable")
    if not IMAGE_SETS[LAYOUTS[layout].dataset].lists:
        f = f.assign(pid=f.pid + 1)[f.split != "val"]  # identities from 1, no `val`
    return ReidTable(f, None, t.reader, t.name)
