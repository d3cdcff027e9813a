#!/usr/bin/env bash
# Start Quire on a machine of a cluster, in a container or (--no-docker) as a plain program.
#
#   run_cluster.sh IMAGE HEAD_IP --head|--worker HF_HOME [docker's arguments…] [-- MODEL and flags of quire serve]
#   run_cluster.sh --no-docker PROGRAM HEAD_IP --head|--worker HF_HOME [-- MODEL and flags of quire serve]
#
#   IMAGE     an image of Quire (deploy/docker)
#   HEAD_IP   address of the machine that clients reach; the head listens there
#   HF_HOME   folder of models, laid out as the Hugging Face cache
#
# Arguments between HF_HOME and `--` go to `docker run` (or whatever CONTAINER_ENGINE names): -e, -v, --gpus and so on.
# The container shares the host's network and has 10.24 GB of shared memory. It ends with this script.
set -euo pipefail

usage() {
    echo "Usage: $0 [--no-docker] docker_image head_ip --head|--worker path_to_hf_home [docker args...] [-- serve args...]" >&2
    exit 1
}

engine=${CONTAINER_ENGINE:-docker}
if [ "${1:-}" = --no-docker ]; then
    engine=
    shift
fi
[ $# -ge 4 ] || usage
image=$1 head_ip=$2 role=$3 hf_home=$4
shift 4

case $role in
    --head) ;;
    --worker)
        echo "Error: --worker: with GPUs an engine runs on one machine, so there is nothing for a worker machine to join yet." >&2
        echo "Start another --head there, and put a load balancer in front of both (deploy/nginx, deploy/haproxy)." >&2
        exit 1
        ;;
    *)
        echo "Error: node type must be --head or --worker, not ${role}" >&2
        usage
        ;;
esac
[[ $head_ip =~ ^[0-9a-fA-F.:]+$ ]] || { echo "Error: ${head_ip} is not an IP address" >&2; exit 1; }
[ -d "$hf_home" ] || { echo "Error: there is no folder ${hf_home}" >&2; exit 1; }
hf_home=$(cd "$hf_home" && pwd)

container_args=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    container_args+=("$1")
    shift
done
if [ $# -gt 0 ]; then shift; fi
flags=(--host "$head_ip" "$@")

if [ -z "$engine" ]; then
    [ ${#container_args[@]} -eq 0 ] || { echo "Error: without a container, nobody takes ${container_args[*]}; flags of quire serve follow --" >&2; exit 1; }
    HF_HOME=$hf_home exec "$image" serve "${flags[@]}"
fi

gpus=()
if command -v nvidia-smi > /dev/null; then gpus=(--gpus all); fi
name=quire-$RANDOM$RANDOM
# The end of the script, by whatever signal, is the end of the container; `stop` lets it drain.
cleanup() {
    "$engine" stop --time 45 "$name" > /dev/null 2>&1 || true
    "$engine" rm --force "$name" > /dev/null 2>&1 || true
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$engine" run --name "$name" --network host --shm-size 10.24g "${gpus[@]}" \
    --user "$(id -u):$(id -g)" -v "$hf_home:/models" -e HF_HOME=/models "${container_args[@]}" "$image" "${flags[@]}" &
wait $!
