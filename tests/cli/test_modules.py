"Code of one's own in commands: `--with`, `REID_LAB_WITH`, entry points, and the processes that they reach"
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REGISTERS = """
from reid_lab.models.zoo import MODELS, ModelInfo
MODELS['ring_tiny'] = ModelInfo('mylab.towers:ring_tiny', 'images', 'tiny', 'ring', 'ours', ('n_ids',), starts='none')
"""
TOWERS = """
from reid_lab.models.backbones import ResTower
from reid_lab.models.bot import BoT
from reid_lab.models.weights.start import start_own

def ring_tiny(n_ids, size=(64, 32), weights=None, **kw):
    return start_own(BoT(ResTower((16, 32), 'batch'), n_ids, size, **kw), 'ring_tiny', weights)
"""


class Place:
    "A folder with modules, and commands that run in it"
    def __init__(self, folder):
        self.folder = folder
        self.write("mylab/__init__.py", REGISTERS)
        self.write("mylab/towers.py", TOWERS)

    def write(self, name, text):
        path = self.folder/name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def python(self, *args, **env):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "REID_LAB_HOME": str(self.folder/"home"), **env}
        args = [sys.executable, *map(str, args)]
        return subprocess.run(args, cwd=self.folder, env=env, capture_output=True, text=True)

    def command(self, *args, **env): return self.python("-P", "-m", "reid_lab", *args, **env) # -P: as the script does

    def script(self, text):
        done = self.python("-c", text)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def place(tmp_path): return Place(tmp_path)


def own_lines(done): return [line for line in done.stdout.splitlines() if line.split()[:1] == ["ring_tiny"]]


@pytest.mark.parametrize("words, variable", [
    (["--with", "mylab", "list", "models"], ""), (["list", "models", "--with=mylab"], ""),
    (["list", "models"], " mylab ,"), (["--with", "mylab.towers", "list", "models", "--with", "mylab"], "")])
def test_a_module_is_named_before_the_command_behind_it_or_by_a_variable(place, words, variable):
    found, = own_lines(place.command(*words, REID_LAB_WITH=variable))
    assert found.endswith(("; from mylab", "; from mylab.towers"))


def test_without_it_nothing_is_imported(place):
    done = place.command("list", "models")
    assert (done.returncode, own_lines(done), done.stderr) == (0, [], "")


@pytest.mark.parametrize("module, text, said", [
    ("nolab", None, "--with nolab: no module 'nolab' is installed here, or in this folder"),
    ("broken", "\n1/0", "--with broken cannot be imported: ZeroDivisionError: division by zero (broken.py, line 2)"),
    ("broken", "import nolab", "--with broken cannot be imported: ModuleNotFoundError: No module named 'nolab' "),
    ("broken", "a b", "--with broken cannot be imported: SyntaxError: invalid syntax (broken.py, line 1)"),
    ("broken", "raise SystemExit('no')", "--with broken cannot be imported: SystemExit: no (broken.py, line 1)"),
    ("home", None, "--with home: 'home' is a folder without __init__.py, not a module"),
    ("./mylab.py", None, "--with './mylab.py' is no name of a module")])
def test_what_cannot_be_imported_ends_in_two_lines(place, module, text, said):
    (place.folder/"home").mkdir()
    if text is not None: place.write(f"{module}.py", text)
    done = place.command("--with", module, "list", "models")
    assert done.returncode == 2 and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"reid_lab: {said}") and second
    if text: assert "Traceback" in place.command("--debug", "--with", module, "list", "models").stderr


def test_two_modules_with_one_name_are_refused_with_both(place):
    place.write("otherlab.py", "from reid_lab.models.zoo import MODELS\nMODELS.update(ring_tiny=MODELS['bot_tiny'])")
    done = place.command("--with", "mylab", "--with", "otherlab", "list", "models")
    assert done.returncode == 2 and "'ring_tiny' is registered by mylab, and otherlab registers another" in done.stderr
    place.write("otherlab.py", "from reid_lab.models.zoo import MODELS\nMODELS['bot_tiny'] = MODELS['agw_tiny']")
    done = place.command("--with", "otherlab", "list", "models")
    assert done.returncode == 2 and "'bot_tiny' is registered by reid_lab, and otherlab" in done.stderr


def installed(place, module="mylab"):
    "As `pip install` leaves it: the distribution names its plug-in"
    place.write("site/ringlab-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: ringlab\nVersion: 1.2\n")
    place.write("site/ringlab-1.2.dist-info/entry_points.txt", f"[reid_lab.plugins]\nringlab = {module}\n")
    return os.pathsep.join([str(ROOT), str(place.folder/"site"), str(place.folder)])


def test_plugins_are_loaded_listed_and_left_out(place):
    path = installed(place)
    done = place.command("list", "models", PYTHONPATH=path)
    assert len(own_lines(done)) == 1
    assert done.stderr == "reid_lab: plug-ins ringlab 1.2 (mylab); --without-plugins leaves them out\n"
    for words, variable in ((["--without-plugins"], ""), ([], "off")):
        done = place.command("list", "models", *words, PYTHONPATH=path, REID_LAB_PLUGINS=variable)
        assert (done.returncode, own_lines(done), done.stderr) == (0, [], "")
    assert "REID_LAB_PLUGINS='no'" in place.command("list", "models", PYTHONPATH=path, REID_LAB_PLUGINS="no").stderr
    assert place.command("--version", PYTHONPATH=path).stderr == ""


def test_a_plugin_that_is_broken_is_named_with_the_way_around_it(place):
    path = installed(place, "gone")
    done = place.command("list", "models", PYTHONPATH=path)
    assert done.returncode == 2 and "plug-in ringlab 1.2 gone: no module 'gone'" in done.stderr
    assert place.command("list", "models", "--without-plugins", PYTHONPATH=path).returncode == 0


@pytest.mark.parametrize("words", [("list", "models", "ring_tiny"), ("list", "experiments", "mylab"), ("run", "mylab")])
def test_what_a_module_would_bring_is_refused_with_its_remedy(place, words):
    done = place.command(*words)
    assert done.returncode == 2 and "is not known" in done.stderr and "--with MODULE" in done.stderr
    assert "--with" not in place.command("list", "metrics", "mAQ").stderr      # no module brings a score


def test_models_of_ones_own_are_among_those_that_embed_names(place):
    done = place.command("embed", ".", "--model", "ring_tyni", "--out", "f.npz", "--with", "mylab")
    assert done.returncode == 2 and "Did you mean 'ring_tiny'?" in done.stderr
    assert "Of your own with --weights FILE: ring_tiny" in done.stderr
    done = place.command("embed", ".", "--model", "ring_tyni", "--out", "f.npz")
    assert done.returncode == 2 and "'ring_tiny'" not in done.stderr and "--with MODULE" in done.stderr


SAVES = """
import mylab
from reid_lab.models.zoo import create_model
from reid_lab.training.folder import Trained
model = create_model('ring_tiny', n_ids=3)
Trained(model, [], 0, 0, 0., dict(model='ring_tiny', model_kw=dict(n_ids=3))).save('trained')
"""


def test_a_trained_folder_names_its_modules_and_imports_none(place):
    place.script(SAVES)
    assert json.loads((place.folder/"trained"/"done.json").read_text())["modules"] == ["mylab"]
    loads = "from reid_lab.training.folder import load_trained\n"
    refused = loads + "try: load_trained('trained')\nexcept ValueError as e: print(e)"
    said, imported = place.script(f"{refused}\nimport sys; print('mylab' in sys.modules)")
    assert said == ("'trained' holds the model 'ring_tiny', which is not registered here; load the code that it was "
                    "trained with: reid_lab --with mylab ... (in Python: import mylab)")
    assert imported == "False"
    assert place.script("import mylab\n" + loads + "print(load_trained('trained').model.size)") == ["(64, 32)"]


def test_what_was_registered_in_a_program_is_refused_with_what_to_do(place):
    place.write("towers.py", TOWERS)
    place.script(f"{REGISTERS.replace('mylab.', '')}{SAVES.replace('import mylab', '')}")
    assert "modules" not in json.loads((place.folder/"trained"/"done.json").read_text())
    refused = ("from reid_lab.training.folder import load_trained\n"
               "try: load_trained('trained')\nexcept ValueError as e: print(e)")
    assert "registered in a notebook or a program: run what registers it first" in place.script(refused)[0]


JOBS = """
from reid_lab.models.zoo import create_model

def size_of(model, seed): return dict(numbers=create_model(model, n_ids=3).dim)
"""
SWEEP = """
import mylab
from jobs import size_of
from reid_lab.experiments.sweep import sweep
frame = sweep(size_of, dict(model=['ring_tiny']), seeds=[0, 1], n_jobs=2, folder='sweep')
print(frame[['status', 'numbers', 'error']].values.tolist())
"""


def test_processes_of_a_sweep_know_what_is_registered(place):
    "The job itself does not import the module that registers its model"
    place.write("jobs.py", JOBS)
    assert place.script(SWEEP)[-1] == "[['ok', 32, ''], ['ok', 32, '']]"


def notebook(*cells):
    "Of (text, tags)"
    new = dict(cell_type="code", execution_count=None, outputs=[])
    cells = [dict(new, id=f"cell{i}", metadata=dict(tags=tags), source=text) for i, (text, *tags) in enumerate(cells)]
    return json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5))


def test_the_kernel_of_a_notebook_knows_what_is_registered(place):
    makes = "from reid_lab.models.zoo import create_model\nprint(create_model(model, n_ids=3).dim)"
    place.write("own.ipynb", notebook(("model = ''", "parameters"), (makes,)))
    done = place.command("run", "own.ipynb", "--model", "ring_tiny", "--out", "run", "--with", "mylab")
    assert done.returncode == 0, done.stderr
    cells = json.loads((place.folder/"run"/"own.ipynb").read_text())["cells"]
    assert cells[-1]["outputs"][0]["text"] == ["32\n"]
    refused = place.command("run", "own.ipynb", "--model", "ring_tiny", "--out", "other")
    assert refused.returncode == 1 and "--with MODULE" in refused.stderr


def test_a_repository_does_not_hide_its_package_from_the_folder_above(place):
    "A folder without __init__.py is a package to Python, before what an editable installation finds"
    (place.folder/"above"/"mylab").mkdir(parents=True)
    code = f"import sys; sys.path[:0] = [{str(place.folder/'above')!r}]; sys.path.append({str(place.folder)!r})\n"
    finder = ("from importlib.machinery import PathFinder\n"
              "class Late:\n"
              "    def find_spec(name, path, target=None):\n"
              f"        return PathFinder.find_spec(name, path or [{str(place.folder)!r}])\n"
              "sys.meta_path.append(Late)\nsys.path.pop()\nsys.path.remove('')\n")
    loads = "from reid_lab.core.plugins import load_module\nprint(load_module('mylab').folder)"
    assert place.script(code + finder + loads) == [str(place.folder)]


SEEING = """
import os
from pathlib import Path

import torch.distributed as dist

class Seeing(BoT):
    "Notes which process of which group trains it"
    def forward(self, batch):
        (Path(os.environ["SEEN"])/f"{dist.get_backend()} {dist.get_rank()} of {dist.get_world_size()}").touch()
        return super().forward(batch)
"""
OWN_RUN = """
from reid_lab.experiments.params import Params
from reid_lab.recipes.reid import train_reid
from reid_lab.training.options import Execution
from reid_lab.world.world import World

class P(Params):
    folder: str
    execution: Execution

p = P.from_notebook(globals())
people = World("smoke", task="reid").table()
train_reid(people, "smoke", folder=p.folder, quiet=True, steps=2, model="ring_tiny", execution=p.execution)
"""
TRAINS = """
import sys

from reid_lab.core.plugins import load_variable
from reid_lab.recipes.reid import train_reid
from reid_lab.training.options import Execution
from reid_lab.world.world import World

load_variable()
people = World("smoke", task="reid").table()
train_reid(people, "smoke", folder=sys.argv[1], quiet=True, steps=2, model="ring_tiny",
           execution=Execution(processes=2))
"""


@pytest.mark.whole
@pytest.mark.parametrize("how", ["with", "variable"])
def test_two_processes_that_share_a_training_have_it(place, how):
    "`--with` of a run that starts them, and REID_LAB_WITH where torchrun did: gloo on the CPU"
    place.write("mylab/towers.py", TOWERS.replace("BoT(Res", "Seeing(Res").replace("\ndef ", SEEING + "\n\ndef ", 1))
    seen, folder = place.folder/"seen", place.folder/"trained"
    seen.mkdir()
    if how == "with":
        place.write("own.ipynb", notebook(("folder = ''\nexecution = ''", "parameters"), (OWN_RUN,)))
        done = place.command("--with", "mylab", "run", "own.ipynb", "-p", f"folder={folder}", "--processes", "2",
                             "--out", "run", SEEN=str(seen))
    else:
        program = place.write("train.py", TRAINS)
        done = place.python("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", program, folder,
                            REID_LAB_WITH="mylab", SEEN=str(seen))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in seen.iterdir()} == {"gloo 0 of 2", "gloo 1 of 2"}
    about = json.loads((folder/"done.json").read_text())
    assert about["modules"] == ["mylab"] and (about["steps"], about["images"]) == (2, 32)
