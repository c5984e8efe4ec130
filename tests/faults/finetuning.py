"Fine-tuning on a folder: too few people, nobody known, models and presets that it cannot take."
from pathlib import Path

from fault import bad
from PIL import Image

from reid_lab.experiments.notebooks import experiments
from reid_lab.experiments.params import notebook_params
from reid_lab.recipes.finetune import Source, finetune_settings, load_source
from reid_lab.recipes.parameters import check_run


def _people(folder, n, each=2):
    "Folders of people with some crops each"
    for person in range(n):
        (folder/f"person {person}").mkdir()
        for i in range(each): Image.new("RGB", (8, 16), (20*person, 50*i, 9)).save(folder/f"person {person}"/f"{i}.png")
    return Source(str(folder))


def _checked(**given): check_run("finetune", notebook_params(experiments()["finetune"].path, given), quiet=True)


def _manifest(folder):
    "Crops of nobody"
    Image.new("RGB", (8, 16)).save(folder/"a.png")
    Path(folder/"list.csv").write_text("path\na.png\n")
    return Source(str(folder/"list.csv"))


FAULTS = [
    bad("finetuning: too few people", "five people", lambda t: load_source(_people(t, 5)), "5 people", "needs 6",
        "reid_lab embed"),
    bad("finetuning: one crop each", "nine people with one crop each", lambda t: load_source(_people(t, 9, 1)),
        "9 people, of whom 0 have two crops", "needs 6"),
    bad("finetuning: nobody is known", "a manifest without pid", lambda t: load_source(_manifest(t)), "nobody is known",
        "folders=identity", "pattern="),
    bad("finetuning: people lie deeper", "camera/identity as identity",
        lambda t: load_source(Source(str(t), "camera/identity")) if _people(t, 6) else None, "do not lie that deep",
        "folders"),
    bad("finetuning: preset paper", "preset=paper", lambda t: _checked(preset="paper"), "preset='paper'",
        "no published protocol"),
    bad("finetuning: a model of captions", "model=clip_tiny", lambda t: finetune_settings("quick", "clip_tiny"),
        "model='clip_tiny'", "frozen:NAME"),
    bad("finetuning: a tower without weights", "frozen:osnet_x1_0 alone",
        lambda t: finetune_settings("quick", "frozen:osnet_x1_0"), "frozen:osnet_x1_0", "weights=FILE"),
    bad("finetuning: an ONNX file", "model=onnx:x.onnx", lambda t: finetune_settings("quick", "onnx:x.onnx"),
        "onnx:x.onnx", "cannot be trained"),
    bad("finetuning: all frozen", "freeze=1", lambda t: finetune_settings("quick", freeze=1.), "freeze=1.0", "below 1"),
    bad("finetuning: labels of no folder", "folders without data_root", lambda t: _checked(folders="identity"),
        "folders='identity'", "data_root=FOLDER")]
