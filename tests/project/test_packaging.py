"What a user without a checkout gets: `pip install .` gives a working library and command, and importing it is cheap"
import ast
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.whole, pytest.mark.skipif(not (ROOT/"setup.py").exists(), reason="needs the source tree")]
IMPORT_NAMES = {"open_clip_torch": "open_clip", "scikit-learn": "sklearn", "pillow": "PIL",
                "grad-cam": "pytorch_grad_cam", "umap-learn": "umap"}
WITH_THEM = {"IPython": "ipykernel", "nbclient": "papermill", "timm": "open_clip_torch",
             "huggingface_hub": "transformers", "packaging": "transformers",
             "tornado": "ipykernel", "jupyter_client": "ipykernel", "jupyter_core": "ipykernel",
             "yaml": "papermill", "joblib": "joblib",
             "traitlets": "ipywidgets"}
HEAVY = ("torch", "torchvision", "transformers", "open_clip", "pandas", "matplotlib", "plotly", "sklearn", "scipy",
         "numba", "IPython", "papermill")


@pytest.fixture(scope="module")
def settings():
    parser = configparser.ConfigParser(delimiters=["="])
    parser.read(ROOT/"settings.ini")
    return parser["DEFAULT"]


def test_the_wheel_holds_all_modules_and_the_published_numbers(wheel):
    names = set(wheel.namelist())
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT/"reid_lab").rglob("*.py")}
    data = {p.relative_to(ROOT).as_posix() for p in (ROOT/"reid_lab"/"resources").rglob("*.*")
            if "__pycache__" not in p.parts}
    assert modules and not modules - names
    assert data and not data - names


def test_the_wheel_holds_the_experiments(wheel):
    wanted = {f"reid_lab/notebooks/{p.name}" for p in (ROOT/"nbs"/"experiments").glob("*.ipynb")}
    assert wanted and not wanted - set(wheel.namelist())


def test_the_wheel_has_command_and_licence(wheel):
    names = wheel.namelist()
    meta = wheel.read(next(n for n in names if n.endswith("dist-info/METADATA"))).decode()
    entry = configparser.ConfigParser()
    entry.read_string(wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode())
    assert entry["console_scripts"]["reid_lab"] == "reid_lab.cli.commands:main"
    assert re.search(r"^License.*Apache-2.0", meta, re.M) and any(n.endswith("LICENSE") for n in names)
    assert not [n for n in names if n.startswith(("tests/", "nbs/", "tools/"))]


def test_a_folder_of_its_name_does_not_hide_an_editable_installation(wheel, tmp_path):
    "Such as the clone itself, seen from the folder above: to Python it is a package, though an empty one"
    source = Path(wheel.filename).parent/"src"
    build = "import sys, setuptools.build_meta as backend; print(backend.build_editable(sys.argv[1]))"
    built = subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True,
                           check=True, timeout=300).stdout.split()[-1]
    with zipfile.ZipFile(tmp_path/built) as editable: editable.extractall(tmp_path/"site")
    (tmp_path/"above"/"reid_lab"/"nbs").mkdir(parents=True)
    start = ("import os, runpy, site, sys\n"     # what is under test is not the installation that runs the tests
             "sys.path[:] = [p for p in sys.path if not os.path.exists(os.path.join(p, 'reid_lab', '__init__.py'))]\n"
             "site.addsitedir(sys.argv.pop(1))\nimport reid_lab\nprint(reid_lab.__file__)\n"
             "print(reid_lab.Junk.__name__, flush=True)\nrunpy.run_module('reid_lab', run_name='__main__')")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", start, str(tmp_path/"site"), "list", "experiments"], env=outside,
                          cwd=tmp_path/"above", capture_output=True, text=True)
    place, name, *listed = done.stdout.splitlines()
    assert Path(place).is_relative_to(source) and name == "Junk", done.stderr
    assert any(line.startswith("  camel ") for line in listed), done.stdout    # nbs/experiments of the clone


def test_the_library_imports_only_what_it_requires(settings):
    "Nothing of the dev extra may be needed after a plain `pip install .` (others say which extra has them)"
    required = {re.split(r"[<>=!~]", r)[0] for r in settings["requirements"].split()}
    allowed = {IMPORT_NAMES.get(r, r) for r in required} | {"reid_lab", "numba", "h5py", "jscatter", "pyarrow", "faiss"}
    allowed |= {"tensorboard", "mlflow", "distributed", "submitit", "onnxruntime", "av", "peft", "statsmodels"}
    allowed |= {m for m, by in WITH_THEM.items() if by in required}
    stray = {}
    for path in (ROOT/"reid_lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = ([a.name for a in node.names] if isinstance(node, ast.Import)
                     else [node.module] if isinstance(node, ast.ImportFrom) and not node.level else [])
            for name in (n.split(".")[0] for n in names):
                if name not in allowed and name not in sys.stdlib_module_names: stray.setdefault(name, path.name)
    assert not stray


def test_every_requirement_is_imported(settings):
    "What no module uses is no requirement; papermill finds the kernel by its name"
    seen = set()
    for path in (ROOT/"reid_lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import): seen |= {a.name.split(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level: seen.add(node.module.split(".")[0])
    required = {re.split(r"[<>=!~]", r)[0] for r in settings["requirements"].split()} - {"ipykernel"}
    assert not {r for r in required if IMPORT_NAMES.get(r, r).replace("-", "_") not in seen}


def test_import_is_cheap():
    "`import reid_lab` pulls in nothing heavy"
    code = f"import sys, reid_lab; print([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"


def test_command_line_starts_without_torch():
    code = f"import sys; import reid_lab.cli.commands; print([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0 and run.stdout.strip() == "[]", run.stdout + run.stderr[-1000:]


def test_conda_environment_uses_the_same_pins():
    text = (ROOT/"environment.yml").read_text()
    assert "-e .[dev]" in text and not re.search(r"^ *- (torch|numpy|nbdev)", text, re.M)


def test_licence_is_apache():
    text = (ROOT/"LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text


NEWER = dict(add_note=(3, 11), tomllib=(3, 11), ExceptionGroup=(3, 11), StrEnum=(3, 11), TaskGroup=(3, 11),
             batched=(3, 12), override=(3, 12))


def test_nothing_newer_than_the_oldest_supported_python(settings):
    "Syntax and a few library names that the oldest Python does not have; Makefile and README name the same version"
    version = tuple(int(v) for v in settings["min_python"].split("."))
    newer, stray = {n for n, since in NEWER.items() if since > version}, []
    for path in (ROOT/"reid_lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=version)):
            names = [node.attr] if isinstance(node, ast.Attribute) else [node.id] if isinstance(node, ast.Name) else []
            if isinstance(node, ast.Import): names = [a.name for a in node.names]
            if isinstance(node, ast.ImportFrom): names = [node.module, *(a.name for a in node.names)]
            stray += [f"{path.name}:{node.lineno} {n}" for n in names if n in newer]
    assert not stray
    for name in ("Makefile", "README.md"):
        assert f"Python {settings['min_python']} or newer" in (ROOT/name).read_text(), name


# --- make -------------------------------------------------------------------------------------------------------------

STUB = """#!/bin/bash
# Stands for an interpreter: writes each call, one argument a line; makes environments of copies of itself
{ echo "== $0"; printf '%s\\n' "$@"; } >> "$STUB_LOG"
case "$*" in
"-c "*) exit 0 ;;
"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
*--index-url*) exit "${NO_INDEX:-0}" ;;
esac
"""


@pytest.fixture
def place(tmp_path, outside_make):
    "A folder with a space and an accent that holds what `make` reads, a stub interpreter, and a log of its calls"
    if not shutil.which("make"): pytest.skip("make is not installed")
    folder = tmp_path/"a b é"/"reid lab"
    folder.mkdir(parents=True)
    for name in ("Makefile", "settings.ini", "setup.py"): shutil.copy(ROOT/name, folder)
    python = tmp_path/"a b é"/"my python"
    python.write_text(STUB)
    python.chmod(0o755)
    return folder, python, tmp_path/"calls", outside_make


def make(place, *args, python=True, **env):
    "Call make in the folder -> what it printed, and the calls of stub interpreters as (interpreter, arguments)"
    folder, stub, log, outside = place
    env = outside | dict(STUB_LOG=str(log)) | env
    log.unlink(missing_ok=True)
    done = subprocess.run(["make", *args, *([f"PYTHON={stub}"] if python else [])], cwd=folder, env=env,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = [c.split("\n") for c in (log.read_text() if log.exists() else "").split("== ")[1:]]
    return done.stdout, [(c[0], c[1:-1]) for c in calls]


def test_make_works_in_a_folder_with_a_space(place):
    folder, stub, *_ = place
    said, calls = make(place, "install")
    assert "Setting up .venv" in said and (str(stub), ["-m", "venv", ".venv"]) in calls
    python = str(folder/".venv/bin/python")
    assert (python, ["-m", "uv", "pip", "check", "-q", "--python", python]) in calls
    said, calls = make(place, "camel", "PRESET=smoke")
    assert "Setting up" not in said, "the second call finds the environment"
    assert calls[-1] == (str(folder/".venv/bin/python"), ["-m", "reid_lab", "run", "camel", "-p", "preset=smoke"])
    *_, quick, rest, studies = (args for _, args in make(place, "test-all", "WORKERS=3")[1])
    parts = (quick, rest, studies)
    assert all(args[:5] == ["-m", "pytest", "-q", "-n", "3"] and args[-1] == "tests" for args in parts)
    long = "kill or whole or browser"
    assert [args[-2] for args in parts] == [f"not ({long})", f"({long}) and not study", "study"]
    assert (str(folder/".venv/bin/python"), [str(folder/".venv/bin/nbdev_export")]) in make(place, "export")[1]


@pytest.mark.parametrize("target, compiles", [("install", True), ("camel", False), ("check", True)])
def test_byte_code_is_written_at_once_unless_a_run_follows(place, target, compiles):
    "A run imports a tenth of the files, and writes the byte code of these"
    _, calls = make(place, target, PYTHONDONTWRITEBYTECODE="1")
    packages = [args for _, args in calls if args[:4] == ["-m", "uv", "pip", "install"]]
    assert len(packages) == 1 and packages[0][-2:] == ["-e", ".[dev]"]
    assert ("--compile-bytecode" in packages[0]) == compiles


@pytest.mark.parametrize("name", ["my env", "é/env"])
def test_the_environment_may_be_elsewhere(place, name, tmp_path):
    where = tmp_path/name
    make(place, "install", f"VENV={where}")
    _, calls = make(place, "check", f"VENV={where}")
    assert calls[-1] == (str(where/"bin/python"), ["tools/check_nbs.py"])


def test_a_clone_that_was_moved_is_installed_again(place):
    make(place, "install")
    other = place[0].with_name("moved")
    place[0].rename(other)
    assert "Setting up" in make((other, *place[1:]), "install")[0]


@pytest.mark.parametrize("active, used", [(dict(CONDA_DEFAULT_ENV="reid"), True),
                                          (dict(CONDA_DEFAULT_ENV="base"), False)])
def test_an_active_conda_environment_is_used(place, active, used, tmp_path):
    conda = tmp_path/"conda envs"/"reid"
    (conda/"bin").mkdir(parents=True)
    (conda/"bin"/"python").write_text(STUB)
    (conda/"bin"/"python").chmod(0o755)
    said, calls = make(place, "-n", "install", python=False, CONDA_PREFIX=str(conda), **active)
    assert (str(conda) in said) == used
    if not used: return
    said, calls = make(place, "install", python=False, CONDA_PREFIX=str(conda), **active)
    assert f"active conda environment {conda}" in said and not (place[0]/".venv").exists()
    assert not [a for _, a in calls if "venv" in a or "uv" in a]
    assert (str(conda/"bin/python"), ["-m", "pip", "install", "-q", "-e", ".[dev]"]) in calls
    (conda/"condabin").mkdir()      # the base under another name
    assert str(conda) not in make(place, "-n", "install", python=False, CONDA_PREFIX=str(conda), **active)[0]


def test_the_cpu_build_of_torch(place, settings):
    pins = [r for r in settings["requirements"].split() if r.startswith(("torch>", "torchvision>"))]
    assert len(pins) == 2
    said, calls = make(place, "install", "TORCH=cpu", "TORCH_INDEX=https://index.test/cpu")
    asked = [a for _, a in calls if "--index-url" in a]
    assert len(asked) == 1 and "https://index.test/cpu" in asked[0] and set(pins) <= set(asked[0])
    assert "No CPU build" not in said and not [a for _, a in make(place, "install", "TORCH=cpu")[1] if "pip" in a]
    shutil.rmtree(place[0]/".venv")
    said, calls = make(place, "install", "TORCH=cpu", NO_INDEX="1")
    assert "No CPU build of torch at https://download.pytorch.org/whl/cpu: going on with the ordinary one" in said
    python = str(place[0]/".venv/bin/python")
    assert calls[-1] == (python, ["-m", "uv", "pip", "check", "-q", "--python", python])


# --- python -m, and a home elsewhere ----------------------------------------------------------------------------------

def test_python_m_reid_lab():
    run = subprocess.run([sys.executable, "-m", "reid_lab", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout.startswith("reid_lab ") and run.returncode == 0


def test_a_home_outside_the_checkout(tmp_path):
    "`REID_LAB_HOME` says where runs and results are; experiments and the commit are still those of the code"
    code = ("from reid_lab.experiments.notebooks import experiments\n"
            "from reid_lab.experiments.run import git_commit, run_folder\n"
            "print(sorted(experiments()), bool(git_commit()), run_folder('run_x', {}).parent)")
    env = dict(os.environ, REID_LAB_HOME=str(tmp_path/"home é"), PYTHONPATH=str(ROOT))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert "'camel'" in run.stdout and "'dart3'" in run.stdout, run.stderr
    assert run.stdout.strip().endswith(str(tmp_path/"home é"/"runs"))
    assert (" True " in run.stdout) == (ROOT/".git").exists()


def test_papermill_reads_the_parameters(caplog):
    "Its own parser warns of lines with two equal signs, also in comments"
    import nbformat
    from papermill.translators import papermill_translators
    for path in (ROOT/"nbs"/"experiments").glob("*.ipynb"):
        cells = nbformat.read(path, 4).cells
        (cell,) = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
        found = papermill_translators.find_translator("python3", "python").inspect(cell)
        assert len(found) == len(cell.source.strip().splitlines()), path.name
    assert [r.message for r in caplog.records if "Unable to parse" in r.message] == []


@pytest.mark.slow
def test_a_newcomer_with_a_folder_of_crops(wheel, tmp_path):
    "The wheel without the dev extra: unlabelled JPEG files are embedded, searched, matched and audited"
    import numpy as np
    from PIL import Image

    from reid_lab.world.world import World
    wheel.extractall(tmp_path/"site")
    dev = {"nbdev", "execnb", "ghapi", "pytest", "xdist", "pytest_timeout", "hypothesis", "playwright", "ruff",
           "pre_commit", "jscatter", "pytorch_metric_learning", "tensorboard", "distributed", "dask", "submitit",
           "faiss", "onnx", "onnxruntime", "onnxscript", "av"}
    hide = f"import sys\nfor name in {sorted(dev)!r}: sys.modules[name] = None\n"
    (tmp_path/"site"/"sitecustomize.py").write_text(hide)
    table, rng = World("smoke", task="text", seed=7).table().gallery("test"), np.random.default_rng(0)
    for i in range(0, len(table), 3):
        h, w = (int(s*rng.uniform(.7, 3)) for s in table.image(i).shape[:2])
        path = tmp_path/"crops"/f"hall {table['cam'][i] % 2}"/f"{i:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(table.image(i)).resize((w, h)).save(path, quality=int(rng.integers(60, 95)))
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "REID_LAB_CACHE")}
    env |= dict(PYTHONPATH=str(tmp_path/"site"), HOME=str(tmp_path/"home"), HF_HUB_OFFLINE="1")
    def call(*args):
        run = subprocess.run([sys.executable, "-m", "reid_lab", *args], cwd=tmp_path, env=env, capture_output=True,
                             text=True)
        assert run.returncode == 0 and "Traceback" not in run.stderr, run.stderr[-2000:]
        return run.stdout
    told = call("embed", "crops", "--model", "clip_tiny", "--out", "f", "--folders", "camera")
    assert f"{len(range(0, len(table), 3))} images" in told and "identities unknown, 2 cameras" in told
    found = json.loads(call("search", "f", "a man with a red shirt", "--html", "page.html", "--json"))
    assert len(found[0]["results"]) == 10 and (tmp_path/"page.html").stat().st_size < 1e6
    crop = sorted((tmp_path/"crops"/"hall 0").iterdir())[0]
    photographed = json.loads(call("search", "f", "--image", str(crop), "--json"))[0]["results"]
    assert f"hall 0/{crop.name}" not in [result["path"] for result in photographed]   # an image does not find itself
    copy = tmp_path/"elsewhere"/crop.name
    copy.parent.mkdir()
    copy.write_bytes(crop.read_bytes())
    best = json.loads(call("search", "f", "--image", str(copy), "--json"))[0]["results"][0]
    assert best["path"] == f"hall 0/{crop.name}" and best["score"] > .999
    assert "each other's best" in call("match", "crops/hall 0", "crops/hall 1", "--model", "clip_tiny")
    assert "between cameras" in call("bias", "f")
    # Nothing is rendered or downloaded; what is kept are features of random sentences, where they took long.
    kept = {p.name for p in (tmp_path/"home").rglob("reid_lab/*")}
    assert kept <= {"random_sentences"}
