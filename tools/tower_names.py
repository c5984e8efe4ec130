"""Which network of timm or torchvision has tensors of which names and shapes: `reid_lab/resources/towers.csv`.

    python tools/tower_names.py            # write the file; minutes, nothing is downloaded
    python tools/tower_names.py --check    # exit code 1 if a network of the installed libraries is not as written

`reid_lab weights inspect` looks up a file's tensors in it. Networks are built without numbers (torch's `meta` device).
"""
import argparse
import csv
import logging
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT/"reid_lab"/"resources"/"towers.csv"
sys.path.insert(0, str(ROOT))


def networks():
    "(library, name, network) of all that can be built; those that cannot are named on standard error"
    import timm
    import torch
    from torchvision import models
    makers = [("timm", name, lambda name=name: timm.create_model(name)) for name in timm.list_models()]
    makers += [("torchvision", name, lambda name=name: models.get_model(name, weights=None))
               for name in models.list_models(models)]
    for library, name, make in makers:
        try:
            with torch.device("meta"): yield library, name, make()
        except NotImplementedError: yield library, name, make()     # it computes with numbers while it is built
        except (ValueError, RuntimeError, TypeError) as e:
            print(f"{library} {name}: {type(e).__name__} {str(e)[:80]}", file=sys.stderr)


def rows():
    "library, name, number of tensors, sum of their names and shapes"
    from reid_lab.models.weights.towers import tensor_sum
    for library, name, network in networks():
        found = tensor_sum(network.state_dict())
        yield library, name, found.n, found.crc


def main(args):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the file would change")
    args = parser.parse_args(args)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    lines = [["library", "name", "tensors", "crc"], *([str(x) for x in row] for row in rows())]
    if args.check:
        with FILE.open(newline="", encoding="utf-8") as f: known = list(csv.reader(f))
        return int(known != lines)
    with FILE.open("w", newline="", encoding="utf-8") as f: csv.writer(f, lineterminator="\n").writerows(lines)
    print(f"wrote {FILE.relative_to(ROOT)}: {len(lines) - 1} networks")
    return 0


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
