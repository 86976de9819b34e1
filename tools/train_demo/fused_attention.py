"""PyTorch binding of attention.c, which is compiled on first use into the user's cache folder."""
import argparse
import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess

import torch
import torch.nn.functional as F

PAD = 32  # as in attention.c
SOURCE = pathlib.Path(__file__).with_name("attention.c")


@functools.lru_cache(maxsize=None)
def library(head_dim: int) -> ctypes.CDLL:
    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC"]
    flags.append(f"-DD={head_dim}")
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(flags).encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "bam-train-demo"
    target = cache / f"attention-{digest}.so"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        subprocess.run([os.environ.get("CC", "cc"), *flags, str(SOURCE), "-o", str(partial), "-lm"], check=True)
        partial.replace(target)
    return ctypes.CDLL(str(target))


def pointers(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    assert all(t.is_contiguous() and t.dtype == torch.float32 for t in tensors)
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]


class FusedAttention(torch.autograd.Function):
    """qkv [batch, length, 3, heads, D]; a, b [heads, length]; prior [heads, length] by distance -> [batch, length, heads*D]"""

    @staticmethod
    def forward(ctx, qkv, a, b, prior):
        batch, length, _, heads, dim = qkv.shape
        assert length % 16 == 0, "the kernel wants a length that is a multiple of 16"
        qkv, a, b = qkv.contiguous(), a.contiguous(), b.contiguous()
        reverse = F.pad(prior.flip(1), (0, PAD)).contiguous()
        out, lse = qkv.new_empty(batch, length, heads * dim), qkv.new_empty(batch, heads, length)
        library(dim).attention_forward(batch, heads, length, *pointers(qkv, a, b, reverse, out, lse))
        ctx.save_for_backward(qkv, a, b, reverse, out, lse)
        return out

    @staticmethod
    def backward(ctx, dout):
        qkv, a, b, reverse, out, lse = ctx.saved_tensors
        batch, length, _, heads, dim = qkv.shape
        dqkv = torch.empty_like(qkv)
        da, db = qkv.new_empty(batch, heads, length), qkv.new_empty(batch, heads, length)
        dprior = qkv.new_empty(batch, heads, length + PAD)
        arguments = pointers(qkv, a, b, reverse, out, lse, dout.contiguous(), dqkv, da, db, dprior)
        library(dim).attention_backward(batch, heads, length, *arguments)
        return dqkv, da.sum(0), db.sum(0), dprior.sum(0)[:, :length].flip(1)


def attention_reference(qkv, a, b, prior):
    """The same in plain PyTorch: the check of the kernel, and the path for lengths it does not take."""
    batch, length, _, heads, dim = qkv.shape
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    position = torch.arange(length)
    distance = position[:, None] - position[None, :]
    logits = (q @ k.transpose(2, 3)) * a[:, :, None] + b[:, :, None] * prior[:, distance.clamp(min=0)]
    weights = logits.masked_fill(distance < 0, float("-inf")).softmax(-1)
    return (weights @ v).transpose(1, 2).reshape(batch, length, heads * dim)


def self_check() -> None:
    """Outputs and all gradients against the reference, for local, flat and far-looking priors."""
    torch.manual_seed(0)
    batch, length, heads, dim = 2, 256, 4, 32
    qkv = torch.randn(batch, length, 3, heads, dim, requires_grad=True)
    a = (torch.rand(heads, length) / dim**0.5).requires_grad_()
    b = torch.rand(heads, length).requires_grad_()
    distance = torch.arange(length).float() + 1e-5
    prior = torch.stack([-(distance**shape) for shape in (1.2, 0.4, 0.0, -0.7)]).requires_grad_()
    weight = torch.randn(batch, length, heads * dim)
    inputs = (qkv, a, b, prior)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    results = []
    for attend, arguments, dout in ((FusedAttention.apply, inputs, weight), (attention_reference, exact, weight.double())):
        out = attend(*arguments)
        results.append((out, *torch.autograd.grad((out * dout).sum(), arguments)))
    for name, fused, reference in zip(("out", "dqkv", "da", "db", "dprior"), *results):
        error = (fused - reference).abs().max() / reference.abs().max()
        print(f"{name:7s} largest error {error.item():.1e} of the largest value")
        # db sums terms of up to 1e-5^-0.7 = 3000 that cancel: there float32 keeps four digits
        assert error < (1e-3 if name == "db" else 1e-5), name


if __name__ == "__main__":
    argparse.ArgumentParser(description=f"{__doc__} Compares it with PyTorch's own.").parse_args()
    self_check()
