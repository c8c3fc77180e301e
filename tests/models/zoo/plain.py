"""Models of torch alone."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.models.zoo.building import WORDS, Builder, Made, ids, images
from tests.models.zoo.scale import long, side, wide


class Recurrent(nn.Module):
    """Tags words with a recurrent network that reads in both directions."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, wide(16))
        self.network = kind(wide(16), wide(12), bidirectional=True, batch_first=True)
        self.head = nn.Linear(wide(24), 5)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden, _ = self.network(self.words(tokens))
        logits = self.head(hidden)
        return {
            "loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "logits": logits,
        }


def recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Builder:
    return lambda: (
        Recurrent(kind),
        {"tokens": ids(6), "labels": torch.randint(0, 5, (2, long(6)))},
    )


class Passing(nn.Module):
    """Sends messages along the edges of a graph, with attention over what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.score = nn.Linear(2 * width, 1)
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes: torch.Tensor, source: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        ends = torch.cat([nodes[source], nodes[to]], dim=1)
        score = functional.leaky_relu(self.score(ends)).squeeze(1)
        largest = nodes.new_full((nodes.shape[0],), -1e9).scatter_reduce(0, to, score, "amax")
        weight = (score - largest[to]).exp()
        total = nodes.new_zeros(nodes.shape[0]).index_add(0, to, weight)
        share = weight / total[to]
        messages = self.message(ends) * share.unsqueeze(1)
        received = torch.zeros_like(nodes).index_add(0, to, messages)
        return self.update(received, nodes)


class Molecules(nn.Module):
    """Sorts graphs by the mean and the largest of their nodes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(9, width)
        self.rounds = nn.ModuleList([Passing(width) for _ in range(2)])
        self.head = nn.Linear(2 * width, 3)

    def forward(
        self,
        atoms: torch.Tensor,
        edges: torch.Tensor,
        graph: torch.Tensor,
        labels: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        nodes = self.atoms(atoms)
        for step in self.rounds:
            nodes = step(nodes, edges[0], edges[1])
        count = labels.shape[0]
        index = graph.unsqueeze(1).expand_as(nodes)
        empty = nodes.new_zeros(count, nodes.shape[1])
        mean = empty.scatter_reduce(0, index, nodes, "mean", include_self=False)
        most = empty.scatter_reduce(0, index, nodes, "amax", include_self=False)
        logits = self.head(torch.cat([mean, most], dim=1))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def molecules() -> Made:
    return Molecules(wide(16)), {
        "atoms": torch.randint(0, 9, (12,)),
        "edges": torch.cat([torch.randint(0, 7, (2, 14)), torch.randint(7, 12, (2, 10))], dim=1),
        "graph": torch.tensor([0] * 7 + [1] * 5),
        "labels": torch.tensor([2, 0]),
    }


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Sorting(nn.Module):
    """A network under a loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        loss = functional.cross_entropy(logits, labels, label_smoothing=0.1)
        return {"loss": loss, "logits": logits}


class Transposed(nn.Module):
    """Works on the other of two dimensions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def block(width: int) -> nn.Module:
    return Residual(
        nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
    )


def convnet() -> Made:
    few, many = wide(8), wide(16)
    layers = [
        nn.Conv2d(3, few, 7, stride=2, padding=3),
        nn.BatchNorm2d(few),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        block(few),
        nn.Conv2d(few, many, 3, stride=2, groups=4, dilation=2),
        nn.GroupNorm(4, many),
        nn.Hardswish(),
        block(many),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(many, 4),
    ]
    return Sorting(*layers), {"x": images(), "labels": torch.tensor([1, 3])}


def perceptron(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def mixer() -> Made:
    width, patches = wide(24), side(4) ** 2
    layers: list[nn.Module] = [nn.Conv2d(3, width, 8, stride=8), nn.Flatten(2), Rows()]
    for _ in range(2):
        layers += [
            Residual(
                nn.Sequential(nn.LayerNorm(width), Transposed(perceptron(patches, 2 * patches)))
            ),
            Residual(nn.Sequential(nn.LayerNorm(width), perceptron(width, 2 * width))),
        ]
    layers += [nn.LayerNorm(width), Mean(), nn.Linear(width, 4)]
    return Sorting(*layers), {"x": images(), "labels": torch.tensor([1, 3])}


class UNet(nn.Module):
    """Two levels down and up again, with bridges, upsampling in two ways."""

    def __init__(self) -> None:
        super().__init__()
        few, some, many = wide(8), wide(16), wide(32)
        self.first = self._pair(3, few)
        self.second = self._pair(few, some)
        self.bottom = self._pair(some, many)
        self.up = nn.ConvTranspose2d(many, some, 2, stride=2)
        self.fourth = self._pair(2 * some, some)
        self.fifth = self._pair(some + few, few)
        self.head = nn.Conv2d(few, 3, 1)

    @staticmethod
    def _pair(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, padding_mode="reflect"),
            nn.InstanceNorm2d(after, affine=True),
            nn.LeakyReLU(0.1),
            nn.Conv2d(after, after, 3, padding=1),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        one = self.first(x)
        two = self.second(functional.max_pool2d(one, 2))
        bottom = self.bottom(functional.avg_pool2d(two, 2))
        wide = self.fourth(torch.cat([self.up(bottom), two], dim=1))
        wide = functional.interpolate(wide, scale_factor=2, mode="bilinear", align_corners=False)
        logits = self.head(self.fifth(torch.cat([wide, one], dim=1)))
        loss = functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def unet() -> Made:
    return UNet(), {"x": images(16), "labels": torch.randint(0, 3, (2, side(16), side(16)))}


class Seq2Seq(nn.Module):
    """The transformer of torch itself, with causal and padding masks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, wide(16))
        self.transformer = nn.Transformer(
            wide(16), 2, 1, 1, wide(32), dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(wide(16), WORDS)

    def forward(
        self, tokens: torch.Tensor, padding: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(labels.shape[1])
        hidden = self.transformer(
            self.words(tokens),
            self.words(labels),
            tgt_mask=mask,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = self.head(hidden)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def seq2seq() -> Made:
    padding = torch.zeros(2, long(8), dtype=torch.bool)
    padding[1, 5:] = True
    return Seq2Seq(), {"tokens": ids(8), "padding": padding, "labels": ids(6)}


MODELS: dict[str, Builder] = {
    "lstm": recurrent(nn.LSTM),
    "gru": recurrent(nn.GRU),
    "gnn": molecules,
    "convnet": convnet,
    "mlp-mixer": mixer,
    "unet": unet,
    "transformer": seq2seq,
}
