"""Builds the training text from public-domain books that Debian packages.

    corpus.py WORKDIR   downloads the packages (no root, nothing is installed) and writes
                        WORKDIR/train.txt and WORKDIR/valid.txt, one paragraph per line.

Sources and licences are listed in README.md; every text is out of copyright.
"""
import argparse
import gzip
import io
import os
import pathlib
import re
import struct
import subprocess
import zlib

PACKAGES = ["r-cran-janeaustenr", "bible-kjv", "bible-kjv-text", "dict-devil", "miscfiles"]
VALID_SHARE = 0.03  # the last part of every source is held out


def unpack_packages(workdir: pathlib.Path) -> pathlib.Path:
    """Downloads the .deb files with apt and unpacks them below workdir; returns the root folder."""
    root = workdir / "packages"
    root.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not list(root.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", "-qq", package], cwd=root, check=True)
        deb = next(root.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", deb.name, "tree"], cwd=root, check=True)
    return root / "tree"


def read_r_strings(rdb: bytes) -> list[list[str]]:
    """The character vectors of an R lazy-load database: zlib blobs of XDR-serialised STRSXPs."""
    vectors, offset = [], 0
    while offset < len(rdb):
        inflate = zlib.decompressobj()
        blob = inflate.decompress(rdb[offset + 4 :])  # 4 bytes: inflated size
        offset = len(rdb) - len(inflate.unused_data)
        stream = io.BytesIO(blob)
        stream.seek(2 + 12)  # "X\n", format version, writer, minimal reader
        encoding_size = struct.unpack(">i", stream.read(4))[0]
        stream.seek(encoding_size, os.SEEK_CUR)
        flags, count = struct.unpack(">ii", stream.read(8))
        if flags & 0xFF != 16:  # STRSXP
            continue
        lines = []
        for _ in range(count):
            _, size = struct.unpack(">ii", stream.read(8))
            lines.append(stream.read(max(size, 0)).decode("utf-8"))
        vectors.append(lines)
    return vectors


def clean(text: str) -> str:
    """Plain ASCII punctuation, one space between words, no typographic emphasis."""
    for old, new in {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--"}.items():
        text = text.replace(old, new)
    text = text.encode("ascii", "ignore").decode().replace("_", "")
    return re.sub(r"\s+", " ", text).strip()


def paragraphs(text: str) -> list[str]:
    """Blank-line separated paragraphs that are prose: headings, tables and notices are dropped."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        line = clean(block)
        prose = sum(c.isalpha() or c == " " for c in line)
        if len(line) >= 40 and prose > 0.85 * len(line) and not line.isupper():
            found.append(line)
    return found


def austen(tree: pathlib.Path) -> list[str]:
    rdb = (tree / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    return [p for novel in read_r_strings(rdb) for p in paragraphs("\n".join(novel))]


def bible(tree: pathlib.Path) -> list[str]:
    """Chapters of the King James Version, the verse numbers removed, about 600 characters a line."""
    command = [tree / "usr/bin/bible", "-p", f"{tree}/usr/lib/", "-l20000", "Gen1:1-Rev22:21"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines, current = [], ""
    for verse in output.splitlines():
        match = re.match(r"\s+\d+ (.*)", verse)
        if not match:  # book and chapter headings
            continue
        body = clean(match.group(1)).replace("[", "").replace("]", "")
        current = f"{current} {body}".strip()
        if len(current) > 600:
            lines.append(current)
            current = ""
    return lines + [current]


def devil(tree: pathlib.Path) -> list[str]:
    text = gzip.decompress((tree / "usr/share/dictd/devil.dict.dz").read_bytes()).decode("latin-1")
    return paragraphs(text[text.index("ABASEMENT, n.") :])


def founding_documents(tree: pathlib.Path) -> list[str]:
    names = ("us-constitution.gz", "us-declaration.gz")
    texts = [gzip.decompress((tree / "usr/share/state" / n).read_bytes()).decode() for n in names]
    return [p for text in texts for p in paragraphs(text)]


def build(workdir: pathlib.Path) -> None:
    tree = unpack_packages(workdir)
    train, valid = [], []
    for source in (austen, bible, devil, founding_documents):
        lines = source(tree)
        held_out = max(1, int(len(lines) * VALID_SHARE))
        train += lines[:-held_out]
        valid += lines[-held_out:]
        print(f"{source.__name__:20s} {len(lines):6d} paragraphs, {sum(map(len, lines)) / 1e6:.2f} MB")
    for name, lines in (("train", train), ("valid", valid)):
        (workdir / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=pathlib.Path)
    build(parser.parse_args().workdir)
