#!/usr/bin/env python3
"""`bam eval task` against the real lm-eval on the same task files and the same server, digit by digit."""

import csv
import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import textwrap
import unittest

import bamtest
import pypi

ARC = """
task: own_arc
dataset_path: json
dataset_kwargs:
  data_files:
    test: arc.jsonl
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices.label.index(answerKey)}}"
doc_to_choice: "{{choices.text}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
  - metric: acc_bytes
metadata:
  version: 1.0
"""
MMLU = """
task: own_mmlu
dataset_path: json
dataset_kwargs: {data_files: {test: mmlu.jsonl, dev: mmlu_dev.jsonl}}
output_type: multiple_choice
test_split: test
fewshot_split: dev
fewshot_config:
  sampler: first_n
num_fewshot: 2
description: "The following are multiple choice questions (with answers).\\n\\n"
doc_to_text: |-
  {{question.strip()}}
  A. {{choices[0]}}
  B. {{choices[1]}}
  {% if choices|length > 2 %}
  C. {{choices[2]}}
  {% endif %}
  Answer:
doc_to_choice: ["A", "B", "C"]
doc_to_target: answer
"""
COPY = """
task: own_copy
dataset_path: json
dataset_kwargs: {data_files: {test: copy.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 12
  do_sample: false
filter_list:
  - name: plain
    filter:
      - function: take_first
  - name: low
    filter:
      - function: lowercase
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    ignore_punctuation: true
"""
TEXTS = """
task: own_texts
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: byte_perplexity}
  - {metric: bits_per_byte}
"""
CLOZE = """
task: own_cloze
dataset_path: json
dataset_kwargs: {data_files: {test: copy.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{text}}"
target_delimiter: ""
doc_to_target: "{{' ' + answer}}"
metric_list: [{metric: perplexity}, {metric: acc}]
"""
TASKS = {"own_arc": ARC, "own_mmlu": MMLU, "own_copy": COPY, "own_texts": TEXTS, "own_cloze": CLOZE}
MAX_LENGTH = 160  # short, so that contexts are cut and texts have several windows

COMPARE = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
url, folder, length, names = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
out = lm_eval.simple_evaluate(
    model="local-completions",
    model_args=dict(model="test", base_url=url + "/v1/completions", tokenizer_backend="remote", max_length=length, num_concurrent=1,
                    max_retries=1),
    tasks=names, task_manager=TaskManager(include_path=folder, include_defaults=False), bootstrap_iters=0, log_samples=False)
json.dump(out["results"], open(folder + "/lm_eval.json", "w"))
"""


def write_documents(folder):
    rng = random.Random(5)
    words = "the grass is green and sky blue sun yellow here we go there back again pass key remember it".split()
    text = lambda n: " ".join(rng.choice(words) for _ in range(n))  # noqa: E731
    lines = lambda docs: "".join(json.dumps(doc) + "\n" for doc in docs)  # noqa: E731
    (folder / "arc.jsonl").write_text(lines(
        {"question": text(rng.choice((5, 8, 200))) + "?", "choices": {"text": [text(rng.randint(1, 5)) for _ in range(4)] + ["élan"],
                                                                       "label": list("ABCDE")}, "answerKey": rng.choice("ABCDE")}
        for _ in range(14)))
    for name, count in (("mmlu", 9), ("mmlu_dev", 4)):
        (folder / f"{name}.jsonl").write_text(lines(
            {"question": f" {text(6)}? ", "choices": [text(2), text(1), text(3)], "answer": rng.randrange(3)} for _ in range(count)))
    (folder / "copy.jsonl").write_text(lines(
        [{"text": f"The pass key is {key}. Remember it. {key} is the pass key. What is the pass key? The pass key is", "answer": answer}
         for key, answer in ((48213, "48213"), (71432, "71432"), (90210, "nothing"), (13579, "13579"))]))
    (folder / "texts.jsonl").write_text(lines({"page": page} for page in (text(20), text(500) + "\n\n" + text(30), " Ünïcode " + text(3))))
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(task)


class Eval(bamtest.ServerTest):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        write_documents(self.folder)
        self.url = f"http://127.0.0.1:{self.server.port}"

    def bam(self, *arguments, code=0):
        run = subprocess.run([bamtest.BAM, "eval", "task", *map(str, arguments), "--url", self.url], capture_output=True, text=True,
                             cwd=self.folder, check=False)
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def test_the_same_digits_as_lm_eval(self):
        python = pypi.python_with("lm_eval[api]==0.4.13")
        ran = subprocess.run([python, "-c", COMPARE, self.url, str(self.folder), str(MAX_LENGTH), ",".join(TASKS)],
                             capture_output=True, text=True, cwd=self.folder, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr[-4000:])
        theirs = json.loads((self.folder / "lm_eval.json").read_text())
        self.bam(*(f"{name}.yaml" for name in TASKS), "--max-length", MAX_LENGTH, "--out", "own.json")
        own = json.loads((self.folder / "own.json").read_text())
        compared = 0
        for task in TASKS:
            for name, value in theirs[task].items():
                metric = name.split(",")[0]
                if "," not in name or not isinstance(value, float) or (metric.endswith("_stderr") and "perplexity" in metric):
                    continue
                if metric == "bits_per_byte_stderr":
                    continue
                self.assertIn(name, own["results"][task], task)
                self.assertEqual(own["results"][task][name], value, f"{task} {name}")
                compared += 1
        self.assertGreaterEqual(compared, 12)
        self.assertGreater(own["tasks"]["own_arc"]["truncated"], 0)

    def test_results_as_json_and_csv(self):
        said = self.bam("own_arc.yaml", "own_copy.yaml", "--limit", 5, "--out", "own.json", "--csv", "own.csv", "--samples", "--label", "mine")
        self.assertIn("acc_norm", said)
        own = json.loads((self.folder / "own.json").read_text())
        self.assertEqual((own["schema"], own["label"], own["tasks"]["own_arc"]["documents"]), ("bam.eval/1", "mine", 5))
        self.assertEqual(len(own["samples"]["own_arc"]), 5)
        rows = list(csv.DictReader((self.folder / "own.csv").open()))
        row = next(r for r in rows if r["task"] == "own_arc" and r["metric"] == "acc")
        self.assertEqual(float(row["value"]), own["results"]["own_arc"]["acc,none"])
        self.assertTrue(float(row["low_95"]) <= float(row["value"]) <= float(row["high_95"]))

    def test_documents_of_a_hub_come_from_a_file(self):
        (self.folder / "hub.yaml").write_text(ARC.replace("dataset_path: json", "dataset_path: allenai/ai2_arc")
                                              .replace("dataset_kwargs:\n  data_files:\n    test: arc.jsonl\n", ""))
        self.assertIn("--docs", self.bam("hub.yaml", code=2))
        self.bam("hub.yaml", "--docs", "arc.jsonl", "--limit", 2)

    def test_documents_of_several_tasks_come_from_a_folder(self):
        # As MMLU's subjects are: one template of a hub's documents, included by a file for each subject.
        (self.folder / "_template_yaml").write_text(MMLU.replace("task: own_mmlu\n", "").replace("dataset_path: json", "dataset_path: cais/mmlu")
                                                    .replace("dataset_kwargs: {data_files: {test: mmlu.jsonl, dev: mmlu_dev.jsonl}}\n", ""))
        docs = self.folder / "docs"
        docs.mkdir()
        for subject in ("law", "physics"):
            (self.folder / f"mmlu_{subject}.yaml").write_text(f"include: _template_yaml\ntask: mmlu_{subject}\n")
            for name, source in ((f"mmlu_{subject}", "mmlu"), (f"mmlu_{subject}_dev", "mmlu_dev")):
                (docs / f"{name}.jsonl").write_text((self.folder / f"{source}.jsonl").read_text())
        files = ("mmlu_law.yaml", "mmlu_physics.yaml")
        self.assertIn("folder", self.bam(*files, "--docs", "mmlu.jsonl", code=2))
        self.bam(*files, "--docs", "docs", "--out", "both.json")
        self.bam("own_mmlu.yaml", "--out", "own.json")
        both, own = (json.loads((self.folder / f"{name}.json").read_text())["results"] for name in ("both", "own"))
        for subject in ("law", "physics"):  # the same questions behind the same two examples
            self.assertEqual({**both[f"mmlu_{subject}"], "alias": 0}, {**own["own_mmlu"], "alias": 0})
        (docs / "mmlu_law_dev.jsonl").unlink()
        self.assertIn("has no mmlu_law_dev.jsonl", self.bam("mmlu_law.yaml", "--docs", "docs", code=2))

    def test_the_commands_and_files_of_the_documentation(self):
        """docs/evaluate.md, word for word, on a few documents in the form that each benchmark is published in."""
        text = (bamtest.ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
            (self.folder / f"{re.search('^task: (.*)$', block, re.MULTILINE).group(1)}.yaml").write_text(block)
        (self.folder / "arc_easy.yaml").write_text(ARC.replace("dataset_path: json", "dataset_path: allenai/ai2_arc").replace("own_arc", "arc_easy")
                                                   .replace("dataset_kwargs:\n  data_files:\n    test: arc.jsonl\n", ""))
        (self.folder / "arc_easy.jsonl").write_text((self.folder / "arc.jsonl").read_text())
        (self.folder / "mmlu").mkdir()
        (self.folder / "mmlu_law.yaml").write_text(MMLU.replace("own_mmlu", "mmlu_law").replace("num_fewshot: 2\n", "")
                                                   .replace("dataset_path: json", "dataset_path: cais/mmlu"))
        (self.folder / "mmlu/mmlu_law.jsonl").write_text((self.folder / "mmlu.jsonl").read_text())
        (self.folder / "longbench_v2.json").write_text(json.dumps([
            {"_id": "1", "domain": "Single-Document QA", "difficulty": "easy", "length": "short", "question": "What is green?", "answer": answer,
             "choice_A": "the sun", "choice_B": "the sky", "choice_C": "the grass", "choice_D": "nothing", "context": "The grass is green. " * 40}
            for answer in "CA"]))
        (self.folder / "niah_single_2_65536").mkdir()
        (self.folder / "niah_single_2_65536/validation.jsonl").write_text("".join(json.dumps(
            {"index": i, "input": "The pass key is 48213. What is the pass key? The pass key is", "outputs": [key], "length": 40}) + "\n"
            for i, key in enumerate(("48213", "absent"))))
        block = next(b for b in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "longbench_v2.yaml" in b)
        commands = [line for line in block.splitlines() if line.startswith("bam eval task")]
        self.assertEqual(len(commands), 4)
        for command in commands:
            ran = subprocess.run(["sh", "-c", command + f" --url {self.url}"], capture_output=True, text=True, cwd=self.folder, check=False,
                                 env={**os.environ, "PATH": f"{pathlib.Path(bamtest.BAM).parent}:{os.environ['PATH']}"})
            self.assertEqual(ran.returncode, 0, f"{command}\n{ran.stdout}{ran.stderr}")
            self.assertRegex(ran.stdout, r"(acc|string_match_all) +none +[01]\.\d{4}", command)
        self.assertRegex(ran.stdout, "string_match_all +none +0.5000")
        longbench = json.loads((self.folder / "longbench.json").read_text())
        self.assertEqual(longbench["tasks"]["longbench_v2"]["documents"], 2)
        self.assertIn("mmlu_law", (self.folder / "mmlu.csv").read_text())

    def test_what_only_lm_eval_can_do_is_refused(self):
        for change, word in ((("doc_to_text: \"Question", "process_docs: !function utils.f\ndoc_to_text: \"Question"), "utils.f"),
                             (("metric: acc_norm", "metric: mcc"), "mcc"), (("output_type: multiple_choice", "output_type: other"), "other"),
                             (("task: own_arc", "task: own_arc\nunknown_key: 1"), "unknown_key"),
                             (("task: own_arc", "task: own_arc\nnum_fewshot: 3"), "first_n")):
            (self.folder / "bad.yaml").write_text(ARC.replace(*change))
            self.assertIn(word, self.bam("bad.yaml", code=2))

    def test_yaml_is_read_as_pyyaml_reads_it(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("SKIPPED: python3-yaml is missing")
        # Through the samples: every text that a task makes comes out of the reader.
        text = textwrap.dedent("""\
            task: strange
            dataset_path: json
            dataset_kwargs: {data_files: {test: copy.jsonl}}
            test_split: test
            output_type: generate_until
            description: "line one\\n\\ttab \\"quoted\\" \\u00e9
              goes on"
            doc_to_text: >
              folded
              words

              and {{text}}
            doc_to_target: answer
            generation_kwargs: {until: ['it''s', "\\n"], max_gen_toks: 1}
            """)
        (self.folder / "strange.yaml").write_text(text)
        self.bam("strange.yaml", "--limit", 1, "--samples", "--out", "own.json")
        sample = json.loads((self.folder / "own.json").read_text())["samples"]["strange"][0]
        config = yaml.safe_load(text)
        document = json.loads((self.folder / "copy.jsonl").read_text().splitlines()[0])
        self.assertEqual(sample["context"], config["description"] + config["doc_to_text"].replace("{{text}}", document["text"]))


if __name__ == "__main__":
    unittest.TestCase.maxDiff = None
    bamtest.main()
