"""The names of all networks, and the settings that each of them uses. Needs no TensorFlow; `models` builds the networks."""

from typing import NamedTuple

_STOCK = ("batchnorm", "batchnorm_momentum", "batchnorm_epsilon")
_BATCHNORM = (*_STOCK, "batchnorm_gamma")

# The keys of [model] that matter, by network.
OURS: dict[str, tuple[str, ...]] = {
    "mobilenet_v2": ("alpha", "stem", "padding", "initializer", *_BATCHNORM),
    "resnet50": ("stem", "padding", "initializer", *_BATCHNORM),
    "resnet9": ("width", "activation", "whitening", "initializer", *_BATCHNORM),
    **dict.fromkeys(("resnet20", "resnet56"), ("width", "padding", "initializer", *_BATCHNORM)),
    **dict.fromkeys(("resnext29_32x4d", "wrn_22_2"), ("padding", "initializer", *_BATCHNORM)),
    **dict.fromkeys(("lenet_300_100", "conv2", "conv4", "conv6", "cifar_tutorial"), ("initializer",)),
}


class Size(NamedTuple):
    """Of a Transformer: its `layers`, and the `width` of what they hand on; the feed-forward part is four times as wide."""

    layers: int
    width: int


TRANSFORMERS = {  # of texts, where the others are of images
    "transformer_tiny": Size(2, 128),
    "transformer_mini": Size(4, 256),
    "transformer_small": Size(4, 512),
    "transformer_medium": Size(8, 512),
    "transformer_base": Size(12, 768),
}
APPLICATIONS: dict[str, tuple[str, ...]] = {  # of keras.applications
    **dict.fromkeys(("MobileNet", "MobileNetV2", "MobileNetV3Large", "MobileNetV3Small"), ("alpha", *_STOCK)),
    **dict.fromkeys(("ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2", "ResNet152V2"), _STOCK),
    **dict.fromkeys((f"EfficientNetB{size}" for size in range(8)), _STOCK),
    **dict.fromkeys((f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")), _STOCK),
    **dict.fromkeys(("DenseNet121", "DenseNet169", "DenseNet201", "NASNetLarge", "NASNetMobile"), _STOCK),
    **dict.fromkeys(("InceptionResNetV2", "InceptionV3", "Xception"), _STOCK),
    **dict.fromkeys((f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")), ()),
    **dict.fromkeys(("VGG16", "VGG19"), ()),
}
KNOWN = (*APPLICATIONS, *OURS, *TRANSFORMERS)  # ours last, and so taken where both have one that is spelt alike
SHOWN = f"{', '.join((*OURS, *TRANSFORMERS))}, those of keras.applications"


def settings(name: str) -> tuple[str, ...]:
    """The keys of [model], beside `name`, that the network depends on. A user's own is given none of them."""
    return ("norm", "initializer") if name in TRANSFORMERS else (OURS | APPLICATIONS).get(name, ())
