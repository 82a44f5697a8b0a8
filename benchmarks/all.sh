#!/usr/bin/env bash
# Every benchmark, one after the other, and the page made from them. A benchmark that fails does not stop the others.
#
#   PYTHON=.venv/bin/python [PEERS=FOLDER] [RESULTS=FOLDER] benchmarks/all.sh [OPTIONS FOR EVERY BENCHMARK]
#
# PEERS is a folder with the environments of README.md; without it, benchmarks run without peers.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
results=${RESULTS:-benchmarks/results}
export OMP_NUM_THREADS=1
peers=()
if [ -n "${PEERS:-}" ]; then
    peers=(--python "$PEERS/transformer-lens/bin/python" --python "$PEERS/nnsight/bin/python")
fi
circuits=()
if [ -n "${PEERS:-}" ] && [ -x "$PEERS/eap-ig/bin/python" ]; then
    circuits=(--python "$PEERS/eap-ig/bin/python" --eap-ig "$PEERS/EAP-IG" --mib "$PEERS/MIB")
fi
options=("$@")
failed=()
run() {
    local name=$1 began=$SECONDS
    shift
    echo "=== $name"
    "$python" "benchmarks/$name.py" --out "$results/$name.json" "$@" ${options[@]+"${options[@]}"} || failed+=("$name")
    echo "=== $name took $((SECONDS - began)) s"
}
run replay ${peers[@]+"${peers[@]}"}
run residual ${peers[@]+"${peers[@]}"}
run long_prompt
run arithmetic
run attribution ${peers[@]+"${peers[@]}"}
run gim
run neurons
run circuits ${circuits[@]+"${circuits[@]}"}
run jobs
run memory
page=()
[ "$results" = benchmarks/results ] || page=(--out "$results/performance.md")
"$python" benchmarks/page.py --results "$results" ${page[@]+"${page[@]}"} || failed+=(page)
if [ ${#failed[@]} -gt 0 ]; then
    echo "Failed: ${failed[*]}" >&2
    exit 1
fi
