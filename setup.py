"""Packaging. Everything is read from settings.ini; nbdev writes pyproject.toml from the same file."""
import sys
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
parser = ConfigParser(delimiters=["="])
parser.read(root / "settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]
readme = root / "README.md"

# The experiment notebooks travel inside the wheel, so that `pip install .` gives a CLI that can run them.
notebooks = "reid_lab.notebooks"
packages = [p for p in find_packages(include=["reid_lab", "reid_lab.*"]) if p != notebooks]
folders = {"": "."}
# A clone has them in nbs/experiments. An installation with `-e` that maps no second folder is a line in a .pth file;
# with one it is a finder that Python asks last, so that a folder `reid_lab` without a package, such as a clone seen from
# the folder above, would hide the library there.
if "editable_wheel" not in sys.argv:
    packages.append(notebooks)
    folders = {notebooks: "nbs/experiments"}

setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"], keywords=cfg["keywords"],
    author=cfg["author"], author_email=cfg["author_email"], license="Apache-2.0", url=cfg["git_url"],
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else cfg["description"],
    long_description_content_type="text/markdown",
    classifiers=["Development Status :: 3 - Alpha", "Intended Audience :: Science/Research",
                 "Natural Language :: English", "Programming Language :: Python :: 3",
                 *[f"Programming Language :: Python :: {v}" for v in ("3.11", "3.12", "3.13")],
                 "Topic :: Scientific/Engineering :: Artificial Intelligence"],
    packages=packages, package_dir=folders,
    package_data={"reid_lab": ["py.typed", "resources/*", "resources/front/*", "resources/published/*",
                               "resources/weights/*", "resources/new/*", "resources/new/*/*",
                               "resources/examples/*/*", "resources/examples/*/*/*"], notebooks: ["*.ipynb"]},
    include_package_data=True, zip_safe=False, python_requires=">=" + cfg["min_python"],
    install_requires=cfg["requirements"].split(),
    extras_require={k: cfg[f"{k}_requirements"].split()
                    for k in ("dev", "cluster", "scatter", "parquet", "index", "docs", "onnx", "video", "lora", "mixed")},
    entry_points={"console_scripts": cfg["console_scripts"].split(), "nbdev": [f"{cfg['lib_name']}={cfg['lib_name']}._modidx:d"]},
)
