"""Looks at every figure that a program exports; Python reads this file where its folder is on the path.

Each figure, and what is wrong with its texts, goes to the file that `FIGURE_FAULTS` names, a line of JSON each.
"""
import importlib.util
import json
import os
import sys

STYLE = "reid_lab.figures.style"


class Watch:
    "Finds the module of styles, once, and has its `export` report"
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != STYLE: return None
        sys.meta_path.remove(Watch)
        spec = importlib.util.find_spec(name)
        plain = spec.loader.exec_module

        def load(module):
            plain(module)
            module.export = reporting(module.export)
        spec.loader.exec_module = load
        return spec


def reporting(export):
    "The function, which afterwards says what is wrong with the texts of the figure and its paper"
    def exported(fig, name, *args, **options):
        paths = export(fig, name, *args, **options)
        spec = importlib.util.spec_from_file_location("figure_helpers", os.environ["FIGURE_HELPERS"])
        helpers = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(helpers)
        faults = helpers.text_faults(fig) + helpers.paper_faults(paths)
        with open(os.environ["FIGURE_FAULTS"], "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(figure=paths[0].stem, faults=faults)) + "\n")
        return paths
    return exported


if "FIGURE_FAULTS" in os.environ: sys.meta_path.insert(0, Watch)
