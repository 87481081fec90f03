"""Words of any script. Where a script puts no spaces between words, each character counts as one."""

import re
import unicodedata

# Thai, Lao; Myanmar; Khmer; Han with its kana, marks and compatible forms.
_CHARACTER = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_CHARACTER += "\uff66-\uff9f\U00020000-\U0003ffff]"
_SPACELESS = re.compile(_CHARACTER)
_TOKEN = re.compile(rf"({_CHARACTER}|(?:(?!{_CHARACTER})\S)+)(\s*)")


def spaced(text: str) -> str:
    """`text` with spaces around each character of a script that has none between words."""
    return text if text.isascii() else _SPACELESS.sub(r" \g<0> ", text)


def tokens(text: str) -> list[str]:
    """What `spaced` parts, each with one space if it has any behind it in `text`: joined as they are, they are the text."""
    if text.isascii():
        return [f"{word} " for word in text.split()]
    found = _TOKEN.findall(text.strip())
    last = " " if any(space for _, space in found) else ""
    return [word + (" " if space else "") for word, space in found[:-1]] + [word + last for word, _ in found[-1:]]


def words(text: str) -> list[str]:
    """The words of `text` in lower case: letters, digits and the marks on them (Unicode's categories L, N and M)."""
    plain = unicodedata.normalize("NFC", text.lower())
    return spaced("".join(one if unicodedata.category(one)[0] in "LNM" else " " for one in plain)).split()
