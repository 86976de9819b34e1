#!/usr/bin/env python3
"""The speed of OpenVINO GenAI on the CPU, for compare.py. Needs a virtual environment of its own:

    python3 -m venv VENV && VENV/bin/pip install openvino-genai openvino-tokenizers transformers sentencepiece nncf gguf
    VENV/bin/python openvino_speed.py make --bits 8 --tokenizer tokenizer.model DIR   # a random model of the 120M shape
    VENV/bin/python openvino_speed.py run DIR

The model goes through GGUF, which GenAI turns into its own graph, so that no PyTorch is needed. Weights of 4 bits:
--group 32|64|128, --asymmetric. Arithmetic and the precision of keys and values are what OpenVINO chooses by itself for
this processor. `run` reads lines "prompt TOKENS" and "streams N", answers each with a line of JSON, tokens per second.
"""
import argparse
import contextlib
import pathlib
import tempfile

from models import add_shape, shape_of, write_gguf
from protocol import serve


def make(args):
    import nncf
    import openvino
    import openvino_genai
    from openvino_tokenizers import convert_tokenizer
    from transformers import LlamaTokenizerFast

    args.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(pathlib.Path(folder) / "model.gguf", shape_of(args), "f16")
        with contextlib.suppress(Exception):  # it saves the graph, then gives up on a vocabulary without merges
            openvino_genai.LLMPipeline(f"{folder}/model.gguf", "CPU", enable_save_ov_model=True)
        model = openvino.Core().read_model(f"{folder}/openvino_model.xml")
        if args.bits == 8:
            model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        elif args.bits == 4:
            mode = nncf.CompressWeightsMode.INT4_ASYM if args.asymmetric else nncf.CompressWeightsMode.INT4_SYM
            model = nncf.compress_weights(model, mode=mode, group_size=args.group, ratio=1.0)
        openvino.save_model(model, args.dir / "openvino_model.xml", compress_to_fp16=args.bits == 16)
    parts = convert_tokenizer(LlamaTokenizerFast(vocab_file=str(args.tokenizer)), with_detokenizer=True)
    for name, part in zip(("openvino_tokenizer.xml", "openvino_detokenizer.xml"), parts):
        openvino.save_model(part, args.dir / name)
    for name in ("config.json", "generation_config.json"):
        (args.dir / name).write_text('{"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}')


def run(args):
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 4096
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(args.dir), scheduler, "CPU",
                                                         {"INFERENCE_NUM_THREADS": args.threads})
    names = iter(range(1 << 30))

    def steps(prompts, tokens):
        config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        handles = [pipeline.add_request(next(names), openvino.Tensor(numpy.array([prompt], numpy.int64)), config)
                   for prompt in prompts]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            yield sum(1 for handle in handles if handle.can_read() and handle.read())

    serve(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    maker = commands.add_parser("make", help="export a random model")
    maker.add_argument("--bits", type=int, choices=(4, 8, 16), default=16)
    maker.add_argument("--group", type=int, default=64)
    maker.add_argument("--asymmetric", action="store_true")
    add_shape(maker)
    maker.add_argument("--tokenizer", type=pathlib.Path, required=True, help="any sentencepiece model of the size")
    maker.add_argument("dir", type=pathlib.Path)
    maker.set_defaults(call=make)
    runner = commands.add_parser("run", help="answer what stdin asks")
    runner.add_argument("--threads", type=int, default=2)
    runner.add_argument("dir", type=pathlib.Path)
    runner.set_defaults(call=run)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
