"What stands at the head of an experiment's page: a picture of what it makes, and its studies in words"
import base64
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from reid_lab.experiments.notebooks import experiments  # noqa: E402 - of this folder, not of another that is installed

# page -> a figure of `figures/` and the page that explains it, or a notebook whose first stored picture is of that kind
PICTURES = {
    "run_camel": ("camel_ablation_zeroshot.svg", "tutorials/10_measured_camel.ipynb"),
    "run_dart3": ("dart3_skew.svg", "tutorials/11_measured_dart3.ipynb"),
    "run_dmg": ("dmg_main_test-a.svg", "tutorials/12_measured_dmg.ipynb"),
    "run_cfam": ("cfam_main_fine.svg", "tutorials/13_measured_cfam.ipynb"),
    "run_cfan": ("cfan_main.svg", "tutorials/14_measured_cfan.ipynb"),
    "attention_maps": ("maps_believed.svg", "tutorials/15_measured_maps.ipynb"),
    "failure_browser": ("search_page.jpg", "15_widgets/50_search.ipynb"),
    "camera_bias": (None, "15_widgets/30_cameras.ipynb"),
    "caption_cot": (None, "11_figures/80_captioning.ipynb"),
    "text_granularity": (None, "11_figures/40_captions.ipynb"),
    "word_masking": (None, "15_widgets/35_words.ipynb"),
    "marked_search": (None, "15_widgets/50_search.ipynb"),
    "run_starts": (None, "08_training/35_logs.ipynb"),
    "run_unsupervised": (None, "09_meta/70_cluster_contrast.ipynb"),
    "run_conditions": ("conditions_clothes.svg", "tutorials/17_measured_conditions.ipynb"),
    "run_finetune": (None, "11_figures/30_ranked_lists.ipynb"),
}


def first_picture(notebook):
    "Bytes and ending of the first picture that a notebook stores, or None"
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            for kind, ending in (("image/png", "png"), ("image/jpeg", "jpg")):
                if kind in output.get("data", {}):
                    text = output["data"][kind]
                    return base64.b64decode("".join(text)), ending
    return None


def title_of(notebook):
    "The heading of a notebook"
    first = "".join(json.loads(notebook.read_text("utf-8"))["cells"][0]["source"])
    return first.split("\n")[0].removeprefix("# ")


def picture_text(name, pages, figures, folder):
    "Markdown of the picture of an experiment; its file goes to `figures` (to be copied) or to `folder`"
    if name not in PICTURES: return ""
    figure, page = PICTURES[name]
    title = title_of(ROOT/"nbs"/page)
    where = f"[{title}](../{page})" if page in pages else title
    if figure:
        figures.add(ROOT/"figures"/figure)
        return f"![A figure of this experiment, explained in {title}](../figures/{figure})\n\n*From {where}.*"
    found = first_picture(ROOT/"nbs"/page)
    if not found: return ""
    folder.mkdir(exist_ok=True)
    file = folder/f"experiment_{name}.{found[1]}"
    file.write_bytes(found[0])
    alt = f"A figure of the kind that this experiment makes, from {title}"
    return f"![{alt}](../figures/{file.name})\n\n*As in {where}.*"


def study_rows(name, studies):
    "A table of studies: what each asks, what it repeats, and the command"
    rows = [f"| `{key}` | {s.title} | {', '.join(s.printed) or '-'} | {len(s.settings)} | {s.seeds} | "
            f"`reid_lab run {name} -p study={key}` |" for key, s in studies.items()]
    head = ["| study | what it asks | repeats | variants | seeds | command |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def shown_first(stem, pages, figures, folder):
    "Cells below the opening of an experiment's page"
    texts = [picture_text(stem, pages, figures, folder)]
    found = {e.path.stem: e for e in experiments().values()}
    if stem in found and found[stem].studies:
        texts.append(f"## Studies\n\n{study_rows(found[stem].name, found[stem].studies)}")
    return [dict(cell_type="markdown", metadata={}, source=text) for text in texts if text]


def studies_text():
    "All studies of all experiments, for the list of all notebooks"
    found = [e for e in experiments().values() if e.studies]
    parts = [f"### Studies of {e.title}\n\n{study_rows(e.name, e.studies)}" for e in found]
    return "\n\n".join(parts)
