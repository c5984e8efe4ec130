"Odd names, and the texts that a figure draws"


ODD = ["_private", "$x$ of 50%", "a_b^2 $", r"\alpha $\beta$", "100% & #1 ~{}"]


def drawn(fig):
    "All texts of a figure, those that are read as mathematics apart"
    from matplotlib.cbook import is_math_text
    from matplotlib.text import Text
    fig.picture()
    texts = [t.get_text() for t in fig.findobj(Text) if t.get_text()]
    shown = [t.replace(r"\$", "$").strip("\u200a") for t in texts]
    return shown, [t for t in fig.findobj(Text) if t.get_parse_math() and t.get_text() and is_math_text(t.get_text())
                   and "mathdefault" not in t.get_text()]
