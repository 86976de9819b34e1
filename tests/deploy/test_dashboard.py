#!/usr/bin/env python3
"""The monitoring of docker/compose.yaml: a real Prometheus scrapes a server under load, and every panel has data."""

import json
import math
import pathlib
import re
import tempfile
import threading
import time
import unittest

import containers
from containers import ROOT, Bam, Prometheus, request, wait_for
from bamtest import Stream  # pylint: disable=wrong-import-order

DOCKER = ROOT / "docker"
KEY = "scrape-key"


def panels():
    dashboard = json.loads((DOCKER / "grafana" / "dashboards" / "bam.json").read_text(encoding="utf-8"))
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def substituted(expression):
    """The query as Grafana sends it for all servers and a short window."""
    return expression.replace("$__rate_interval", "20s").replace("$instance", ".*")


class Load:
    """Clients of many kinds, so that no counter stays silent for lack of traffic."""

    def __init__(self, port):
        self.port = port
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._loop, args=(i,), daemon=True) for i in range(3)]
        self.threads.append(threading.Thread(target=self._long_streams, daemon=True))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)

    def _loop(self, number):
        headers = {"Authorization": f"Bearer {KEY}"}
        long_prompt = "The grass is green. The sky is blue. The sun is yellow. Here we go. " * (20 + 10 * number)
        count = 0
        while not self.stop.is_set():
            count += 1
            body = {"prompt": f"{number} {long_prompt}" if count % 2 else f"{number} {count} Once", "max_tokens": 24}
            request(self.port, "POST", "/v1/completions", body, headers)
            request(self.port, "POST", "/v1/completions", {"prompt": 7}, headers)        # 400
            request(self.port, "GET", "/v1/models")                                      # 401
            stream = Stream(self.port, "/v1/completions", {"prompt": "Once", "max_tokens": 64, "stream": True}, headers)
            stream.next_event()
            if count % 3:
                stream.chunks()
            stream.close()                                                                # sometimes in the middle
            self.stop.wait(0.2)

    def _long_streams(self):
        """Somebody is always in the batch."""
        body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        while not self.stop.is_set():
            stream = Stream(self.port, "/v1/completions", body, {"Authorization": f"Bearer {KEY}"})
            while not self.stop.is_set() and stream.next_event() is not None:
                pass
            stream.close()


class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = []
        cls.addClassCleanup(cls.clean_up)
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        cls.bam = cls.enter(Bam("serve", "--api-key", KEY)).wait_ready()
        # The shipped configuration; only what names the containers of compose.yaml is replaced.
        text = (DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        assert text.count('"bam:8000"') == 1 and text.count("scrape_interval: 5s") == 1
        text = text.replace('"bam:8000"', f'"127.0.0.1:{cls.bam.port}"').replace("scrape_interval: 5s", "scrape_interval: 1s")
        (root / "prometheus.yml").write_text(text, encoding="utf-8")
        (root / "rules.yml").write_text((DOCKER / "prometheus" / "rules.yml").read_text(encoding="utf-8"), encoding="utf-8")
        (root / "key").write_text(KEY, encoding="utf-8")
        cls.prometheus = cls.enter(Prometheus(root, ["-v", f"{root}/key:/run/secrets/bam_api_key:ro"])).wait_ready()
        cls.load = cls.enter(Load(cls.bam.port))
        time.sleep(25)

    @classmethod
    def enter(cls, resource):
        cls.stack.append(resource)
        return resource.__enter__()

    @classmethod
    def clean_up(cls):
        for resource in reversed(cls.stack):
            resource.__exit__(None, None, None)
        cls.folder.cleanup()

    def query(self, expression):
        return self.prometheus.query(expression)

    def rules(self):
        return self.prometheus.api("rules")["groups"][0]["rules"]

    def test_the_target_is_up(self):
        self.assertEqual([sample["value"][1] for sample in self.query('up{job="bam"}')], ["1"])

    def test_every_panel_has_data(self):
        rows, missing = [], []
        for panel in panels():
            for target in panel["targets"]:
                expression = substituted(target["expr"])
                self.assertNotIn("$", expression, panel["title"])
                deadline, values = time.time() + 20, []
                while not values and time.time() < deadline:
                    values = [float(sample["value"][1]) for sample in self.query(expression)]
                    values = [value for value in values if math.isfinite(value)]
                    if not values:
                        time.sleep(1)
                name = f"{panel['title']} / {target['legendFormat']}"
                rows.append(f"    {name:<52.52} {len(values):>3} series, max {max(values):.4g}" if values else f"    {name:<52.52} NO DATA")
                if not values:
                    missing.append(f"{name}: {expression}")
        print("\n" + "\n".join(rows), flush=True)
        self.assertEqual(missing, [])

    def test_what_the_load_must_have_moved(self):
        for expression in ("max_over_time(bam_requests_running[20s])", "max_over_time(bam_http_streams[20s])",
                           'max_over_time(bam_kv_pages{state="used"}[20s])', "sum(bam_prefix_cache_hits_total)", "sum(bam_generation_tokens_total)", "sum(bam_http_rejected_auth_total)",
                           'sum(bam_http_responses_total{status="400"})', 'sum(bam_attention_tiles_total{outcome="skipped"})'):
            self.assertGreater(float(self.query(expression)[0]["value"][1]), 0, expression)

    def test_every_metric_of_the_server_is_on_the_board(self):
        """A metric that nobody sees is a metric that nobody keeps right."""
        text = self.bam.request("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"}).body
        published = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
        unused = {name for name in published if not re.search(rf"\b{name}(_bucket)?\b", shown)}
        self.assertEqual(unused - {"bam_kv_capacity_tokens"}, set())

    def test_rules_load_and_evaluate(self):
        self.prometheus.check_config()
        self.assertGreaterEqual(len(self.rules()), 5)
        wait_for(lambda: all(rule["health"] == "ok" for rule in self.rules()), "rules are evaluated", 30, self.prometheus.logs)
        firing = [rule["name"] for rule in self.rules() if rule["state"] == "firing"]
        self.assertEqual(firing, [])


if __name__ == "__main__":
    containers.main()
