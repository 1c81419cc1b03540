"""Makes `space.bin` of the substitutes: `python -m sits.bench.substitutes_fit FOLDER FILE`, with the embedding model in FOLDER.

The map begins as the first principal directions of all sentences and is fitted by Adam (Kingma and Ba 2015) on batches of 8 tasks
times 8 subjects: of each ability two wordings, which must find each other among all 64. Everything is drawn from one seed. It
takes four minutes, nearly all of it for the embeddings.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from sits.bench.substitutes_sentences import SUBJECTS, TASKS, sentences
from sits.bench.substitutes_set import embeddings
from sits.resilience.substitutes.shelf import EMBEDDER
from sits.resilience.substitutes.space import GRAIN, Fitted, Space, unit

Matrix = npt.NDArray[np.float64]

RANK = 128
STEPS = 300
RATE = 2e-3
TEMPERATURE = 0.2
SIDE = 8
"""Tasks and subjects of a batch."""
SCALE = 5.0
"""Of the map to begin with, so that a step is a small share of it."""
SEED = 0


def fit(abilities: Matrix, mean: Matrix) -> Matrix:
    """The map, from embeddings by task, subject and wording."""
    flat = abilities.reshape(-1, abilities.shape[-1])
    _, directions = np.linalg.eigh(np.cov(flat.T))
    found: Matrix = directions[:, ::-1][:, :RANK] * SCALE
    chance = np.random.default_rng(SEED)
    first, second = np.zeros_like(found), np.zeros_like(found)
    for step in range(1, STEPS + 1):
        slope = gradient(found, *_batch(abilities, mean, chance))
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        found = found - RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step) * first / (np.sqrt(second) + 1e-10)
    return found


def gradient(rows: Matrix, left: Matrix, right: Matrix) -> Matrix:
    """Of the loss by the map. The loss: each of `left` is to find its own of `right` by cosine, and the other way about."""
    a, b = left @ rows, right @ rows
    lengths_a, lengths_b = (np.linalg.norm(one, axis=1, keepdims=True) for one in (a, b))
    unit_a, unit_b = a / lengths_a, b / lengths_b
    alike = unit_a @ unit_b.T / TEMPERATURE
    slope = (_share(alike) + _share(alike.T).T - 2 * np.eye(len(a))) / (2 * len(a) * TEMPERATURE)
    slope_a, slope_b = slope @ unit_b, slope.T @ unit_a
    slope_a = (slope_a - unit_a * (unit_a * slope_a).sum(axis=1, keepdims=True)) / lengths_a
    slope_b = (slope_b - unit_b * (unit_b * slope_b).sum(axis=1, keepdims=True)) / lengths_b
    found: Matrix = left.T @ slope_a + right.T @ slope_b
    return found


def _share(rows: Matrix) -> Matrix:
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    found: Matrix = powers / powers.sum(axis=1, keepdims=True)
    return found


def _batch(abilities: Matrix, mean: Matrix, chance: np.random.Generator) -> tuple[Matrix, Matrix]:
    tasks, subjects, wordings, size = abilities.shape
    chosen = abilities[np.ix_(chance.choice(tasks, SIDE, False), chance.choice(subjects, SIDE, False))]
    grid = chosen.reshape(SIDE * SIDE, wordings, size)
    pairs = np.array([chance.choice(wordings, 2, False) for _ in range(SIDE * SIDE)])
    every = np.arange(SIDE * SIDE)
    return grid[every, pairs[:, 0]] - mean, grid[every, pairs[:, 1]] - mean


def packed(raw: Sequence[bytes]) -> Fitted:
    """The file's content, from the embeddings of all sentences."""
    flat = np.frombuffer(b"".join(raw), "<f4").astype(np.float64).reshape(len(raw), -1)
    mean, size = flat.mean(axis=0), flat.shape[1]
    rows = fit(flat.reshape(len(TASKS), len(SUBJECTS), len(TASKS[0]), size), mean)
    bare = Fitted(EMBEDDER, size, RANK, mean.astype("<f4").tobytes(), rows.astype("<f2").tobytes(), b"")
    placed = Space(bare).place(raw).reshape(len(TASKS) * len(SUBJECTS), len(TASKS[0]), RANK)
    background = np.rint(unit(placed.mean(axis=1)) * GRAIN)
    return msgspec.structs.replace(bare, background=np.clip(background, -127, 127).astype(np.int8).tobytes())


def main(folder: Path, out: Path) -> None:
    """Fit and write."""
    texts = [sentence.text for sentence in sentences()]
    found = embeddings(folder, texts)
    out.write_bytes(msgspec.msgpack.encode(packed([found[text] for text in texts])))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
