"""Writes a checkpoint folder: config.json, safetensors (one file or shards), tokenizer files.

The folder appears only when it is complete: everything is written beside it first and renamed at the end.
"""
import contextlib
import json
import math
import pathlib
import re
import shutil
import struct
import tempfile
from typing import Callable, Iterable, Iterator, NamedTuple

from bamlib.failure import UsageFailure

DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
TORCH_DTYPE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ALIGNMENT = 64
CHECKPOINT_FILE = re.compile(
    r"config\.json|generation_config\.json|tokenizer_config\.json|tokenizer\.model|"
    r"model\.safetensors|model\.safetensors\.index\.json|model-\d{5}-of-\d{5}\.safetensors"
)


class TensorSpec(NamedTuple):
    name: str
    dtype: str  # a key of DTYPE_BYTES
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * DTYPE_BYTES[self.dtype]


# Gives the little-endian bytes of a tensor, in as many pieces as it likes.
Producer = Callable[[TensorSpec], Iterable[bytes | memoryview]]


def parse_size(text: str) -> int:
    """'500MB', '4GiB', '1000000' -> bytes."""
    match = re.fullmatch(r"(\d+)\s*([KMG]i?)?B?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a size such as 500MB or 4GiB")
    unit = (match[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    return int(match[1]) * base ** " kmg".index(unit[0] if unit else " ")


def split_into_shards(specs: list[TensorSpec], max_shard_bytes: int | None) -> list[list[TensorSpec]]:
    """Fills shards in order; a tensor larger than the limit gets a shard of its own."""
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        if max_shard_bytes and shards[-1] and size + spec.num_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.num_bytes
    return shards


def write_safetensors(path: pathlib.Path, specs: list[TensorSpec], produce: Producer) -> None:
    # Tensors whose size would push the next one off its alignment come last.
    ordered = sorted(specs, key=lambda spec: spec.num_bytes % ALIGNMENT != 0)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in ordered:
        end = offset + spec.num_bytes
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)

    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for spec in ordered:
            start = file.tell()
            for piece in produce(spec):
                file.write(piece)
            written = file.tell() - start
            if written != spec.num_bytes:
                raise AssertionError(f"{spec.name}: {written} bytes written, {spec.num_bytes} declared")


def write_tensors(folder: pathlib.Path, specs: list[TensorSpec], produce: Producer,
                  max_shard_bytes: int | None = None) -> list[str]:
    """Writes model.safetensors, or shards with their index; returns the file names."""
    shards = split_into_shards(specs, max_shard_bytes)
    if len(shards) == 1:
        write_safetensors(folder / "model.safetensors", shards[0], produce)
        return ["model.safetensors"]
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards):
        write_safetensors(folder / name, shard, produce)
    index = {
        "metadata": {"total_size": sum(spec.num_bytes for spec in specs)},
        "weight_map": {spec.name: name for name, shard in zip(names, shards) for spec in shard},
    }
    write_json(folder / "model.safetensors.index.json", index)
    return names


def count_parameters(specs: list[TensorSpec]) -> int:
    return sum(spec.num_elements for spec in specs)


def describe_tensors(specs: list[TensorSpec], files: list[str], num_parameters: int | None = None) -> str:
    """'0.6M parameters, 2.4 MiB in 1 file'; the number must be given where a parameter is not an element."""
    num_parameters = num_parameters or count_parameters(specs)
    mebibytes = sum(spec.num_bytes for spec in specs) / 2**20
    return (f"{num_parameters / 1e6:.1f}M parameters, {mebibytes:.1f} MiB in "
            f"{len(files)} file{'s' if len(files) > 1 else ''}")


def write_json(path: pathlib.Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def new_checkpoint_folder(out: pathlib.Path, overwrite: bool) -> Iterator[pathlib.Path]:
    """A temporary folder that becomes `out` when the block ends without an exception."""
    out = out.absolute()
    if out.exists():
        if not out.is_dir():
            raise UsageFailure(f"{out} exists and is not a folder")
        entries = [entry.name for entry in out.iterdir()]
        if entries and not overwrite:
            raise UsageFailure(f"{out} is not empty; use --overwrite to replace the checkpoint in it")
        foreign = [name for name in entries if not CHECKPOINT_FILE.fullmatch(name)]
        if foreign:
            raise UsageFailure(f"{out} holds files that are no part of a checkpoint ({foreign[0]}); not overwriting it")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield staging
        staging.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def write_tokenizer(folder: pathlib.Path, tokenizer: pathlib.Path, add_bos: bool) -> None:
    shutil.copyfile(tokenizer, folder / "tokenizer.model")
    write_json(folder / "tokenizer_config.json", {"add_bos_token": add_bos, "add_eos_token": False})
