"""What a network takes and returns, as its builder has to know it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Signature:
    """`shape` is that of one example, without the batch. Texts have `segments` (the tokens of a document, the number of texts
    that belong to it, its reference among them, and the tokens of each) and a `vocabulary` (how many token ids there are)."""

    shape: tuple[int, ...]
    outputs: int
    dtype: str = "float32"
    segments: tuple[int, int, int] = ()  # type: ignore[assignment]  # () is that of what is no text
    vocabulary: int = 0

    @property
    def size(self) -> int | tuple[int, ...]:
        """What a user's own network is told: the height and width of square images, the shape of other examples."""
        is_square = len(self.shape) == 3 and self.shape[0] == self.shape[1]
        return self.shape[0] if is_square else self.shape

    def __str__(self) -> str:
        if len(self.shape) != 3:
            return f"examples of shape {self.shape} and {self.outputs} outputs"
        height, width, channels = self.shape
        return f"{height}x{width} images of {channels} channels and {self.outputs} classes"


def images(size: int, classes: int, channels: int = 3) -> Signature:
    """That of a network that tells square images of so many channels apart."""
    return Signature((size, size, channels), classes)
