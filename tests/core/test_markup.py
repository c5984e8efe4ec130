"HTML from templates: what comes from data stays text, and Jinja2 is loaded when a page is written"
import subprocess
import sys

import pytest
from helpers import ROOT
from jinja2 import UndefinedError

from reid_lab.core.markup import fill, fill_file

EVIL = "\"><script>alert('1')</script>&"


@pytest.mark.parametrize("template", [
    "<b>{{ x }}</b>", '<b title="{{ x }}"></b>', "{% for x in [x] %}<i>{{ x }}</i>{% endfor %}"])
def test_data_stay_text(template):
    text = fill(template, x=EVIL)
    assert "<script" not in text and "'" not in text and text.count('"') == template.count('"')


def test_a_file_is_escaped_as_well():
    page = fill_file("bias_body.html", title="", remarks=[(EVIL, [EVIL])], summary="<table></table>", notes=[EVIL],
                     figures=[dict(src=EVIL, caption=EVIL)], cameras="", open_set="", open_title="")
    assert "<script" not in page and "<table></table>" in page and page.count("&lt;script") == 6


def test_a_missing_value_is_an_error():
    with pytest.raises(UndefinedError, match="'x' is undefined"): fill("{{ x }}")


def test_jinja_is_loaded_by_the_first_page():
    code = ("import sys, reid_lab.core.markup as m; print('jinja2' in sys.modules); m.fill(''); "
            "print('jinja2' in sys.modules)")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == ["False", "True"]
