"What a user without a checkout gets: `pip install .` gives a working library and command, and importing it is cheap"
import ast
import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT/"setup.py").exists(), reason="needs the source tree")
IMPORT_NAMES = {"open_clip_torch": "open_clip", "scikit-learn": "sklearn", "pillow": "PIL",
                "grad-cam": "pytorch_grad_cam", "umap-learn": "umap"}
WITH_THEM = {"IPython": "ipykernel", "nbclient": "papermill", "timm": "open_clip_torch",
             "huggingface_hub": "transformers", "packaging": "transformers",
             "tornado": "ipykernel", "jupyter_client": "ipykernel", "yaml": "papermill", "joblib": "joblib"}
HEAVY = ("torch", "torchvision", "transformers", "open_clip", "pandas", "matplotlib", "plotly", "sklearn", "scipy",
         "numba", "IPython", "papermill")


@pytest.fixture(scope="module")
def settings():
    parser = configparser.ConfigParser(delimiters=["="])
    parser.read(ROOT/"settings.ini")
    return parser["DEFAULT"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "The wheel, built from a copy so that the tree stays as it is"
    if subprocess.run([sys.executable, "-c", "import setuptools, pip"], capture_output=True).returncode:
        pytest.skip("setuptools or pip is not installed here")
    folder = tmp_path_factory.mktemp("build")
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.egg-info")
    for name in ("reid_lab", "nbs"): shutil.copytree(ROOT/name, folder/"src"/name, ignore=ignore)
    for name in ("setup.py", "settings.ini", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT/name).exists(): shutil.copy(ROOT/name, folder/"src"/name)
    run = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w",
                          str(folder), str(folder/"src")],
                         capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return zipfile.ZipFile(next(folder.glob("*.whl")))


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
    assert entry["console_scripts"]["reid_lab"] == "reid_lab.cli:main"
    assert re.search(r"^License.*Apache-2.0", meta, re.M) and any(n.endswith("LICENSE") for n in names)
    assert not [n for n in names if n.startswith(("tests/", "nbs/", "tools/"))]


def test_the_library_imports_only_what_it_requires(settings):
    "Nothing of the dev extra may be needed after a plain `pip install .`"
    required = {re.split(r"[<>=!~]", r)[0] for r in settings["requirements"].split()}
    allowed = {IMPORT_NAMES.get(r, r) for r in required} | {"reid_lab", "numba"}
    allowed |= {m for m, by in WITH_THEM.items() if by in required}
    stray = {}
    for path in (ROOT/"reid_lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = ([a.name for a in node.names] if isinstance(node, ast.Import)
                     else [node.module] if isinstance(node, ast.ImportFrom) and not node.level else [])
            for name in (n.split(".")[0] for n in names):
                if name not in allowed and name not in sys.stdlib_module_names: stray.setdefault(name, path.name)
    assert not stray


def test_import_is_cheap():
    "`import reid_lab` and its command line pull in nothing heavy and take less than half a second"
    code = ("import sys, time; t = time.perf_counter(); import reid_lab; t = time.perf_counter() - t; "
            f"print(t, [m for m in {HEAVY!r} if m in sys.modules])")
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
            for _ in range(3)]
    seconds = min(float(r.split()[0]) for r in runs)
    assert seconds < .5 and runs[0].split(None, 1)[1].strip() == "[]", runs


def test_command_line_starts_without_torch():
    code = f"import sys; import reid_lab.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
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
