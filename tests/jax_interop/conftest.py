"""Tests of functions in torch start with nothing compiled."""

from tests.fresh import fresh as fresh
from tests.fresh import same_numbers as same_numbers
