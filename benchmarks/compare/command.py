"""A Python command in a fork that has torch already: ``command.py MODULE ARGUMENTS...``. It is no rank."""

import os
import runpy
import sys

if __name__ == "__main__":
    for name in [name for name in os.environ if name.endswith(("RANK", "WORLD_SIZE")) or "ELASTIC" in name]:
        del os.environ[name]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
