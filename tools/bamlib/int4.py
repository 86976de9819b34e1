"""Weights of four bits, as kernels/int4.h defines them: per row a float32 scale, per sixteen neighbours one of sixteen
factors, per weight one of sixteen levels."""
import torch

GROUP = 16
LEVELS = (-127, -93, -72, -57, -43, -30, -19, -8, 2, 13, 23, 34, 46, 60, 78, 99)
MAGNITUDES = (127, 107, 91, 77, 65, 53, 45, 37)
STARTS = (0.86, 0.91, 0.96, 1.01)
REFINEMENTS = 2
ROWS_AT_ONCE = 512


def value_table() -> torch.Tensor:
    """[factor, code] -> the integer that the row's scale multiplies."""
    factors = torch.tensor(MAGNITUDES + tuple(-m for m in MAGNITUDES))
    return (torch.tensor(LEVELS)[None, :] * factors[:, None] + 64) >> 7


def assign(groups: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, factors and levels nearest to `groups` [rows, groups, 16] for a scale per row."""
    target = groups / scale[:, None, None]
    codes, levels = torch.zeros_like(groups, dtype=torch.uint8), torch.zeros_like(groups)
    factors = torch.zeros(groups.shape[:2], dtype=torch.uint8)
    least = torch.full(groups.shape[:2], torch.inf)
    for factor, row in enumerate(value_table().to(torch.float32)):
        turned = factor >= len(MAGNITUDES)  # levels descend
        ascending = row.flip(0) if turned else row
        place = torch.bucketize(target, (ascending[1:] + ascending[:-1]) / 2)
        level = ascending[place]
        error = (target - level).square().sum(2)
        better = error < least
        least = torch.where(better, error, least)
        factors[better] = factor
        codes[better] = (15 - place if turned else place)[better].to(torch.uint8)
        levels[better] = level[better]
    return codes, factors, levels


def fitted(groups: torch.Tensor, levels: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """The scale of least squares."""
    product, square = (groups * levels).sum((1, 2)), levels.square().sum((1, 2))
    return torch.where((product > 0) & (square > 0), product / square.clamp(min=1e-30), otherwise)


def quantize_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    count, depth = rows.shape
    groups = torch.nn.functional.pad(rows, (0, -depth % GROUP)).reshape(count, -1, GROUP)
    largest = groups.abs().amax((1, 2))
    unit = torch.where(largest > 0, largest, torch.ones_like(largest)) / 126
    least, best = torch.full((count,), torch.inf), unit
    for start in STARTS:
        scale = unit * start
        for _ in range(REFINEMENTS):
            _, _, levels = assign(groups, scale)
            scale = fitted(groups, levels, scale)
            error = (groups - scale[:, None, None] * levels).square().sum((1, 2))
            best = torch.where(error < least, scale, best)
            least = torch.minimum(error, least)
    codes, factors, levels = assign(groups, best)
    scale = torch.where(largest > 0, fitted(groups, levels, best), torch.zeros_like(largest))
    return codes.reshape(count, -1)[:, :depth], factors, scale


def pack(numbers: torch.Tensor) -> torch.Tensor:
    """Two numbers of four bits share a byte, the first one low."""
    even = torch.nn.functional.pad(numbers, (0, numbers.shape[1] % 2))
    return (even[:, 0::2] | even[:, 1::2] << 4).contiguous()


def quantize(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """codes [rows, (k + 1) / 2], factors [rows, (groups + 1) / 2] and scales [rows] of a matrix [rows, k]."""
    parts = [quantize_rows(rows.to(torch.float32)) for rows in matrix.detach().split(ROWS_AT_ONCE)]
    codes, factors, scales = (torch.cat(part) for part in zip(*parts))
    return pack(codes), pack(factors), scales


def packed_shapes(rows: int, depth: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    groups = -(-depth // GROUP)
    return (rows, -(-depth // 2)), (rows, -(-groups // 2)), (rows,)


def dequantize(codes: torch.Tensor, factors: torch.Tensor, scales: torch.Tensor, depth: int) -> torch.Tensor:
    def unpack(numbers: torch.Tensor) -> torch.Tensor:
        return torch.stack((numbers & 15, numbers >> 4), 2).reshape(numbers.shape[0], -1).long()

    per_weight = unpack(factors).repeat_interleave(GROUP, 1)[:, :depth]
    return scales[:, None] * value_table()[per_weight, unpack(codes)[:, :depth]]
