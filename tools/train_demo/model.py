"""The model family in PyTorch: a Llama-style decoder with the position encodings of the BAM paper."""
import dataclasses
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from fused_attention import FusedAttention, attention_reference

ENCODINGS = ("bam", "alibi", "nope", "rope", "rope_local", "sinusoidal", "t5")


@dataclasses.dataclass
class Config:
    vocab_size: int = 1024
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 4
    num_heads: int = 6
    position_encoding: str = "bam"
    ssmax: bool = True
    rms_norm_eps: float = 1e-5
    prior_eps: float = 1e-5
    rope_theta: float = 500000.0
    sliding_window: int = 512
    sinusoidal_theta: float = 10000.0
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    half_products: bool = False  # matrix products of training in bfloat16

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class HalfProduct(torch.autograd.Function):
    """x [..., in] times weight [out, in], forward and backward with factors rounded to bfloat16; the sums are float32.

    Three times as fast as float32 where the processor multiplies bfloat16. Weights and optimizer stay float32.
    """

    @staticmethod
    def forward(ctx, x, weight):
        rows, half = x.flatten(0, -2).bfloat16(), weight.bfloat16()
        ctx.save_for_backward(rows, half)
        ctx.saved_shape = x.shape[:-1]
        return F.linear(rows, half).float().view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx, gradient):
        rows, half = ctx.saved_tensors
        gradient = gradient.flatten(0, -2).bfloat16()
        return (gradient @ half).float().view(*ctx.saved_shape, -1), (gradient.T @ rows).float()


def product(x, weight, half: bool):
    return HalfProduct.apply(x, weight) if half and x.requires_grad else F.linear(x, weight)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Prior(nn.Module):
    """Generalised Gaussian over distance, form "scale_outside": B(d) = -exp(scale) * (|-d - mu| + eps)^shape."""

    def __init__(self, shape: torch.Tensor, eps: float):
        super().__init__()
        heads = len(shape)
        self.eps = eps
        self.shape = nn.Parameter(shape.view(1, heads, 1, 1).clone())
        self.scale = nn.Parameter(torch.zeros(1, heads, 1, 1))
        self.loc = nn.Parameter(torch.zeros(1, heads, 1, 1), requires_grad=False)  # as the authors train it

    def forward(self, distance):
        """distance [n] -> [heads, n]"""
        shape, scale, loc = (p.view(-1, 1) for p in (self.shape, self.scale, self.loc))
        mu = loc.exp() - (-loc).exp()
        return -scale.exp() * ((-distance[None, :] - mu).abs() + self.eps) ** shape


def alibi_slopes(heads: int) -> torch.Tensor:
    def power_of_two(n):
        start = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [start ** (k + 1) for k in range(n)]

    lower = 2 ** int(math.log2(heads))
    return torch.tensor(power_of_two(lower) + power_of_two(2 * lower)[0::2][: heads - lower])


def rotate(x, theta: float, start: int = 0):
    """Interleaved RoPE of x [..., length, heads, dim] at positions start, start + 1, ..."""
    length, dim = x.shape[-3], x.shape[-1]
    frequency = theta ** (-torch.arange(0, dim, 2).double() / dim)
    angle = (torch.arange(start, start + length).double()[:, None] * frequency[None, :])[:, None, :]
    cos, sin = angle.cos().float(), angle.sin().float()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def sinusoids(positions: torch.Tensor, size: int, theta: float) -> torch.Tensor:
    dim = torch.arange(size).double()
    angle = positions.double()[:, None] * torch.exp(-math.log(theta) * dim / size)[None, :]
    return torch.where(dim.long() % 2 == 0, angle.sin(), angle.cos()).float()


def t5_buckets(distances: torch.Tensor, buckets: int, max_distance: int) -> torch.Tensor:
    """T5's causal buckets: one per distance in the first half, logarithmic up to max_distance in the second."""
    exact = buckets // 2
    ratio = (distances.clamp(min=exact).double() / exact).log() / math.log(max_distance / exact)
    far = exact + (ratio * (buckets - exact) + 1e-9).long()  # an exact lower edge belongs to its bucket
    return torch.where(distances < exact, distances, far.clamp(max=buckets - 1))


class Attention(nn.Module):
    def __init__(self, config: Config, shape: torch.Tensor):
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(size, size, bias=False) for _ in range(4))
        if config.ssmax:
            self.seq_scale = nn.Parameter(torch.full((1, config.num_heads, 1, 1), 0.3))
        if config.position_encoding == "bam":
            self.prior = Prior(shape, config.prior_eps)
        elif config.position_encoding == "t5":
            self.relative_bias = nn.Parameter(torch.zeros(config.relative_attention_num_buckets, config.num_heads))

    def qkv(self, x, start: int = 0):
        """x [batch, length, hidden] -> [batch, length, 3, heads, dim], rotated if the encoding says so."""
        c = self.config
        weight = torch.cat((self.wq.weight, self.wk.weight, self.wv.weight))
        qkv = product(x, weight, c.half_products).view(*x.shape[:2], 3, c.num_heads, c.head_dim)
        if c.position_encoding.startswith("rope"):
            q, k, v = qkv.unbind(2)
            qkv = torch.stack((rotate(q, c.rope_theta, start), rotate(k, c.rope_theta, start), v), 2)
        return qkv

    def logit_terms(self, positions, distances):
        """(a, b, prior): logit_ij = a_i (q_i . k_j) + b_i prior(i - j); a, b [heads, n], prior [heads, m]."""
        c = self.config
        visible = positions.float() + 1
        if c.position_encoding == "rope_local":
            visible = visible.clamp(max=c.sliding_window + 1)
        ones = torch.ones(c.num_heads, len(positions))
        temperature = self.seq_scale.view(-1, 1) * visible.log() if c.ssmax else ones
        prior, weight = torch.zeros(c.num_heads, len(distances)), ones
        if c.position_encoding == "bam":
            prior, weight = self.prior(distances.float()), temperature
        elif c.position_encoding == "alibi":
            prior = -alibi_slopes(c.num_heads)[:, None] * distances.float()
        elif c.position_encoding == "t5":
            buckets = t5_buckets(distances, c.relative_attention_num_buckets, c.relative_attention_max_distance)
            prior = self.relative_bias[buckets].T
        elif c.position_encoding == "rope_local":
            prior = torch.where(distances > c.sliding_window, -1e30, 0.0).expand(c.num_heads, -1)
        return temperature / math.sqrt(c.head_dim), weight, prior

    def forward(self, x, fused: bool = True):
        positions = torch.arange(x.shape[1])
        a, b, prior = self.logit_terms(positions, positions)
        qkv = self.qkv(x)
        attend = FusedAttention.apply if fused else attention_reference
        self.locality = (qkv, a, b) if self.training else None  # for locality_penalty
        return product(attend(qkv, a, b, prior), self.wo.weight, self.config.half_products)


class FeedForward(nn.Module):
    def __init__(self, size: int, hidden: int, half: bool):
        super().__init__()
        self.half = half
        self.w1, self.w3 = nn.Linear(size, hidden, bias=False), nn.Linear(size, hidden, bias=False)
        self.w2 = nn.Linear(hidden, size, bias=False)

    def forward(self, x):
        gate, up = product(x, torch.cat((self.w1.weight, self.w3.weight)), self.half).chunk(2, -1)
        return product(F.silu(gate) * up, self.w2.weight, self.half)


class Block(nn.Module):
    def __init__(self, config: Config, shape: torch.Tensor):
        super().__init__()
        self.attention = Attention(config, shape)
        self.feed_forward = FeedForward(config.hidden_size, config.intermediate_size, config.half_products)
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, fused: bool = True):
        x = x + self.attention(self.attention_norm(x), fused)
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    """Parameter names are those of the checkpoint format. flat_priors: every head starts with theta_beta = 0."""

    def __init__(self, config: Config, flat_priors: bool = False):
        super().__init__()
        self.config = config
        heads, last = config.num_heads, config.num_layers - 1
        local, flat = torch.linspace(0.4, 1.0, heads), torch.zeros(heads)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        shapes = [flat if flat_priors or i == last else local for i in range(config.num_layers)]
        self.layers = nn.ModuleList(Block(config, shape) for shape in shapes)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and not name.endswith("relative_bias"):
                std = 0.5 if name.startswith("tok_") else weight.shape[1] ** -0.5
                if name.endswith(("wo.weight", "w2.weight")):
                    std /= math.sqrt(2 * config.num_layers)
                nn.init.normal_(weight, 0, std)

    def embed(self, tokens, start: int = 0):
        x = self.tok_embeddings(tokens)
        if self.config.position_encoding == "sinusoidal":
            positions = torch.arange(start, start + tokens.shape[1])
            x = x + sinusoids(positions, self.config.hidden_size, self.config.sinusoidal_theta)
        return x

    def hidden(self, tokens, fused: bool = True, start: int = 0):
        """start: the first token's absolute position, which only sinusoidal embeddings see."""
        x = self.embed(tokens, start)
        for layer in self.layers:
            x = layer(x, fused)
        return self.norm(x)

    def logits(self, hidden):
        return product(hidden, self.output.weight, self.config.half_products)

    def forward(self, tokens, fused: bool = True):
        return self.logits(self.hidden(tokens, fused))


def locality_penalty(model: Model, distance: int = 1024, nats: float = 40.0) -> torch.Tensor:
    """Keeps every head below the last layer local, so that long prefills are linear in the length.

    A key at `distance` is certainly negligible when the prior's fall outweighs twice the largest content
    logit, |q||k|. The penalty is the log of how far a head is from that, 0 once it is satisfied. The last
    layer, where far retrieval happens, is free: in a prefill only its keys and values are needed.
    """
    total = torch.zeros(())
    for block in model.layers[:-1]:
        qkv, a, b = block.attention.locality
        with torch.no_grad():
            norms = qkv[:, :, :2].norm(dim=-1)  # [batch, length, q|k, heads]
            query = (norms[:, :, 0] * a.T[None]).amax((0, 1))
            content = 2 * query * norms[:, :, 1].amax((0, 1))
        near, far = block.attention.prior(torch.tensor([0.0, float(distance)])).unbind(1)
        fall = (b[:, -1].clamp(min=1e-4) * (near - far)).clamp(min=1e-3)
        total = total + F.relu(((content + nats) / fall).log()).sum()
    return total
