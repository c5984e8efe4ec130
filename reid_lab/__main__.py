"""`python -m reid_lab`: the command line (written by hand; all else here is exported from notebooks)"""
import sys

from .cli.commands import main

if __name__ == '__main__': sys.exit(main())
