#!/usr/bin/env bash
# The wrapper where a GPU is: over NCCL, and over Gloo with CUDA tensors. Skips with a reason where there is none.
# PYTHON names the interpreter; it needs torch with CUDA, numpy, networkx and rich, and simcoll need not be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; fi
fi

skip() {
    echo "gpu_check: skipped: $1"
    exit 0
}

command -v nvidia-smi >/dev/null || skip "no NVIDIA driver here (nvidia-smi is not on the path)"
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || skip "nvidia-smi lists no GPU"
"$PYTHON" -c 'import torch' 2>/dev/null || skip "$PYTHON cannot import torch"
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    skip "torch $("$PYTHON" -c 'import torch; print(torch.__version__)') sees no CUDA device"

# A borrowed GPU machine often has torch but no index to install from: then the four folders are linked to one package.
if ! (cd / && "$PYTHON" -c 'import simcoll.verifier' 2>/dev/null); then
    package=$(mktemp -d)
    trap 'rm -rf "$package"' EXIT
    mkdir "$package/simcoll"
    ln -s "$PWD"/simcoll/* "$PWD/backends" "$PWD/reports" "$PWD/verifier" "$package/simcoll/"
    export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}"
fi
"$PYTHON" benchmarks/gpu_smoke.py "$@"
