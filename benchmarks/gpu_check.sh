#!/usr/bin/env bash
# All that needs a GPU, in one table (benchmarks/gpu/main.py). Skips with a reason where there is no GPU.
#
#   benchmarks/gpu_check.sh [--json FILE] [--markdown FILE] [--only PATTERN] [--setting PATTERN] [--cpu] [--list]
#
# PYTHON names the interpreter (default: .venv/bin/python, else python3). It needs torch 2.11 or newer with CUDA, and
# jinja2, numpy, networkx and rich; simcoll need not be installed. What a borrowed machine without an index lacks:
#   elsewhere: pip download --no-deps --only-binary=:all: -d wheels rich networkx markdown-it-py mdurl pygments
#   there:     pip install --no-index --no-deps --target site wheels/*.whl
#   PYTHONPATH=$PWD/site benchmarks/gpu_check.sh
# Several ranks on one GPU need NCCL 2.30. Where torch has an older one, bring a newer one's wheel, unpack it, and name
# the library: it is preloaded into the ranks of that setting alone.
#   pip download --no-deps -d wheels 'nvidia-nccl-cu13>=2.30'; unzip wheels/nvidia_nccl*.whl -d nccl
#   SIMCOLL_CHECK_NCCL=$PWD/nccl/nvidia/nccl/lib/libnccl.so.2 benchmarks/gpu_check.sh
# On the stand-in for CUDA and NCCL (tests/cuda_double) the table says that it shows a test double, and no result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    if [ -x .venv/bin/python ]; then PYTHON=$PWD/.venv/bin/python; fi
fi

skip() {
    echo "gpu_check: skipped: $1"
    exit 0
}

"$PYTHON" -c 'import torch' 2>/dev/null || skip "$PYTHON cannot import torch"
"$PYTHON" -c 'import jinja2, numpy, networkx, rich' 2>/dev/null ||
    skip "$PYTHON lacks jinja2, numpy, networkx or rich: the head of this script says how to bring them"

# A borrowed GPU machine often has torch but no index to install from: then the four folders are linked to one package.
if ! (cd / && "$PYTHON" -c 'import simcoll.verifier' 2>/dev/null); then
    package=$(mktemp -d)
    trap 'rm -rf "$package"' EXIT
    mkdir "$package/simcoll"
    ln -s "$PWD"/simcoll/* "$PWD/backends" "$PWD/reports" "$PWD/verifier" "$package/simcoll/"
    ln -s "$PWD/examples/scenarios" "$package/simcoll/scenarios"
    # What an installation would say: torch imports simcoll where it is an entry point.
    mkdir "$package/simcoll-0.dist-info"
    printf 'Metadata-Version: 2.1\nName: simcoll\nVersion: 0\n' >"$package/simcoll-0.dist-info/METADATA"
    printf '[torch.backends]\nsimcoll = simcoll.autoload:autoload\n' >"$package/simcoll-0.dist-info/entry_points.txt"
    export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}"
fi
# Behind the package: the folder simcoll of the working tree is only a part of it.
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"
"$PYTHON" benchmarks/gpu/main.py "$@"
