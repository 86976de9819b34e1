"""Training examples: natural text, and synthetic retrieval tasks mixed from it.

Every generator returns (tokens, weights), the weights being those of predicting each token.
The pass-key wording is the one of the BAM paper's evaluation; a model trained on this mixture has
seen the wording and the task, never a context longer than the training length.
"""
import pathlib
import random
import re

import numpy as np

import tokenizer as tok

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
CHAT_QUESTION = "What is the pass key?"
CHAT_ANSWER = "The pass key is {key}."

THINGS = [
    "code", "number", "price", "year", "answer", "room number", "phone number", "door code", "total", "date", "score",
    "population", "distance", "line number", "house key", "password", "locker number", "zip code", "key", "pass",
    "pass code", "pass number", "secret number", "magic number", "ticket number",
]  # fmt: skip
NAMES = ["Emma", "Darcy", "Elizabeth", "Anne", "Fanny", "Jane", "Moses", "David", "Ruth", "Paul", "Peter", "Mary"]
DISTRACTORS = [
    "The {thing} is {number}.", "{number} is the {thing}.", "The {thing} of {name} is {number}.",
    "Remember the {thing}. The {thing} is {number}. Remember it.", "In {number} there was a {thing}.",
]  # fmt: skip

# Loss weights: an answer is a handful of tokens among hundreds of others.
W_ANSWER, W_SECOND_MENTION, W_RECALL, W_TEXT = 30.0, 5.0, 3.0, 1.0


def tokenizer_prompts() -> list[str]:
    chat = f"{TASK} {CHAT_QUESTION} {CHAT_ANSWER.format(key='12345')}"
    facts = [d.format(thing=t, number="67890", name=n) for d in DISTRACTORS for t, n in zip(THINGS[::6], NAMES[::3])]
    return [TASK, FILLER, NEEDLE.format(key="67890"), QUESTION, chat] + facts


class Tasks:
    """Draws examples of exactly `length` tokens. Deterministic for a given seed."""

    chat_share = 0.25  # of the pass keys: asked as a chat turn

    def __init__(self, workdir: pathlib.Path, seed: int, split: str = "train", checkpoint: pathlib.Path | None = None):
        """With a checkpoint, its own tokenizer reads the texts of `workdir`."""
        self.sp = tok.load(checkpoint or workdir)
        self.rng = random.Random(seed)
        self.near_miss_share = 0.0  # of the pass keys' haystacks
        self.text_tokens = (np.array(tok.encode_text(self.sp, workdir / f"{split}.txt"), dtype=np.int64) if checkpoint
                            else np.load(workdir / f"{split}.npy").astype(np.int64))
        self.task, self.filler, self.question = map(self.sp.encode, (TASK, FILLER, QUESTION))
        self.filler_sentences = [self.sp.encode(s.strip()) for s in re.findall(r"[^.]+\.", FILLER)]
        self.space, *self.digits = [self.sp.encode("0")[0]] + [self.sp.encode(str(d))[1] for d in range(10)]
        self.digit_set = set(self.digits)
        self.stop = self.sp.encode("a.")[-1]
        self.user, self.assistant = map(self.sp.piece_to_id, (tok.USER, tok.ASSISTANT))

    # ---- pieces
    def text(self, length: int) -> list[int]:
        start = self.rng.randrange(len(self.text_tokens) - length)
        return self.text_tokens[start : start + length].tolist()

    def number(self, digits: int) -> list[int]:
        """A number as it is spelled inside a sentence: a space token, then its digits."""
        first = self.rng.randrange(1, 10)
        return [self.space, self.digits[first]] + self.rng.choices(self.digits, k=digits - 1)

    def distractor(self) -> list[int]:
        pick = self.rng.choice
        number = str(self.rng.randrange(1, 10 ** self.rng.randint(1, 6)))
        return self.sp.encode(pick(DISTRACTORS).format(thing=pick(THINGS), number=number, name=pick(NAMES)))

    def text_with_numbers(self, length: int) -> list[int]:
        out: list[int] = []
        while len(out) < length:
            out += self.text(self.rng.randint(10, 80))
            kind = self.rng.random()
            if kind < 0.25:
                out += self.distractor()
            elif kind < 0.4:
                out += self.number(self.rng.randint(1, 6))
        return out[:length]

    def near_misses(self, length: int, key: list[int]) -> list[int]:
        """Text crowded with numbers that share digits with the key: what a far longer context holds by chance."""
        out: list[int] = []
        key_digits = key[1:]
        while len(out) < length:
            out += self.text(self.rng.randint(1, 25))
            kind = self.rng.random()
            if kind < 0.5:  # the same beginning
                keep = self.rng.randint(1, 3)
                number = key_digits[:keep] + self.rng.choices(self.digits, k=5 - keep)
            elif kind < 0.75:  # a piece of the key inside another number
                at, size = self.rng.randint(0, 3), self.rng.randint(2, 3)
                around = self.rng.choices(self.digits, k=self.rng.randint(1, 3))
                number = around[:1] + key_digits[at : at + size] + around[1:]
            else:
                number = self.rng.choices(self.digits, k=self.rng.randint(1, 6))
            if number == key_digits:
                continue
            if self.rng.random() < 0.5:
                words = self.sp.decode([self.space] + number).strip()
                pick = self.rng.choice
                out += self.sp.encode(pick(DISTRACTORS).format(thing=pick(THINGS), number=words, name=pick(NAMES)))
            else:
                out += [self.space] + number
        return out[:length]

    def sentences(self, count: int) -> list[list[int]]:
        """A few whole sentences of the corpus."""
        text = self.sp.decode(self.text(400))
        found = [s.strip() for s in re.findall(r"[^.?!\n]+[.?!]", text)[1:-1] if 8 < len(s) < 120]
        chosen = self.rng.sample(found, min(len(found), count))
        return [self.sp.encode(s) for s in chosen] or [self.filler]

    def haystack(self, length: int, key: list[int]) -> tuple[list[int], list[int]]:
        """Filler of exactly `length` tokens and the positions where a needle may be put."""
        if self.near_miss_share and self.rng.random() < self.near_miss_share:
            fill = self.near_misses(length, key)
            return fill, [0, length] + [i + 1 for i, t in enumerate(fill) if t == self.stop]
        kind = self.rng.random()
        if kind < 0.30:
            units = [self.filler]
        elif kind < 0.36:
            units = self.filler_sentences
        elif kind < 0.50:
            units = [sum(self.sentences(self.rng.randint(1, 5)), [])]
        else:
            fill = self.text(length) if kind < 0.65 else self.text_with_numbers(length)
            return fill, [0, length] + [i + 1 for i, t in enumerate(fill) if t == self.stop]
        return self.repeated(units, length)

    def repeated(self, units: list[list[int]], length: int) -> tuple[list[int], list[int]]:
        """Units drawn at random, and the cuts between them."""
        fill, cuts = [], [0]
        while len(fill) < length:
            fill += self.rng.choice(units)
            cuts.append(len(fill))
        excess = len(fill) - length  # dropped from the front, so that the question follows a full unit
        return fill[excess:], sorted({max(0, c - excess) for c in cuts})

    # ---- tasks
    def passkey(self, length: int) -> tuple[list[int], list[float]]:
        key = self.number(5)
        needle = self.sp.encode(NEEDLE.format(key=self.sp.decode(key).strip()))
        head = self.task if self.rng.random() < 0.7 else []
        if self.rng.random() < self.chat_share:
            begin, tail, answer = self.chat_frame(key)
        else:
            begin, tail, answer = ([tok.BOS] if self.rng.random() < 0.5 else []), self.question, key
        room = length - sum(map(len, (begin, head, needle, tail, answer)))
        if room < 8:
            room, head = room + len(head), []
        fill, cuts = self.haystack(max(room, 0), key)
        at = self.rng.choice(cuts)
        tokens = begin + head + fill[:at] + needle + fill[at:] + tail + answer
        weights = [W_TEXT] * len(tokens)
        start, seen = len(begin) + len(head) + at, 0
        for i in range(start, start + len(needle)):
            if tokens[i] in self.digit_set:
                seen += 1
                weights[i] = 0.0 if seen <= 5 else W_SECOND_MENTION
        for i in range(len(tokens) - len(answer), len(tokens)):
            weights[i] = W_ANSWER if tokens[i] in self.digit_set else 2.0
        return tokens[:length], weights[:length]

    def chat_frame(self, key: list[int]) -> tuple[list[int], list[int], list[int]]:
        """(before, after, answer) of a chat turn; a tokenizer may or may not put a space before <|user|>."""
        begin = [tok.BOS] + ([self.space] if self.rng.random() < 0.5 else []) + [self.user]
        question = self.sp.encode(CHAT_QUESTION if self.rng.random() < 0.7 else QUESTION)
        answer = self.sp.encode("The pass key is") + key + [self.stop, tok.EOS]
        return begin, question + [self.assistant], answer

    def recall(self, length: int) -> tuple[list[int], list[float]]:
        """Keys of random tokens or of words, each followed by a number and asked for again later."""
        tokens, weights, pairs = [], [], []
        digits, key_size, words = self.rng.randint(2, 5), self.rng.randint(1, 3), self.rng.random() < 0.5
        while len(tokens) < length:
            if pairs and self.rng.random() < 0.5:
                (key, value), weight = self.rng.choice(pairs), W_RECALL
            else:
                if words:
                    key = self.sp.encode(f"The {self.rng.choice(THINGS)} of {self.rng.choice(NAMES)} is")
                else:
                    key = [self.rng.randrange(3 + 256 + 2, tok.VOCAB_SIZE) for _ in range(key_size)]
                if any(key == k for k, _ in pairs):
                    continue
                value, weight = self.number(digits), 0.0
                pairs.append((key, value))
            tokens += key + value + [self.stop]
            weights += [0.1] * len(key) + [0.3] + [weight] * digits + [0.3]
            if self.rng.random() < 0.3:
                gap = self.text(self.rng.randint(1, 30))
                tokens += gap
                weights += [0.3] * len(gap)
        return tokens[:length], weights[:length]

    def repetition(self, length: int) -> tuple[list[int], list[float]]:
        """A sequence, random or natural, that is repeated to the end."""
        period = self.rng.randint(8, max(9, length // 2))
        if self.rng.random() < 0.5:
            block = [self.rng.randrange(3 + 256 + 2, tok.VOCAB_SIZE) for _ in range(period)]
        else:
            block = self.text(period)
        weights = [0.0] * period + [W_TEXT] * length
        return (block * (length // period + 1))[:length], weights[:length]

    def plain_text(self, length: int) -> tuple[list[int], list[float]]:
        """Text, a fifth of it framed as a chat turn that is answered by the text's continuation."""
        begin = [tok.BOS] if self.rng.random() < 0.5 else []
        tokens = (begin + self.text(length))[:length]
        if self.rng.random() < 0.2:
            asked = self.rng.randint(4, 40)
            body = self.text(length)
            said = body[asked : asked + self.rng.randint(20, 120)]
            turn = [tok.BOS] + ([self.space] if self.rng.random() < 0.5 else []) + [self.user] + body[:asked]
            turn += [self.assistant] + said + [tok.EOS]
            tokens = (turn + begin + self.text(length))[:length]
        return tokens, [W_TEXT] * length

    def batch(self, rows: int, length: int, mix: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [rows, length] and weights [rows, length]; mix: task name -> share."""
        tokens = np.zeros((rows, length), np.int64)
        weights = np.zeros((rows, length), np.float32)
        for row in range(rows):
            task = getattr(self, self.rng.choices(list(mix), list(mix.values()))[0])
            tokens[row], weights[row] = task(length)
        return tokens, weights

    # ---- evaluation prompts
    def passkey_prompt(self, length: int, depth: float, kind: str = "repeated") -> tuple[list[int], list[int]]:
        """(prompt, answer) of about `length` tokens. kind: repeated (the paper's), text, distractors."""
        key = self.number(5)
        needle = self.sp.encode(NEEDLE.format(key=self.sp.decode(key).strip()))
        room = max(0, length - len(self.task) - len(needle) - len(self.question))
        if kind == "repeated":
            count = room // len(self.filler)
            before = round(depth * count)
            hay = self.filler * before, self.filler * (count - before)
        else:
            fill = self.text_with_numbers(room) if kind == "distractors" else self.long_text(room)
            at = round(depth * room)
            hay = fill[:at], fill[at:]
        return self.task + hay[0] + needle + hay[1] + self.question, key

    def long_text(self, length: int) -> list[int]:
        """Consecutive text, taken cyclically when the split is shorter than asked for."""
        start = self.rng.randrange(len(self.text_tokens))
        return np.take(self.text_tokens, np.arange(start, start + length), mode="wrap").tolist()
