#!/usr/bin/env bash
# Loads a server that was started without further flags, from the moment it is ready: first with nothing in the kernel
# cache, then with what the first server left there. Prints throughput, TTFT and TPOT of each load. Needs a GPU.
#
#   xtask/scripts/first_minutes.sh [QUIRE]        QUIRE: the program [default: target/release/quire]
#   MODEL=… LOADS="16:1000:128:64 …" CACHE=… ROUNDS="empty filled vllm" PYTHON=… xtask/scripts/first_minutes.sh
#   SHAPE=qwen3-32b FLAGS="--tensor-parallel-size 2" ROUNDS="filled sglang" … xtask/scripts/first_minutes.sh
#
# A load is clients:input:output:prompts[:prefix], lengths in tokens; all prompts begin with the same prefix. CACHE keeps
# the kernel cache. The rounds vllm and sglang put the same loads on these servers, of PYTHON. Without MODEL it is a
# shape of tests/fixtures/shapes with random weights. All servers get FLAGS.
set -euo pipefail
cd "$(dirname "$0")/../.."
quire=${1:-target/release/quire}
loads=${LOADS:-16:1000:128:64 16:1000:128:64 256:1000:128:768 1024:1000:128:2048 1024:200:200:2048}
port=${PORT:-18792}
python=${PYTHON:-python3}
folder=$(mktemp -d)
cache=${CACHE:-$folder/cache}
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT

model=${MODEL:-}
flags=()
if [ -z "$model" ]; then
    model=$folder/model
    mkdir "$model"
    cp "tests/fixtures/shapes/${SHAPE:-llama-8b}/config.json" "$model"
    # The shape has no tokenizer.
    python3 xtask/scripts/byte_tokenizer.py "$model"
    flags=(--load-format dummy --dtype bfloat16)
fi
read -ra more <<< "${FLAGS:-}"

serve() {
    local flags=("${flags[@]}" --port "$port" --host 127.0.0.1 "${more[@]}")
    case $1 in
        vllm) exec "$python" -m vllm.entrypoints.cli.main serve "$model" "${flags[@]}" --disable-uvicorn-access-log ;;
        sglang) exec "$python" -m sglang.launch_server --model-path "$model" "${flags[@]}" --log-level warning ;;
        *) QUIRE_KERNEL_CACHE=$cache exec "$quire" serve "$model" "${flags[@]}" --disable-uvicorn-access-log ;;
    esac
}

for round in ${ROUNDS:-empty filled}; do
    start=$(date +%s%N)
    serve "$round" > "$folder/log" 2>&1 &
    server=$!
    until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do
        kill -0 "$server" || { cat "$folder/log"; exit 1; }
        sleep 0.05
    done
    echo "== $round: ready after $((($(date +%s%N) - start) / 1000000)) ms"
    seed=0
    for load in $loads; do
        IFS=: read -r clients input output prompts prefix <<< "$load"
        "$quire" bench serve --port "$port" --random-input-len "$input" --random-output-len "$output" \
            --random-prefix-len "${prefix:-0}" --ignore-eos --num-prompts "$prompts" --max-concurrency "$clients" \
            --seed $((++seed)) --disable-tqdm > "$folder/report"
        echo "-- $clients clients, ${prefix:+$prefix + }$input/$output"
        grep -iE "output token throughput|(median|p99) (ttft|tpot)" "$folder/report"
    done
    kill "$server"
    wait "$server" || true
    server=
done
