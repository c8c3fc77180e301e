import pytest
import torch

from tests.torch_interop.lowering.harness import check

LAYER = "aten._transformer_encoder_layer_fwd.default"
BATCH, LENGTH, EMBED, HEADS = 3, 5, 8, 2


def _arguments(use_gelu, norm_first):
    torch.manual_seed(0)
    shapes = [(3 * EMBED, EMBED), (3 * EMBED,), (EMBED, EMBED), (EMBED,)]
    projections = [torch.randn(shape) for shape in shapes]
    norms = [torch.rand(EMBED), torch.randn(EMBED), torch.rand(EMBED), torch.randn(EMBED)]
    feed = [torch.randn(shape) for shape in [(16, EMBED), (16,), (EMBED, 16), (EMBED,)]]
    src = torch.randn(BATCH, LENGTH, EMBED)
    return [src, EMBED, HEADS, *projections, use_gelu, norm_first, 1e-5, *norms, *feed]


@pytest.mark.parametrize("use_gelu", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer(use_gelu, norm_first):
    arguments = _arguments(use_gelu, norm_first)
    square = torch.ones(LENGTH, LENGTH).triu(1).bool()
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 3:] = padding[1] = True
    full = torch.zeros(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    full[2, 1, :, 4] = True
    check(LAYER, *arguments)
    for mask_type, mask in enumerate((square, padding, full)):
        check(LAYER, *arguments, mask, mask_type)


@pytest.mark.filterwarnings("ignore:Converting mask without torch.bool dtype")
def test_a_mask_of_numbers_masks_where_it_is_not_0():
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e9)
    check(LAYER, *_arguments(True, True), mask, 0)
