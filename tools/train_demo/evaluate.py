"""Long-context evaluation of a trained model with a chunked prefill.

    evaluate.py CHECKPOINT --work WORKDIR [--lengths 512,4096,32768] [--depths 20] [--kinds repeated,text,distractors]

Layers below the last visit only the keys that their priors leave: the certified window, outside which a
key's weight is below e^-24 of the row's largest. The last layer computes K and V for every position but
queries only for the positions that are asked for.
"""
import argparse
import pathlib
import time

import runtime  # noqa: F401

import torch
import torch.nn.functional as F

import tasks
import tokenizer as tok
from fused_attention import FusedAttention
from model import Model

CHUNK = 1024
CUT = 24.0


class Cache:
    """Keys and values of one layer, [capacity, heads, dim], the prior by distance and the largest key norms."""

    def __init__(self, attention, capacity: int):
        c = attention.config
        self.k, self.v = torch.empty(2, capacity, c.num_heads, c.head_dim).unbind(0)
        self.k_norm = torch.zeros(c.num_heads)
        self.prior = attention.logit_terms(torch.arange(1), torch.arange(capacity))[2].contiguous()
        self.monotone = not (self.prior[:, 1:] > self.prior[:, :-1]).any()
        self.widest = 0

    def put(self, start: int, k, v) -> None:
        self.k[start : start + len(k)], self.v[start : start + len(v)] = k, v
        self.k_norm = torch.maximum(self.k_norm, k.norm(dim=-1).amax(0))

    def window(self, q, a, b) -> int:
        """Distance from which every head's keys are certified negligible for the queries q [n, heads, dim]."""
        if not self.monotone:
            return self.prior.shape[1]
        content = 2 * (q.norm(dim=-1).T * a).amax(1) * self.k_norm
        fall = b.amin(1, keepdim=True) * (self.prior[:, :1] - self.prior)
        return int((fall <= (content + CUT)[:, None]).sum(1).max())


def attend_window(qkv, start: int, first: int, a, b, cache: Cache):
    """The fused kernel over positions [first, start + n), of which the last n are wanted."""
    rows = qkv.shape[1]
    length = start + rows - first
    segment = torch.zeros(1, length + -length % 16, *qkv.shape[2:])
    segment[0, start - first : length, 0] = qkv[0, :, 0]
    segment[0, :length, 1], segment[0, :length, 2] = cache.k[first : start + rows], cache.v[first : start + rows]
    a, b = (F.pad(x, (start - first, segment.shape[1] - length)) for x in (a, b))
    prior = F.pad(cache.prior[:, : segment.shape[1]], (0, max(0, segment.shape[1] - cache.prior.shape[1])))
    return FusedAttention.apply(segment, a, b, prior)[:, start - first : length]


def attend_all(qkv, start: int, a, b, cache: Cache):
    """Plain attention over every key."""
    rows = qkv.shape[1]
    distance = torch.arange(start, start + rows)[:, None] - torch.arange(start + rows)[None, :]
    logits = torch.einsum("nhd,mhd->hnm", qkv[0, :, 0], cache.k[: start + rows]) * a[:, :, None]
    logits += b[:, :, None] * cache.prior[:, distance.clamp(min=0)]
    weights = logits.masked_fill_(distance < 0, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, cache.v[: start + rows]).flatten(1)[None]


def attend(attention, qkv, start: int, cache: Cache):
    """Rows [start, start + n) over the cache; qkv [1, n, 3, heads, dim] -> [1, n, heads * dim]"""
    rows = qkv.shape[1]
    a, b, _ = attention.logit_terms(torch.arange(start, start + rows), torch.arange(1))
    window = cache.window(qkv[0, :, 0], a, b)
    if start:  # before that c_0 = 0 leaves the prior without effect
        cache.widest = max(cache.widest, min(window, start + rows))
    if window > 4 * CHUNK:
        return attend_all(qkv, start, a, b, cache)
    return attend_window(qkv, start, max(0, start - window), a, b, cache)


@torch.no_grad()
def last_logits(model: Model, tokens: list[int], wanted: int) -> tuple[torch.Tensor, list[Cache]]:
    """Logits of the last `wanted` positions (at most CHUNK of them)."""
    caches = [Cache(layer.attention, len(tokens)) for layer in model.layers]
    boundary = len(tokens) - wanted  # chunks never straddle it, so the last layer can skip all before
    starts = list(range(0, boundary, CHUNK)) + [boundary]
    for start, end in zip(starts, starts[1:] + [len(tokens)]):
        x = model.embed(torch.tensor([tokens[start:end]]), start)
        for layer, cache in zip(model.layers, caches):
            qkv = layer.attention.qkv(layer.attention_norm(x), start)
            cache.put(start, qkv[0, :, 1], qkv[0, :, 2])
            if layer is model.layers[-1] and start < boundary:
                break
            x = x + layer.attention.wo(attend(layer.attention, qkv, start, cache))
            x = x + layer.feed_forward(layer.ffn_norm(x))
    return model.output(model.norm(x))[0], caches


def passkey_accuracy(model: Model, source: tasks.Tasks, length: int, depths: int, kind: str) -> tuple[float, str]:
    """Share of prompts whose five digits are all right (teacher forced, which is the same event as greedy)."""
    hits, failed, caches = 0, [], []
    for i in range(depths):
        depth = i / max(1, depths - 1)
        prompt, key = source.passkey_prompt(length, depth, kind)
        logits, caches = last_logits(model, prompt + key, 6)
        hit = logits[:-1].argmax(-1).tolist() == key[1:]
        hits += hit
        if not hit:
            failed.append(f"{depth:.2f}")
    windows = " ".join(str(c.widest) for c in caches)
    return hits / depths, f"widest window per layer {windows}" + (f", failed depths {' '.join(failed)}" if failed else "")


@torch.no_grad()
def sample(model: Model, source: tasks.Tasks, prompt: str, count: int, temperature: float = 0.7) -> str:
    """A continuation, recomputed from the start for every token: for a look at the language only."""
    tokens = [tok.BOS] + source.sp.encode(prompt)
    for _ in range(count):
        probabilities = (last_logits(model, tokens, 1)[0][-1] / temperature).softmax(-1)
        tokens.append(int(torch.multinomial(probabilities, 1)))
        if tokens[-1] == tok.EOS:
            break
    return source.sp.decode(tokens)


def main() -> None:
    import export

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--lengths", default="512,2048,8192,32768")
    parser.add_argument("--kinds", default="repeated,text,distractors")
    parser.add_argument("--depths", type=int, default=20)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--sample", metavar="PROMPT", help="print a continuation instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = export.read_checkpoint(args.checkpoint)
    own = args.checkpoint if (args.checkpoint / "tokenizer.model").exists() else None
    source = tasks.Tasks(args.work, args.seed, "valid", own)
    if args.sample:
        torch.manual_seed(args.seed)
        print(sample(model, source, args.sample, 100))
        return
    for kind in args.kinds.split(","):
        for length in map(int, args.lengths.split(",")):
            start = time.monotonic()
            accuracy, note = passkey_accuracy(model, source, length, args.depths, kind)
            seconds = (time.monotonic() - start) / args.depths
            print(f"{kind:12s} {length:7d} tokens  {accuracy:6.1%} of {args.depths}  {seconds:.2f} s each, {note}", flush=True)


if __name__ == "__main__":
    main()
