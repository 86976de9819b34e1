#!/usr/bin/env python3
"""The speed of OpenVINO GenAI on the CPU, for compare.py. Needs a virtual environment of its own:

    python3 -m venv VENV && VENV/bin/pip install openvino-genai openvino-tokenizers transformers sentencepiece nncf gguf
    VENV/bin/python openvino_speed.py make --bits 8 --tokenizer tokenizer.model DIR   # a random model of the 120M shape
    VENV/bin/python openvino_speed.py run DIR prefill|deep-decode|streams N

The model goes through GGUF, which GenAI turns into its own graph, so that no PyTorch is needed. Weights of 4 bits:
--group 32|64|128, --asymmetric. Arithmetic and the precision of keys and values are what OpenVINO chooses by itself for
this processor.
"""
import argparse
import contextlib
import pathlib
import statistics
import tempfile
import time

LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 12, 768, 1536, 32768
WARM_STEPS, STEPS = 8, 32  # as bench_model and llama_speed


def write_gguf(path, heads):
    import gguf
    import numpy

    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(HIDDEN // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def matrix(name, rows, columns):
        writer.add_tensor(name + ".weight", (0.02 * random.standard_normal((rows, columns))).astype(numpy.float16))

    def norm(name):
        writer.add_tensor(name + ".weight", numpy.ones(HIDDEN, numpy.float32))

    matrix("token_embd", VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        norm(block + "attn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(block + name, HIDDEN, HIDDEN)
        norm(block + "ffn_norm")
        matrix(block + "ffn_gate", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_up", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_down", HIDDEN, INTERMEDIATE)
    norm("output_norm")
    matrix("output", VOCABULARY, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(args):
    import nncf
    import openvino
    import openvino_genai
    from openvino_tokenizers import convert_tokenizer
    from transformers import LlamaTokenizerFast

    args.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(pathlib.Path(folder) / "model.gguf", args.heads)
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
