"""Trains a small model of the family on one CPU core and writes its checkpoint folder.

    train.py --work WORKDIR --out checkpoints/demo    the shipped demo model

Everything is determined by the seed and the number of steps. A run that is stopped continues where it was
last saved; README.md has the whole recipe. study.py trains the siblings with the same loop.
"""
import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable

import runtime  # noqa: F401  (first: it tunes the process before torch loads)

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("no PyTorch for this Python. Install Debian's (README.md) and start with /usr/bin/python3.") from None
import torch.nn.functional as F

import corpus
import export
import questions
import tasks
import tokenizer
from evaluate import passkey_accuracy
from model import ENCODINGS, Config, Model, locality_penalty
from optimizer import Muon

ADAM_LR, PRIOR_LR = 4e-3, 8e-3  # of embeddings, head and norms; of the prior's shape and scale


@dataclasses.dataclass
class Stage:
    until: int  # step
    length: int  # longest sequence
    temperature_lr: float  # of SSMax's seq_scale
    answer_weight: float
    mix: dict[str, float]
    near_miss_share: float = 0.0


LEARN_RETRIEVAL = dict(passkey=0.45, recall=0.25, repetition=0.10, plain_text=0.20)
LEARN_TEXT = dict(passkey=0.26, recall=0.08, repetition=0.02, plain_text=0.64)
SHARPEN = dict(passkey=0.35, recall=0.12, repetition=0.03, plain_text=0.50)


@dataclasses.dataclass
class Recipe:
    """Learning rates rise over warmup_steps, stay, and fall linearly over the last decay_steps."""

    steps: int
    decay_steps: int
    locality: float  # weight of the locality penalty
    stages: tuple[Stage, ...]
    warmup_steps: int = 100
    tokens_per_step: int = 4096
    lengths: tuple[int, ...] = (128, 256, 512)  # a quarter of the batches has a shorter one than its stage
    half_products: bool = False  # matrix products in bfloat16
    flat_priors: bool = False  # every head starts with theta_beta = 0, not only those of the last layer
    source: type = tasks.Tasks
    adjust: Callable[[Model], None] | None = None  # what a variant changes in the new network
    shifted_up_to: int = 0  # batches begin at any absolute position from which they end before this one


DEMO = Recipe(
    steps=1900,
    decay_steps=650,
    locality=0.05,
    stages=(
        Stage(256, 128, 8e-3, 30, LEARN_RETRIEVAL),
        Stage(320, 256, 8e-3, 30, LEARN_RETRIEVAL),
        Stage(480, 256, 8e-3, 30, LEARN_TEXT),
        Stage(1000, 512, 8e-3, 30, LEARN_TEXT),
        Stage(1500, 512, 1e-3, 60, SHARPEN),
        Stage(1900, 512, 1e-3, 60, SHARPEN, near_miss_share=0.4),
    ),
)

ASKING_RETRIEVAL = dict(passkey=0.33, niah=0.04, fact=0.14, recall=0.22, repetition=0.09, plain_text=0.18)
ASKING_TEXT = dict(passkey=0.12, niah=0.10, fact=0.08, recall=0.06, repetition=0.02, plain_text=0.62)
ASKING_SHARPEN = dict(passkey=0.18, niah=0.13, fact=0.08, recall=0.05, repetition=0.02, plain_text=0.54)
# More questions and half as many steps again, in bfloat16 products.
QUESTIONS = Recipe(
    steps=2600,
    decay_steps=1100,
    locality=0.05,
    stages=(
        Stage(256, 128, 8e-3, 30, ASKING_RETRIEVAL),
        Stage(400, 256, 8e-3, 30, ASKING_RETRIEVAL),
        Stage(520, 256, 8e-3, 30, ASKING_TEXT),
        Stage(1300, 512, 8e-3, 30, ASKING_TEXT),
        Stage(2100, 512, 1e-3, 60, ASKING_SHARPEN),
        Stage(2600, 512, 1e-3, 60, ASKING_SHARPEN, near_miss_share=0.4),
    ),
    source=questions.Questions,
    half_products=True,
)
RECIPES = {"passkey": DEMO, "questions": QUESTIONS}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--work", type=pathlib.Path, required=True, help="folder for the corpus, tokenizer and run state")
    add("--out", type=pathlib.Path, required=True, help="checkpoint folder to write")
    add("--position-encoding", choices=ENCODINGS, default="bam")
    add("--no-ssmax", action="store_true")
    add("--recipe", choices=RECIPES, default="passkey", help="passkey: the shipped model's; questions: more to ask, longer")
    add("--no-locality-penalty", action="store_true", help="nothing shapes the priors of the lower layers")
    add("--hidden", type=int, default=160)
    add("--ffn", type=int, default=448)
    add("--layers", type=int, default=4)
    add("--lr", type=float, default=0.02, help="of the layers' matrices (Muon)")
    add("--seed", type=int, default=1)
    add("--eval-every", type=int, default=250)
    add("--export-every", type=int, default=500)
    return parser.parse_args()


class Run:
    def __init__(self, args, recipe: Recipe, config: Config, out: pathlib.Path, name: str):
        torch.manual_seed(args.seed)
        self.args, self.recipe, self.out, self.name = args, recipe, out, name
        self.steps, self.step, self.seconds = recipe.steps, 0, 0.0
        self.curve: dict[int, list] = {}  # step -> what validate() measured there
        self.model = Model(config, recipe.flat_priors)
        if recipe.adjust:
            recipe.adjust(self.model)
        self.tasks = recipe.source(args.work, args.seed)
        self.valid = recipe.source(args.work, 999, "valid")
        self.optimizers = self.make_optimizers()
        self.state_path = args.work / f"{name}.state"
        self.log_path = args.work / f"{name}.log"
        self.penalized = config.position_encoding == "bam" and recipe.locality > 0
        if self.state_path.exists():
            self.load()

    def make_optimizers(self):
        groups = {"matrix": [], "table": [], "norm": [], "prior": [], "temperature": []}
        for name, weight in self.model.named_parameters():
            if not weight.requires_grad:
                continue
            if name.endswith("relative_bias"):
                groups["prior"].append(weight)
            elif weight.dim() == 4:
                groups["temperature" if name.endswith("seq_scale") else "prior"].append(weight)
            elif weight.dim() == 1:
                groups["norm"].append(weight)
            else:
                groups["matrix" if name.startswith("layers.") else "table"].append(weight)
        adam = [
            dict(params=groups["table"], lr=ADAM_LR, weight_decay=0.05),
            dict(params=groups["norm"], lr=ADAM_LR, weight_decay=0.0),
            dict(params=groups["prior"], lr=PRIOR_LR, weight_decay=0.0),
            dict(params=groups["temperature"], lr=0.0, weight_decay=0.0, staged=True),
        ]
        adam = [group for group in adam if group["params"]]
        optimizers = [Muon(groups["matrix"], self.args.lr, half=self.model.config.half_products), torch.optim.AdamW(adam, betas=(0.9, 0.98), eps=1e-9)]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["base_lr"] = group["lr"]
        return optimizers

    def save(self) -> None:
        state = dict(
            model=self.model.state_dict(),
            optimizers=[o.state_dict() for o in self.optimizers],
            rng=self.tasks.rng.getstate(),
            step=self.step,
            seconds=self.seconds,
            curve=self.curve,
        )
        partial = self.state_path.with_suffix(".tmp")
        torch.save(state, partial)
        partial.replace(self.state_path)

    def load(self) -> None:
        state = torch.load(self.state_path)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.tasks.rng.setstate(state["rng"])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]
        self.log(f"continued at step {self.step}")

    def log(self, line: str) -> None:
        print(line, flush=True)
        with self.log_path.open("a") as file:
            file.write(line + "\n")

    def train_step(self) -> str:
        """One update; returns the measurements of its batch."""
        stage = next(s for s in self.recipe.stages if self.step < s.until)
        length, self.tasks.near_miss_share = stage.length, stage.near_miss_share
        if self.tasks.rng.random() < 0.25:
            length = self.tasks.rng.choice([n for n in self.recipe.lengths if n <= length])
        tokens, weights = self.tasks.batch(self.recipe.tokens_per_step // length, length + 1, stage.mix)
        weights[weights == tasks.W_ANSWER] = stage.answer_weight
        tokens, weights = torch.from_numpy(tokens), torch.from_numpy(weights)[:, 1:].reshape(-1)
        shift = self.tasks.rng.randint(0, max(0, self.recipe.shifted_up_to - length)) if self.recipe.shifted_up_to else 0
        hidden = self.model.hidden(tokens[:, :-1], start=shift)
        counted = weights > 0
        logits = self.model.logits(hidden.flatten(0, 1)[counted])
        target, weight = tokens[:, 1:].reshape(-1)[counted], weights[counted]
        losses = F.cross_entropy(logits, target, reduction="none")
        loss = (losses * weight).sum() / weight.sum()
        penalty = locality_penalty(self.model) if self.penalized else torch.zeros(())
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        (loss + self.recipe.locality * penalty).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        decay = (self.steps - self.step) / self.recipe.decay_steps
        factor = max(0.01, min(1.0, (self.step + 1) / self.recipe.warmup_steps, decay))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * (stage.temperature_lr if group.get("staged") else group["base_lr"])
            optimizer.step()
        self.step += 1
        with torch.no_grad():
            answers, hits = weight == stage.answer_weight, logits.argmax(-1) == target
            recalls = weight == tasks.W_RECALL
            mean = lambda x: x.float().mean().item() if len(x) else float("nan")
            return (
                f"L{length} loss {loss.item():.3f} other {mean(losses[weight <= 1]):.3f} "
                f"key digits {mean(hits[answers]):.3f} recall {mean(hits[recalls]):.3f} penalty {penalty.item():.2f}"
            )

    @torch.no_grad()
    def validate(self) -> str:
        self.model.eval()
        self.valid.rng.seed(7)
        text = torch.tensor([self.valid.text(513) for _ in range(16)])
        loss = F.cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).item()
        scores = [
            f"{kind} {length}: {passkey_accuracy(self.model, self.valid, length, 10, kind)[0]:.2f}"
            for kind, length in (("repeated", 512), ("repeated", 4096), ("distractors", 512), ("distractors", 4096))
        ]
        self.model.train()
        return f"  valid text loss {loss:.3f}  passkey {', '.join(scores)}"

    def export(self) -> None:
        length = max(stage.length for stage in self.recipe.stages)
        export.write_checkpoint(self.model, self.args.work, self.out, length)

    def heads(self) -> str:
        rows = []
        for block in self.model.layers:
            attention = block.attention
            if not hasattr(attention, "prior"):
                return ""
            scale = attention.seq_scale.flatten().tolist() if hasattr(attention, "seq_scale") else [1.0] * 99
            triples = zip(attention.prior.scale.flatten().tolist(), attention.prior.shape.flatten().tolist(), scale)
            rows.append(" ".join(f"({a:.2f} {b:.2f} {s:.2f})" for a, b, s in triples))
        return "  heads (scale shape s) " + " | ".join(rows)

    def run(self) -> None:
        if self.step == 0:
            count = sum(w.numel() for w in self.model.parameters())
            self.log(f"{self.name}: {count} parameters, {self.steps} steps, {json.dumps(vars(self.model.config))}")
        self.model.train()
        while self.step < self.steps:
            start = time.monotonic()
            line = self.train_step()
            self.seconds += time.monotonic() - start
            save = self.step % 50 == 0 or self.step == self.steps
            if save:
                eta = (self.steps - self.step) * self.seconds / self.step / 60
                self.log(f"step {self.step} {line}  {self.seconds:.0f} s, ETA {eta:.1f} min")
            if self.step % self.args.eval_every == 0 and self.step < self.steps:
                self.log(self.validate() + "\n" + self.heads())
            if save:
                self.save()
            if self.step % self.args.export_every == 0 and self.step < self.steps:
                self.export()
        self.export()  # also for a run that was stopped after its last save
        self.log(self.validate() + "\n" + self.heads())
        self.log(f"{self.name}: done in {self.seconds / 60:.1f} min")


def prepare(work: pathlib.Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "train.txt").exists():
        corpus.build(work)
    if not (work / "tokenizer.model").exists():
        tokenizer.train(work, tasks.tokenizer_prompts())
    if not (work / "train.npy").exists():
        tokenizer.encode_corpus(work)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    prepare(args.work)
    recipe = RECIPES[args.recipe]
    if args.no_locality_penalty:
        recipe = dataclasses.replace(recipe, locality=0.0)
    config = Config(
        hidden_size=args.hidden,
        intermediate_size=args.ffn,
        num_layers=args.layers,
        num_heads=args.hidden // 32,
        position_encoding=args.position_encoding,
        ssmax=not args.no_ssmax,
        half_products=recipe.half_products,
    )
    Run(args, recipe, config, args.out, args.out.name).run()


if __name__ == "__main__":
    main()
