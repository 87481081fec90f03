"""Networks handed on: files in the formats of other programs, and ticket folders, written and made into runs."""
