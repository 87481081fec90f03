"""Words of any script. Where a script puts no spaces between words, each character counts as one."""

import re
import unicodedata

# Thai, Lao; Myanmar; Khmer; Han with its kana, marks and compatible forms.
_CHARACTER = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_CHARACTER += "\uff66-\uff9f\U00020000-\U0003ffff]"
_SPACELESS = re.compile(_CHARACTER)
_BETWEEN = re.compile(f"(?<={_CHARACTER}) (?={_CHARACTER})")


def spaced(text: str) -> str:
    """`text` with spaces around each character of a script that has none between words."""
    return text if text.isascii() else _SPACELESS.sub(r" \g<0> ", text)


def joined(words: list[str]) -> str:
    """`spaced(text).split()` as a text again."""
    return _BETWEEN.sub("", " ".join(words))


def words(text: str) -> list[str]:
    """The words of `text` in lower case: letters, digits and the marks on them (Unicode's categories L, N and M)."""
    plain = unicodedata.normalize("NFC", text.lower())
    return spaced("".join(one if unicodedata.category(one)[0] in "LNM" else " " for one in plain)).split()
