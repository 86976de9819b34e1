"""The paper's comparison in miniature: one small network, trained once per position encoding with one recipe.

    study.py --work WORKDIR --out checkpoints/siblings --curves tools/train_demo/curves     all eight, one after the other
    study.py --work WORKDIR --out DIR --curves DIR --only rope-ssmax --seed 2               another seed of one of them
    study.py --work WORKDIR --out DIR --curves DIR --only bam-ssmax --variant alibi-init    one of the paper's ablations

Network, data, seed, batch, steps and schedule are the same for all; no penalty shapes the priors, which start flat
(theta_beta = theta_alpha = 0). A run that is stopped continues where it was last saved and then writes the same bytes.
Two processes with disjoint --only share a WORKDIR. compare.sh evaluates what was written.
"""
import argparse
import csv
import dataclasses
import pathlib
from collections.abc import Callable

import runtime  # noqa: F401  (first: it tunes the process before torch loads)

import torch
import torch.nn.functional as F

import export
import study_tables
import train
from model import Config, Model, alibi_slopes
from study_tasks import StudyTasks
from train import Recipe, Stage

SIBLINGS = ("bam-ssmax", "bam", "alibi-ssmax", "rope-ssmax", "nope-ssmax", "rope_local", "sinusoidal-ssmax", "t5-ssmax")
NETWORK = dict(hidden_size=64, intermediate_size=128, num_layers=4, num_heads=4)

COPY = dict(passkey=0.45, recall=0.10, repetition=0.40, plain_text=0.05)
RETRIEVE = dict(passkey=0.50, niah=0.10, recall=0.10, repetition=0.10, plain_text=0.20)
SHARPEN = dict(passkey=0.50, niah=0.20, recall=0.03, repetition=0.02, plain_text=0.25)
STUDY = Recipe(
    steps=1800,
    decay_steps=1100,
    locality=0.0,
    stages=(
        Stage(250, 64, 4e-3, 30, COPY),
        Stage(800, 128, 4e-3, 30, RETRIEVE),
        Stage(1200, 256, 4e-3, 30, RETRIEVE),
        Stage(1800, 512, 2e-3, 60, SHARPEN),
    ),
    warmup_steps=50,
    tokens_per_step=2048,
    lengths=(64, 128, 256, 512),
    flat_priors=True,
    source=StudyTasks,
)
EVAL_EVERY, PROMPTS = 100, 40


def start_as_alibi(model: Model) -> None:
    for block in model.layers:
        block.attention.prior.shape.data.fill_(1.0)
        block.attention.prior.scale.data.copy_(alibi_slopes(model.config.num_heads).log().view(1, -1, 1, 1))


def learn(*names: str) -> Callable[[Model], None]:
    def adjust(model: Model) -> None:
        for block in model.layers:
            for name, parameter in block.attention.prior.named_parameters():
                parameter.requires_grad = name in names

    return adjust


def up_to(length: int) -> tuple[Stage, ...]:
    return tuple(dataclasses.replace(stage, length=min(stage.length, length)) for stage in STUDY.stages)


# The paper's ablations, of siblings with a prior (those with "learn" and "init") or of all.
VARIANTS = {
    "alibi-init": dataclasses.replace(STUDY, adjust=start_as_alibi),
    "learn-shape": dataclasses.replace(STUDY, adjust=learn("shape")),
    "learn-all": dataclasses.replace(STUDY, adjust=learn("shape", "scale", "loc")),
    "length-256": dataclasses.replace(STUDY, stages=up_to(256)),
    "longer": dataclasses.replace(
        STUDY, steps=2700, decay_steps=1650, stages=tuple(dataclasses.replace(s, until=s.until * 3 // 2) for s in STUDY.stages)
    ),
    # For absolute positions: short sequences stand anywhere up to 512, so that every position is seen from the first step on.
    "shifted": dataclasses.replace(STUDY, shifted_up_to=512),
    # Twice as wide, for sinusoidal positions: position_shift.py says why.
    "wide": STUDY,
    # Context extension: a tenth of the steps at twice the length, from the checkpoint that the recipe wrote.
    "extended": dataclasses.replace(
        STUDY, steps=180, decay_steps=180, warmup_steps=20, stages=(Stage(180, 1024, 2e-3, 60, SHARPEN),), lengths=(1024,)
    ),
    # A second course of `shifted`: as many steps again as it had at 512 tokens and half as many more, from half the learning rates down.
    "polished": dataclasses.replace(
        STUDY, steps=900, decay_steps=1800, warmup_steps=20, stages=(Stage(900, 512, 2e-3, 60, SHARPEN),), shifted_up_to=512
    ),
}
# What goes on from a checkpoint in --trained: the end of that folder's name.
CONTINUED = {"extended": "", "polished": "-shifted"}
# The network that a variant changes instead.
NETWORKS = {"wide": dict(NETWORK, hidden_size=128, intermediate_size=256)}
COLUMNS = ("step", "training_length", "passkey_128", "passkey_512", "text_nats")


class StudyRun(train.Run):
    """Measures its learning curve on held-out prompts and text and keeps it as a small table."""

    def __init__(self, *args, curve_path: pathlib.Path):
        super().__init__(*args)
        self.curve_path = curve_path

    def passkey(self, length: int) -> float:
        """Share of held-out prompts of at most `length` tokens with the answer, evenly spaced depths, all five digits right."""
        prompts = [self.valid.passkey_prompt(length, i / (PROMPTS - 1)) for i in range(PROMPTS)]
        tokens = torch.tensor([prompt + key for prompt, key in prompts])
        end = tokens.shape[1]
        logits = self.model(F.pad(tokens, (0, -end % 16)))[:, end - 6 : end - 1]
        return (logits.argmax(-1) == tokens[:, end - 5 :]).all(1).float().mean().item()

    @torch.no_grad()
    def validate(self) -> str:
        self.model.eval()
        self.valid.rng.seed(7)
        length = next(s.length for s in self.recipe.stages if self.step <= s.until)
        text = torch.tensor([self.valid.text(513) for _ in range(8)])
        nats = F.cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).item()
        row = [self.step, length, round(self.passkey(128), 3), round(self.passkey(512), 3), round(nats, 3)]
        self.model.train()
        self.curve[self.step] = row
        self.curve_path.parent.mkdir(parents=True, exist_ok=True)
        with self.curve_path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *self.curve.values()])
        return f"  passkey at 128: {row[2]:.3f}, at 512: {row[3]:.3f}, text {nats:.3f} nats"


def sibling_config(name: str, variant: str | None = None) -> Config:
    network = NETWORKS.get(variant, NETWORK)
    return Config(position_encoding=name.removesuffix("-ssmax"), ssmax=name.endswith("-ssmax"), **network)


def train_sibling(args, name: str, recipe: Recipe = STUDY) -> StudyRun:
    label = name + (f"-{args.variant}" if args.variant else "") + (f"-seed{args.seed}" if args.seed != 1 else "")
    if args.variant in CONTINUED:
        trained = export.read_checkpoint(args.trained / (name + CONTINUED[args.variant])).state_dict()
        recipe = dataclasses.replace(recipe, adjust=lambda model: model.load_state_dict(trained))
    run_args = argparse.Namespace(**vars(args), lr=0.02, eval_every=EVAL_EVERY, export_every=recipe.steps)
    path = args.curves / f"{label}.csv"
    run = StudyRun(run_args, recipe, sibling_config(name, args.variant), args.out / label, f"study-{label}", curve_path=path)
    run.run()
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--work", type=pathlib.Path, required=True, help="folder for the corpus, tokenizer and run state")
    add("--out", type=pathlib.Path, required=True, help="folder for the checkpoint folders")
    add("--curves", type=pathlib.Path, required=True, help="folder for the learning curves (CSV)")
    add("--only", type=lambda names: names.split(","), default=SIBLINGS, help="comma-separated names")
    add("--seed", type=int, default=1)
    add("--variant", choices=VARIANTS, help="an ablation instead of the recipe")
    add("--trained", type=pathlib.Path, default="checkpoints/siblings", help="folder of the checkpoints that `extended` and `polished` go on from")
    args = parser.parse_args()
    for name in args.only:
        if name not in SIBLINGS:
            parser.error(f"--only: there is no {name}; there are {', '.join(SIBLINGS)}")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    train.prepare(args.work)
    for name in args.only:
        train_sibling(args, name, VARIANTS[args.variant] if args.variant else STUDY)
    print(study_tables.learning(args.curves))


if __name__ == "__main__":
    main()
