"""Can a layer find the token before? How well one linear map turns the sinusoid of every position into that of the position before.

Textbook sinusoids pair a sine with a cosine of the same frequency, so that such a map exists; the paper's code gives every
odd dimension a frequency of its own (docs/results.md, "They know the task").
"""
import argparse

import runtime  # noqa: F401  (first: it tunes the process before torch loads)

import torch

from model import Config, sinusoids


def textbook(positions: torch.Tensor, size: int, theta: float) -> torch.Tensor:
    angle = positions.double()[:, None] * theta ** (-torch.arange(0, size, 2).double() / size)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


def shift(table: torch.Tensor) -> tuple[float, float]:
    """(error as a share of the variance, share of positions whose image is nearest to the position before) of the best map."""
    here, before = table[1:], table[:-1]
    image = here @ torch.linalg.lstsq(here, before, driver="gelsd").solution
    nearest = torch.cdist(image, table).argmin(1) == torch.arange(len(before))
    return ((image - before).pow(2).mean() / table.var()).item(), nearest.double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512])
    args = parser.parse_args()
    theta = Config().sinusoidal_theta
    for hidden in args.hidden:
        for length in args.lengths:
            positions = torch.arange(length)
            for name, table in (("the paper's code", sinusoids(positions, hidden, theta).double()), ("textbook", textbook(positions, hidden, theta))):
                error, right = shift(table)
                print(f"hidden {hidden}, positions to {length}, {name}: error {100 * error:.2g} %, nearest is right {100 * right:.0f} %")


if __name__ == "__main__":
    main()
