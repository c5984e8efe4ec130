"Tables for people: escaped in every form, the best value bold, and safe in a spreadsheet"
import pandas as pd
import pytest

from reid_lab.results.tables import read_csv, to_csv, to_html, to_latex, to_markdown


def cells(line): return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_renderer_escapes():
    frame = pd.DataFrame([dict(method="a_b & <script>|*x*", R1=50.)])
    assert r"a\_b \& \textless{}script\textgreater{}\textbar{}*x*" in to_latex(frame)
    assert "<script>" not in to_html(frame) and "&lt;script&gt;" in to_html(frame)
    line = to_markdown(frame).splitlines()[2]
    assert "<" not in line and r"\|" in line and line.replace(r"\|", "").count("|") == 3


def test_bold_takes_the_mean_not_the_text():
    frame = pd.DataFrame(dict(method=["a", "b", "c"], R1=["9.50 ± 0.1", "10.20 ± 3.0", ""]))
    assert r"\textbf{10.20 $\pm$ 3.0}" in to_latex(frame, bold=["R1"])
    assert to_latex(frame, bold=["R1"]).count("textbf") == 1


def test_names_of_columns_are_any_values():
    frame = pd.DataFrame([[1., "=a"], [2., "b"]], columns=[3, ("x", "<y>")])
    assert ">3</th>" in to_html(frame, bold=[3]) and "&lt;y&gt;" in to_html(frame)
    assert cells(to_markdown(frame).splitlines()[0])[0] == "3" and to_latex(frame).splitlines()[2].startswith("3 &")


def test_a_table_for_a_spreadsheet_comes_back(tmp_path):
    frame = pd.DataFrame({"=x": ["=1+2", "+ ST", "-", "@a", "plain", None], "gain": [-1., 2., 3., -4., 5., 6.]})
    text = to_csv(frame, tmp_path/"t.csv").read_text()
    assert "\n'=1+2,-1.0\n'+ ST,2.0\n" in text and text.startswith("'=x,")
    back = read_csv(tmp_path/"t.csv")
    assert list(back) == list(frame) and back["=x"].tolist()[:5] == frame["=x"].tolist()[:5] and back["=x"].isna()[5]
    assert back.gain.tolist() == frame.gain.tolist()


@pytest.mark.parametrize("name", ["[0] plain", "*starred", "[", "[2ex] more"])
def test_a_bracket_at_the_start_of_a_row_is_no_argument_of_the_row_before(name):
    lines = to_latex(pd.DataFrame({name: ["a", name], "R1": [1., 2.]})).splitlines()
    assert not any(line.startswith(("[", "*")) for line in lines) and sum(name in line for line in lines) == 2


@pytest.mark.parametrize("name", ["a\nb", "a\r\nb", "a\rb", "a\x0bb", "a\u2028b", "a\x85b"])
def test_one_row_stays_one_row(name):
    frame = pd.DataFrame(dict(name=[name], R1=[1.]))
    assert cells(to_markdown(frame).splitlines()[2]) == ["a b", "1.00"]
    assert to_latex(frame).splitlines()[4] == r"a b & 1.00 \\"


def test_terminal_escapes_stay_text():
    frame = pd.DataFrame(dict(name=["a\x1b[2J"]))
    assert "\x1b" not in to_markdown(frame) and "\x1b" not in to_latex(frame)


@pytest.mark.parametrize("name", ["=1+1.jpg", "+a", "-a.jpg", "@x", "\tx", "\rx", "＝1", "＠x", "'=quoted"])
def test_names_are_no_formulas_and_come_back(name, tmp_path):
    path = to_csv(pd.DataFrame(dict(name=[name])), tmp_path/"t.csv")
    cell = path.read_bytes().decode().split("\n", 1)[1].lstrip('"')
    assert cell[0] == "'" and read_csv(path).name[0] == name


def test_a_frame_without_rows_is_a_table_of_its_head():
    frame = pd.DataFrame(dict(a_b=[], R1=[]))
    assert cells(to_markdown(frame).splitlines()[0]) == [r"a\_b", "R1"]
    assert to_latex(frame).splitlines()[2] == r"a\_b & R1 \\"


def test_a_footnote_joins_the_caption():
    frame = pd.DataFrame(dict(R1=[1.]))
    frame.attrs["footnote"] = "World & more"
    assert r"\caption{Scores World \& more}" in to_latex(frame, "Scores")
    assert r"\caption{World \& more}" in to_latex(frame)
