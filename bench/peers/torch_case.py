"""One row of the comparison in PyTorch: torch_case.py CASE THREADS prints the median milliseconds of a run."""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

PAD, BOS, EOS, SYMBOLS = 0, 1, 2, 17


class Attention(nn.Module):
    """Additive, or keys times W query; keys are projected at every step, as the tutorials write it."""

    def __init__(self, kind, query, key, size):
        super().__init__()
        self.additive = kind == "additive"
        self.W_q = nn.Linear(query, size if self.additive else key, bias=False)
        if self.additive:
            self.W_k = nn.Linear(key, size, bias=False)
            self.v = nn.Linear(size, 1, bias=False)

    def forward(self, query, memory, valid):
        q = self.W_q(query)
        if self.additive:
            scores = self.v(torch.tanh(q[:, None] + self.W_k(memory)))[:, :, 0]
        else:
            scores = torch.bmm(memory, q[:, :, None])[:, :, 0]
        weights = F.softmax(scores.masked_fill(~valid, torch.finfo(scores.dtype).min), -1)
        return torch.bmm(weights[:, None], memory)[:, 0]


class Reverser(nn.Module):
    def __init__(self, kind, vocabulary, d):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d, padding_idx=PAD)
        self.encoder = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * d, d)
        self.attention = Attention(kind, d, 2 * d, d)
        self.cell = nn.GRUCell(3 * d, d)
        self.out = nn.Linear(3 * d, vocabulary)

    def forward(self, source, target_in):
        memory, last = self.encoder(self.embed(source))
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        valid = source != PAD
        logits = []
        for t in range(target_in.shape[1]):
            context = self.attention(state, memory, valid)
            state = self.cell(torch.cat([self.embed(target_in[:, t]), context], -1), state)
            logits.append(self.out(torch.cat([state, context], -1)))
        return torch.stack(logits, 1)


def reversal_batch(generator, rows=64, shortest=5, longest=10):
    source = torch.zeros(rows, longest, dtype=torch.long)
    target_in = torch.zeros(rows, longest + 1, dtype=torch.long)
    target_out = torch.zeros(rows, longest + 1, dtype=torch.long)
    for b in range(rows):
        n = int(torch.randint(shortest, longest + 1, (), generator=generator))
        tokens = torch.randint(3, 3 + SYMBOLS, (n,), generator=generator)
        source[b, :n] = tokens
        target_in[b, 0], target_in[b, 1 : n + 1] = BOS, tokens.flip(0)
        target_out[b, :n], target_out[b, n] = tokens.flip(0), EOS
    return source, target_in, target_out


def reversal(kind):
    generator = torch.Generator().manual_seed(1)
    batches = [reversal_batch(generator) for _ in range(50)]
    model = Reverser(kind, 3 + SYMBOLS, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(i):
        source, target_in, target_out = batches[i % 50]
        loss = F.cross_entropy(model(source, target_in).flatten(0, 1), target_out.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def gru(rows, steps, d):
    layer = nn.GRU(d, d, batch_first=True)
    x, seed = torch.randn(rows, steps, d, requires_grad=True), torch.randn(rows, steps, d)
    wanted = [x, *layer.parameters()]
    return lambda i: torch.autograd.grad(layer(x)[0], wanted, seed)


def cross_entropy(rows, classes):
    x, targets = torch.randn(rows, classes, requires_grad=True), torch.randint(classes, (rows,))
    return lambda i: torch.autograd.grad(F.cross_entropy(x, targets), [x])


CASES = {
    "reversal_additive": lambda: reversal("additive"),
    "reversal_dot": lambda: reversal("dot"),
    "gru_toy": lambda: gru(64, 10, 32),
    "gru_large": lambda: gru(128, 20, 512),
    "cross_entropy_toy": lambda: cross_entropy(64, 20),
    "cross_entropy_large": lambda: cross_entropy(1792, 8000),
}


def main():
    case, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    run = CASES[case]()
    start = time.perf_counter()
    warm = 0
    while warm < 3 or time.perf_counter() - start < 0.3:
        run(warm)
        warm += 1
    times = []
    start = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < 0.7:
        begin = time.perf_counter()
        run(len(times))
        times.append(time.perf_counter() - begin)
    print(statistics.median(times) * 1e3)


if __name__ == "__main__":
    main()
