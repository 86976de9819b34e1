"""Muon for the matrices inside the layers: momentum, then the nearest semi-orthogonal matrix as the update.

For models of this size it needs markedly fewer steps than AdamW; embeddings, head, norms and the prior's
parameters stay with AdamW.
"""
import torch


def orthogonalize(stack: torch.Tensor, half: bool = False) -> torch.Tensor:
    """Newton-Schulz iteration towards U V^T of every matrix of a stack [count, rows, cols], rows <= cols; half: in bfloat16."""
    x = stack / (stack.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.bfloat16() if half else x
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.1, half: bool = False):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, half=half))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape: dict[tuple, list] = {}
            for weight in group["params"]:
                buffer = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                buffer.lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(buffer, group["momentum"])  # Nesterov
                wide = update if update.shape[0] <= update.shape[1] else update.T
                by_shape.setdefault(tuple(wide.shape), []).append((weight, wide))
            for members in by_shape.values():
                for (weight, _), update in zip(members, orthogonalize(torch.stack([wide for _, wide in members]), group["half"])):
                    tall = weight.shape[0] > weight.shape[1]
                    gain = (weight.shape[0] / weight.shape[1]) ** 0.5 if tall else 1.0
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(update.T if tall else update, alpha=-group["lr"] * gain)
