"""A Python command in a fork that has torch already: ``compare_command.py MODULE ARGUMENTS...``."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
