"""Sentences of Python's own documentation find their nearest neighbours: a small transformer, mean
pooling under an attention mask, and what the plain formula and token_pooling cost; draws
sentence_embeddings.png.
"""

import pydoc_data.topics
import re

import torch
from matplotlib import pyplot
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import timing

TOPICS = "integers", "comparisons", "import", "exceptions", "strings", "assignment"
CHANNELS = 256


def sentences_of(topic: str) -> list[str]:
    """Plain sentences of 6 to 60 words."""
    text = re.sub(r"[*`\\]|\n\s*\n.*::|\"\"", " ", pydoc_data.topics.topics[topic])
    found = re.findall(r"[A-Z][^.!?]{30,400}[.]", " ".join(text.split()))
    return [each for each in found if 6 <= len(each.split()) <= 60][:12]


def tokenized(sentences: list[str]) -> tuple[Tensor, Tensor, int]:
    """Numbers of words, 0 for padding, the attention mask, and how many words there are."""
    words = [re.findall(r"[a-z_]+", each.lower()) for each in sentences]
    numbers = {word: at for at, word in enumerate(sorted({w for each in words for w in each}), 1)}
    length = max(map(len, words))
    rows = [[numbers[word] for word in each] + [0] * (length - len(each)) for each in words]
    tokens = torch.tensor(rows)
    return tokens, (tokens != 0).long(), len(numbers) + 1


class Encoder(torch.nn.Module):
    """Random word vectors, weighted by how rare words are, and a transformer's layer."""

    def __init__(self, words: int, tokens: Tensor) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, CHANNELS, padding_idx=0)
        self.layer = torch.nn.TransformerEncoderLayer(
            CHANNELS, 4, CHANNELS, dropout=0, batch_first=True
        )
        counts = torch.bincount(tokens.flatten(), minlength=words).clamp(min=1)
        self.rarity = (len(tokens) / counts).log().clamp(min=0)
        self.pool = dmlpool.nn.TokenPool("mean")

    def hidden(self, tokens: Tensor, mask: Tensor) -> Tensor:
        vectors = self.embedding(tokens) * self.rarity[tokens].unsqueeze(-1)
        # This mask is True for padding: the opposite of an attention mask.
        attended: Tensor = self.layer(vectors, src_key_padding_mask=mask == 0)
        return vectors + 0.1 * attended

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return torch.nn.functional.normalize(self.pool(self.hidden(tokens, mask), mask))


def formula(hidden: Tensor, mask: Tensor) -> Tensor:
    """What people write."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    groups = {topic: sentences_of(topic) for topic in TOPICS}
    sentences = [each for group in groups.values() for each in group]
    topics = [topic for topic, group in groups.items() for _ in group]
    tokens, mask, words = tokenized(sentences)
    encoder = Encoder(words, tokens).eval()
    embeddings = encoder(tokens, mask)
    alike = embeddings @ embeddings.T
    nearest = alike.clone().fill_diagonal_(-1).argmax(1)
    same = sum(topics[at] == topics[other] for at, other in enumerate(nearest.tolist()))
    print(f"{len(sentences)} sentences of {mask.sum(1).min()} to {mask.sum(1).max()} words")
    print(f"the nearest sentence has the same topic for {same} of them")
    for at in (2, len(groups[TOPICS[0]]) + 2):
        print(f"  {sentences[at][:90]}\n    -> {sentences[nearest[at]][:90]}")

    hidden, padded = torch.randn(32, 128, 768), torch.randint(16, 129, (32, 1))
    attention_mask = (torch.arange(128) < padded).long()
    torch.testing.assert_close(
        dmlpool.token_pooling(hidden, attention_mask), formula(hidden, attention_mask)
    )
    ways = {
        "the formula": lambda: formula(hidden, attention_mask),
        "token_pooling": lambda: dmlpool.token_pooling(hidden, attention_mask),
    }
    measured = timing.in_turn(ways, hidden.device, 1)
    times = {name: each.lower for name, each in measured.items()}
    for name, seconds in times.items():
        print(f"{name}: {seconds * 1e6:.0f} us for 32x128x768")

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), width_ratios=(2, 1))
    image = left.imshow(alike, vmin=0, vmax=0.6)
    figure.colorbar(image, label="cosine of two sentences")
    starts = [topics.index(topic) for topic in TOPICS]
    left.set_xticks(starts, TOPICS, rotation=30, ha="left")
    left.xaxis.tick_top()
    left.set_yticks(starts, TOPICS)
    right.barh(list(times), [seconds * 1e6 for seconds in times.values()], color=("gray", "C0"))
    right.invert_yaxis()
    right.set_xlabel("µs for 32x128x768 (lower is better)")
    right.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig("sentence_embeddings.png", dpi=120)


if __name__ == "__main__":
    main()
