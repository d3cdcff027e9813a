#!/usr/bin/env bash
# Compares --data-parallel-policy prefix with round-robin on 4 CPU engines of a small fixture model: 50 prefixes of about
# 2,000 tokens, 20 questions each, in random order. Prints prefix cache hits, and the time to the first token.
#
#   xtask/scripts/replicas.sh [QUIRE]        QUIRE: the program [default: target/release/quire]
set -euo pipefail
cd "$(dirname "$0")/../.."
quire=${1:-target/release/quire}
model=tests/fixtures/zoo/llama
port=${PORT:-18790}
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT

# A word of digits is several tokens of the fixture's small vocabulary.
awk -v words="${PREFIX_WORDS:-500}" 'BEGIN {
    srand(1)
    for (prefix = 0; prefix < 50; prefix++) {
        text = ""
        for (word = 0; word < words; word++) text = text " " int(1000 * rand())
        for (question = 0; question < 20; question++)
            printf "%f\t{\"prompt\": \"%s question %d\", \"output_tokens\": 4}\n", rand(), text, question
    }
}' | sort -n | cut -f2 > "$folder/prompts.jsonl"

for policy in round-robin prefix; do
    "$quire" serve "$model" --data-parallel-size 4 --data-parallel-policy "$policy" --port "$port" \
        --hf-overrides '{"max_position_embeddings": 8192}' --num-gpu-blocks-override 2600 --host 127.0.0.1 \
        --disable-log-stats --disable-uvicorn-access-log > "$folder/$policy.log" 2>&1 &
    server=$!
    until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do
        kill -0 "$server" || { cat "$folder/$policy.log"; exit 1; }
        sleep 0.2
    done
    "$quire" bench serve --port "$port" --dataset-name custom --dataset-path "$folder/prompts.jsonl" \
        --custom-output-len 4 --num-prompts 1000 --max-concurrency 8 --disable-tqdm > "$folder/$policy.report"
    echo "== $policy"
    grep -iE "TTFT|duration|Successful|input tokens" "$folder/$policy.report"
    curl -s "http://127.0.0.1:$port/metrics" | awk '
        /^vllm:prefix_cache_queries_total/ { queries += $NF }
        /^vllm:prefix_cache_hits_total/ { hits += $NF }
        END { printf "prefix cache hit rate: %.1f %% of %d tokens\n", 100 * hits / queries, queries }'
    kill "$server"
    wait "$server" || true
    server=
done
