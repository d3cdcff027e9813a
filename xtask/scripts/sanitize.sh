#!/usr/bin/env bash
# Every conformance test on a GPU under compute-sanitizer, each in a process of its own:
#
#   xtask/scripts/sanitize.sh memcheck|racecheck|initcheck|synccheck CONFORMANCE FOLDER [PROCESSES] [SECONDS] [TESTS]
#
# CONFORMANCE: the test program (`cargo test -p kernels --no-run --test conformance` says where it is). FOLDER: where each test's output and
# `sum.txt` go, a line for each test that ended: tool, test, exit status (0: clean; 9: something reported; 124: not ended after SECONDS). TESTS:
# a regular expression of names. Status 1 unless all are clean.
#
# Races inside kernels of cuBLASLt (`nvjet`) alone are NVIDIA's, whose barriers racecheck does not always follow: status 0, and the line says so.
# Leaving those kernels out of what is checked (`--kernel-name-exclude`) does not work: they fail beside kernels that are.
set -euo pipefail
tool=$1 program=$2 folder=$3 processes=${4:-8} seconds=${5:-600} pattern=${6:-.}
mkdir -p "$folder"
rm -f "$folder/sum.txt"
export QUIRE_TEST_DEVICE=cuda

one() {
    local rc=0 whose="" out="$3/$1-${5//::/-}.txt"
    timeout -k 2 "$4" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 10000 "$2" --exact "$5" --test-threads 1 > "$out" 2>&1 || rc=$?
    if [ "$rc" = 9 ] && grep -q 'test result: ok' "$out" && ! grep -E 'Error: |and (Read|Write) access' "$out" | grep -qv nvjet; then
        rc=0 whose=' (races in nvjet)'
    fi
    echo "$1 $5$whose $rc" >> "$3/sum.txt"
}
export -f one

# Those of many ways and settings take longest, and go first. Tests of threads alone have nothing on the GPU.
tests=$("$program" --list | sed -n 's/: test$//p' | grep -v -E 'time_of_a_step|threads_change|threads_and_spans' | grep -E "$pattern")
long='every_setting|a_product_row|many::|between::|chunks_and|matmul::shapes'
{ grep -E "$long" <<< "$tests" || true; grep -v -E "$long" <<< "$tests" || true; } |
    xargs -P "$processes" -I{} bash -c 'one "$@"' _ "$tool" "$program" "$folder" "$seconds" {}
clean=$(grep -c ' 0$' "$folder/sum.txt" || true)
echo "$tool: $clean of $(wc -l <<< "$tests") clean"
[ "$clean" -eq "$(wc -l <<< "$tests")" ]
