#!/usr/bin/env python3
"""Random models of a shape for the peers: GGUF files and Hugging Face folders (LlamaForCausalLM).

    VENV/bin/python models.py gguf --type bf16|q8_0|q4_0|f16 [--shape 1.1b] [--heads 16] FILE.gguf   needs gguf, numpy; --head q8_0
    VENV/bin/python models.py hf [--w8a8] [--shape 1.1b] [--heads 16] DIR                            needs torch, safetensors
"""
import argparse
import json
import pathlib
from typing import NamedTuple

VOCABULARY, CONTEXT = 32768, 8192


class Shape(NamedTuple):
    layers: int
    hidden: int
    intermediate: int
    heads: int


SHAPES = {"120m": Shape(12, 768, 1536, 12), "1.1b": Shape(15, 2048, 8192, 32)}


def matrices(shape):
    """(name in GGUF, name in Hugging Face, rows, columns) of every matrix."""
    yield "token_embd", "model.embed_tokens", VOCABULARY, shape.hidden
    for i in range(shape.layers):
        for gguf, hf, rows, columns in (("attn_q", "self_attn.q_proj", shape.hidden, shape.hidden),
                                        ("attn_k", "self_attn.k_proj", shape.hidden, shape.hidden),
                                        ("attn_v", "self_attn.v_proj", shape.hidden, shape.hidden),
                                        ("attn_output", "self_attn.o_proj", shape.hidden, shape.hidden),
                                        ("ffn_gate", "mlp.gate_proj", shape.intermediate, shape.hidden),
                                        ("ffn_up", "mlp.up_proj", shape.intermediate, shape.hidden),
                                        ("ffn_down", "mlp.down_proj", shape.hidden, shape.intermediate)):
            yield f"blk.{i}.{gguf}", f"model.layers.{i}.{hf}", rows, columns
    yield "output", "lm_head", VOCABULARY, shape.hidden


def norms(shape):
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm", f"model.layers.{i}.input_layernorm"
        yield f"blk.{i}.ffn_norm", f"model.layers.{i}.post_attention_layernorm"
    yield "output_norm", "model.norm"


def write_gguf(path, shape, kind, head=None):
    import gguf
    import numpy

    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, _, rows, columns in matrices(shape):
        quantized = gguf.GGMLQuantizationType[(head or kind if name in ("output", "token_embd") else kind).upper()]
        values = (0.02 * random.standard_normal((rows, columns))).astype(numpy.float32)
        if kind == "f16":
            writer.add_tensor(name + ".weight", values.astype(numpy.float16))
        else:
            writer.add_tensor(name + ".weight", gguf.quants.quantize(values, quantized), raw_dtype=quantized)
    for name, _ in norms(shape):
        writer.add_tensor(name + ".weight", numpy.ones(shape.hidden, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hf(folder, shape, w8a8):
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
              "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
              "num_attention_heads": shape.heads, "num_key_value_heads": shape.heads, "vocab_size": VOCABULARY,
              "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    if w8a8:  # a scale per row of the weights, one per token of the activations
        number = {"num_bits": 8, "type": "int", "symmetric": True}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
            "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": {**number, "strategy": "channel", "dynamic": False},
                "input_activations": {**number, "strategy": "token", "dynamic": True}}}}
    torch.manual_seed(1)
    tensors = {name + ".weight": torch.ones(shape.hidden, dtype=torch.bfloat16) for _, name in norms(shape)}
    for _, name, rows, columns in matrices(shape):
        values = 0.02 * torch.randn(rows, columns)
        if w8a8 and ".layers." in name:
            scale = values.abs().amax(1, keepdim=True) / 127
            tensors[name + ".weight"] = (values / scale).round().to(torch.int8)
            tensors[name + ".weight_scale"] = scale.to(torch.bfloat16)
        else:
            tensors[name + ".weight"] = values.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2}')


def add_shape(parser):
    parser.add_argument("--shape", choices=SHAPES, default="120m")
    parser.add_argument("--heads", type=int, help="120m: 12 of 64 (default) or 16 of 48")


def shape_of(args):
    return SHAPES[args.shape]._replace(**({"heads": args.heads} if args.heads else {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    gguf = kinds.add_parser("gguf")
    gguf.add_argument("--type", choices=("bf16", "f16", "q8_0", "q4_0"), default="bf16")
    gguf.add_argument("--head", choices=("q8_0",), help="type of head and embedding, if another")
    gguf.set_defaults(write=lambda args: write_gguf(args.out, shape_of(args), args.type, args.head))
    hf = kinds.add_parser("hf")
    hf.add_argument("--w8a8", action="store_true")
    hf.set_defaults(write=lambda args: write_hf(args.out, shape_of(args), args.w8a8))
    for kind in (gguf, hf):
        add_shape(kind)
        kind.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    args.write(args)


if __name__ == "__main__":
    main()
