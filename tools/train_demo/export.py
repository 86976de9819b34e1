"""Checkpoint folders: safetensors, configuration, tokenizer and chat template, written without other libraries."""
import json
import os
import pathlib
import shutil
import struct

import numpy as np
import torch

import tokenizer as tok
from model import Config, Model

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|> {{ message['content'] }}{{ eos_token }}"
    "{% else %}<|user|> {{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 -> bfloat16 bit patterns, round to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Matrices as BF16; norms and the few numbers of a prior or bias, whose rounding would be felt, as F32."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in tensors.items():
        values = tensor.detach().numpy()
        half = values.ndim == 2 and not name.endswith("relative_bias")
        blob = (to_bfloat16(values) if half else values.astype("<f4")).tobytes()
        span = [offset, offset + len(blob)]
        header[name] = {"dtype": "BF16" if half else "F32", "shape": list(values.shape), "data_offsets": span}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)


def read_safetensors(path: pathlib.Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        raw = body[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, "<f4").copy()
        tensors[name] = torch.from_numpy(values).view(entry["shape"])
    return tensors


def config_json(c: Config, training_length: int) -> dict:
    t5 = ("relative_attention_num_buckets", "relative_attention_max_distance")
    return {
        "model_type": "bam",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "rms_norm_eps": c.rms_norm_eps,
        "tie_word_embeddings": False,
        "max_position_embeddings": training_length,
        "position_encoding": c.position_encoding,
        "ssmax": c.ssmax,
        "ssmax_prior": True,
        "prior_form": "scale_outside",
        "prior_scope": "layer",
        "prior_eps": c.prior_eps,
        "rope_theta": c.rope_theta,
        "sliding_window": c.sliding_window,
        "sinusoidal_theta": c.sinusoidal_theta,
        **({key: getattr(c, key) for key in t5} if c.position_encoding == "t5" else {}),
        "bos_token_id": tok.BOS,
        "eos_token_id": tok.EOS,
        "torch_dtype": "bfloat16",
    }


TOKENIZER_CONFIG = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "add_eos_token": False,
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "additional_special_tokens": [tok.USER, tok.ASSISTANT],
    "model_max_length": 1000000000,
    "chat_template": CHAT_TEMPLATE,
}
GENERATION_CONFIG = {
    "bos_token_id": tok.BOS,
    "eos_token_id": tok.EOS,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "max_new_tokens": 128,
}


def write_checkpoint(model: Model, work: pathlib.Path, out: pathlib.Path, training_length: int) -> None:
    """Writes a complete folder beside `out`, then swaps it in; a README.md already there is kept."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_safetensors(partial / "model.safetensors", model.state_dict())
    documents = {
        "config.json": config_json(model.config, training_length),
        "tokenizer_config.json": TOKENIZER_CONFIG,
        "generation_config.json": GENERATION_CONFIG,
    }
    for name, document in documents.items():
        (partial / name).write_text(json.dumps(document, indent=2) + "\n")
    shutil.copy(work / "tokenizer.model", partial / "tokenizer.model")
    if (out / "README.md").exists():
        shutil.copy(out / "README.md", partial / "README.md")
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        out.rename(old)
    partial.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: pathlib.Path) -> Model:
    c = json.loads((folder / "config.json").read_text())
    names = {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
    fields = {field: names.get(field, field) for field in Config.__dataclass_fields__}
    model = Model(Config(**{field: c[key] for field, key in fields.items() if key in c}))
    model.load_state_dict(read_safetensors(folder / "model.safetensors"))
    return model.eval()
