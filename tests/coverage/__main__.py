"""`python -m tests.coverage`: write `docs/coverage.md` from the files of expected outcomes."""

from tests.coverage.page import PAGE, text

if __name__ == "__main__":
    PAGE.write_text(text())
