"Writing whole or not at all, also where several processes write one name"
from pathlib import Path

from reid_lab.core.files import atomic_path


def test_a_workspace_that_another_writer_sweeps_is_made_again(tmp_path, monkeypatch):
    "Writers of one name sweep what killed ones left; a workspace is empty for a moment before it has its lock"
    made, mkdir = [], Path.mkdir
    def swept_once(self, *args, **kw):
        if self.name.startswith(".plan.json.") and not made:
            made.append(self)
            self.rmdir()
            raise FileExistsError(self)     # what mkdir says if the folder goes away while it looks
        return mkdir(self, *args, **kw)
    monkeypatch.setattr(Path, "mkdir", swept_once)
    with atomic_path(tmp_path/"plan.json") as new: new.write_text("{}")
    assert made and [p.name for p in tmp_path.iterdir()] == ["plan.json"]
