#!/usr/bin/env bash
# Compares two pipeline stages with two tensor-parallel ranks and with one GPU: Llama-70B's shape cut to some layers,
# random weights, at 1, 32 and 256 clients, and how much of its time each stage computes. Needs two GPUs.
#
#   xtask/scripts/stages.sh [QUIRE]          QUIRE: the program [default: target/release/quire]
#   LAYERS=16 DEVICE=cuda MODEL=… CLIENTS="1 32 256" INPUT=1000 OUTPUT=128 xtask/scripts/stages.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
quire=${1:-target/release/quire}
model=${MODEL:-}
device=${DEVICE:-cuda}
port=${PORT:-18791}
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT

flags=()
if [ -z "$model" ]; then
    model=$folder/model
    mkdir "$model"
    cp tests/fixtures/shapes/llama-70b-cut/config.json "$model"
    # The shape has no tokenizer.
    python3 xtask/scripts/byte_tokenizer.py "$model"
    flags=(--load-format dummy --dtype bfloat16 --max-model-len 4096 --no-enable-prefix-caching
        --hf-overrides "{\"num_hidden_layers\": ${LAYERS:-16}}")
fi

measure() {
    "$quire" serve "$model" --device "$device" "${flags[@]}" "$@" --port "$port" --host 127.0.0.1 \
        --profiler-config "$folder" --disable-log-stats --disable-uvicorn-access-log > "$folder/log" 2>&1 &
    server=$!
    until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do
        kill -0 "$server" || { cat "$folder/log"; exit 1; }
        sleep 0.2
    done
    for clients in ${CLIENTS:-1 32 256}; do
        # The first round captures graphs and warms up.
        for round in warm measured; do
            prompts=$((clients < 32 ? 8 * clients : 3 * clients))
            "$quire" bench serve --port "$port" --random-input-len "${INPUT:-1000}" --random-output-len "${OUTPUT:-128}" \
                --ignore-eos --num-prompts "$prompts" --max-concurrency "$clients" --disable-tqdm \
                > "$folder/report" &
            bench=$!
            if [ "$round" = measured ]; then
                # Some steps in the middle, when all clients generate.
                sleep "${PROFILE_AFTER:-2}"
                curl -sf -X POST "http://127.0.0.1:$port/start_profile" \
                    -H 'content-type: application/json' -d "{\"profile_prefix\": \"clients-$clients\"}" || true
                sleep "${PROFILE_FOR:-1}"
                curl -sf -X POST "http://127.0.0.1:$port/stop_profile" || true
            fi
            wait "$bench"
        done
        echo "== ${*:-one worker}, $clients clients"
        grep -iE "output token throughput|median TTFT|median TPOT|median ITL" "$folder/report"
        for trace in "$folder"/clients-"$clients".*; do python3 xtask/scripts/bubbles.py "$trace"; rm "$trace"; done
    done
    kill "$server"
    wait "$server" || true
    server=
}

measure --pipeline-parallel-size 2
measure --tensor-parallel-size 2
measure
