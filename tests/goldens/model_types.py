# SPDX-License-Identifier: Apache-2.0
"""Golden values of tiny models of many types, made with transformers in f64: types/NAME.json holds
a configuration in two spellings, a text, and the logits, gradients, losses and greedy tokens that
transformers gives. type_configs.py holds the configurations.
Needs: pip install torch transformers==5.24.0

    python3 tests/goldens/model_types.py              # all files
    python3 tests/goldens/model_types.py llama qwen2  # some
    python3 tests/goldens/model_types.py --fields     # which fields of a configuration matter

No weights are stored. Value i (row-major, from 0) of the tensor `name` of a checkpoint is
scale * u(name, i) + centre, where u = sqrt(3) * (2 * r - 1) has mean 0 and variance 1 and
r = (splitmix64(fnv1a64(name) + i) >> 11) / 2^53; "tensors" has the scales and centres. Matrices
have the scale 3 / sqrt(last dimension), also where that is not the one summed over; embeddings 1,
tied ones 0.3. Names and shapes are as save_pretrained writes them. Token (b, t) is
splitmix64(fnv1a64("tokens") + 1000 b + t) modulo the vocabulary, the target the same of "targets".
"gradients" has the norm of each and its product with u(name + ".direction", i). "losses" are before
each of 12 steps of AdamW on the same text, without auxiliary losses; "greedy" continues row 0, and
its margin is the smallest between the first and the second logit.
"""
import copy
import json
import math
import pathlib
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

# Models compute norms, softmax and RoPE in f32 whatever their weights are. These replace that
# by f64 in all of them; NoSingle checks that nothing is left.
SINGLE = torch.float32
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)

import transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import type_fields  # noqa: E402
from type_configs import CASES, VOCABULARY, old_spelling  # noqa: E402

OUT = pathlib.Path(__file__).parent / "types"
ROWS, LENGTH = 2, 13
STEPS, GREEDY = 12, 24
# Spellings of transformers 4 that transformers 5 reads as another model.
READ_OTHERWISE = {"olmo3": "takes rope_theta for full layers alone, 500000 for those that slide"}


class NoSingle(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves((args, kwargs, out)):
            if x is SINGLE or isinstance(x, torch.Tensor) and x.dtype in (SINGLE, torch.complex64):
                raise TypeError(f"{func} computes in f32")
        return out


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def splitmix64(x):
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bits(name, indices):
    return splitmix64(np.uint64(fnv1a64(name)) + np.asarray(indices, np.uint64))


def u(name, shape):
    r = (bits(name, np.arange(math.prod(shape))) >> np.uint64(11)) / 2.0**53
    return torch.from_numpy(math.sqrt(3) * (2 * r - 1)).reshape(shape)


def text(name):
    places = 1000 * np.arange(ROWS)[:, None] + np.arange(LENGTH)
    return torch.from_numpy((bits(name, places) % np.uint64(VOCABULARY)).astype(np.int64))


def draw(config, name, shape):
    """Scale and centre of a tensor."""
    if len(shape) > 1:
        if any(part in name for part in ("embed_tokens", "embed_in", "wte", "wpe")):
            # Wider ones would make a tied model say each token again.
            return 0.3 if config["tie_word_embeddings"] else 1.0, 0.0
        return 3 / math.sqrt(shape[-1]), 0.0
    if name.endswith("bias"):
        return 0.5, 0.0
    return 0.3, 0.0 if config["model_type"].startswith("gemma") else 1.0  # Gemma's norms add one


def load(folder, config=None):
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager",
        ignore_mismatched_sizes=True, output_loading_info=True)
    return model.eval(), [key for keys in info.values() for key in keys]


def stored(model):
    """What a checkpoint of the model holds, and the configuration beside it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return (load_file(f"{folder}/model.safetensors"),
                json.loads((pathlib.Path(folder) / "config.json").read_text()))


def make(name, folder):
    """Writes a checkpoint of the case and returns its configuration and the table of tensors."""
    type, config = CASES[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(type, **copy.deepcopy(config)))
    weights, config = stored(model)
    table, drawn = {}, {}
    for key in sorted(weights):
        shape = list(weights[key].shape)
        scale, centre = draw(config, key, shape)
        table[key] = dict(shape=shape, scale=scale, centre=centre)
        drawn[key] = scale * u(key, shape) + centre
    save_file(drawn, folder / "model.safetensors", {"format": "pt"})
    config["dtype"] = "float32"
    return config, table


def loss_of(logits):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text("targets").flatten())


def gradients(model):
    """Of the tensors of a checkpoint: a copy of the model is saved with them as its weights."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for p, q in zip(copied.parameters(), model.parameters()):
            p.copy_(q.grad)
    return {key: [g.norm().item(), (g * u(key + ".direction", g.shape)).sum().item()]
            for key, g in sorted(stored(copied)[0].items())}


def greedy(model):
    tokens, margins = text("tokens")[:1], []
    for _ in range(GREEDY):
        with torch.no_grad():
            best = model(tokens, use_cache=False).logits[0, -1].topk(2)
        margins.append((best.values[0] - best.values[1]).item())
        tokens = torch.cat([tokens, best.indices[:1][None]], 1)
    return dict(tokens=tokens[0, LENGTH:].tolist(), margin=min(margins))


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model(text("tokens"), use_cache=False).logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_old(name, folder, config, logits):
    model, wrong = load(folder, old_spelling(CASES[name][0], config))
    with torch.no_grad():
        distance = (model(text("tokens"), use_cache=False).logits - logits).abs().max().item()
    same = not wrong and distance <= 1e-12
    if same == (name in READ_OTHERWISE):
        raise ValueError(f"{name}: the old spelling is {distance} away, {wrong}")


def write(name, folder):
    config, table = make(name, folder)
    with NoSingle():
        model, wrong = load(folder, config)
        if wrong:
            raise ValueError(f"{name}: {wrong}")
        logits = model(text("tokens"), use_cache=False).logits
        loss = loss_of(logits)
        loss.backward()
    check_old(name, folder, config, logits.detach())
    golden = dict(type=CASES[name][0], config=[config, old_spelling(CASES[name][0], config)],
                  tokens=text("tokens").tolist(), targets=text("targets").tolist(), tensors=table,
                  loss=loss.item(), logits=logits.flatten().tolist(), gradients=gradients(model),
                  greedy=greedy(model), losses=train(model))
    path = OUT / f"{name}.json"
    # A line for each entry: compact, and a change shows where it is.
    path.write_text("{\n" + ",\n".join(f'"{key}": {json.dumps(what, separators=(",", ":"))}'
                                       for key, what in golden.items()) + "\n}\n")
    print(f"{name}: {path.stat().st_size} bytes, loss {loss.item():.4f} to "
          f"{golden['losses'][-1]:.4f}, margin {golden['greedy']['margin']:.2e}", flush=True)


def moved(folder, config, logits):
    """How far a configuration moves the loss: a number, "tensors" or "refused"."""
    try:
        model, wrong = load(folder, config)
        if wrong:
            return "tensors"
        with torch.no_grad():
            new = model(text("tokens"), use_cache=False).logits
    except Exception:  # of many kinds, by which transformers refuses a configuration
        return "refused"
    return abs((loss_of(new) - loss_of(logits)).item())


def check_fields(name, folder):
    config, _ = make(name, folder)
    spellings = []
    for spelling in config, old_spelling(CASES[name][0], config):
        with torch.no_grad():
            logits = load(folder, spelling)[0](text("tokens"), use_cache=False).logits
        spellings.append({path: moved(folder, changed, logits)
                          for path, changed in type_fields.changes(spelling)})
    return type_fields.report(name, spellings)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    OUT.mkdir(exist_ok=True)
    names, good = [name for name in sys.argv[1:] if name != "--fields"] or CASES, True
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            if "--fields" in sys.argv:
                good &= check_fields(name, pathlib.Path(folder))
            else:
                write(name, pathlib.Path(folder))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
