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
#
# One machine is a --head alone. For several, give all of them the same flags, with --nnodes N and
# --pipeline-parallel-size (a multiple of N), in any order; of more than two machines each --worker has its number as
# --node-rank, too. -e VLLM_HOST_IP=ADDRESS says where the others reach a machine that has several addresses.
set -euo pipefail

usage() {
    echo "Usage: $0 [--no-docker] docker_image head_ip --head|--worker path_to_hf_home" \
        "[docker args...] [-- serve args...]" >&2
    exit 1
}

refuse() {
    echo "Error: $1" >&2
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
    --head | --worker) ;;
    *)
        echo "Error: node type must be --head or --worker, not ${role}" >&2
        usage
        ;;
esac
byte='(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])'
[[ $head_ip =~ ^($byte\.){3}$byte$ || $head_ip =~ ^[0-9a-fA-F.]*:[0-9a-fA-F.:]+$ ]] ||
    refuse "${head_ip} is not an IP address"
[ -d "$hf_home" ] || refuse "there is no folder ${hf_home}"
hf_home=$(unset CDPATH && cd -- "$hf_home" && pwd)
[ -z "$engine" ] || [[ $hf_home != *:* ]] || refuse "a container engine mounts no folder with a colon: ${hf_home}"

container_args=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    container_args+=("$1")
    shift
done
if [ $# -gt 0 ]; then shift; fi
given=("$@")

# The value of a flag that was given, by any of its names; else nothing.
value_of() {
    local value="" takes="" word name
    for word in "${given[@]}"; do
        if [ -n "$takes" ]; then value=$word; fi
        takes=
        for name in "$@"; do
            case $word in
                "$name") takes=yes ;;
                "$name"=*) value=${word#*=} ;;
            esac
        done
    done
    echo "$value"
}

nodes=$(value_of --nnodes) rank=$(value_of --node-rank -r)
[[ ${nodes:-1} =~ ^[1-9][0-9]*$ ]] || refuse "--nnodes ${nodes} is not a number of machines"
[[ ${rank:-0} =~ ^(0|[1-9][0-9]*)$ ]] || refuse "--node-rank ${rank} is not a number"
[ -z "$nodes" ] || [ "${rank:-0}" -lt "$nodes" ] ||
    refuse "--node-rank ${rank}: --nnodes ${nodes} have the numbers 0 to $((nodes - 1))"
[ -z "$(value_of --master-addr)" ] || refuse "--master-addr is the second argument, ${head_ip}"
flags=()
if [ "$role" = --head ]; then
    [ "${rank:-0}" = 0 ] || refuse "--head is node 0, not --node-rank ${rank}"
    flags+=(--host "$head_ip")
    if [ "${nodes:-1}" != 1 ]; then flags+=(--master-addr "$head_ip"); fi
else
    if [ "${nodes:-1}" = 1 ]; then
        refuse "--worker joins the head of an engine on several machines: say --nnodes after --, here and at the head"
    fi
    if [ -z "$rank" ]; then
        [ "$nodes" = 2 ] ||
            refuse "--worker of ${nodes} machines needs its number, --node-rank 1 to $((nodes - 1)), after --"
        flags+=(--node-rank 1)
    fi
    [ "${rank:-1}" != 0 ] || refuse "--node-rank 0 is the --head"
    for word in "${container_args[@]}" "VLLM_HOST_IP=${VLLM_HOST_IP:-}"; do
        [[ $word != *VLLM_HOST_IP="$head_ip" ]] ||
            refuse "VLLM_HOST_IP ${head_ip} is the head's; give each machine its own"
    done
    flags+=(--headless --master-addr "$head_ip")
fi
flags+=("${given[@]}")

if [ -z "$engine" ]; then
    [ ${#container_args[@]} -eq 0 ] ||
        refuse "without a container, nobody takes ${container_args[*]}; flags of quire serve follow --"
    HF_HOME=$hf_home exec "$image" serve "${flags[@]}"
fi

gpus=()
if command -v nvidia-smi > /dev/null; then gpus=(--gpus all); fi
name=quire-$RANDOM$RANDOM
# The end of the script, by whatever signal, is the end of the container; `stop` lets it drain.
cleanup() {
    # Another signal would leave the container behind.
    trap '' INT TERM
    "$engine" stop --time 45 "$name" > /dev/null 2>&1 || true
    "$engine" rm --force "$name" > /dev/null 2>&1 || true
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$engine" run --name "$name" --network host --shm-size 10.24g "${gpus[@]}" \
    --user "$(id -u):$(id -g)" -v "$hf_home:/models" -e HF_HOME=/models "${container_args[@]}" "$image" "${flags[@]}" &
wait $!
