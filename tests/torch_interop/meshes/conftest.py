"""The mesh of the tests of sharded tensors."""

from tests.torch_interop.sharding.conftest import device as device
from tests.torch_interop.sharding.conftest import mesh as mesh
