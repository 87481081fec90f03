"""Networks of PyTorch that have twins here, with random weights and statistics, and their state as NumPy has it."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LOWEST = (0.5, -0.5, -0.5, 0.5)  # gammas, betas, means and variances are drawn from here to 1 more


class Block(nn.Module):
    """That of open_lth's ResNets for CIFAR: two convolutions, and a projection where the shape changes."""

    def __init__(self, incoming, filters, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(incoming, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)
        self.conv2, self.bn2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)
        projection = [nn.Conv2d(incoming, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)]
        self.shortcut = nn.Sequential(*(projection if stride > 1 else []))

    def forward(self, x):
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


class OpenLthResnet(nn.Module):
    """`cifar_resnet_20` of open_lth, by the names in its models/cifar_resnet.py."""

    def __init__(self, width=16, blocks=3, classes=10):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        shapes = [
            (width * 2 ** max(stage - (block == 0), 0), width * 2**stage) for stage in range(3) for block in range(blocks)
        ]
        self.blocks = nn.Sequential(*(Block(before, after, 2 if before != after else 1) for before, after in shapes))
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.fc(self.blocks(functional.relu(self.bn(self.conv(x)))).mean((2, 3)))


class OpenLthLenet(nn.Module):
    """`mnist_lenet_300_100` of open_lth, by the names in its models/mnist_lenet.py; for any number of pixels."""

    def __init__(self, pixels=784, classes=10):
        super().__init__()
        self.fc_layers, self.fc = nn.ModuleList([nn.Linear(pixels, 300), nn.Linear(300, 100)]), nn.Linear(100, classes)

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.fc_layers:
            x = functional.relu(layer(x))
        return self.fc(x)


def randomised(network):
    """`network` in inference, its BatchNorm unlike a fresh one's, its kernels large enough that images matter."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in zip((module.weight, module.bias, module.running_mean, module.running_var), LOWEST, strict=True):
                tensor.data.copy_(torch.rand(tensor.shape, generator=generator) + low)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, generator=generator)
    return network.eval()


def outputs(network, images):
    """What a network of PyTorch makes of images [batch, height, width, channels]."""
    with torch.no_grad():
        return network(torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))).numpy()
