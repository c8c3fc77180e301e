"""What goes otherwise than in eager, and why."""

from tests.databases.case import Case

EXCEPTIONS = {
    Case("modules", "nn.NLLLoss", "float32 train channels_last", "compiled"): (
        "eager refuses the backward of channels-last log-probabilities, whose gradient it wants "
        "contiguous; compiled it has no such limit"
    ),
    Case("modules", "nn.MultiLabelMarginLoss", "float32 train contiguous", "device"): (
        "eager's kernel for the host gives one number without a dimension; what torch promises "
        "of the operator for every other device, and compiled, has one of size 1"
    ),
}
"""For cases that have problems, the reason."""
