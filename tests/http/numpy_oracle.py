"""An independent float64 forward pass of a bam checkpoint (position_encoding bam, ssmax), for short prompts."""

import json
import pathlib
import struct

import numpy as np


def load_tensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors


class Oracle:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_tensors(folder / "model.safetensors")
        self.seen = []  # attention of the last pass, [rows, rows] for each layer and head

    @classmethod
    def supports(cls, folder):
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        return (config.get("position_encoding") == "bam" and config.get("ssmax") and config.get("ssmax_prior", True) and
                config.get("prior_form") == "scale_outside" and config.get("prior_scope", "layer") == "layer")

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * weight

    def attention(self, x, prefix):
        config, get = self.config, lambda name: self.weights[f"{prefix}.attention.{name}"]
        heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        rows = len(x)
        q = (x @ get("wq.weight").T).reshape(rows, heads, dim)
        k = (x @ get("wk.weight").T).reshape(rows, kv_heads, dim).repeat(heads // kv_heads, axis=1)
        v = (x @ get("wv.weight").T).reshape(rows, kv_heads, dim).repeat(heads // kv_heads, axis=1)
        alpha, beta, theta_mu, scale = (get(name).reshape(heads) for name in ("prior.scale", "prior.shape", "prior.loc", "seq_scale"))
        i, j = np.arange(rows)[:, None], np.arange(rows)[None, :]
        out = np.zeros((rows, heads, dim))
        for h in range(heads):
            mu = np.exp(theta_mu[h]) - np.exp(-theta_mu[h])
            bias = -np.exp(alpha[h]) * (np.abs(j - i - mu) + config["prior_eps"]) ** beta[h]
            logits = (q[:, h] @ k[:, h].T / np.sqrt(dim) + bias) * (scale[h] * np.log(i + 1.0))
            logits = np.where(j <= i, logits, -np.inf)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            self.seen.append(weights)
            out[:, h] = weights @ v[:, h]
        return out.reshape(rows, heads * dim) @ get("wo.weight").T

    def hidden(self, tokens):
        """Row i: what stands behind the final norm at tokens[i]."""
        w = self.weights
        self.seen = []
        x = w["tok_embeddings.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}"
            x = x + self.attention(self.norm(x, w[f"{prefix}.attention_norm.weight"]), prefix)
            y = self.norm(x, w[f"{prefix}.ffn_norm.weight"])
            gate, up = y @ w[f"{prefix}.feed_forward.w1.weight"].T, y @ w[f"{prefix}.feed_forward.w3.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.feed_forward.w2.weight"].T
        return self.norm(x, w["norm.weight"])

    def probabilities(self, tokens):
        """[layers, heads, rows, rows]: what each row gives to each key."""
        self.hidden(tokens)
        shape = (self.config["num_hidden_layers"], self.config["num_attention_heads"], len(tokens), len(tokens))
        return np.array(self.seen).reshape(shape)

    def distributions(self, tokens):
        """Row i: log p of every token after tokens[:i + 1]."""
        w = self.weights
        head = w["tok_embeddings.weight"] if self.config.get("tie_word_embeddings") else w["output.weight"]
        logits = self.hidden(tokens) @ head.T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def logprobs(self, tokens):
        """log p of tokens[i] given tokens[:i], for i >= 1."""
        rows = self.distributions(tokens)
        return [rows[i - 1, tokens[i]] for i in range(1, len(tokens))]
