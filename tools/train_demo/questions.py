"""What the demo model is asked besides the pass key: facts in many wordings, and RULER's needles with one key or several.

An answer is a number of 4 to 7 digits or a word; a question may ask for two at once, as a completion or as a chat turn.
"""
import tasks
import tokenizer as tok

# RULER's needles in the wordings of `bam passkey --task niah_*`; tests/tools/test_study.py holds them against that program.
NIAH_HEAD = "A special magic {kind} is hidden in the text that follows. Memorize it: I will ask you about the {kind} afterwards."
NIAH_HEAD_MANY = (
    "Special magic {kind}s are hidden in the text that follows. Memorize them: I will ask you about the {kind}s afterwards."
)
NIAH_NEEDLE = "A special magic {kind} for {key} is: {value}."
NIAH_QUESTION = "What is the special magic {kind} for {key} mentioned in the text?"
NIAH_ANSWER = "The special magic {kind} for {key} mentioned in the text is"
ADJECTIVES = (
    "amber", "bitter", "black", "blue", "brave", "bright", "brown", "calm", "clear", "cold", "dark", "deep", "early", "fair",
    "free", "golden", "grand", "gray", "happy", "heavy", "hidden", "high", "kind", "large", "late", "light", "little", "lonely",
    "old", "plain", "proud", "quick", "quiet", "rare", "red", "rich", "round", "silent", "silver", "simple", "warm", "young",
)  # fmt: skip
NOUNS = (
    "anchor", "apple", "beach", "bell", "bird", "boat", "book", "bridge", "candle", "castle", "chair", "city", "cloud", "door",
    "dream", "field", "fire", "flower", "forest", "friend", "garden", "harbor", "hill", "horse", "house", "island", "lake",
    "lamp", "leaf", "letter", "lion", "market", "morning", "mountain", "night", "ocean", "paper", "queen", "river", "road",
    "room", "ship", "song", "stone", "storm", "story", "street", "summer", "table", "tower", "village", "window",
)  # fmt: skip
# A fact's value follows what it belongs to: only then can one look back find it.
FACTS = (
    "The {thing} of the {place} is {value}.", "The {thing} of the {place} is: {value}.", "The {thing} for the {place} is {value}.",
    "Remember: the {thing} of the {place} is {value}.", "For the {place} the {thing} is {value}.", "The {place} has the {thing} {value}.",
    "Please note that the {thing} of the {place} is {value}.",
)  # fmt: skip
QUESTIONS = (
    "What is the {thing} of the {place}?", "What is the {thing} for the {place}?", "Tell me the {thing} of the {place}.",
    "Which {thing} does the {place} have?", "Question: what is the {thing} of the {place}?", "Do you remember the {thing} of the {place}?",
)  # fmt: skip
QUESTION_OF_TWO = "What is the {thing} of the {place}, and what is the {thing} of the {other}?"
ANSWER = "The {thing} of the {place} is"
CHAT_SHARE, TWO_SHARE, WORD_SHARE, SHARED_WORD = 0.35, 0.4, 0.2, 0.4


class Questions(tasks.Tasks):
    """The pass-key tasks and, beside them, facts and needles."""

    def value(self) -> str:
        if self.rng.random() < WORD_SHARE:
            return self.rng.choice(ADJECTIVES + NOUNS)
        digits = self.rng.choice((4, 5, 5, 6, 7, 7))
        return str(self.rng.randrange(10 ** (digits - 1), 10**digits))

    def hidden_in(self, fill, cuts: list[int], needles: list[list[int]]) -> list[int]:
        tokens, at = [], 0
        for place, needle in sorted(zip(self.rng.choices(cuts, k=len(needles)), needles)):
            tokens += fill[at:place] + needle
            at = place
        return tokens + fill[at:]

    def asked(self, length: int, head: list[int], needles, question: str, answers: list[tuple[str, str]], plain: bool):
        """An example: needles in a haystack, the question and its answers, each a (beginning, value)."""
        encode = self.sp.encode
        chat = self.rng.random() < CHAT_SHARE
        begin, tail, end = ([tok.BOS] if self.rng.random() < 0.5 else []), encode(question), []
        if chat:
            begin, tail, end = [tok.BOS] + ([self.space] if self.rng.random() < 0.5 else []) + [self.user], tail + [self.assistant], [tok.EOS]
        said, weights = [], []
        for beginning, value in answers:
            first, rest = encode(beginning), encode(f"{value}.")
            said += first + rest
            number = rest[1] in self.digit_set
            weights += [tasks.W_TEXT * 2] * len(first) + ([2.0] if number else []) + [tasks.W_ANSWER] * (len(rest) - 1 - number) + [2.0]
        said, weights = said + end, weights + [2.0] * len(end)
        room = length - len(begin) - sum(map(len, (head, tail, said, *needles)))
        if room < 8:
            room, head = room + len(head), []
        if room < 0:
            return None
        fill, cuts = self.repeated([self.filler], room) if plain else self.haystack(room, self.number(5))
        tokens = begin + head + self.hidden_in(fill, cuts, needles) + tail
        return tokens + said, [tasks.W_TEXT] * len(tokens) + weights

    def fact(self, length: int) -> tuple[list[int], list[float]]:
        pick = self.rng.choice
        many = self.rng.randint(1, 4) if length > 128 else self.rng.randint(1, 2)
        thing, place = pick(tasks.THINGS), pick(NOUNS)
        facts = {(thing, place): self.value()}
        while len(facts) < many:  # the others share the thing or the place, or nothing
            kind = self.rng.random()
            other = (thing if kind < 0.5 else pick(tasks.THINGS), place if kind > 0.8 else pick(NOUNS))
            facts.setdefault(other, self.value())
        needles = [self.sp.encode(pick(FACTS).format(thing=t, place=p, value=v)) for (t, p), v in facts.items()]
        same = [p for t, p in facts if t == thing and p != place]
        if same and self.rng.random() < TWO_SHARE:
            other = pick(same)
            question = QUESTION_OF_TWO.format(thing=thing, place=place, other=other)
            answers = [(ANSWER.format(thing=thing, place=p), facts[thing, p]) for p in (place, other)]
        else:
            question = pick(QUESTIONS).format(thing=thing, place=place)
            answers = [(ANSWER.format(thing=thing, place=place), facts[thing, place])]
        return self.asked(length, [], needles, question, answers, False) or self.passkey(length)

    def niah(self, length: int) -> tuple[list[int], list[float]]:
        """RULER's single_1 (in filler), single_2 and multikey_1 (two to four keys, in text)."""
        pick = self.rng.choice
        many = 1 if length < 192 or self.rng.random() < 0.45 else self.rng.randint(2, 4 if length > 256 else 2)
        pairs: dict[str, str] = {}
        adjective, noun = pick(ADJECTIVES), pick(NOUNS)
        while len(pairs) < many:
            if pairs and self.rng.random() < SHARED_WORD:  # another key with one of the words
                key = (adjective, pick(NOUNS)) if self.rng.random() < 0.5 else (pick(ADJECTIVES), noun)
            else:
                key = (pick(ADJECTIVES), pick(NOUNS)) if pairs else (adjective, noun)
            pairs.setdefault("-".join(key), str(self.rng.randrange(10**6, 10**7)))
        asked = f"{adjective}-{noun}"
        needles = [self.sp.encode(NIAH_NEEDLE.format(kind="number", key=key, value=value)) for key, value in pairs.items()]
        head = self.sp.encode((NIAH_HEAD_MANY if many > 1 else NIAH_HEAD).format(kind="number"))
        question = NIAH_QUESTION.format(kind="number", key=asked)
        answers = [(NIAH_ANSWER.format(kind="number", key=asked), pairs[asked])]
        return self.asked(length, head, needles, question, answers, many == 1 and self.rng.random() < 0.5) or self.passkey(length)
