"""What derivatives of a patched run take: memory for the graph, and weights precise enough."""

from __future__ import annotations

from assay.errors import OptionError
from assay.model import Model


def graph_bytes(model: Model, positions: int, keys: int, order: int) -> int:
    """What autograd takes for one sequence in one layer until a derivative of this order is done.

    An upper bound, 1.1 to 3 times what the supported families were seen to keep. The graph of a second derivative holds
    the forward and the backward pass, and while it is gone through, what it holds gets gradients: together about four
    times as much.
    """
    experts = getattr(model.config, "num_experts_per_tok", None) or 1
    per_token = 8 * model.d_model + 6 * model.d_mlp * experts + 2 * model.n_heads * (model.d_head + keys)
    numbers: int = order**2 * positions * per_token
    return numbers * max(4, model.dtype.itemsize)


def require_precision(model: Model) -> None:
    """Refuse second derivatives in half precision.

    Raises:
        OptionError: weights in float16 or bfloat16.
    """
    if model.dtype.itemsize < 4:
        raise OptionError(
            f"Second derivatives need weights in float32 or float64; in {str(model.dtype).removeprefix('torch.')} "
            f"rounding drowns them. Load {model.name} with --dtype float32."
        )
