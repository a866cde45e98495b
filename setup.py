"""Compiles the parts of simcoll that may be compiled, where a compiler is found; pyproject.toml says everything else.

The parts are built once for all versions of Python (its stable ABI) and need no torch. Where one cannot be built, or
``SIMCOLL_NATIVE=0`` is set, simcoll is installed without it (simcoll/core/native.py says what serves then).
"""

import os
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PARTS = {
    "simcoll.blackbox._reader": "simcoll/blackbox/_reader.c",
    "simcoll.blackbox._ring": "simcoll/blackbox/_ring.c",
    "simcoll.blackbox._stacks": "simcoll/blackbox/_stacks.c",
    "simcoll.pricing._program": "simcoll/pricing/_program.c",
    "simcoll.pricing._replay": "simcoll/pricing/_replay.c",
    "simcoll.proof._words": "simcoll/proof/_words.c",
    "simcoll.recorder._calls": "simcoll/recorder/_calls.c",
    "simcoll.verifier.agreement._bands": "verifier/agreement/_bands.c",
}
ABI = 0x030A0000, "cp310"
"""The oldest Python that simcoll runs on."""

# The stable ABI is none of a Python without the GIL, which the parts rely on.
wanted = os.environ.get("SIMCOLL_NATIVE", "1") != "0" and not sysconfig.get_config_var("Py_GIL_DISABLED")


class BuildExtension(build_ext):
    """Names neither the folder of the build nor that of Python in what it makes: equal sources make equal bytes."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one part."""
        if self.compiler.compiler_type == "unix":
            ext.extra_compile_args = ["-std=c11", "-O2", "-g0"]
            ext.extra_link_args = ["-Wl,--strip-all"]
            self.compiler.set_executable("linker_so", [one for one in self.compiler.linker_so if "rpath" not in one])
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildExtension},
    ext_modules=[
        Extension(name, [source], define_macros=[("Py_LIMITED_API", hex(ABI[0]))], py_limited_api=True, optional=True)
        for name, source in PARTS.items()
        if wanted
    ],
    options={"bdist_wheel": {"py_limited_api": ABI[1]}} if wanted else {},
)
