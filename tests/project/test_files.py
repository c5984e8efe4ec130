"The files around the library agree: citation, workflow, hooks, contributing guide, changelog, templates"
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"setup.py").exists(), reason="needs the source tree")
PAPERS = ("camel", "dmg", "cfam", "dart3", "cfan")
CHECKS = ("export", "clean", "drawn", "lint", "ruff", "merge")


def read(name): return (ROOT/name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def settings():
    parser = configparser.ConfigParser(delimiters=["="])
    parser.read(ROOT/"settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


@pytest.fixture(scope="module")
def lint(tool):
    "tools/check_nbs.py as a module of its own"
    return tool("check_nbs")


# --- what is read off a text ------------------------------------------------------------------------------------------

def code(text):
    "Code of a Markdown text: the lines of its blocks without their comments, and its spans"
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return [re.sub(r"\s+#.*", "", line) for b in blocks for line in b.splitlines()] + spans


def make_targets(text):
    "Targets of the `make` commands in a Markdown text"
    out = set()
    for line in code(text):
        m = re.match(r"make((?: +\S+)+)$", line.strip())
        if m: out |= {w for w in m[1].split() if re.fullmatch(r"[a-z_-]+", w)}
    return out


def defined_targets(makefile): return set(re.findall(r"^([a-z_-]+):(?!=)", makefile, re.M))


def paths(text, ignored=()):
    "Words in the code of a Markdown text that look like files or folders of the project"
    words = {w.rstrip(".,;:") for line in code(text) for w in line.split()}
    looks = [w for w in words if re.fullmatch(r"[\w.][\w.+-]*(/[\w.+-]+)*/?", w)
             and ("/" in w or re.search(r"\.(py|md|ini|ya?ml|csv|cff|toml|ipynb|txt|json)$", w))]
    return sorted(w for w in looks if not any(w.startswith(i) for i in ignored))


def is_there(path):
    "Whether a path exists below the root; a name without a folder may be that of files in several: `conftest.py`"
    if (ROOT/path).exists(): return True
    folders = (ROOT/"reid_lab", ROOT/"tests", ROOT/"tools")
    return "/" not in path and any(True for folder in folders for _ in folder.rglob(path))


def hook_problems(config, known, root=ROOT):
    "What is wrong with the hooks of a pre-commit configuration"
    out = []
    for repo in config["repos"]:
        if repo["repo"] != "local": out.append(f"{repo['repo']} would be fetched")
        for h in repo["hooks"]:
            program, *rest = h["entry"].split()
            file = root/program
            if h.get("language") != "system": out.append(f"{h['id']}: language {h.get('language')}")
            if not (file.is_file() and os.access(file, os.X_OK) if "/" in program else shutil.which(program)):
                out.append(f"{h['id']}: no {program}")
            elif program == ".ci/hook" and (len(rest) != 1 or rest[0] not in known):
                out.append(f"{h['id']}: {program} knows no {' '.join(rest)}")
    return out


def form_problems(form):
    "What is wrong with an issue form"
    out = [f"no {k}" for k in ("name", "description", "body") if not form.get(k)]
    ids = [b.get("id") for b in form.get("body", []) if b.get("type") != "markdown"]
    if len(set(ids)) < len(ids) or None in ids: out.append("ids are missing or not unique")
    for b in form.get("body", []):
        if b.get("type") not in ("markdown", "textarea", "input", "dropdown", "checkboxes"):
            out.append(f"type {b.get('type')}")
        elif b["type"] != "markdown" and not b.get("attributes", {}).get("label"):
            out.append(f"{b.get('id')} has no label")
        if b.get("type") == "dropdown" and not b["attributes"].get("options"):
            out.append(f"{b.get('id')} has no options")
    return out


# --- citation ---------------------------------------------------------------------------------------------------------

def test_citation_agrees_with_the_settings(settings):
    cff = yaml.safe_load(read("CITATION.cff"))
    assert cff["cff-version"] == "1.2.0" and cff["type"] == "software" and cff["message"] and cff["abstract"]
    assert str(cff["version"]) == settings["version"] and cff["title"].startswith(settings["lib_name"])
    assert cff["license"] == "Apache-2.0" and cff["repository-code"] == settings["git_url"]
    assert cff["authors"] == [{"name": settings["author"]}]


def test_citation_names_the_papers_as_their_numbers_do():
    "The five core papers, and no paper whose numbers are not stored"
    titles = {r["title"] for r in yaml.safe_load(read("CITATION.cff"))["references"]}
    files = (ROOT/"reid_lab"/"resources"/"published").glob("*.json")
    stored = {p.stem: json.loads(p.read_text("utf-8"))["paper"] for p in files}
    assert {stored[p] for p in PAPERS} <= titles <= set(stored.values())


def test_each_reference_has_authors():
    for r in yaml.safe_load(read("CITATION.cff"))["references"]:
        assert r["type"] == "article" and len(r["authors"]) >= 3, r["title"]
        assert all(set(a) in ({"name"}, {"given-names", "family-names"}) for a in r["authors"]), r["title"]


# --- hosted checks ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def job():
    flow = yaml.safe_load(read(".github/workflows/ci.yml"))
    assert set(flow[True]) >= {"push", "pull_request"}       # YAML 1.1 reads the key `on` as true
    assert flow["permissions"] == {"contents": "read"} and flow["concurrency"]["cancel-in-progress"] is True
    (one,) = flow["jobs"].values()
    return one


def test_the_workflow_calls_the_local_check(job, settings):
    assert [s["run"] for s in job["steps"] if ".ci/run" in s.get("run", "")] == ["bash .ci/run"]
    assert 10 <= job["timeout-minutes"] <= 120 and job["env"]["PYTHON"] == "python${{ matrix.python }}"
    versions = job["strategy"]["matrix"]["python"]
    assert all(isinstance(v, str) for v in versions), "3.10 without quotes is the number 3.1"
    assert settings["min_python"] in versions
    assert versions == sorted(versions, key=lambda v: [int(x) for x in v.split(".")])


def test_the_same_pythons_everywhere(job):
    versions = job["strategy"]["matrix"]["python"]
    assert [v for v in versions if f"python{v}" not in read("Makefile")] == []
    assert re.search(r'Python :: \{v\}" for v in \(([^)]*)\)',
                     read("setup.py"))[1].replace('"', "").split(", ") == versions


def test_actions_are_pinned_by_major_version(job):
    used = [s["uses"] for s in job["steps"] if "uses" in s]
    assert used and [u for u in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", u)] == []
    assert "secrets." not in read(".github/workflows/ci.yml") and not [u for u in used if "upload" in u]


def test_the_interpreter_can_be_chosen_by_the_environment(tmp_path, outside_make):
    "What .ci/run relies on: it leaves PYTHON alone, and the Makefile uses it"
    assert not re.search(r"\b(unset|export)\b.*\bPYTHON\b", read(".ci/run"))
    run = subprocess.run(["make", "-n", f"VENV={tmp_path/'venv'}", "install"], cwd=ROOT, capture_output=True,
                         text=True, env=outside_make | dict(PYTHON="python9.9"))
    assert run.returncode == 0 and '"python9.9" -m venv' in run.stdout, run.stdout + run.stderr


# --- guides -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md", "CHANGELOG.md", "tools/README.md"])
def test_make_targets_exist(name):
    assert make_targets(read(name)) <= defined_targets(read("Makefile"))


def test_the_guide_names_the_targets_and_help_does_too():
    shown, targets = read("CONTRIBUTING.md"), defined_targets(read("Makefile"))
    assert make_targets(shown) == targets
    said = set(re.findall(r"make ([a-z-]+)", "\n".join(re.findall(r'@echo "(.*)"', read("Makefile")))))
    assert said >= targets - {"help"}


def test_files_named_in_the_guide_exist():
    ignored = [s.strip() for s in read(".gitignore").splitlines() if s.strip()]
    named = paths(read("CONTRIBUTING.md"), ignored)
    assert len(named) > 15 and [p for p in named if not is_there(p)] == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md", "tools/README.md"])
def test_local_links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)\s#]+)", re.sub(r"`[^`\n]*`", "", read(name)))
    assert [t for t in links if not re.match(r"[a-z]+:", t) and not ((ROOT/name).parent/t).exists()] == []


LIMITS = {"line": r"Lines have at most (\d+) characters",
          "cell_kb": r"at most (\d+) KB a cell", "nb_kb": r"a notebook has at most (\d+) KB",
          "title": r"of at most (\d+) characters; `default_exp`"}


@pytest.mark.parametrize("key", LIMITS)
def test_limits_in_the_guide_are_those_of_the_lint(lint, key):
    assert int(re.search(LIMITS[key], read("CONTRIBUTING.md"))[1]) == lint.MAX[key]


def test_the_template_asks_what_the_guide_lists():
    points = lambda text: re.findall(r"^- (?:\[ \] )?\*\*([A-Z][\w ]+)\*\*:? ", text, re.M)
    guide = re.search(r"^## Review\n(.*?)^## ", read("CONTRIBUTING.md"), re.M | re.S)[1]
    assert len(points(guide)) == 7 and points(read(".github/pull_request_template.md")) == points(guide)


def test_changelog_has_an_unreleased_section_and_the_current_version(settings):
    heads = re.findall(r"^## (\S+)", read("CHANGELOG.md"), re.M)
    assert heads[0] == "Unreleased" and settings["version"] in heads
    for name, body in re.findall(r"^## (\S+).*?\n(.*?)(?=^## |\Z)", read("CHANGELOG.md"), re.M | re.S):
        assert set(re.findall(r"^### (.+)", body, re.M)) <= {
            "Changed", "Added", "Removed", "Fixed", "Deprecated", "Security"}, name
        assert name == "Unreleased" or re.search(rf"^## {re.escape(name)} \(\d{{4}}-\d\d-\d\d\)$",
                                                 read("CHANGELOG.md"), re.M), name


def test_changelog_is_one_line_an_entry():
    "Of every version since 0.2.0; what is unreleased is joined when it is released"
    released = re.search(r"^## \d.*?(?=^## 0\.1\.0 )", read("CHANGELOG.md"), re.M | re.S)[0]
    lines = [line for line in released.splitlines() if line.strip()]
    entries = [line for line in lines if line.startswith("- ")]
    assert 20 <= len(entries) and [line for line in lines if line.startswith(" ")] == []
    for version in re.split(r"^(?=## )", released, flags=re.M)[1:]:
        assert len(re.findall(r"^- ", version, re.M)) <= 60, version[:20]


def test_a_release_is_a_list_of_steps():
    "The checklist names the files that hold the version, and they exist"
    guide = re.search(r"^## Changelog and releases\n(.*?)^## ", read("CONTRIBUTING.md"), re.M | re.S)[1]
    steps = re.findall(r"^(\d)\. ", guide, re.M)
    assert steps == [str(i) for i in range(1, len(steps) + 1)] and len(steps) >= 6
    for name in ("settings.ini", "CITATION.cff", "CHANGELOG.md", ".ci/run", "Release X.Y.0"): assert name in guide, name


# --- figures ----------------------------------------------------------------------------------------------------------

def exported_figures():
    "Patterns of the files that cells of notebooks write to figures/, such as `dmg_*.svg`"
    found = []
    for path in (ROOT/"nbs").rglob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for text in ("".join(c["source"]) for c in cells if c["cell_type"] == "code"):
            for name, ending in re.findall(r"export\(\w+, f?'([^']+)', formats='(\w+)'\)", text):
                found.append(re.sub(r"\{[^}]*\}", "*", name) + f".{ending}")
    return found


def test_one_file_a_figure():
    "Vectors for charts, JPEG for pictures; each is written by a notebook or a tool, and no file is left over"
    files = [p for p in (ROOT/"figures").iterdir() if p.name[0] != "."]
    assert len({p.stem for p in files}) == len(files) and {p.suffix for p in files} == {".svg", ".jpg"}
    tools = "".join(p.read_text(encoding="utf-8") for p in (ROOT/"tools").glob("*.py"))
    patterns = exported_figures()
    assert len(patterns) > 20
    unknown = [p.name for p in files if p.name not in tools and not any(p.match(one) for one in patterns)]
    assert unknown == []
    assert sum(p.stat().st_size for p in files) < 3_000_000


@pytest.mark.parametrize("name", ["bug", "result", "paper"])
def test_issue_forms(name):
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    assert form_problems(form) == []
    asked = json.dumps(form)
    wanted = dict(bug=("reid_lab doctor", "commit", "seed", "preset"),
                  result=("reid_lab doctor", "commit", "seeds", "preset", "row", "split"),
                  paper=("seeds", "commit", "test vector"))[name]
    assert [w for w in wanted if w.lower() not in asked.lower()] == []


def test_issue_chooser(settings):
    links = yaml.safe_load(read(".github/ISSUE_TEMPLATE/config.yml"))["contact_links"]
    for link in links:
        assert link["name"] and link["about"]
        assert link["url"].startswith(f"{settings['git_url']}/blob/{settings['branch']}/")
        assert (ROOT/link["url"].rpartition(f"/{settings['branch']}/")[2]).exists()


def project_files():
    "Files that people and services read, besides notebooks, code and data"
    names = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *ROOT.glob("*.ini"), *ROOT.glob("*.toml"), *ROOT.glob("*.yml"),
             *ROOT.glob(".*.yaml"), ROOT/"Makefile", ROOT/"setup.py", *(ROOT/".ci").iterdir(),
             *(p for p in (ROOT/".github").rglob("*") if p.is_file()),
             *(ROOT/"tools").glob("*.md"), *(ROOT/"results").glob("*.md")]
    return sorted(p.relative_to(ROOT).as_posix() for p in names)


def test_no_file_names_a_path_of_a_machine(lint):
    names = project_files()
    assert {"CONTRIBUTING.md", "CITATION.cff", ".pre-commit-config.yaml", ".ci/run",
            ".github/workflows/ci.yml"} <= set(names)
    found = {n: m[0] for n in names if (m := lint.MACHINE.search(read(n)))}
    assert found == {}


# --- hooks ------------------------------------------------------------------------------------------------------------

def test_hooks_call_what_exists():
    config = yaml.safe_load(read(".pre-commit-config.yaml"))
    assert hook_problems(config, CHECKS) == []
    assert {h["entry"].split()[1] for h in config["repos"][0]["hooks"]} == set(CHECKS)


HOOK_PLACE = "nbs/00_base/10_sums.ipynb"
HOOK_NB = [("markdown", "# Sums\n> Adding things"), ("code", "#| default_exp base.sums"),
           ("markdown", "## Add"),
           ("code", '#| export\ndef add(a:int, # One number\n    ) -> int: # Twice that\n'
                    '    "Add a number to itself"\n    return a + a'),
           ("code", "assert add(2) == 4"), ("code", "#| hide\nimport nbdev\n\nnbdev.nbdev_export()")]


def notebook(cells, **meta):
    base = dict(code=dict(outputs=[], execution_count=None), markdown={})
    printed = lambda s: (dict(outputs=[dict(output_type="stream", name="stdout", text="4\n")])
                         if s.startswith("print") else {})
    return json.dumps(dict(cells=[dict(cell_type=k, id=f"c{i}", metadata=meta, source=s) | base[k] | printed(s)
                                  for i, (k, s) in enumerate(cells)],
                           metadata=dict(kernelspec=dict(name="python3", display_name="python3", language="python")),
                           nbformat=4, nbformat_minor=5), indent=1)


@pytest.fixture(scope="module")
def hook(tmp_path_factory):
    "(folder, function that runs .ci/hook) of a small project under git, exported and committed"
    root = tmp_path_factory.mktemp("project")
    for name in ("settings.ini", "setup.py", "pyproject.toml", ".ci/hook", "tools/check_nbs.py", "tools/layout.py",
                 "tools/readme.py"):
        (root/name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT/name, root/name)
    for name in ("nbs/00_base", "tests", "benchmarks", "reid_lab", "figures"): (root/name).mkdir(parents=True)
    (root/HOOK_PLACE).write_text(notebook(HOOK_NB))
    (root/"nbs"/"index.ipynb").write_text(notebook([("markdown", "# Small\n> A project of one module")]))
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= dict(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", VENV="none",
                HOME=str(root.parent), IN_TEST="")

    def run(*command): return subprocess.run(command, cwd=root, capture_output=True, text=True, env=env)

    def check(name): return run("bash", ".ci/hook", name)
    for command in (["nbdev_export"], ["nbdev_clean"], [sys.executable, "tools/layout.py", "--quiet"],
                    [sys.executable, "tools/readme.py"], ["git", "init", "-q"], ["git", "add", "-A"],
                    ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "one"]):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    yield root, check


@pytest.fixture
def project(hook):
    "The project and the function; the files are put back afterwards"
    root, check = hook
    old = {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and ".git" not in p.relative_to(root).parts}
    yield root, check
    for p in [p for p in root.rglob("*")
              if p.is_file() and ".git" not in p.relative_to(root).parts and p not in old]: p.unlink()
    for p, data in old.items(): p.write_bytes(data)


def test_hooks_pass_on_a_good_project(project):
    root, check = project
    run = check("all")
    assert run.returncode == 0 and [f"== {c}" in run.stdout for c in CHECKS] == [True]*6, run.stdout + run.stderr


def test_export_hook_finds_a_stale_module(project):
    root, check = project
    changed = [(k, s.replace("a + a", "2*a")) for k, s in HOOK_NB]
    (root/HOOK_PLACE).write_text(notebook(changed))
    run = check("export")
    module = root/"reid_lab"/"base"/"sums.py"
    assert run.returncode == 1 and "reid_lab/base/sums.py" in run.stdout and "2*a" in module.read_text()
    assert check("export").returncode == 0


def test_export_hook_finds_a_module_that_git_does_not_know(project):
    root, check = project
    (root/"reid_lab"/"loose.py").write_text("x = 1\n")
    run = check("export")
    assert run.returncode == 1 and "reid_lab/loose.py" in run.stdout and "add them" in run.stdout


def test_clean_hook_finds_metadata_and_keeps_tags(project):
    root, check = project
    path = root/HOOK_PLACE
    path.write_text(notebook(HOOK_NB, collapsed=True, tags=["parameters"]))
    run = check("clean")
    assert run.returncode == 1 and HOOK_PLACE in run.stdout
    assert "'nbdev_clean' changed these files" in run.stdout
    meta = [c["metadata"] for c in json.loads(path.read_text())["cells"]]
    assert {json.dumps(m) for m in meta} == {'{"tags": ["parameters"]}'}


@pytest.mark.parametrize("name", ["figures/layout.svg", "README.md"])
def test_drawn_hook_finds_a_stale_drawing_and_a_stale_readme(project, name):
    root, check = project
    (root/name).write_text((root/name).read_text() + "<!-- by hand -->")
    run = check("drawn")
    assert run.returncode == 1 and name in run.stdout and "make readme" in run.stdout
    assert check("lint").returncode == 0


def test_lint_hook_finds_a_broken_rule(project):
    root, check = project
    (root/HOOK_PLACE).write_text(notebook([("markdown", "# Sums"), *HOOK_NB[1:]]))
    run = check("lint")
    assert run.returncode == 1 and "[title]" in run.stdout


@pytest.mark.parametrize("body, rule", [
    ("def test_a(): return nothing\n", "F821"), ("import os\n", "F401"), ("a = 1; b = 2\n", "E702"),
    ("import sys\nimport os\n\nprint(os, sys)\n", "I001"), ("def broken(:\n", "invalid-syntax")])
def test_ruff_hook_finds_names_imports_and_statements(project, body, rule):
    root, check = project
    assert check("ruff").returncode == 0
    (root/"tests"/"test_a.py").write_text(body)
    run = check("ruff")
    assert run.returncode == 1 and rule in run.stdout


def test_merge_hook_finds_markers(project):
    root, check = project
    for marker in ("<"*7 + " HEAD", ">"*7 + " theirs"):
        (root/"setup.py").write_text(f"x = 1\n{marker}\n")
        run = check("merge")
        assert run.returncode == 1 and "setup.py:2" in run.stdout


def test_an_unknown_check_is_refused(project):
    run = project[1]("speling")
    assert run.returncode == 2 and "choose from" in run.stdout


def make_hooks(folder, programs):
    "(run, what was called, git configuration) of `make hooks` in a new repository where only `programs` are added"
    shutil.copy(ROOT/"Makefile", folder)
    for name in ("settings.ini", "setup.py"): shutil.copy(ROOT/name, folder)
    (folder/"bin").mkdir()
    for name in ("make", "git", "bash", "env", "id", "cksum", "cat", "tr"):
        (folder/"bin"/name).symlink_to(shutil.which(name))
    for name in programs:
        (folder/"bin"/name).write_text(f"#!{shutil.which('bash')}\necho {name} $* >> {folder/'called'}\n")
        (folder/"bin"/name).chmod(0o755)
    env = dict(PATH=str(folder/"bin"), HOME=str(folder))
    subprocess.run(["git", "init", "-q"], cwd=folder, env=env, check=True)
    run = subprocess.run(["make", "hooks"], cwd=folder, env=env, capture_output=True, text=True)
    config = subprocess.run(["git", "config", "--local", "--list"], cwd=folder, env=env, capture_output=True,
                            text=True).stdout
    return run, (folder/"called").read_text().splitlines() if (folder/"called").exists() else [], config


def test_make_hooks_prefers_what_stays_in_the_clone(tmp_path):
    run, called, config = make_hooks(tmp_path, ["pre-commit", "nbdev_merge", "nbdev_install_hooks"])
    assert run.returncode == 0 and called == ["pre-commit install"], run.stdout + run.stderr
    driver = re.search(r"merge\.nbdev-merge\.driver='(.*)' %O %A %B %P", config)[1]
    assert driver == str(tmp_path/"bin"/"nbdev_merge") and "merge=nbdev-merge" in read(".gitattributes")


def test_make_hooks_warns_before_it_writes_elsewhere(tmp_path):
    run, called, config = make_hooks(tmp_path, ["nbdev_merge", "nbdev_install_hooks"])
    assert run.returncode == 0 and called == ["nbdev_install_hooks"]
    assert "~/.jupyter" in run.stdout and "nbdev-merge" not in config


def test_make_hooks_says_what_to_install(tmp_path):
    run, called, _ = make_hooks(tmp_path, [])
    assert run.returncode and not called and "make install hooks" in run.stdout


# --- these tests can fail ---------------------------------------------------------------------------------------------

def test_words_are_read_off_markdown():
    text = ("Use `make check` and `make install VENV=a`, not make sure.\n\n```bash\nmake export readme   # make tea\n"
            "```\nin `nbs/a.ipynb`, `x.md`; `a.b`\n")
    assert make_targets(text) == {"check", "install", "export", "readme"}
    assert paths(text + "`runs/x.csv` and `~/x.py` and `no/such.py --dry OLD=NEW`", ["runs/"]) == [
        "nbs/a.ipynb", "no/such.py", "x.md"]
    assert [is_there(p) for p in ("conftest.py", "tests/conftest.py", "confest.py", "nbs/conftest.py")] == [
        True, True, False, False]
    assert defined_targets("A := 1\nmake: b\n\tc:\nfoo: export X = 1\n") == {"make", "foo"}


def test_bad_hooks_are_found(tmp_path):
    (tmp_path/".ci").mkdir()
    (tmp_path/".ci"/"hook").write_text("")
    hooks = [dict(id="a", language="python", entry="python x"),
             dict(id="b", language="system", entry="no-such-program-at-all"),
             dict(id="c", language="system", entry=".ci/hook lint")]
    config = dict(repos=[dict(repo="https://example.org/hooks", hooks=hooks)])
    found = " ".join(hook_problems(config, CHECKS, tmp_path))
    assert "would be fetched" in found and "a: language python" in found
    assert "b: no no-such" in found and "c: no .ci/hook" in found
    (tmp_path/".ci"/"hook").chmod(0o755)
    assert "c:" not in " ".join(hook_problems(config, CHECKS, tmp_path))
    assert "c: .ci/hook knows no lint" in hook_problems(config, ["export"], tmp_path)


def test_bad_forms_are_found():
    field = dict(type="input", id="a", attributes=dict(label="A"))
    assert form_problems(dict(name="n", description="d", body=[field])) == []
    assert form_problems(dict(name="n", body=[field, field])) == ["no description", "ids are missing or not unique"]
    assert form_problems(dict(name="n", description="d", body=[dict(type="box", id="a")])) == ["type box"]
    assert form_problems(dict(name="n", description="d", body=[
        dict(type="dropdown", id="a", attributes=dict(label="A"))])) == ["a has no options"]


@pytest.mark.parametrize("before, path", [("see ", "home/me/x"), ("in `", "tmp/a`"), ("", "root/.cache")])
def test_paths_of_machines_are_found(lint, before, path): assert lint.MACHINE.search(f"{before}/{path}")
