#!/usr/bin/env python3
"""The speed of vLLM's CPU build, for compare.py. Needs a virtual environment of its own with vLLM for the CPU.

    VENV/bin/python vllm_speed.py DIR prefill|deep-decode|streams N

DIR is a Hugging Face folder of the shape (LlamaForCausalLM; bf16, or W8A8 by llm-compressor), no tokenizer needed.
"""
import argparse
import os
import random
import statistics
import time

WARM_STEPS, STEPS = 8, 32  # as bench_model and llama_speed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("mode", choices=("prefill", "deep-decode", "streams"))
    parser.add_argument("size", type=int)
    args = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    model = LLM(model=args.dir, skip_tokenizer_init=True, max_model_len=8192, max_num_seqs=64, dtype="bfloat16",
                max_num_batched_tokens=8192, enable_prefix_caching=False, disable_log_stats=True)

    def generate(streams, prompt, tokens):
        prompts = [{"prompt_token_ids": [random.randrange(3, 32000) for _ in range(prompt)]} for _ in range(streams)]
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        model.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    streams, prompt = (args.size, 1) if args.mode == "streams" else (1, args.size)
    rates = []
    for _ in range(4):
        if args.mode == "prefill":
            rates.append(prompt / generate(1, prompt, 1))
        else:  # the difference of two lengths is what steps cost
            few, many = generate(streams, prompt, WARM_STEPS), generate(streams, prompt, WARM_STEPS + STEPS)
            rates.append(streams * STEPS / max(many - few, 1e-9))
    print(f"{args.mode} {args.size}: {statistics.median(rates[1:]):.1f} tok/s")  # the first warmed up


if __name__ == "__main__":
    main()
