#!/usr/bin/env python3
"""Checks docker/ and deploy/: Dockerfiles, compose file, manifests, unit file, gateway and dashboard agree with the program and
with one another. Needs PyYAML (Debian's python3-yaml)."""

import json
import os
import re
import sys
from pathlib import Path

import dockerfile_lint
from repo_files import finish, root_from_arguments

DEBIAN_PYTHON = "/usr/bin/python3"
try:
    import yaml
except ImportError:
    if sys.executable == DEBIAN_PYTHON or not os.access(DEBIAN_PYTHON, os.X_OK):
        sys.exit("PyYAML is missing: apt-get install python3-yaml")
    os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])

ROOT = root_from_arguments()
PINNED = re.compile(r":v?\d+\.\d+\.\d+$")


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m|min|h|)", str(text)).groups()
    return int(number) * {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}[unit]


def settings() -> set[str]:
    """Environment variables that `bam serve` reads."""
    names = re.findall(r'^ +\{"([a-z][a-z-]+)", "', read("app/serve_options.cpp"), re.MULTILINE)
    return {"BAM_" + name.upper().replace("-", "_") for name in names} | {"BAM_CONFIG"}


def metrics() -> set[str]:
    """Names that the server publishes, with the endings of histograms."""
    names = set()
    for name, kind in re.findall(r'\{"(bam_\w+)", \{[^}]*\}, "(\w+)"', read("server/api/metrics.cpp")):
        names |= {name + ending for ending in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return names


def unknown_metrics(where: str, text: str) -> list[str]:
    known = metrics()
    return [f"{where}: the server has no metric {name}" for name in sorted(set(re.findall(r"\bbam_[a-z0-9_]+", text))) if name not in known]


def check_dockerfiles() -> list[str]:
    problems = []
    files = {name: read(f"docker/{name}") for name in ("Dockerfile.cpu", "Dockerfile.cuda")}
    for name, text in files.items():
        problems += [f"docker/{name}: {problem}" for problem in dockerfile_lint.lint(text)]
        if "BAM_HOST=0.0.0.0" not in text:
            problems.append(f"docker/{name}: a published port would reach nothing: BAM_HOST is not 0.0.0.0")
    cpu, cuda = files.values()
    if dockerfile_lint.arguments(cpu)["DEBIAN"] != dockerfile_lint.arguments(cuda)["DEBIAN"]:
        problems.append("the two Dockerfiles have different bases")
    for what, pattern in {"runtime packages": r"--no-install-recommends.*?&&", "account": r"&& groupadd.*?/snapshots",
                          "set-up": r"AS toolchain\n.*?\n\n", "ending": r"USER .*"}.items():
        parts = [re.search(pattern, text, re.DOTALL) for text in (cpu, cuda)]
        if not all(parts) or parts[0][0] != parts[1][0]:
            problems.append(f"the two Dockerfiles differ in their {what}")
    ignored = read(".dockerignore").splitlines()
    problems += [f".dockerignore names {line[1:]}, which does not exist" for line in ignored
                 if line.startswith("!") and not (ROOT / line[1:]).exists()]
    return problems


def check_compose() -> list[str]:
    text = read("docker/compose.yaml")
    compose = yaml.safe_load(text)
    problems = []
    variables = set(re.findall(r"\$\{(\w+)", text)) | {s["environment"] for s in compose["secrets"].values()} | {"COMPOSE_PROFILES"}
    example = set(re.findall(r"^(\w+)=", read("docker/.env.example"), re.MULTILINE))
    problems += [f".env.example lacks {name}" for name in sorted(variables - example)]
    problems += [f".env.example has {name}, which compose.yaml does not use" for name in sorted(example - variables)]
    profiles = {profile for service in compose["services"].values() for profile in service.get("profiles", [])}
    if profiles != {"cpu", "gpu"}:
        problems.append(f"compose.yaml: profiles are {profiles}")
    for name, service in compose["services"].items():
        where = f"compose.yaml: {name}"
        if "build" in service:
            problems += check_compose_server(where, service)
        elif not PINNED.search(service["image"]):
            problems.append(f"{where}: {service['image']} is not pinned")
        if service.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in service.get("security_opt", []):
            problems.append(f"{where}: is not confined")
        for port in service.get("ports", []):
            if not re.match(r"(\$\{BAM_BIND:-127\.0\.0\.1\}|127\.0\.0\.1):", port):
                problems.append(f"{where}: {port} is open to the world by default")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./") and not (ROOT / "docker" / source).exists():
                problems.append(f"{where}: {source} does not exist")
            elif re.fullmatch(r"[a-z]+", source) and source not in compose["volumes"]:
                problems.append(f"{where}: volume {source} is not declared")
    return problems


def check_compose_server(where: str, service: dict) -> list[str]:
    problems = [f"{where}: bam has no setting {name}" for name in service["environment"] if name not in settings()]
    if not (ROOT / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).exists():
        problems.append(f"{where}: its Dockerfile does not exist")
    if seconds(service["stop_grace_period"]) < seconds(service["environment"]["BAM_DRAIN_TIMEOUT"]) + 10:
        problems.append(f"{where}: would be killed before its drain timeout")
    if service.get("read_only") is not True:
        problems.append(f"{where}: the root file system is writable")
    return problems


def manifests() -> list[tuple[str, dict]]:
    kustomization = yaml.safe_load(read("deploy/k8s/kustomization.yaml"))
    return [(name, document) for name in kustomization["resources"] for document in yaml.safe_load_all(read(f"deploy/k8s/{name}"))]


def of_kind(kind: str, name: str) -> dict:
    return next(d for _, d in manifests() if d["kind"] == kind and d["metadata"]["name"] == name)


def check_manifests() -> list[str]:
    problems = []
    kustomization = yaml.safe_load(read("deploy/k8s/kustomization.yaml"))
    listed = set(kustomization["resources"]) | {"kustomization.yaml", "prometheus-adapter-values.yaml", "prometheus-scrape.yaml"}
    problems += [f"deploy/k8s/{p.name} is not in the kustomization" for p in (ROOT / "deploy/k8s").glob("*.yaml") if p.name not in listed]
    pod_labels = []
    for file, document in manifests():
        where = f"deploy/k8s/{file}: {document['kind']} {document['metadata']['name']}"
        if document["kind"] in {"Deployment", "StatefulSet"}:
            template = document["spec"]["template"]
            pod_labels.append(template["metadata"]["labels"])
            if document["spec"]["selector"]["matchLabels"] != template["metadata"]["labels"]:
                problems.append(f"{where}: its selector does not match its pods")
            problems += [f"{where}: {problem}" for problem in check_pod(template["spec"])]
    for file, document in manifests():
        selector = document["spec"].get("selector") if "spec" in document else None
        if document["kind"] == "NetworkPolicy":
            selector = document["spec"]["podSelector"]
        if selector and selector.get("matchLabels", selector) not in pod_labels:
            problems.append(f"deploy/k8s/{file}: {document['kind']} selects no pod")
    return problems + check_server_manifest()


def check_pod(spec: dict) -> list[str]:
    """What the restricted pod security standard asks, and what an orderly end needs."""
    problems = []
    if spec["securityContext"].get("runAsNonRoot") is not True or spec["securityContext"]["seccompProfile"]["type"] != "RuntimeDefault":
        problems.append("may run as root or without seccomp")
    for container in spec["containers"]:
        context = container["securityContext"]
        if context != {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}:
            problems.append(f"{container['name']} is not confined")
        if "memory" not in container["resources"]["limits"] or not {"cpu", "memory"} <= set(container["resources"]["requests"]):
            problems.append(f"{container['name']} lacks resources")
        problems += [f"{container['name']} has no {probe}" for probe in ("readinessProbe", "livenessProbe") if probe not in container]
        if not container["image"] == "bam" and not PINNED.search(container["image"]):
            problems.append(f"{container['image']} is not pinned")
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        if mounted != {volume["name"] for volume in spec.get("volumes", [])}:
            problems.append("volumes and mounts differ")
    return problems


def check_server_manifest() -> list[str]:
    problems = []
    config = of_kind("ConfigMap", "bam-config")["data"]
    keys = dict(line.split("=", 1) for line in read("deploy/k8s/keys.env").split())
    problems += [f"deploy/k8s: bam has no setting {name}" for name in [*config, *keys] if name not in settings()]
    spec = of_kind("StatefulSet", "bam")["spec"]
    pod = spec["template"]["spec"]
    server = pod["containers"][0]
    pre_stop = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    if pod["terminationGracePeriodSeconds"] < pre_stop + seconds(config["BAM_DRAIN_TIMEOUT"]) + 10:
        problems.append("deploy/k8s: pods would be killed before the drain timeout")
    if [server[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")] != ["/readyz", "/readyz", "/livez"]:
        problems.append("deploy/k8s: the probes ask the wrong routes")
    if config["BAM_KV_DIR"] not in {mount["mountPath"] for mount in server["volumeMounts"] if not mount.get("readOnly")}:
        problems.append("deploy/k8s: BAM_KV_DIR is not on a writable volume")
    if Path(config["BAM_KV_STORE"]).parent.as_posix() != config["BAM_KV_DIR"]:
        problems.append("deploy/k8s: BAM_KV_STORE is not on the writable volume")
    if spec["serviceName"] != of_kind("Service", "bam-replicas")["metadata"]["name"]:
        problems.append("deploy/k8s: the StatefulSet's service does not exist")
    user = re.search(r"^USER (\d+):", read("docker/Dockerfile.cpu"), re.MULTILINE)[1]
    if str(pod["securityContext"]["runAsUser"]) != user:
        problems.append("deploy/k8s: not the image's user")
    return problems + check_scaling(pre_stop)


def check_scaling(pre_stop: int) -> list[str]:
    problems = []
    gateway = read("deploy/k8s/haproxy.cfg")
    scaler = of_kind("HorizontalPodAutoscaler", "bam")["spec"]
    servers = re.findall(r'^ +server (bam-\d+) "\1\.\$\{BAM_REPLICAS\}:\$\{BAM_REPLICA_PORT\}" id (\d+)$', gateway, re.MULTILINE)
    if servers != [(f"bam-{number}", str(number + 1)) for number in range(scaler["maxReplicas"])]:
        problems.append(f"haproxy.cfg does not name bam-0 (id 1) to bam-{scaler['maxReplicas'] - 1}, which the autoscaler allows")
    adapter = read("deploy/k8s/prometheus-adapter-values.yaml")
    series = re.compile(re.search(r'__name__=~"([^"]+)"', adapter)[1])
    for metric in scaler["metrics"]:
        name = metric["pods"]["metric"]["name"]
        problems += unknown_metrics("autoscaling.yaml", name)
        if not series.match(name):
            problems.append(f"prometheus-adapter-values.yaml does not export {name}")
    environment = {entry["name"] for entry in of_kind("Deployment", "bam-gateway")["spec"]["template"]["spec"]["containers"][0]["env"]}
    if environment != set(re.findall(r"\$\{(\w+)\}", gateway)):
        problems.append("gateway.yaml and haproxy.cfg name different variables")
    # The cluster's DNS may keep a record for 5 s; then the gateway asks again.
    if pre_stop < 5 + seconds(re.search(r"hold valid (\w+)", gateway)[1]) + 3:
        problems.append("deploy/k8s: preStop is too short for the gateway to notice")
    return problems


def check_inference_pool() -> list[str]:
    """deploy/inference-pool selects the replicas of deploy/k8s, on their port, and has what a picker asks of them."""
    documents = {d["kind"]: d for d in yaml.safe_load_all(read("deploy/inference-pool/pool.yaml"))}
    pool, route, policy = documents["InferencePool"], documents["HTTPRoute"], documents["NetworkPolicy"]
    template = of_kind("StatefulSet", "bam")["spec"]["template"]
    port = template["spec"]["containers"][0]["ports"][0]
    problems = []
    if set(pool["spec"]) != {"selector", "targetPorts", "endpointPickerRef"} or pool["apiVersion"] != "inference.networking.k8s.io/v1":
        problems.append("the pool has not the fields of v1")
    if pool["spec"]["selector"]["matchLabels"] != template["metadata"]["labels"]:
        problems.append("the pool selects no replica")
    if pool["spec"]["targetPorts"] != [{"number": port["containerPort"]}]:
        problems.append("the pool's port is not that of the replicas")
    if pool["spec"]["endpointPickerRef"].get("failureMode") not in {"FailOpen", "FailClose"}:
        problems.append("the pool does not say what happens without its picker")
    backend = {"group": pool["apiVersion"].split("/")[0], "kind": "InferencePool", "name": pool["metadata"]["name"]}
    if [ref for rule in route["spec"]["rules"] for ref in rule["backendRefs"]] != [backend]:
        problems.append("the route does not lead to the pool")
    if policy["spec"]["podSelector"]["matchLabels"] != template["metadata"]["labels"] or policy["spec"]["ingress"][0]["ports"][0]["port"] != port["name"]:
        problems.append("the policy does not let the gateway in")
    served = read("server/api/metrics.cpp")
    problems += [f"the server does not publish {name}, which the picker reads"
                 for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc") if f'"{name}"' not in served]
    return [f"deploy/inference-pool: {problem}" for problem in problems]


def check_llm_d() -> list[str]:
    """deploy/llm-d: replicas, policy and picker agree on ports, topic, page size and names."""
    kustomization = yaml.safe_load(read("deploy/llm-d/kustomization.yaml"))
    files = {*kustomization["resources"], *(patch["path"] for patch in kustomization["patches"])}
    problems = [f"{name} does not exist" for name in files if not (ROOT / "deploy/llm-d" / name).exists()]
    problems += [f"{name} has no kustomization" for name in kustomization["resources"]
                 if name.startswith("../") and not (ROOT / "deploy/llm-d" / name / "kustomization.yaml").exists()]
    problems += [f"{file.name} is not in the kustomization" for file in (ROOT / "deploy/llm-d").glob("*.yaml")
                 if file.name not in files | {"kustomization.yaml", "picker-values.yaml"}]
    patch, policy = yaml.safe_load(read("deploy/llm-d/events.yaml")), yaml.safe_load(read("deploy/llm-d/networkpolicy.yaml"))
    replicas = of_kind("StatefulSet", "bam")
    container, server = patch["spec"]["template"]["spec"]["containers"][0], replicas["spec"]["template"]["spec"]["containers"][0]
    if (patch["kind"], patch["metadata"]["name"], container["name"]) != ("StatefulSet", replicas["metadata"]["name"], server["name"]):
        problems.append("events.yaml patches nothing")
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    problems += [f"bam has no setting {name}" for name in environment if name.startswith("BAM_") and name not in settings()]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if environment["BAM_KV_EVENTS"] != f"tcp://*:{ports['kv-events']}" or environment["BAM_KV_EVENTS_REPLAY"] != f"tcp://*:{ports['kv-replay']}":
        problems.append("events.yaml: the endpoints are not the ports")
    model = of_kind("ConfigMap", "bam-config")["data"]["BAM_MODEL"]
    if environment["BAM_KV_EVENTS_TOPIC"] != f"kv@$(POD_IP):{server['ports'][0]['containerPort']}@{model}" or "POD_IP" not in environment:
        problems.append("events.yaml: the topic is not kv@ADDRESS@MODEL")
    if list(environment).index("POD_IP") > list(environment).index("BAM_KV_EVENTS_TOPIC"):
        problems.append("events.yaml: POD_IP must come before the variable that uses it")
    pool = next(d for d in yaml.safe_load_all(read("deploy/inference-pool/pool.yaml")) if d["kind"] == "InferencePool")
    picker = {"inferencepool": pool["spec"]["endpointPickerRef"]["name"]}
    if policy["spec"]["podSelector"]["matchLabels"] != replicas["spec"]["template"]["metadata"]["labels"] or \
            policy["spec"]["ingress"][0]["from"] != [{"podSelector": {"matchLabels": picker}}] or \
            {port["port"] for port in policy["spec"]["ingress"][0]["ports"]} != set(ports):
        problems.append("networkpolicy.yaml does not let the picker hear the events")
    values = yaml.safe_load(read("deploy/llm-d/picker-values.yaml"))["inferenceExtension"]
    config = yaml.safe_load(values["pluginsCustomConfig"][values["pluginsConfigFile"]])
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    used = {entry["pluginRef"] for profile in config["schedulingProfiles"] for entry in profile["plugins"]}
    if config["kind"] != "EndpointPickerConfig" or used | {"single-profile-handler"} != set(plugins):
        problems.append("picker-values.yaml: plugins and profile differ")
    prefix = plugins["precise-prefix-cache-scorer"]
    page_size = int(re.search(r"int page_size = (\d+);", read("engine/config.h"))[1])
    if prefix["tokenProcessorConfig"]["blockSize"] != page_size or values["replicas"] != 1:
        problems.append(f"picker-values.yaml: blocks have {page_size} tokens, and one picker knows of them")
    events = prefix["kvEventsConfig"]
    if not events["discoverPods"] or events["podDiscoveryConfig"]["socketPort"] != ports["kv-events"] or \
            not environment["BAM_KV_EVENTS_TOPIC"].startswith(events["topicFilter"]):
        problems.append("picker-values.yaml: the picker does not hear what the replicas say")
    if prefix["indexerConfig"]["tokenizersPoolConfig"]["modelName"] != model:
        problems.append("picker-values.yaml: another model")
    return [f"deploy/llm-d: {problem}" for problem in problems]


def check_systemd() -> list[str]:
    unit, environment = read("deploy/systemd/bam.service"), read("deploy/systemd/bam.env")
    values = dict(re.findall(r"^(BAM_\w+)=(.*)$", environment, re.MULTILINE))
    named = set(values) | set(re.findall(r"\b(BAM_[A-Z_]+)=", unit + read("deploy/systemd/cuda.conf")))
    problems = [f"deploy/systemd: bam has no setting {name}" for name in sorted(named) if name not in settings()]
    if int(re.search(r"^TimeoutStopSec=(\d+)", unit, re.MULTILINE)[1]) < seconds(values["BAM_DRAIN_TIMEOUT"]) + 10:
        problems.append("bam.service: would be killed before its drain timeout")
    wanted = ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "CapabilityBoundingSet=\n", "SystemCallFilter=@system-service")
    return problems + [f"bam.service: {line.strip()} is missing" for line in wanted if line not in unit]


def check_monitoring() -> list[str]:
    problems = unknown_metrics("rules.yml", read("docker/prometheus/rules.yml"))
    text = read("docker/grafana/dashboards/bam.json")
    dashboard = json.loads(text)
    panels = dashboard["panels"]
    problems += unknown_metrics("bam.json", " ".join(t["expr"] for p in panels for t in p.get("targets", [])))
    if len({panel["id"] for panel in panels}) != len(panels):
        problems.append("bam.json: two panels have the same id")
    cells = {}
    for panel in panels:
        place = panel["gridPos"]
        for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])):
            if cell in cells or cell[0] >= 24:
                problems.append(f"bam.json: '{panel['title']}' lies on '{cells.get(cell, 'the edge')}'")
                break
            cells[cell] = panel["title"]
    for file in (ROOT / "docker/grafana/provisioning").rglob("*.yaml"):
        if yaml.safe_load(file.read_text(encoding="utf-8")).get("apiVersion") != 1:
            problems.append(f"{file.name}: not a provisioning file")
    job = yaml.safe_load(read("docker/prometheus/prometheus.yml"))["scrape_configs"][0]
    alias = yaml.safe_load(read("docker/compose.yaml"))["x-bam"]["networks"]["default"]["aliases"][0]
    if job["static_configs"][0]["targets"] != [f"{alias}:8000"]:
        problems.append("prometheus.yml does not scrape the server of compose.yaml")
    return problems


def main() -> None:
    problems = dockerfile_lint.self_test()
    if len(settings()) < 30 or len(metrics()) < 30:
        problems.append("self-test: the program's settings or metrics were not found")
    checks = (check_dockerfiles, check_compose, check_manifests, check_inference_pool, check_llm_d, check_systemd, check_monitoring)
    for check in checks:
        problems += check()
    finish("deployment files", len(checks), problems)


if __name__ == "__main__":
    main()
