"""What every test of Hugging Face's libraries starts from."""

import os

# Read when the libraries are imported: models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import transformers

from tests.dynamo import skip_guard_timing
from tests.fresh import fresh as fresh
from tests.fresh import same_numbers as same_numbers

skip_guard_timing()

# They say on standard error what their defaults are.
transformers.logging.set_verbosity_error()
