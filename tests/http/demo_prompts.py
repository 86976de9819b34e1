"""Passkey prompts for the tests of the bundled model, written apart from the ones of `bam passkey`."""

import bamtest

MODEL = str(bamtest.ROOT / "checkpoints" / "demo")
UNSHAPED = str(bamtest.ROOT / "checkpoints" / "siblings" / "bam-ssmax")
TWIN = str(bamtest.ROOT / "checkpoints" / "demo-twin")
TASK = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about the "
        "important information there.")
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = "What is the pass key? The pass key is"


def key_for(length, depth):
    """Five digits that differ from prompt to prompt."""
    return str(10000 + (length * 7919 + round(depth * 1000) * 104729) % 90000)


def line_with(key):
    return f"The pass key is {key}. Remember it. {key} is the pass key."


def tokens_of(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}, timeout=300).json()["tokens"]


def passkey_ids(server, length, depth):
    """(ids of at most `length` tokens and less than one filler below it, key): pieces tokenised one by one, as the paper does."""
    key = key_for(length, depth)
    task, filler, line, question = (tokens_of(server, text) for text in (TASK, FILLER, line_with(key), QUESTION))
    count = (length - len(task) - len(line) - len(question)) // len(filler)
    before = round(depth * count)
    return task + filler * before + line + filler * (count - before) + question, key


def passkey_text(server, length, depth):
    """The same as one text, the way a person would send it."""
    key = key_for(length, depth)
    rest = len(tokens_of(server, " ".join((TASK, line_with(key), QUESTION))))
    count = (length - rest) // len(tokens_of(server, FILLER))
    before = round(depth * count)
    return " ".join([TASK, *[FILLER] * before, line_with(key), *[FILLER] * (count - before), QUESTION]), key
