"""Other programs’ formats: every format out, histories in. One file per format."""
