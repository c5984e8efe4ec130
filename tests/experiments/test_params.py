"Parameters: values as a command line writes them, misspelt ones, the cell of a notebook, cells that are run again"
import ast
import re
from typing import Literal, Optional

import pytest
from helpers.notebooks import notebook

from reid_lab.experiments.notebooks import notebooks
from reid_lab.experiments.params import Params, code_cells, notebook_parameters


class Demo(Params):
    "Parameters of the tests"
    preset: Literal["smoke", "quick"] = "quick"
    lr: float = 1e-3
    steps: int = 10
    root: Optional[str] = None
    k: Optional[int] = None
    ks: tuple[int, ...] = (1, 5)
    amp: bool = False


@pytest.mark.parametrize("given, want", [
    (dict(lr="1e-4"), 1e-4), (dict(steps="1e3"), 1000), (dict(steps=7.0), 7), (dict(root="None"), None),
    (dict(root="a/b"), "a/b"), (dict(k="none"), None), (dict(k="2e1"), 20), (dict(ks="1,10"), (1, 10)),
    (dict(ks="[1, 2]"), (1, 2)), (dict(ks=[3]), (3,)), (dict(amp="True"), True), (dict(amp="0"), False)])


def test_values_from_a_command_line(given, want):
    value = getattr(Demo(**given), next(iter(given)))
    assert value == want and type(value) is type(want)


@pytest.mark.parametrize("given, message", [
    (dict(prest="smoke"), "Did you mean 'preset'"), (dict(preset="full"), "preset='full'"),
    (dict(steps="many"), "steps='many'"), (dict(steps=1.5), "steps=1.5"), (dict(lr=None), "lr=None"),
    (dict(ks="1,x"), "ks.1='x'"), (dict(amp="maybe"), "amp='maybe'"),
    (dict(steps=True), "steps=True: it takes a number"),
    (dict(k=False), "k=False: it takes a number"), (dict(lr=True), "lr=True: it takes a number")])


def test_wrong_values_are_named(given, message):
    with pytest.raises(ValueError, match=message): Demo(**given)


def test_parameters_are_frozen():
    with pytest.raises(ValueError, match="frozen"): Demo().lr = 2.


def test_a_plain_papermill_typo_is_fatal_in_the_notebook():
    assert Demo.from_notebook(dict(preset="smoke", _i="x", In=[], Demo=Demo)).preset == "smoke"
    with pytest.raises(ValueError, match="parameter='prest' is not known"):
        Demo.from_notebook(dict(preset="quick", prest="smoke"))


def test_parameters_cell(tmp_path):
    assert notebook_parameters(notebook(tmp_path/"a.ipynb")) == dict(preset="quick", seed=0, out_dir="")
    for bad, message in ((dict(tags=()), "0 cells tagged"), (dict(parameters="x = f()"), "'x' is not a literal")):
        with pytest.raises(ValueError, match=message): notebook_parameters(notebook(tmp_path/"b.ipynb", **bad))


@pytest.mark.parametrize("name", ["_seed", "_x", "_i", "_seed_", "__seed"])
def test_a_parameter_with_an_underscore_is_not_ignored(name):
    class Own(Params):
        seed: int = 0
    kernel = dict(_=1, __="", _i1="x = 1", _12=3, _ih=[""], _exit_code=0, __doc__="text")  # what IPython puts there
    assert Own.from_notebook({**kernel, "seed": 1}).seed == 1
    if name in ("_i", "__seed"): return  # names that a kernel may give
    with pytest.raises(ValueError, match=f"parameter='{name}' is not known"): Own.from_notebook({**kernel, name: 5})


@pytest.mark.parametrize("text", ["[", "['a'", "(1,", "{"])
def test_a_list_that_is_not_closed_is_named(text):
    class Own(Params):
        methods: list[str] = []
    with pytest.raises(ValueError, match="methods=.*no list that can be read"): Own(methods=text)


class Kernel(dict):
    "Variables and history of a kernel, in which cells are run"
    def __init__(self): super().__init__(In=[""], __name__="__main__")

    def run(self, *cells):
        for cell in cells:
            self["In"].append(cell)     # IPython does so before it runs a cell
            exec(compile(cell, "cell", "exec"), self)


DEMO = "preset = 'quick'\nlr = 1e-3\nsteps = 10\nroot = None\nk = None\nks = (1, 5)\namp = False"
READ = "p = Demo.from_notebook(globals())"


@pytest.fixture
def kernel():
    "One that has run all cells of a notebook once"
    kernel = Kernel()
    kernel["Demo"] = Demo
    kernel.run(DEMO, "import os", READ, "FOUND = 3\nnames = ['a']\nfor steps in range(3): last = steps",
               "k = {'found': FOUND}")
    assert kernel["p"] == Demo(root=None)
    return kernel


def test_all_cells_are_run_again_with_another_value(kernel):
    kernel.run(DEMO.replace("10", "20"), "import os", READ)
    assert kernel["p"] == Demo(steps=20)
    kernel.run(DEMO, READ)
    assert kernel["p"] == Demo()


def test_a_value_that_a_later_cell_put_into_a_parameter_is_not_read(kernel):
    kernel.run(READ)
    assert kernel["p"] == Demo() and kernel["steps"] == 2
    kernel.run("lr = .5", READ)
    assert kernel["p"] == Demo(lr=.5)


@pytest.mark.parametrize("cells", [[DEMO + "\nprest = 'smoke'", READ], [DEMO, "# Parameters\nprest = 'smoke'", READ],
                                   [DEMO, "import os", "prest = 'smoke'", READ], ["prest = 'smoke'", READ]])
def test_a_misspelt_parameter_is_fatal_the_second_time_too(cells, kernel):
    with pytest.raises(ValueError, match="Did you mean 'preset'"): kernel.run(*cells)
    kernel.run(DEMO, READ)      # corrected
    assert kernel["p"] == Demo()


def test_a_history_that_was_emptied_is_read_from_its_start(kernel):
    kernel["In"][:] = [""]
    kernel.run(DEMO.replace("10", "30"), READ)
    assert kernel["p"] == Demo(steps=30)


def _left_over(source):
    "Names that a cell binds: by imports, assignments and loops"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)): yield from ((a.asname or a.name) for a in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store): yield node.id


@pytest.mark.parametrize("name", notebooks())
def test_every_experiment_reads_its_parameters_again(name):
    "After all cells have run, whatever they left behind is plain text or numbers, parameters' names among it"
    path = notebooks()[name]
    cells = [cell.source for cell in code_cells(path)]
    tagged = next(cell.source for cell in code_cells(path) if "parameters" in cell.tags)
    reads = next(at for at, cell in enumerate(cells) if "from_notebook(globals())" in cell)
    first, kernel = cells[:reads + 1], Kernel()
    kernel.run(*first)
    before = kernel["p"].as_dict()
    for cell in cells[reads + 1:]:
        kernel["In"].append(cell)
        kernel.update({left: ["left over"] for left in _left_over(cell) if left not in ("p", "__name__")})
    kernel.run(cells[reads])                            # this cell alone
    assert kernel["p"].as_dict() == before
    kernel.run(*first)                                  # all of them
    assert kernel["p"].as_dict() == before
    changed = re.sub(r"(?m)^preset = .\w+.", "preset = 'full'", tagged)
    kernel.run(*[changed if cell == tagged else cell for cell in first])
    assert before["preset"] == "quick" and kernel["p"].as_dict() == {**before, "preset": "full"}
