import pytest
import torch

from tests.torch_interop.lowering.harness import check

LAYER = "aten._transformer_encoder_layer_fwd.default"
ATTENTION = "aten._native_multi_head_attention.default"
BATCH, LENGTH, EMBED, HEADS = 3, 5, 8, 2


def _arguments(use_gelu, norm_first):
    torch.manual_seed(0)
    shapes = [(3 * EMBED, EMBED), (3 * EMBED,), (EMBED, EMBED), (EMBED,)]
    projections = [torch.randn(shape) for shape in shapes]
    norms = [torch.rand(EMBED), torch.randn(EMBED), torch.rand(EMBED), torch.randn(EMBED)]
    feed = [torch.randn(shape) for shape in [(16, EMBED), (16,), (EMBED, 16), (EMBED,)]]
    src = torch.randn(BATCH, LENGTH, EMBED)
    return [src, EMBED, HEADS, *projections, use_gelu, norm_first, 1e-5, *norms, *feed]


def _masks():
    """Of mask types 0, 1 and 2."""
    square = torch.ones(LENGTH, LENGTH).triu(1).bool()
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 3:] = padding[1] = True
    full = torch.zeros(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    full[2, 1, :, 4] = True
    return square, padding, full


@pytest.mark.parametrize("use_gelu", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer(use_gelu, norm_first):
    arguments = _arguments(use_gelu, norm_first)
    check(LAYER, *arguments)
    for mask_type, mask in enumerate(_masks()):
        check(LAYER, *arguments, mask, mask_type)


@pytest.mark.parametrize("averaged", [True, False])
def test_attention_with_its_weights(averaged):
    src, *sizes_and_projections = _arguments(True, True)[:7]
    for inputs in ((src, src, src), (src, src * 2, src * 2), (src, src * 2, src + 1)):
        check(ATTENTION, *inputs, *sizes_and_projections, None, True, averaged)
    for mask_type, mask in enumerate(_masks()):
        check(ATTENTION, src, src, src, *sizes_and_projections, mask, True, averaged, mask_type)


@pytest.mark.filterwarnings("ignore:Converting mask without torch.bool dtype")
def test_a_mask_of_numbers_masks_where_it_is_not_0():
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e9)
    check(LAYER, *_arguments(True, True), mask, 0)
