"""Reads what a checkpoint needs to know of a sentencepiece model file: its size and its special tokens."""
import pathlib
from typing import Iterator, NamedTuple

from bamlib.failure import UsageFailure

# Field numbers of sentencepiece's ModelProto.
MODEL_PIECES, MODEL_TRAINER_SPEC = 1, 2
TRAINER_BOS_ID, TRAINER_EOS_ID = 41, 42
DEFAULT_BOS_ID, DEFAULT_EOS_ID = 1, 2


class TokenizerInfo(NamedTuple):
    vocab_size: int
    bos_id: int  # -1: none
    eos_id: int


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message; fixed-width and length-delimited values as bytes."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        wire_type = key & 7
        if wire_type == 0:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if wire_type == 2:
            size, at = read_varint(data, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if at + size > len(data):
            raise ValueError("field past the end")
        yield key >> 3, data[at : at + size]
        at += size


def as_int32(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("an id is not a number")
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def read_tokenizer(path: pathlib.Path) -> TokenizerInfo:
    """Raises UsageFailure when the file is not a sentencepiece model."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageFailure(f"tokenizer {path}: {error.strerror}") from None
    vocab_size, bos_id, eos_id = 0, DEFAULT_BOS_ID, DEFAULT_EOS_ID
    try:
        for number, value in read_fields(data):
            if number == MODEL_PIECES:
                vocab_size += 1
            elif number == MODEL_TRAINER_SPEC and isinstance(value, bytes):
                for spec_number, spec_value in read_fields(value):
                    if spec_number == TRAINER_BOS_ID:
                        bos_id = as_int32(spec_value)
                    elif spec_number == TRAINER_EOS_ID:
                        eos_id = as_int32(spec_value)
    except (ValueError, IndexError):
        vocab_size = 0
    if vocab_size == 0 or bos_id >= vocab_size or eos_id >= vocab_size:
        raise UsageFailure(f"tokenizer {path}: not a sentencepiece model")
    return TokenizerInfo(vocab_size, bos_id, eos_id)
