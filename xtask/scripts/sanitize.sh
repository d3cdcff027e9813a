#!/usr/bin/env bash
# Every conformance test on a GPU under compute-sanitizer, each in a process of its own:
#
#   xtask/scripts/sanitize.sh memcheck|racecheck|initcheck|synccheck CONFORMANCE FOLDER [PROCESSES] [SECONDS]
#
# CONFORMANCE: the test program (`cargo test -p kernels --no-run --test conformance` says where it is). FOLDER: where each test's output and
# `sum.txt` go, a line for each test that ended: tool, test, exit status (0: clean; 9: something reported; 124: not ended after SECONDS). Status 1
# unless all are clean. Kernels of cuBLASLt (`nvjet`) are left to NVIDIA: racecheck does not follow the barriers of some of them.
set -euo pipefail
tool=$1 program=$2 folder=$3 processes=${4:-8} seconds=${5:-600}
mkdir -p "$folder"
rm -f "$folder/sum.txt"
export QUIRE_TEST_DEVICE=cuda

one() {
    local rc=0
    timeout -k 2 "$4" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 --kernel-name-exclude kns=nvjet \
        "$2" --exact "$5" --test-threads 1 > "$3/$1-${5//::/-}.txt" 2>&1 || rc=$?
    echo "$1 $5 $rc" >> "$3/sum.txt"
}
export -f one

# Those of many ways and settings take longest, and go first. Tests of threads alone have nothing on the GPU.
tests=$("$program" --list | sed -n 's/: test$//p' | grep -v -E 'time_of_a_step|threads_change|threads_and_spans')
long='many::|every_setting|a_product_row|between::|chunks_and|matmul::shapes'
{ grep -E "$long" <<< "$tests"; grep -v -E "$long" <<< "$tests"; } |
    xargs -P "$processes" -I{} bash -c 'one "$@"' _ "$tool" "$program" "$folder" "$seconds" {}
clean=$(grep -c ' 0$' "$folder/sum.txt" || true)
echo "$tool: $clean of $(wc -l <<< "$tests") clean"
[ "$clean" -eq "$(wc -l <<< "$tests")" ]
