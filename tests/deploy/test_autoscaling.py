#!/usr/bin/env python3
"""The metrics of the autoscaler on their way from a replica to the query of prometheus-adapter, through deploy/k8s/'s files.

Debian's Prometheus is built without the discovery of Kubernetes: the pods of the manifests are given to it with the labels that
the discovery would attach. Everything behind that (key, relabelling, series, queries) is real.
"""

import json
import pathlib
import re
import tempfile
import unittest

import yaml

import containers
from containers import ROOT, Bam, Prometheus, wait_for

K8S = ROOT / "deploy" / "k8s"
KEY = "scrape-key"


def manifest(file, kind, name):
    documents = yaml.safe_load_all((K8S / file).read_text(encoding="utf-8"))
    return next(d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name))


def discovered(workload, name, port):
    """One target per port of a pod, as the pod role of kubernetes_sd_configs announces it; all ports lie on `port`."""
    template = workload["spec"]["template"]
    labels = {"__meta_kubernetes_namespace": "bam", "__meta_kubernetes_pod_name": name}
    for key, value in template["metadata"]["labels"].items():
        labels["__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)] = value
    return [{"targets": [f"127.0.0.1:{port}"], "labels": {**labels, "__meta_kubernetes_pod_container_port_name": entry["name"]}}
            for container in template["spec"]["containers"] for entry in container["ports"]]


class Autoscaling(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        cls.bam = Bam("serve", "--api-key", KEY)
        cls.addClassCleanup(cls.bam.__exit__)
        cls.bam.wait_ready()
        job, = yaml.safe_load((K8S / "prometheus-scrape.yaml").read_text(encoding="utf-8"))
        cls.discovery = job.pop("kubernetes_sd_configs")
        job["static_configs"] = [
            *discovered(manifest("statefulset.yaml", "StatefulSet", "bam"), "bam-0", cls.bam.port),
            *discovered(manifest("gateway.yaml", "Deployment", "bam-gateway"), "bam-gateway-abc", cls.bam.port)]
        (root / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}), encoding="utf-8")
        secret = root / pathlib.Path(job["authorization"]["credentials_file"]).relative_to("/etc/prometheus")
        secret.parent.mkdir(parents=True)
        secret.write_text(KEY, encoding="utf-8")
        cls.prometheus = Prometheus(root)
        cls.addClassCleanup(cls.prometheus.__exit__)
        cls.prometheus.wait_ready().check_config()
        wait_for(lambda: cls.prometheus.query("up == 1"), "a scrape that succeeds", 60, cls.prometheus.logs)

    def test_the_discovery_looks_where_the_pods_are(self):
        namespace = yaml.safe_load((K8S / "kustomization.yaml").read_text(encoding="utf-8"))["namespace"]
        self.assertEqual(self.discovery, [{"role": "pod", "namespaces": {"names": [namespace]}}])

    def test_only_the_servers_port_is_scraped(self):
        targets = self.prometheus.api("targets", state="active")["activeTargets"]
        self.assertEqual([(target["labels"], target["health"]) for target in targets],
                         [({"job": "bam", "instance": "bam-0", "namespace": "bam", "pod": "bam-0"}, "up")])

    def test_the_adapter_finds_every_metric_of_the_autoscaler(self):
        rule = yaml.safe_load((K8S / "prometheus-adapter-values.yaml").read_text(encoding="utf-8"))["rules"]["custom"][0]
        series = self.prometheus.api("series", **{"match[]": rule["seriesQuery"]})
        found = {re.sub(rule["name"]["matches"], rule["name"]["as"].replace("$", "\\"), entry["__name__"]) for entry in series}
        metrics = manifest("autoscaling.yaml", "HorizontalPodAutoscaler", "bam")["spec"]["metrics"]
        wanted = {metric["pods"]["metric"]["name"] for metric in metrics}
        self.assertEqual(found, wanted)
        for name in wanted:
            query = rule["metricsQuery"].replace("<<.Series>>", name).replace("<<.LabelMatchers>>", 'namespace="bam",pod=~"bam-0"')
            samples = self.prometheus.query(query)
            self.assertEqual([sample["metric"]["pod"] for sample in samples], ["bam-0"], query)
            self.assertGreaterEqual(float(samples[0]["value"][1]), 0)


if __name__ == "__main__":
    containers.main()
