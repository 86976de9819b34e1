"""The siblings' mixture: the demo model's tasks without number distractors and chat, and RULER's single needles.

A network of 0.3 M parameters has to learn it within minutes whatever its position encoding, so the haystacks are plain,
and the tokens that say nothing about retrieval are mostly left out of the loss, which also spares the output head.
"""
import questions
import tasks
import tokenizer as tok
from questions import ADJECTIVES, NIAH_HEAD, NIAH_HEAD_MANY, NIAH_NEEDLE, NOUNS

NIAH_QUESTION = f"{questions.NIAH_QUESTION} {questions.NIAH_ANSWER}"
MAGIC_DIGITS = 7
UUID_GROUPS = (8, 4, 4, 4, 12)
COUNTED_FILLER = 0.125  # of the tokens around needle and answer
SHORTEST_PASSKEY, SHORTEST_NEEDLE = 48, 200  # tokens


class StudyTasks(tasks.Tasks):
    chat_share = 0.0

    def haystack(self, length: int, key: list[int]) -> tuple[list[int], list[int]]:
        kind = self.rng.random()
        if kind < 0.60:
            units = [self.filler]
        elif kind < 0.75:
            units = self.filler_sentences
        elif kind < 0.85:
            units = [sum(self.sentences(self.rng.randint(1, 5)), [])]
        else:
            return self.text_haystack(length)
        return self.repeated(units, length)

    def text_haystack(self, length: int) -> tuple[list[int], list[int]]:
        fill = self.text(length)
        return fill, [0, length] + [i + 1 for i, t in enumerate(fill) if t == self.stop]

    def thin_out(self, weights: list[float]) -> list[float]:
        """Ordinary tokens are counted now and then, so that the model keeps knowing the wording."""
        return [w if w != tasks.W_TEXT or self.rng.random() < COUNTED_FILLER else 0.0 for w in weights]

    def placed(self, example, shortest: int, length: int) -> tuple[list[int], list[float]]:
        """Half of the examples stand anywhere in a longer text, so that answers are asked for at all positions."""
        own = length if self.rng.random() < 0.5 else self.rng.randint(min(shortest, length), length)
        before = self.rng.randint(0, length - own)
        tokens, weights = example(own)
        tokens = self.text(before) + tokens + self.text(length - own - before)
        return tokens, self.thin_out([tasks.W_TEXT] * before + weights + [tasks.W_TEXT] * (length - own - before))

    def passkey(self, length: int) -> tuple[list[int], list[float]]:
        return self.placed(super().passkey, SHORTEST_PASSKEY, length)

    def niah(self, length: int) -> tuple[list[int], list[float]]:
        return self.placed(self.needle, SHORTEST_NEEDLE, length)

    def repetition(self, length: int) -> tuple[list[int], list[float]]:
        """A sequence that is repeated to the end: text, or tokens drawn from few, some or all."""
        period = self.rng.randint(4, max(5, min(64, length // 2)))
        if self.rng.random() < 0.7:
            size = self.rng.choice((10, 20, 760))
            letters = self.digits if size == 10 else self.rng.sample(range(tok.VOCAB_SIZE - 763, tok.VOCAB_SIZE), size)
            block = self.rng.choices(letters, k=period)
        else:
            block = self.text(period)
        weights = [0.0] * period + [tasks.W_TEXT] * length
        return (block * (length // period + 1))[:length], weights[:length]

    # ---- RULER's needles
    def uuid(self) -> str:
        return "-".join("".join(self.rng.choices("0123456789abcdef", k=size)) for size in UUID_GROUPS)

    def needle(self, length: int) -> tuple[list[int], list[float]]:
        """One of single_1 (filler), single_2 (text), single_3 (text, a UUID) and multikey_1 (text, four keys)."""
        variant = self.rng.choice(("single_1", "single_1", "single_2", "single_2", "single_3", "multikey_1"))
        if length < 384 and variant == "multikey_1":
            variant = "single_1"
        kind = "uuid" if variant == "single_3" else "number"
        many = 4 if variant == "multikey_1" else 1
        pairs: dict[str, str] = {}
        while len(pairs) < many:
            key = f"{self.rng.choice(ADJECTIVES)}-{self.rng.choice(NOUNS)}"
            number = str(self.rng.randrange(10 ** (MAGIC_DIGITS - 1), 10**MAGIC_DIGITS))
            pairs[key] = self.uuid() if kind == "uuid" else number
        asked = self.rng.choice(list(pairs))
        encode = self.sp.encode
        needles = [encode(NIAH_NEEDLE.format(kind=kind, key=key, value=value)) for key, value in pairs.items()]
        head = encode((NIAH_HEAD_MANY if many > 1 else NIAH_HEAD).format(kind=kind))
        tail, answer = encode(NIAH_QUESTION.format(kind=kind, key=asked)), encode(f"{pairs[asked]}.")
        room = length - sum(map(len, (head, tail, answer, *needles)))
        if room < 8:
            room, head = room + len(head), []
        if room < 0:
            return super().passkey(length)
        fill, cuts = self.text_haystack(room) if variant != "single_1" else self.repeated([self.filler], room)
        places = sorted(zip(self.rng.choices(cuts, k=many), needles))
        tokens, at = list(head), 0
        for place, needle in places:
            tokens += fill[at:place] + needle
            at = place
        tokens += fill[at:] + tail
        weights = [tasks.W_TEXT] * len(tokens)
        weight = tasks.W_SECOND_MENTION if kind == "uuid" else tasks.W_ANSWER  # a UUID has 36 characters
        return tokens + answer, weights + [2.0] + [weight] * (len(answer) - 2) + [2.0]
