"""Trains the sentencepiece tokenizer and encodes the corpus.

    tokenizer.py WORKDIR   reads {train,valid}.txt, writes tokenizer.model and {train,valid}.npy

The settings are those of the Mistral/Llama family (identity normalisation, dummy prefix, byte
fallback, every digit its own token) with a vocabulary of 1024, so a server needs no special case.
"""
import argparse
import io
import pathlib
import random

import numpy as np
import sentencepiece as spm

VOCAB_SIZE = 1024
UNK, BOS, EOS = 0, 1, 2
USER, ASSISTANT = "<|user|>", "<|assistant|>"


def train(workdir: pathlib.Path, prompts: list[str]) -> None:
    """prompts: sentences of the synthetic tasks, added so that their words get whole pieces."""
    lines = (workdir / "train.txt").read_text().splitlines()
    sample = random.Random(0).sample(lines, min(len(lines), 12000)) + prompts * 60
    model = io.BytesIO()  # a file name would be written into the model
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sample),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB_SIZE,
        user_defined_symbols=[USER, ASSISTANT],
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=-1,
        byte_fallback=True,
        split_digits=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
        max_sentence_length=20000,
        num_threads=1,
        minloglevel=2,
    )
    (workdir / "tokenizer.model").write_bytes(model.getvalue())


def encode_text(processor: spm.SentencePieceProcessor, path: pathlib.Path) -> list[int]:
    """Paragraphs are joined by a newline (a byte token), which ends a chat answer's paragraph too."""
    newline = processor.piece_to_id("<0x0A>")
    ids: list[int] = []
    for line in path.read_text().splitlines():
        ids += processor.encode(line) + [newline]
    return ids


def encode_corpus(workdir: pathlib.Path) -> None:
    processor = load(workdir)
    for name in ("train", "valid"):
        ids = encode_text(processor, workdir / f"{name}.txt")
        np.save(workdir / f"{name}.npy", np.array(ids, dtype=np.uint16))
        print(f"{name}: {len(ids)} tokens")


def load(workdir: pathlib.Path) -> spm.SentencePieceProcessor:
    return spm.SentencePieceProcessor(model_file=str(workdir / "tokenizer.model"))


if __name__ == "__main__":
    import tasks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=pathlib.Path)
    folder = parser.parse_args().workdir
    train(folder, tasks.tokenizer_prompts())
    encode_corpus(folder)
