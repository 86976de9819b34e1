"""The network in float64 with numpy, written from its definition: what a converted checkpoint must compute.

It reads the tensors of the source file, not of the converted one, and shares no code with the server.
"""
import math

import numpy as np


class Reference:
    """`tensor(name)` gives a weight of the source as a float64 array."""

    def __init__(self, config: dict, tensor):
        self.config, self.tensor = config, tensor
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config["head_dim"]

    def logprobs(self, ids: list[int]) -> list[float]:
        """log p of ids[i] given ids[:i], for i >= 1."""
        rows = self.distributions(ids)
        return [float(rows[i - 1, ids[i]]) for i in range(1, len(ids))]

    def distributions(self, ids: list[int]) -> np.ndarray:
        """Row i: log p of every token after ids[:i + 1]."""
        config = self.config
        x = self.tensor("tok_embeddings.weight")[ids]
        if config["position_encoding"] == "sinusoidal":
            x = x + self._sinusoids(len(ids))
        for layer in range(config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            x = x + self._attention(self._norm(x, prefix + "attention_norm.weight"), prefix + "attention.")
            y = self._norm(x, prefix + "ffn_norm.weight")
            gate = y @ self.tensor(prefix + "feed_forward.w1.weight").T
            up = y @ self.tensor(prefix + "feed_forward.w3.weight").T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.tensor(prefix + "feed_forward.w2.weight").T
        logits = self._norm(x, "norm.weight") @ self.tensor("output.weight").T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.tensor(name)

    def _sinusoids(self, rows: int) -> np.ndarray:
        hidden = self.config["hidden_size"]
        angles = np.arange(rows)[:, None] * np.exp(-math.log(self.config["sinusoidal_theta"]) * np.arange(hidden) / hidden)
        return np.where(np.arange(hidden) % 2 == 0, np.sin(angles), np.cos(angles))

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """Pairs of neighbouring dimensions turn by the position times their frequency."""
        frequencies = self.config["rope_theta"] ** (-np.arange(0, self.dim, 2) / self.dim)
        turn = np.exp(1j * np.arange(len(x))[:, None] * frequencies)[:, None, :]
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def _attention(self, x: np.ndarray, prefix: str) -> np.ndarray:
        config, rows = self.config, len(x)
        encoding = config["position_encoding"]

        def project(name: str, heads: int) -> np.ndarray:
            return (x @ self.tensor(f"{prefix}{name}.weight").T).reshape(rows, heads, self.dim)

        q, k, v = project("wq", self.heads), project("wk", self.kv_heads), project("wv", self.kv_heads)
        if encoding in ("rope", "rope_local"):
            q, k = self._rotate(q), self._rotate(k)
        k, v = (part.repeat(self.heads // self.kv_heads, axis=1) for part in (k, v))
        i, j = np.arange(rows)[:, None], np.arange(rows)[None, :]
        visible = j <= i
        if encoding == "rope_local":
            visible &= i - j <= config["sliding_window"]
        out = np.empty((rows, self.heads, self.dim))
        for head in range(self.heads):
            content = q[:, head] @ k[:, head].T / math.sqrt(self.dim)
            bias = self._bias(prefix, head, i - j)
            if config["ssmax"]:
                scale = self.tensor(prefix + "seq_scale").reshape(-1)[head] * np.log(visible.sum(-1, keepdims=True))
                scaled_bias = bias * scale if encoding == "bam" and config["ssmax_prior"] else bias
                logits = content * scale + scaled_bias
            else:
                logits = content + bias
            logits = np.where(visible, logits, -np.inf)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, head]
        return out.reshape(rows, -1) @ self.tensor(prefix + "wo.weight").T

    def _bias(self, prefix: str, head: int, distance: np.ndarray) -> np.ndarray:
        """What the position adds to the logit of a key, by distance."""
        config = self.config
        encoding = config["position_encoding"]
        scope = "" if config.get("prior_scope") == "global" else prefix
        if encoding == "alibi":
            return -alibi_slope(head, self.heads) * distance
        if encoding == "t5":
            table = self.tensor(scope + "relative_bias")
            return table[t5_bucket(distance, len(table), config["relative_attention_max_distance"]), head]
        if encoding != "bam":
            return np.zeros(distance.shape)
        alpha, beta, theta_mu = (self.tensor(f"{scope}prior.{name}").reshape(-1)[head] for name in ("scale", "shape", "loc"))
        offset = np.abs(-distance - (math.exp(theta_mu) - math.exp(-theta_mu)))
        if config["prior_form"] == "scale_outside":
            return -math.exp(alpha) * (offset + config["prior_eps"]) ** beta
        return -((offset * math.exp(alpha) + config["prior_eps"]) ** beta)


def alibi_slope(head: int, heads: int) -> float:
    lower = 2 ** int(math.log2(heads))
    def series(n: int, at: int) -> float:
        start = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return start ** (at + 1)
    return series(lower, head) if head < lower else series(2 * lower, 2 * (head - lower))


def t5_bucket(distance: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Half of the buckets are single distances, the others widen logarithmically; keys of the future count as distance 0."""
    near = np.maximum(distance, 0)
    exact = buckets // 2
    wide = exact + (np.log(np.maximum(near, 1) / exact) / math.log(max_distance / exact) * (buckets - exact)).astype(int)
    return np.where(near < exact, near, np.minimum(wide, buckets - 1))
