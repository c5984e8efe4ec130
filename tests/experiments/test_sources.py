"What a job runs is in the key of a sweep: its source, the user's modules behind it, and what it closes over"
import hashlib
import importlib
import inspect
import os
import subprocess
import sys
import time
from functools import partial

import pytest
from helpers.notebooks import RECORD, notebook

from reid_lab.experiments import sweep as sweeps
from reid_lab.experiments.params import params_hash
from reid_lab.experiments.run import write_json
from reid_lab.experiments.sources import is_own, job_code, modules_behind, without_comments
from reid_lab.experiments.sweep import sweep


@pytest.fixture
def write(tmp_path, monkeypatch):
    "Write a module of the user's beside the others and import it anew"
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    def make(name, text):
        path = tmp_path/f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        names.append(name)
        importlib.invalidate_caches()
        return path
    yield make
    for name in names: sys.modules.pop(name, None)
    for name in {n.split(".")[0] for n in names}: sys.modules.pop(name, None)


def fresh(name):
    "A module as another process would import it"
    for known in [n for n in sys.modules if n.split(".")[0].startswith("mine")]: del sys.modules[known]
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    return importlib.import_module(name)


CALLS = "from mine_b import loss\ndef job(seed=0): return dict(mAP=loss())\n"


@pytest.mark.parametrize("job, file, before, after", [
    ("def loss(): return 1.\ndef job(seed=0): return dict(mAP=loss())\n", "mine_a", "1.", "2."),
    ("RATE = 1.\ndef job(seed=0): return dict(mAP=RATE)\n", "mine_a", "1.", "2."),
    ("RATE = 1.\ndef job(seed=0, rate=RATE): return dict(mAP=rate)\n", "mine_a", "1.", "2."),
    (CALLS, "mine_b", "1.", "2."),
    ("import mine_b\ndef job(seed=0): return dict(mAP=mine_b.loss())\n", "mine_b", "1.", "2."),
    ("def job(seed=0):\n    from mine_b import loss\n    return dict(mAP=loss())\n", "mine_b", "1.", "2."),
    ("from mine_p.deep import loss\ndef job(seed=0): return dict(mAP=loss())\n", "mine_p.deep", "1.", "2."),
    ("from mine_p import top\ndef job(seed=0): return dict(mAP=top())\n", "mine_p.deep", "1.", "2."),
    ("class Job:\n    def __call__(self, seed=0): return dict(mAP=1.)\njob = Job()\n", "mine_a", "1.", "2.")])
def test_an_edited_helper_is_run_again(job, file, before, after, write, tmp_path):
    files = {"mine_a": job, "mine_b": "def loss(): return 1.\n", "mine_p.__init__": "from .deep import loss as top\n",
             "mine_p.deep": "def loss(): return 1.\n"}
    for name, text in files.items(): write(name, text)
    def score(): return sweep(fresh("mine_a").job, [{}], n_jobs=1, folder=tmp_path/"s").mAP.tolist()
    assert score() == [1.] and score() == [1.] and len(list((tmp_path/"s").glob("*.json"))) == 1
    write(file, files[file].replace(before, after))
    assert score() == [2.]
    write(file, files[file])
    assert score() == [1.] and len(list((tmp_path/"s").glob("*.json"))) == 2


def test_what_does_not_decide_changes_nothing(write):
    write("mine_b", "def loss(): return 1.\n")
    write("mine_a", CALLS)
    key = job_code(fresh("mine_a").job).key
    write("mine_b", "# how far off\ndef loss(): return 1.     # so far\n\n\n")
    assert job_code(fresh("mine_a").job).key == key
    write("mine_c", "X = 1\n")
    assert job_code(fresh("mine_a").job).key == key


def test_a_job_that_refers_to_nothing_keeps_its_key_of_0_1(write):
    write("mine_a", "import math\nimport numpy as np\ndef other(): return 1\n"
                    "def job(seed=0): return dict(mAP=float(np.abs(math.sqrt(seed))))\n")
    code = job_code(fresh("mine_a").job)
    assert code.key == code.source and not code.files


def test_outcomes_of_an_earlier_version_are_taken_if_its_helpers_are_older(write, tmp_path, capsys):
    write("mine_b", "def loss(): return 1.\n")
    write("mine_a", CALLS)
    job = fresh("mine_a").job
    code = job_code(job)
    had = tmp_path/"s"/f"{params_hash(dict(seed=0), 'job', code.source)}.json"
    time.sleep(.02)
    write_json(had, dict(status="ok", wall_s=1., rows=[dict(mAP=50.)]))
    os.utime(had, (code.changed + 5, code.changed + 5))
    assert sweep(job, [{}], n_jobs=1, folder=tmp_path/"s").mAP.tolist() == [50.]
    os.utime(had, (code.changed - 5, code.changed - 5))     # the helper came later
    assert sweep(job, [{}], n_jobs=1, folder=tmp_path/"s").mAP.tolist() == [1.]
    assert "1 outcome(s) of a version that did not look at" in capsys.readouterr().err
    sweep(job, [{}], n_jobs=1, folder=tmp_path/"s")
    assert not capsys.readouterr().err


def test_a_notebook_with_an_edited_module_is_run_again(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("mine_b", "GAIN = 1.\n")
    nb = notebook(tmp_path/"n.ipynb", "%config Application.log_level = 30\nimport mine_b\n" + RECORD)
    first = job_code(str(nb))
    assert [*first.files] == ["mine_b"]
    write("mine_b", "GAIN = 2.\n")
    assert job_code(str(nb)).key != first.key and job_code(str(nb)).source == first.source
    ran = []
    monkeypatch.setattr(sweeps, "_run_here", lambda job, name, todo, *more: ran.extend(todo))
    sweep(str(nb), [{}], n_jobs=1, folder=tmp_path/"s")
    write("mine_b", "GAIN = 3.\n")
    sweep(str(nb), [{}], n_jobs=1, folder=tmp_path/"s")
    assert len({path.stem for _, path in ran}) == 2


def test_arguments_that_are_set_and_values_that_are_closed_over():
    def scaled(by): return lambda seed: dict(mAP=by)
    assert job_code(partial(max, 1)).key != job_code(partial(max, 2)).key
    assert job_code(scaled(1.)).key != job_code(scaled(2.)).key and job_code(scaled(1.)).key == job_code(scaled(1.)).key


def test_jobs_that_were_typed(tmp_path):
    "A program from the command line has no file to read; a value is in what the job calls, in a global, in the job"
    jobs = dict(a="def loss(): return {}\ndef a(seed=0): return dict(mAP=loss())",
                b="rate = {}\ndef b(seed=0): return dict(mAP=rate)", c="def c(seed=0): return dict(mAP={})")
    def scores(value):
        typed = "\n".join(job.format(value) for job in jobs.values())
        code = f"{typed}\nfrom reid_lab.experiments.sweep import sweep\n" \
               "for job, name in ((a, 'a'), (b, 'b'), (c, 'c')):\n" \
               f"    print(sweep(job, [{{}}], n_jobs=1, folder={str(tmp_path)!r} + '/' + name).mAP.tolist())"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stdout.split()
    assert [scores(1.), scores(1.), scores(2.)] == [["[1.0]"]*3, ["[1.0]"]*3, ["[2.0]"]*3]
    assert [len(list((tmp_path/name).glob("*.json"))) for name in jobs] == [2, 2, 2]


def test_helpers():
    assert not is_own(os.__file__) and not is_own(pytest.__file__) and is_own(__file__)
    assert without_comments("x = '#'  # y") == "x = '#'" and without_comments("def (") == "def ("
    assert "helpers.notebooks" in modules_behind("here", __file__)


@pytest.mark.parametrize("body", [
    "import importlib\ndef job(seed=0): return dict(mAP=importlib.import_module('mine_b').loss())\n",
    "from importlib import import_module\nb = import_module('mine_b')\ndef job(seed=0): return dict(mAP=b.loss())\n",
    "def job(seed=0): return dict(mAP=__import__('mine_b').loss())\n",
    "import mine_c\ndef job(seed=0): return dict(mAP=mine_c.loss())\n"])
def test_modules_imported_by_a_constant_name_are_followed(body, write):
    write("mine_b", "def loss(): return 1.\n")
    write("mine_c", "import importlib\nloss = importlib.import_module('mine_b').loss\n")
    write("mine_a", body)
    before = job_code(fresh("mine_a").job)
    assert "mine_b" in before.files and not before.unfollowed
    write("mine_b", "def loss(): return 2.\n")
    assert job_code(fresh("mine_a").job).key != before.key


@pytest.mark.parametrize("line, file", [("%run other.ipynb", "other.ipynb"), ("%run helper.py", "helper.py"),
                                        ("%run -i helper", "helper.py"), ("  %run 'helper.py'  # first", "helper.py")])
def test_what_a_notebook_runs_is_followed(line, file, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("mine_b", "X = 1\n")
    (tmp_path/"helper.py").write_text("import mine_b\nY = 1\n")
    notebook(tmp_path/"other.ipynb", "%run helper.py", "")
    path = notebook(tmp_path/"n.ipynb", line)
    before = job_code(path)
    assert file in {p.name for p in before.files.values()} and "mine_b" in before.files and not before.unfollowed
    assert {"helper.py", "mine_b.py"} <= {p.name for p in before.files.values()}
    write("mine_b", "X = 2\n")
    changed = job_code(path)
    assert changed.key != before.key
    if file == "other.ipynb": notebook(tmp_path/"other.ipynb", "%run helper.py\nZ = 3", "")
    else: (tmp_path/"helper.py").write_text("import mine_b\nY = 2\n")
    assert job_code(path).key not in (before.key, changed.key)


def test_notebooks_that_run_each_other_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path/"a.ipynb", "%run b.ipynb", "")
    notebook(tmp_path/"b.ipynb", "%run a.ipynb", "")
    assert {p.name for p in job_code(tmp_path/"a.ipynb").files.values()} == {"a.ipynb", "b.ipynb"}


@pytest.mark.parametrize("text", ["import importlib\nm = importlib.import_module(name)", "m = __import__(f'mine_{x}')",
                                  "%run {name}", "%run $name", "%run nowhere.py"])
def test_names_built_at_run_time_are_said(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = job_code(notebook(tmp_path/"n.ipynb", f"name = x = 'b'\n{text}"))
    assert len(found.unfollowed) == 1 and "n.ipynb" in found.unfollowed[0]
    assert text.splitlines()[-1].removeprefix("m = ") in found.unfollowed[0]


def test_a_sweep_says_what_is_not_followed(write, tmp_path, capsys):
    write("mine_a", "import importlib\ndef helper(name): return importlib.import_module(name)\n"
          "def job(seed=0): return dict(mAP=float(helper('math').sqrt(4)))\n")
    sweep(fresh("mine_a").job, [{}], n_jobs=1, folder=tmp_path/"s")
    said = capsys.readouterr().err
    assert "mine_a.py, line 2: importlib.import_module(name)" in said and "--fresh" in said


def test_what_changed_is_named_and_outcomes_of_other_code_stay(write, tmp_path, capsys):
    write("mine_b", "def loss(): return 1.\n")
    write("mine_a", CALLS)
    def score(**how): return sweep(fresh("mine_a").job, [{}], n_jobs=1, folder=tmp_path/"s", **how)
    score()
    assert "changed" not in capsys.readouterr().err
    write("mine_b", "def loss(): return 2.\n")
    assert score().mAP.tolist() == [2.]
    assert "sweep job: mine_b changed since 1 outcome(s) were made, which stay in s" in capsys.readouterr().err
    score()
    assert "changed" not in capsys.readouterr().err      # said once, when they are made anew


@pytest.mark.parametrize("named", ["mine_p", "mine_p/deep.py", "mine_p.deep"])
def test_named_modules_count_though_the_job_does_not_import_them(write, tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    write("mine_p.__init__", "")
    write("mine_p.deep", "RATE = 1.\n")
    write("mine_a", "def job(seed=0): return dict(mAP=1.)\n")
    def key(**how): return job_code(fresh("mine_a").job, **how).key
    first, without = key(code=[named]), key()
    assert first != without and first == key(code=[named])
    write("mine_p.deep", "RATE = 2.\n")
    assert key(code=[named]) not in (first, without) and key() == without
    assert sweep(fresh("mine_a").job, [{}], n_jobs=1, folder=tmp_path/"s", code=[named]).own[0].count("#") >= 1
    with pytest.raises(ValueError, match="code='mine_q' is no module.*such as code=\\[mylab\\]"): key(code=["mine_q"])


def test_a_parameter_of_the_job_that_is_called_code_is_its_own(tmp_path):
    def job(code, seed=0): return dict(mAP=float(code))
    assert sweep(job, [{}], n_jobs=1, folder=tmp_path, code=3).mAP.tolist() == [3.]


def test_of_a_notebook_its_code_cells_count(tmp_path):
    import json

    def key(source="x = 1", words="# Words", **more):
        cells = [dict(cell_type="markdown", metadata={}, source=words),
                 dict(dict(cell_type="code", metadata={}, source=source, outputs=[], execution_count=None), **more)]
        (tmp_path/"n.ipynb").write_text(json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)))
        return job_code(tmp_path/"n.ipynb").key
    first = key()
    assert first == key(outputs=[dict(output_type="stream", name="stdout", text="1")], execution_count=3)
    assert first == key(words="# Other words") and first == key(source=["x = ", "1"])
    assert first != key("x = 2") and first != key(metadata=dict(tags=["parameters"]))


def test_functions_that_enter_a_table_of_another_module_are_followed(write):
    "The job's module imports the table, and not the module that fills it"
    write("mine_t", "TABLE = {}\n")
    write("mine_a", "from mine_t import TABLE\ndef job(seed=0): return dict(mAP=TABLE['loss']())\n")
    def code(value):
        write("mine_b", f"from mine_t import TABLE\ndef loss(): return {value}\nTABLE['loss'] = loss\n")
        job = fresh("mine_a").job
        importlib.import_module("mine_b")
        return job_code(job)
    first = code(1.)
    assert sorted(first.files) == ["mine_a", "mine_b", "mine_t"] and code(1.).key == first.key
    assert code(2.).key != first.key


def test_a_typed_job_knows_the_modules_of_what_it_calls(write, monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)     # as in a shell
    write("mine_b", "def loss(): return 1.\n")
    def code(value):
        write("mine_b", f"def loss(): return {value}\n")
        scope = dict(__name__="__main__", loss=fresh("mine_b").loss)
        exec("def job(seed=0): return dict(mAP=loss())", scope)
        return job_code(scope["job"])
    first = code(1.)
    assert [*first.files] == ["mine_b"] and code(1.).key == first.key != code(2.).key


@pytest.mark.parametrize("text, files", [
    ("RATE = 2\ndef job(seed=0): return RATE", ["mine_a"]), ("def job(seed=0): return abs(seed)", []),
    ("from mine_b import loss\ndef job(seed=0): return loss()", ["mine_a", "mine_b"]),
    ("import math\nimport mine_b\ndef job(seed=0): return math.pi", [])])
def test_files_are_those_of_0_3(text, files, write):
    "A rule that is read otherwise gives the same keys, so that outcomes of 0.3 are found"
    write("mine_b", "def loss(): return 1.\n")
    path = write("mine_a", text)
    job = fresh("mine_a").job
    found, own = job_code(job), hashlib.sha256(inspect.getsource(job).encode()).hexdigest()[:8]
    texts = [f"{name}\n{without_comments((path.parent/f'{name}.py').read_text())}" for name in files]
    assert sorted(found.files) == files
    assert found.key == (hashlib.sha256("\0".join([own, *texts]).encode()).hexdigest()[:8] if files else own)


def test_the_command_takes_what_the_messages_of_a_sweep_propose(write, tmp_path, monkeypatch, capsys):
    "`--code` and `--fresh`, and the refusal of a module that there is not, in options of the command"
    from reid_lab.cli.commands import main, parser
    monkeypatch.chdir(tmp_path)
    nb = str(notebook(tmp_path/"n.ipynb", "", RECORD))
    assert main(["sweep", nb, "--code", "mine_q", "--out", str(tmp_path/"s")]) == 2
    said = capsys.readouterr().err
    assert "--code mine_q is no module" in said and "such as --code" in said and "code=" not in said
    given = parser().parse_args(["sweep", nb, "--code", "mylab", "mylab/extra.py", "--fresh"])
    assert (given.code, given.fresh) == (["mylab", "mylab/extra.py"], True)
    write("mine_b", "X = 1\n")
    called = []
    monkeypatch.setattr(sweeps, "job_code", lambda job, code: called.append(code) or job_code(job, code))
    monkeypatch.setattr(sweeps, "_run_here", lambda *a: None)
    main(["sweep", nb, "--code", "mine_b", "--out", str(tmp_path/"s")])
    assert called == [["mine_b"]]
