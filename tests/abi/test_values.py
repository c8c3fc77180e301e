import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.abi.values import decode_named_values, encode_named_values
from pjrt_bridge.errors import OptionError

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
values = st.one_of(
    st.text(), int64, st.booleans(), st.floats(width=32, allow_nan=False), st.lists(int64)
)


@given(st.dictionaries(st.text(min_size=1), values, max_size=6))
def test_named_values_come_back(options: dict[str, object]) -> None:
    array, keep = encode_named_values(options)  # type: ignore[arg-type]
    found = decode_named_values(ctypes.addressof(array), len(options))
    expected = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    assert found == expected
    assert [type(v) for v in found.values()] == [type(v) for v in expected.values()]
    assert keep


@pytest.mark.parametrize("value", [None, {"a": 1}, [1.5], ["a"], 1 << 63, b"bytes", [True]])
def test_what_a_named_value_cannot_hold(value: object) -> None:
    with pytest.raises(OptionError, match="'x'"):
        encode_named_values({"x": value})  # type: ignore[dict-item]
