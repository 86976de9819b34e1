"""Run by soak_evaluators.py inside a virtual environment: one evaluation harness or load tester against a server.

    python client_checks_evaluators.py NAME BASE_URL CHECKPOINT
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version

NAME, BASE, CHECKPOINT = sys.argv[1:]
WORK = pathlib.Path(tempfile.mkdtemp(prefix="bam-evaluator-"))
os.environ.update({"OPENAI_API_KEY": "none", "HF_HOME": str(WORK / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                   "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1"})

CONTEXT = "There is an important info hidden inside a lot of irrelevant text. Find it. " + "The grass is green. The sky is blue. " * 20
COLOURS = ("The sky is", "The grass is", "The sun is")
CHOICE_TASK = """task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_target: 0
doc_to_choice: ["blue.", "green.", "yellow."]
metric_list: [{metric: acc}]
"""
TEXT_TASK = """task: continue
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "blue"
generation_kwargs: {until: ["."], max_gen_toks: 12}
metric_list: [{metric: exact_match}]
"""


def ask(path, body=None):
    request = urllib.request.Request(BASE + path, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.loads(reply.read())


def prefix_hits():
    with urllib.request.urlopen(BASE + "/metrics", timeout=300) as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith("bam_prefix_cache_hits_total"):
                return float(line.split()[-1])
    raise AssertionError("no metric")


def lm_eval():
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    data = WORK / "data.jsonl"
    data.write_text("".join(json.dumps({"text": CONTEXT + colour}) + "\n" for colour in COLOURS))
    for name, task in (("colours", CHOICE_TASK), ("continue", TEXT_TASK)):
        (WORK / f"{name}.yaml").write_text(task.replace("DATA", str(data)))
    before = prefix_hits()
    arguments = {"model": "test", "base_url": BASE + "/v1/completions", "num_concurrent": 1, "max_retries": 1}
    results = simple_evaluate(model="local-completions", model_args=arguments, tasks=["colours", "continue"], log_samples=True,
                              task_manager=TaskManager(include_path=str(WORK), include_defaults=False))
    samples = results["samples"]["colours"]
    assert len(samples) == 3 and len(results["samples"]["continue"]) == 3, results
    # Its sums are those of the server's own log-probabilities.
    for sample in samples:
        text = sample["doc"]["text"]
        for (logprob, _), choice in zip(sample["filtered_resps"], (" blue.", " green.", " yellow."), strict=True):
            context = ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
            whole = ask("/tokenize", {"prompt": text + choice, "add_special_tokens": False})["tokens"]
            scored = ask("/v1/completions", {"prompt": whole, "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0})
            expected = sum(scored["choices"][0]["logprobs"]["token_logprobs"][len(context):-1])
            assert abs(expected - float(logprob)) < 1e-4, (expected, logprob)
    assert prefix_hits() > before, "continuations of one context share its pages"
    chat = simple_evaluate(model="local-chat-completions", tasks=["continue"], apply_chat_template=True,
                           model_args={**arguments, "base_url": BASE + "/v1/chat/completions"},
                           task_manager=TaskManager(include_path=str(WORK), include_defaults=False))
    assert chat["results"]["continue"], chat
    return "lm_eval"


def guidellm():
    output = WORK / "report.json"
    for profile, data in (("kind=synchronous", "kind=synthetic_text,prompt_tokens=48,output_tokens=8"),
                          ("kind=concurrent,streams=4", "kind=synthetic_text,prompt_tokens=96,output_tokens=16")):
        command = [str(pathlib.Path(sys.executable).with_name("guidellm")), "run", "--backend", f"kind=openai_http,target={BASE},model=test",
                   "--profile", profile, "--constraint", "kind=max_requests,count=8", "--data", data,
                   "--tokenizer", f"kind=huggingface_auto,model={CHECKPOINT}", "--output", f"kind=json,path={output}", "--disable-console-interactive"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        totals = json.loads(output.read_text())["benchmarks"][0]["metrics"]["request_totals"]
        assert totals["successful"] == 8 and totals["errored"] == 0, totals
    return "guidellm"


def vllm_bench():
    import argparse

    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as bench_serve

    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        done = bench_serve(parser.parse_args([
            "--backend", backend, "--base-url", BASE, "--endpoint", endpoint, "--model", "test", "--tokenizer", CHECKPOINT,
            "--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "16", "--num-prompts", "12"]))
        assert done["completed"] == 12 and done["total_output_tokens"] == 12 * 16 and done["mean_ttft_ms"] > 0, done
    return "vllm"


def sglang_bench():
    for backend in ("sglang-oai", "sglang-oai-chat"):
        report = WORK / f"{backend}.jsonl"
        command = [sys.executable, "-m", "sglang.benchmark.serving", "--backend", backend, "--base-url", BASE, "--model", "test",
                   "--tokenizer", CHECKPOINT, "--dataset-name", "random-ids", "--random-input-len", "64", "--random-output-len", "16",
                   "--random-range-ratio", "1", "--num-prompts", "12", "--output-file", str(report)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        done = json.loads(report.read_text().splitlines()[-1])
        assert done["completed"] == 12 and done["total_output_tokens"] == 12 * 16 and done["mean_ttft_ms"] > 0, done
    return "sglang"


def main():
    package = globals()[NAME]()
    print(package, version(package), "is happy")


if __name__ == "__main__":
    main()
