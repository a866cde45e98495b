"""Builds the test double of CUDA and NCCL for one interpreter's CUDA build of torch, and says how to run with it.

eval "$(python tests/cuda_double/build.py /path/to/python-with-cuda-torch)"
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
COMPILE = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-pthread"]


@dataclass(frozen=True, slots=True)
class Library:
    """One library to stand in for: its sources, its SONAME, what leaves it, every function that torch may look for."""

    sources: tuple[Path, ...]
    soname: str
    exports: str
    functions: frozenset[str]
    node: str = ""  # the version of its symbols, where it has one


@dataclass(frozen=True, slots=True)
class Wheels:
    """An interpreter's nvidia wheels and its torch."""

    packages: Path

    @classmethod
    def of(cls, python: str) -> Wheels:
        program = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return cls(Path(subprocess.check_output([python, "-c", program], text=True).strip()))

    def library(self, name: str) -> Path:
        """Raises FileNotFoundError where this is no CUDA build with its wheels."""
        found = sorted(self.packages.glob(f"nvidia/*/lib/lib{name}.so.*"))
        if not found:
            raise FileNotFoundError(f"no lib{name}.so in {self.packages / 'nvidia'}; give a Python with a CUDA torch")
        return found[0]

    def includes(self) -> list[Path]:
        headers = [self.library(name).parent.parent / "include" for name in ("cudart", "nccl")]
        return [*headers, self.packages / "triton/backends/nvidia/include"]  # which has crt/, as nvidia's wheel has not

    def libraries(self) -> list[Library]:
        cudart, nccl = self.library("cudart"), self.library("nccl")
        asked = symbols(self.packages / "torch/lib/libcaffe2_nvrtc.so", {"U"})
        driver = frozenset(name for name in asked if name.startswith("cu"))
        runtime = symbols(cudart, {"T", "W"})
        return [
            Library(sources("cudart_"), cudart.name, "cuda*; __cuda*; simcollDouble*;", runtime, cudart.name),
            Library(sources("driver"), "libcuda.so.1", "cu*;", driver),
            Library(sources("nccl_"), nccl.name, "nccl*; pnccl*;", symbols(nccl, {"T", "W"})),
        ]


def build(python: str, cache: Path | None = None) -> list[Path]:
    """The libraries, built unless the cache has them; raises CalledProcessError, with g++'s words on stderr."""
    wheels = Wheels.of(python)
    libraries = wheels.libraries()
    folder = (cache or default_cache()) / digest(wheels, libraries)
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        if not (folder / library.soname).exists():
            link(library, wheels.includes(), folder)
    return [folder / library.soname for library in libraries]


def environment(python: str, cache: Path | None = None, kernels: bool = True) -> dict[str, str]:
    """The variables under which that interpreter sees the pretended GPUs; builds the double first.

    Without ``kernels``, kernels do nothing, and only copies and collectives change memory.
    """
    libraries = build(python, cache)
    preloaded = {"LD_PRELOAD": ":".join(map(str, libraries))}
    return preloaded | ({"PYTHONPATH": str(entry_point(libraries[0].parent))} if kernels else {})


def entry_point(folder: Path) -> Path:
    """A folder for PYTHONPATH whose package torch loads as a backend when it is imported."""
    package, metadata = folder / "python", folder / "python" / "simcoll_double-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (package / "simcoll_double_kernels.py").write_text((HERE / "kernels.py").read_text())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simcoll-double\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nsimcoll_double = simcoll_double_kernels:install\n")
    return package


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcoll-cuda-double"


def digest(wheels: Wheels, libraries: list[Library]) -> str:
    parts = [path.read_bytes() for path in sorted(HERE.glob("*")) if path.suffix in {".cpp", ".h", ".py"}]
    parts += [f"{wheels.packages} {library.soname} {sorted(library.functions)}".encode() for library in libraries]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def link(library: Library, includes: list[Path], folder: Path) -> None:
    """Compiles the hand-written functions, and adds one that refuses for every other name."""
    work = folder / f"{library.soname}.{os.getpid()}"
    work.mkdir()
    refusing, script, made = (work / name for name in ("refusing.cpp", "exports.map", "made.so"))
    objects = [work / f"{source.stem}.o" for source in library.sources]
    flags = [flag for include in includes for flag in ("-isystem", str(include))]
    for source, compiled in zip(library.sources, objects, strict=True):
        run(["g++", *COMPILE, *flags, "-c", str(source), "-o", str(compiled)])
    written = frozenset().union(*(symbols(compiled, {"T"}, dynamic=False) for compiled in objects))
    refusing.write_text(refusals(sorted(library.functions - written)))
    script.write_text(f"{library.node} {{ global: {library.exports} local: *; }};\n")
    options = [f"-Wl,--version-script={script}", f"-Wl,-soname,{library.soname}"]
    run(["g++", *COMPILE, "-shared", *map(str, objects), str(refusing), *options, "-o", str(made)])
    made.replace(folder / library.soname)  # whole or not at all: several test workers may build at once


def sources(start: str) -> tuple[Path, ...]:
    return tuple(sorted(HERE.glob(f"{start}*.cpp")))


def refusals(names: list[str]) -> str:
    body = [f'int {name}() {{ return simcollDoubleUnsupported("{name}"); }}' for name in names]
    return "\n".join(['extern "C" {', "int simcollDoubleUnsupported(const char*);", *body, "}", ""])


def symbols(binary: Path, kinds: set[str], dynamic: bool = True) -> frozenset[str]:
    lines = subprocess.check_output(["nm", *(["-D"] if dynamic else []), str(binary)], text=True).splitlines()
    return frozenset(
        words[-1].split("@")[0] for words in map(str.split, lines) if len(words) > 1 and words[-2] in kinds
    )


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    for key, value in environment(sys.argv[1]).items():
        print(f"export {key}={shlex.quote(value)}${{{key}:+:${key}}}")
