#!/usr/bin/env python3
"""The speed of OpenVINO GenAI on the CPU, for compare.py. Needs a virtual environment of its own:

    python3 -m venv VENV && VENV/bin/pip install openvino-genai optimum-intel nncf
    VENV/bin/python openvino_speed.py make --bits 8 --tokenizer tokenizer.model DIR   # a random model of the 120M shape
    VENV/bin/python openvino_speed.py run DIR prefill|deep-decode|streams N

Weights of 4 bits: --group 32|64|128, --asymmetric. Arithmetic is what OpenVINO chooses by itself for this processor.
"""
import argparse
import pathlib
import statistics
import tempfile
import time

SHAPE = dict(hidden_size=768, intermediate_size=1536, num_hidden_layers=12, vocab_size=32768, max_position_embeddings=8192,
             tie_word_embeddings=False)
WARM_STEPS, STEPS = 8, 32  # as bench_model and llama_speed


def make(args):
    import torch
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizerFast

    torch.manual_seed(1)
    config = LlamaConfig(**SHAPE, num_attention_heads=args.heads, num_key_value_heads=args.heads)
    with tempfile.TemporaryDirectory() as plain:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
        LlamaTokenizerFast(vocab_file=str(args.tokenizer)).save_pretrained(plain)
        if args.bits == 16:
            options = dict(load_in_8bit=False)
        elif args.bits == 8:
            options = dict(load_in_8bit=True)
        else:
            options = dict(quantization_config=OVWeightQuantizationConfig(bits=4, sym=not args.asymmetric,
                                                                          group_size=args.group, ratio=1.0))
        OVModelForCausalLM.from_pretrained(plain, export=True, **options).save_pretrained(args.dir)
    from openvino_tokenizers import convert_tokenizer
    import openvino

    parts = convert_tokenizer(LlamaTokenizerFast(vocab_file=str(args.tokenizer)), with_detokenizer=True)
    for name, part in zip(("openvino_tokenizer.xml", "openvino_detokenizer.xml"), parts):
        openvino.save_model(part, args.dir / name)


class Engine:
    def __init__(self, folder, threads):
        import numpy
        import openvino
        import openvino_genai

        self.numpy, self.openvino, self.genai = numpy, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 4
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 4096
        scheduler.enable_prefix_caching = False
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU",
                                                                  {"INFERENCE_NUM_THREADS": threads})
        self.seed = 0

    def generate(self, streams, prompt, tokens):
        """Seconds of `streams` random prompts of one length, each continued by `tokens` tokens."""
        self.seed += 1
        random = self.numpy.random.default_rng(self.seed)
        prompts = [self.openvino.Tensor(random.integers(3, 32000, (1, prompt), dtype=self.numpy.int64))
                   for _ in range(streams)]
        config = self.genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        start = time.perf_counter()
        self.pipeline.generate(prompts, [config] * streams)
        return time.perf_counter() - start


def measure(args):
    engine = Engine(args.dir, args.threads)
    rates = []
    streams, prompt = (args.size, 1) if args.mode == "streams" else (1, args.size)
    for repeat in range(4):
        if args.mode == "prefill":
            rates.append(prompt / engine.generate(1, prompt, 1))
        else:  # the difference of two lengths is what steps cost
            few, many = engine.generate(streams, prompt, WARM_STEPS), engine.generate(streams, prompt, WARM_STEPS + STEPS)
            rates.append(streams * STEPS / max(many - few, 1e-9))
    print(f"{args.mode} {args.size}: {statistics.median(rates[1:]):.1f} tok/s")  # the first warmed up


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    maker = commands.add_parser("make", help="export a random model")
    maker.add_argument("--bits", type=int, choices=(4, 8, 16), default=16)
    maker.add_argument("--group", type=int, default=64)
    maker.add_argument("--asymmetric", action="store_true")
    maker.add_argument("--heads", type=int, default=12, help="12: of 64, 16: of 48")
    maker.add_argument("--tokenizer", type=pathlib.Path, required=True, help="any sentencepiece model of the size")
    maker.add_argument("dir", type=pathlib.Path)
    maker.set_defaults(call=make)
    runner = commands.add_parser("run", help="measure one thing")
    runner.add_argument("--threads", type=int, default=2)
    runner.add_argument("dir", type=pathlib.Path)
    runner.add_argument("mode", choices=("prefill", "deep-decode", "streams"))
    runner.add_argument("size", type=int)
    runner.set_defaults(call=measure)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
