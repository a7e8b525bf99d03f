"""The translation study's model in PyTorch, to trade safetensors files with Tapedeck.

    study.py write FILE [SEED]   a model of random weights, a padded batch, and the logits it gives
    study.py check FILE          FILE is another's: PyTorch with its weights must give its logits (f32, 1e-5)

FILE holds the parameters under their state_dict names, and in.source, in.target_in (i64), out.logits (f32).
"""

import json
import struct
import sys

import torch
from torch import nn

DTYPES = {"F32": torch.float32, "I64": torch.int64}


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def write(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        kind = next(k for k, dtype in DTYPES.items() if dtype == tensor.dtype)
        header[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Attention(nn.Module):
    def __init__(self, query, key, size):
        super().__init__()
        self.W_k = nn.Linear(key, size)
        self.W_q = nn.Linear(query, size)

    def forward(self, queries, values, valid):
        scores = self.W_q(queries) @ self.W_k(values).transpose(1, 2) / self.W_k.out_features**0.5
        weights = scores.masked_fill(~valid[:, None], float("-inf")).softmax(-1)
        return weights @ values


class Study(nn.Module):
    def __init__(self, source, target, embedding, hidden, decoder, attention):
        super().__init__()
        self.src_emb = nn.Embedding(source, embedding)
        self.tgt_emb = nn.Embedding(target, embedding)
        self.encoder = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, decoder)
        self.attention = Attention(decoder, 2 * hidden, attention)
        self.decoder = nn.GRU(embedding, decoder, batch_first=True)
        self.fc_1 = nn.Linear(decoder + 2 * hidden, decoder)
        self.fc_out = nn.Linear(decoder, target)

    def forward(self, source, target_in):
        valid = source != 0
        packed = nn.utils.rnn.pack_padded_sequence(
            self.src_emb(source), valid.sum(1), batch_first=True, enforce_sorted=False
        )
        read, last = self.encoder(packed)
        read, _ = nn.utils.rnn.pad_packed_sequence(read, batch_first=True, total_length=source.shape[1])
        state = self.bridge(torch.cat([last[0], last[1]], 1)).relu()
        written, _ = self.decoder(self.tgt_emb(target_in), state[None])
        context = self.attention(written, read, valid)
        return self.fc_out(self.fc_1(torch.cat([written, context], 2)).relu())


def of(tensors):
    """The model that a file's parameters describe."""
    shape = {name: tensor.shape for name, tensor in tensors.items()}
    model = Study(
        source=shape["src_emb.weight"][0],
        target=shape["tgt_emb.weight"][0],
        embedding=shape["src_emb.weight"][1],
        hidden=shape["encoder.weight_hh_l0"][1],
        decoder=shape["decoder.weight_hh_l0"][1],
        attention=shape["attention.W_k.weight"][0],
    )
    model.load_state_dict({name: t for name, t in tensors.items() if not name.startswith(("in.", "out."))})
    return model


def main():
    command, path = sys.argv[1:3]
    if command == "write":
        torch.manual_seed(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
        model = Study(source=11, target=13, embedding=5, hidden=6, decoder=7, attention=4)
        source = torch.tensor([[4, 9, 3, 10, 5, 2], [7, 3, 2, 0, 0, 0], [6, 6, 8, 4, 2, 0]])
        target_in = torch.tensor([[1, 5, 12, 7], [1, 3, 0, 0], [1, 11, 4, 0]])
        logits = model(source, target_in)
        write(path, {**model.state_dict(), "in.source": source, "in.target_in": target_in, "out.logits": logits})
        return
    tensors = read(path)
    with torch.no_grad():
        logits = of(tensors)(tensors["in.source"], tensors["in.target_in"])
    worst = (logits - tensors["out.logits"]).abs().max().item()
    if not worst <= 1e-5:
        sys.exit(f"{path}: PyTorch's logits differ by {worst} from those in the file")
    print(f"{path}: logits differ by at most {worst:.1e}")


main()
