"""The one line that a user gets of an error, if it is theirs to mend."""

import pytest

from lottery.base import errors
from lottery.base.errors import InputError, first_line, one_line


def test_what_a_user_gave_is_told_as_it_stands():
    assert one_line(InputError("no masks: run `imp thresholds` first")) == "no masks: run `imp thresholds` first"
    assert one_line(InputError("no\x1b[31mne is there")) == r"no\x1b[31mne is there"


def test_an_error_of_the_file_system_names_the_file_and_the_way_out():
    full = OSError(28, "No space left on device", "runs/x")

    assert one_line(full) == "runs/x: No space left on device; mend that and run the command again"


def test_an_error_of_the_file_system_without_a_file_is_told_too():
    full = OSError(28, "No space left on device")

    assert one_line(full) == "the file system: No space left on device; mend that and run the command again"


def test_an_error_that_python_raises_when_a_file_cannot_be_opened_has_its_line(tmp_path):
    with pytest.raises(OSError, match="a folder") as missing:
        (tmp_path / "a folder" / "a file").read_text()

    assert (
        one_line(missing.value) == f"{tmp_path}/a folder/a file: No such file or directory; mend that and run the command again"
    )


@pytest.mark.parametrize("error", [ValueError("x"), OSError("no number"), KeyError("x"), KeyboardInterrupt()])
def test_other_errors_have_no_line(error):
    assert one_line(error) is None


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("cat/\x1b[2Ja.png", r"cat/\x1b[2Ja.png"),
        ("a\nb\r\tc\x07\x9b", r"a\nb\r\tc\x07\x9b"),
        ("a\u202egnp.exe", r"a\u202egnp.exe"),
        ("\udcff.png", r"\udcff.png"),
        ("schöne Katze/犬 \u200d.png", "schöne Katze/犬 \u200d.png"),
    ],
)
def test_control_characters_are_escaped(text, printed):
    assert errors.printable(text) == printed
    assert one_line(OSError(5, "Input/output error", text)).startswith(f"{printed}: Input")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  first \nsecond"), "first"),
        (KeyError(), "KeyError"),
        (ValueError(" \n"), "ValueError"),
        (
            ValueError("Exception encountered when calling A.call().\n\n\x1b[1mThe size is 5.\x1b[0m\n\nArguments received"),
            "Exception encountered when calling A.call(). The size is 5.",
        ),
    ],
)
def test_the_first_line_says_what_is_wrong(error, line):
    assert first_line(error) == line
