"""Lints and renders deploy/helm/quire with Helm itself, and validates each object that it makes.

Usage: chart.py ROOT [--write]. --write renews the golden files. Prints every case's objects as JSON: case to list.
"""

import json
import pathlib
import re
import subprocess
import sys

import helm_python as helm
import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(sys.argv[1])
WRITE = "--write" in sys.argv
CHART = ROOT / "deploy/helm/quire"
GOLDEN = ROOT / "tests/deploy/golden"
KUBERNETES = ["1.30", "1.34", "1.37"]
LEADER_WORKER_SET = json.loads((ROOT / "tests/deploy/leaderworkerset.json").read_text())
CRD_GROUPS = {"gateway.networking.k8s.io", "keda.sh", "monitoring.coreos.com"}

# What people install, by a name.
CASES = {
    "default": {},
    "gpus": {
        "replicaCount": 2,
        "model": {"name": "Qwen/Qwen3-0.6B", "revision": "main", "servedNames": ["chat", "qwen"]},
        "cache": {"existingClaim": "models"},
        "huggingFace": {"existingSecret": "hub"},
        "apiKey": {"existingSecret": "keys"},
        "engine": {
            "gpus": 2,
            "extraFlags": ["--max-model-len=16k"],
            "resources": {"limits": {"memory": "64Gi"}},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                 "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "quire"}}}
            ],
            "priorityClassName": "serving",
            "runtimeClassName": "nvidia",
        },
        "ingress": {"enabled": True, "className": "nginx", "hosts": [{"host": "llm.example.com"}]},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway", "namespace": "infra"}],
                      "hostnames": ["llm.example.com"]},
        "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True},
                    "dashboards": {"enabled": True}},
        "networkPolicy": {"enabled": True},
    },
    "stateful": {
        "model": {"name": "Qwen/Qwen3-0.6B"},
        "engine": {"kind": "StatefulSet"},
        "cache": {"persistence": {"enabled": True}},
        "autoscaling": {"enabled": True},
        "metrics": {"podMonitor": {"enabled": True}, "scrapeAnnotations": True},
    },
    # Every switch that goes with the others.
    "everything": {
        "replicaCount": 3,
        "nameOverride": "llm",
        "fullnameOverride": "chat-quire",
        "image": {"repository": "registry.example.com/quire", "tag": "1", "pullSecrets": [{"name": "registry"}]},
        "model": {"path": "team/llama", "servedNames": ["llama"], "fetch": {"resources": {"limits": {"cpu": 1}}}},
        "cache": {"existingClaim": "models"},
        "huggingFace": {"existingSecret": "hub", "endpoint": "https://hub.example.com", "offline": True},
        "apiKey": {"existingSecret": "keys"},
        "engine": {
            "kind": "StatefulSet", "gpus": 4, "tensorParallelSize": 2, "pipelineParallelSize": 2,
            "apiServerCount": 2, "logFormat": "text", "shutdownTimeout": 300, "preStopSeconds": 25,
            "extraFlags": ["--max-model-len=16k", "--lora-modules={\"name\": \"a\", \"path\": \"/models/a\"}"],
            "extraEnv": [{"name": "NCCL_DEBUG", "value": "INFO"},
                         {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "kernelCache": "/tmp/kernels", "sharedMemory": "8Gi",
            "resources": {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "64Gi"}},
            "podLabels": {"team": "a"}, "podAnnotations": {"sidecar.istio.io/inject": "false"},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname",
                 "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "llm"}}}]}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "priorityClassName": "serving", "runtimeClassName": "nvidia",
            "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            "updateStrategy": {"type": "OnDelete"},
            "probes": {"startup": {"failureThreshold": 720, "initialDelaySeconds": 10}},
        },
        "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
        "ingress": {"enabled": True, "className": "nginx", "annotations": {"c": "d"},
                    "hosts": [{"host": "llm.example.com", "path": "/v1"}, {"host": "b.example.com"}],
                    "tls": [{"hosts": ["llm.example.com"], "secretName": "tls"}]},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway", "sectionName": "https"}],
                      "hostnames": ["llm.example.com"], "requestTimeout": "1h"},
        "podDisruptionBudget": {"maxUnavailable": "34%"},
        "autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 8},
        "metrics": {"scrapeAnnotations": True, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
                    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
                    "dashboards": {"enabled": True}},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}],
                          "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443}]}]},
        "serviceAccount": {"create": False, "name": "engines"},
        "tests": {"maxTokens": 1},
    },
    "keda": {"keda": {"enabled": True}, "cache": {"persistence": {"enabled": True, "accessModes": ["ReadWriteMany"]}},
             "replicaCount": 2},
    "gateways": {
        "engine": {"tensorParallelSize": 2, "pipelineParallelSize": 2, "extraFlags": ["--max-model-len=1k"]},
        "gateway": {"replicas": 2, "podLabels": {"team": "a"}},
        "links": {"existingSecret": "links"},
        "apiKey": {"existingSecret": "keys"},
        "metrics": {"podMonitor": {"enabled": True}, "scrapeAnnotations": True},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
    },
    "gateways-gpus": {
        "model": {"name": "Qwen/Qwen3-32B", "servedNames": ["chat", "qwen"]},
        "cache": {"existingClaim": "models"},
        "engine": {"gpus": 8, "dataParallelSize": 2},
        "gateway": {"replicas": 3, "extraFlags": ["--tool-call-parser=hermes", "--max-stored-responses=64"]},
        "links": {"existingSecret": "links", "tls": {"existingSecret": "certificates"}},
        "metrics": {"serviceMonitor": {"enabled": True}},
    },
    "gateways-nodes": {
        "engine": {"nodes": 2, "hostNetwork": True},
        "gateway": {"replicas": 1},
        "links": {"existingSecret": "links", "tls": {"existingSecret": "certificates"}},
    },
    "gateways-nodes-policies": {
        "engine": {"nodes": 2}, "gateway": {"replicas": 1}, "networkPolicy": {"enabled": True},
    },
    "folder": {"model": {"path": "llama", "servedNames": ["llama"]}, "cache": {"existingClaim": "models"},
               "engine": {"extraFlags": ["--dtype=float32"]}},
    "stages": {"engine": {"pipelineParallelSize": 2, "dataParallelSize": 2}},
    "stages-gpus": {"model": {"name": "Qwen/Qwen3-32B"},
                    "engine": {"gpus": 8, "pipelineParallelSize": 2, "dataParallelSize": 2}},
    "nodes": {
        "engine": {"nodes": 2},
        "links": {"existingSecret": "links"},
        "autoscaling": {"enabled": True},
        "metrics": {"podMonitor": {"enabled": True}, "scrapeAnnotations": True},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
    },
    "nodes-tls": {
        "engine": {"nodes": 2, "hostNetwork": True},
        "links": {"existingSecret": "links", "tls": {"existingSecret": "certificates"}},
    },
    "nodes-gpus": {
        "replicaCount": 2,
        "model": {"name": "Qwen/Qwen3-235B-A22B"},
        "cache": {"persistence": {"enabled": True, "accessModes": ["ReadWriteMany"]}},
        "engine": {
            "nodes": 2, "gpus": 8, "pipelineParallelSize": 4, "hostNetwork": True,
            "exclusiveTopology": "topology.kubernetes.io/rack",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 1}},
        },
        "apiKey": {"existingSecret": "keys"},
        "links": {"existingSecret": "links", "tls": {"existingSecret": "certificates"}},
        "keda": {"enabled": True},
    },
}

# Words of engines' command lines.
FLAGS = {
    "gpus": ["--tensor-parallel-size=2"],
    "gateways": ["--listen-gateways=grpc://0.0.0.0:9001", "--api-server-count=0", "--max-model-len=1k",
                 "--engine=grpc://chat-quire-engine:9001", "--max-stored-responses=0"],
    "gateways-gpus": ["Qwen/Qwen3-32B", "--tensor-parallel-size=4", "--data-parallel-size=2",
                      "--link-ssl-certfile=/etc/quire/tls/tls.crt", "--max-stored-responses=64"],
    "gateways-nodes": ["--engine=grpc://chat-quire-engine-links:9001", "--nnodes=2"],
    "stages": ["--tensor-parallel-size=1", "--pipeline-parallel-size=2", "--data-parallel-size=2"],
    "stages-gpus": ["--tensor-parallel-size=2", "--pipeline-parallel-size=2", "--data-parallel-size=2"],
    "nodes": ["--tensor-parallel-size=1", "--pipeline-parallel-size=2", "--nnodes=2"],
    "nodes-gpus": ["--tensor-parallel-size=4", "--pipeline-parallel-size=4", "--nnodes=2",
                   "--link-ssl-certfile=/etc/quire/tls/tls.crt"],
}

# What cannot run, or is misspelt, and what the refusal says.
REFUSED = [
    ({"engine": {"nodes": 2, "pipelineParallelSize": 3}}, "use a multiple of 2"),
    ({"engine": {"nodes": 2, "dataParallelSize": 4}}, "use replicaCount 4"),
    ({"engine": {"nodes": 2, "kind": "StatefulSet"}}, "are a LeaderWorkerSet"),
    ({"engine": {"kind": "Deployment"}, "gateway": {"replicas": 1}}, "never be two engines"),
    ({"engine": {"nodes": 2, "updateStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1}}},
      "gateway": {"replicas": 1}}, "leave maxSurge out"),
    ({"engine": {"nodes": 2}, "links": {"tls": {"existingSecret": "a"}}}, "set engine.hostNetwork"),
    ({"engine": {"nodes": 2}, "cache": {"persistence": {"enabled": True}}}, "ReadWriteMany"),
    ({"engine": {"hostNetwork": True}, "networkPolicy": {"enabled": True}}, "policies do not cover"),
    ({"links": {"existingSecret": "a"}}, "set engine.nodes or gateway.replicas"),
    ({"engine": {"exclusiveTopology": "rack"}}, "set engine.nodes"),
    ({"engine": {"gpus": 1, "tensorParallelSize": 2}}, "take as many GPUs, and there are 1"),
    ({"engine": {"gpus": 4, "dataParallelSize": 8}}, "take as many GPUs, and there are 4"),
    ({"engine": {"gpus": 4, "pipelineParallelSize": 3}}, "set engine.tensorParallelSize"),
    ({"model": {"name": "a/b", "path": "c"}}, "two models"),
    ({"autoscaling": {"enabled": True}, "keda": {"enabled": True}}, "enable one of them"),
    ({"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}}, "count every series twice"),
    ({"replicaCount": 2, "cache": {"persistence": {"enabled": True}}}, "ReadWriteMany"),
    ({"replicaCount": 2, "gateway": {"replicas": 2}}, "a release for each engine"),
    ({"engine": {"apiServerCount": 2}, "gateway": {"replicas": 2}}, "use gateway.replicas"),
    ({"gateway": {"extraFlags": ["--threads=4"]}}, "use engine.extraFlags"),
    ({"engine": {"extraFlags": ["--listen-gateways=grpc://0.0.0.0:1"]}}, "use gateway.replicas"),
    ({"ingress": {"enabled": True}}, "name at least one host"),
    ({"httpRoute": {"enabled": True}}, "name the Gateway"),
    ({"engine": {"extraFlags": ["--port=9000"]}}, "use service.port"),
    ({"engine": {"extraFlags": ["-tp", "2"]}}, "use engine.tensorParallelSize"),
    ({"engine": {"extraFlags": ["--max-model-len 16k"]}}, 'use "--max-model-len=16k"'),
    ({"gateway": {"replicas": 1, "extraFlags": ["--api-key=a"]}}, "use apiKey.existingSecret"),
    ({"engine": {"gpus": 2, "resources": {"limits": {"nvidia.com/gpu": 4}}}}, "engine.gpus sets it"),
    ({"engine": {"nodes": 2, "updateStrategy": {"type": "Recreate"}}}, "is none of a LeaderWorkerSet"),
    ({"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}, "is more than autoscaling.maxReplicas 2"),
    ({"cache": {"existingClaim": "a", "persistence": {"enabled": True}}}, "two volumes"),
    ({"model": {"path": "a"}}, "set cache.existingClaim"),
    ({"model": {"name": "a/b"}, "huggingFace": {"offline": True}}, "set cache.existingClaim"),
    ({"model": {"revision": "main"}}, "set model.name"),
    # Several mistakes are told at once.
    ({"replicas": 2, "modle": {}, "engine": {"gpu": 1, "shutdownTimeout": "30s"}}, "'modle'"),
    ({"replicas": 2, "modle": {}, "engine": {"gpu": 1, "shutdownTimeout": "30s"}}, "'gpu'"),
    ({"replicas": 2, "modle": {}, "engine": {"gpu": 1, "shutdownTimeout": "30s"}}, "got string, want integer"),
    ({"engine": None}, "missing property 'engine'"),
    ({"model": "a/b"}, "got string, want object"),
    ({"model": {"name": "a/b --seed 1"}}, "/model/name"),
    ({"model": {"path": "../a"}}, "/model/path"),
    ({"huggingFace": {"token": "a"}}, "'token' not allowed"),
    ({"nameOverride": "Upper_Case"}, "/nameOverride"),
    ({"image": {"pullSecrets": [{}]}}, "missing property 'name'"),
    ({"engine": {"resources": {"limit": {"cpu": 1}}}}, "'limit'"),
    ({"engine": {"tolerations": [{"kye": "a"}]}}, "'kye'"),
    ({"engine": {"affinity": {"podAffinty": {}}}}, "'podAffinty'"),
    ({"engine": {"topologySpreadConstraints": [{"maxSkew": 1}]}}, "'topologyKey'"),
    ({"engine": {"extraEnv": [{"name": "A", "value": 1}]}}, "/engine/extraEnv/0/value"),
    ({"engine": {"extraVolumes": [{"name": "a", "emptydir": {}}]}}, "'emptydir'"),
    ({"engine": {"probes": {"startup": {"periodSecond": 1}}}}, "'periodSecond'"),
    ({"podSecurityContext": {"runAsNonRoot": "yes"}}, "/podSecurityContext/runAsNonRoot"),
    ({"securityContext": {"runAsUsr": 1}}, "'runAsUsr'"),
    ({"podDisruptionBudget": {"maxUnavailable": "none"}}, "/podDisruptionBudget/maxUnavailable"),
    ({"networkPolicy": {"from": [{"podselector": {}}]}}, "'podselector'"),
    ({"httpRoute": {"parentRefs": [{"nam": "a"}]}}, "'nam'"),
    ({"replicas": 2}, "replicas"),
    ({"engine": {"gpu": 1}}, "gpu"),
    ({"engine": {"gpus": "1"}}, "gpus"),
    ({"engine": {"extraFlags": "--seed 1"}}, "extraFlags"),
    ({"engine": {"sharedMemory": "2 GB"}}, "sharedMemory"),
]


def main():
    report = helm.lint(CHART, strict=True)
    problems = [message for message in report["messages"] if message["severity"] > 1]
    assert not problems and not report["errors"], report
    chart = helm.Chart.load(CHART)
    cases = {name: render(chart, values) for name, values in CASES.items()}
    for name, objects in cases.items():
        validate(name, objects)
    for name, flags in FLAGS.items():
        words = [word for pod in pods(cases[name]) for word in pod["spec"]["containers"][0]["args"]]
        assert set(flags) <= set(words), f"{name}: {words}"
    for name, objects in cases.items():
        has_time_to_drain(name, objects)
    for name in ("gpus", "stateful", "gateways", "gateways-gpus", "nodes"):
        all_are_scraped_once(name, cases[name])
    alerts_know_the_job(cases["everything"])
    for values, expected in REFUSED:
        refuse(chart, values, expected)
    golden("default", cases["default"])
    golden("nodes", cases["nodes"])
    golden("gateways", cases["gateways"])
    json.dump(cases, sys.stdout)


def render(chart, values):
    files = chart.render(values, name="chat", namespace="llm")
    notes = next(text for name, text in files.items() if name.endswith("NOTES.txt"))
    port = values.get("service", {}).get("port", 80)
    assert f"http://chat-quire.llm:{port}/v1" in notes and "helm test chat -n llm" in notes, notes
    texts = (text for name, text in sorted(files.items()) if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def pods(objects):
    """The pods that engines are made of, as objects."""
    for it in objects:
        template = it["spec"].get("template") if it["kind"] in ("Deployment", "StatefulSet") else None
        templates = it["spec"].get("leaderWorkerTemplate", {}) if it["kind"] == "LeaderWorkerSet" else {}
        for template in filter(None, [template, templates.get("leaderTemplate"), templates.get("workerTemplate")]):
            metadata = {"name": it["metadata"]["name"], **template["metadata"]}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def has_time_to_drain(name, objects):
    """A pod is killed only after it has left its Service and its requests had their time."""
    for pod in pods(objects):
        for container in pod["spec"]["containers"]:
            words = " ".join(container["args"])
            waits = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            drains = re.search(r"--shutdown-timeout=(\d+)", words)
            needed = waits + int(drains.group(1)) + 5 if drains and "--headless" not in words else waits
            assert pod["spec"]["terminationGracePeriodSeconds"] >= needed, f"{name}: {pod['metadata']['name']}"


def all_are_scraped_once(name, objects):
    """A monitor finds each pod that serves HTTP, and none twice: each shows its own series alone."""
    (monitor,) = (it for it in objects if it["kind"] in ("PodMonitor", "ServiceMonitor"))
    serving = [pod for pod in pods(objects) if "readinessProbe" in pod["spec"]["containers"][0]]
    services = [it for it in objects if it["kind"] == "Service" and selects(monitor["spec"]["selector"], it)]
    for pod in serving:
        by_services = [it for it in services if selects({"matchLabels": it["spec"]["selector"]}, pod)]
        found = len(by_services) if monitor["kind"] == "ServiceMonitor" else selects(monitor["spec"]["selector"], pod)
        assert found == 1, f"{name}: {pod['metadata']['name']} is found {found} times"


def selects(selector, it):
    labels = it["metadata"]["labels"]
    is_in = lambda one: one["operator"] == "In" and labels.get(one["key"]) in one["values"]
    return selector["matchLabels"].items() <= labels.items() and all(map(is_in, selector.get("matchExpressions", [])))


def alerts_know_the_job(objects):
    """The job of a monitor is the label that it takes it from, and alerts ask for it."""
    (rules,) = (it["spec"] for it in objects if it["kind"] == "PrometheusRule")
    (service,) = (it for it in objects if it["kind"] == "Service" and it["metadata"]["name"] == "chat-quire")
    (monitor,) = (it["spec"] for it in objects if it["kind"] == "ServiceMonitor")
    job = service["metadata"]["labels"][monitor["jobLabel"]]
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    asked = {name for text in expressions for name in re.findall(r'job="([^"]*)"', text)}
    assert asked == {job}, f"{asked}, {job}"


def validate(name, objects):
    for it in objects:
        if it["kind"] == "LeaderWorkerSet":
            jsonschema.validate(it, LEADER_WORKER_SET)
    objects = [it for it in objects if it["kind"] != "LeaderWorkerSet"] + list(pods(objects))
    custom = [it for it in objects if it["apiVersion"].split("/")[0] in CRD_GROUPS]
    for it in objects:
        for version in KUBERNETES if it not in custom else []:
            try:
                kubernetes_validate.validate(it, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                sys.exit(f"{name}: {it['kind']} {it['metadata']['name']}, Kubernetes {version}: {error.message}")
    script = ROOT / "target/deploy/node/crds.mjs"
    subprocess.run(["node", script], input=json.dumps(custom), text=True, check=True)


def refuse(chart, values, expected):
    try:
        render(chart, values)
    except helm.HelmError as error:
        assert expected in str(error), f"{values}: {error}"
    else:
        sys.exit(f"{values} are rendered, although {expected!r}")


def golden(name, objects):
    path = GOLDEN / f"{name}.yaml"
    text = yaml.safe_dump_all(objects, width=120, default_flow_style=None)
    if WRITE:
        path.write_text(text)
    assert path.read_text() == text, f"{path} differs: look at `git diff` after {sys.argv[0]} {ROOT} --write"


main()
