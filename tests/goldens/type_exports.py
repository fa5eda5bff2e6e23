# SPDX-License-Identifier: Apache-2.0
"""What `tessera export-hf` writes of each model of types/, after `import-hf` of what transformers
saved: the same tensors byte for byte, and a config.json that transformers reads as the same model.

    python3 tests/goldens/type_exports.py build/ci/bin/tessera             # all types
    python3 tests/goldens/type_exports.py build/ci/bin/tessera gemma2 phi3 # some

Logits in f64 of weights in f32, relative to the largest: at most 1e-9.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from model_types import SINGLE, load, text, u  # computes in f64 from here on

HERE = pathlib.Path(__file__).parent


def logits(folder):
    """Of the same values in f64, which is what torch.float32 is here."""
    wide = folder / "wide"
    wide.mkdir()
    save_file({key: torch.from_numpy(x.astype(np.float64))
               for key, x in load_file(folder / "model.safetensors").items()},
              wide / "model.safetensors", {"format": "pt"})
    model, wrong = load(wide, json.loads((folder / "config.json").read_text()))
    if wrong:
        raise ValueError(f"{folder}: {wrong}")
    with torch.no_grad():
        return model(text("tokens"), use_cache=False).logits


def compare(program, name):
    golden = json.loads((HERE / "types" / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(top)
        (top / "hf").mkdir()
        (top / "hf/config.json").write_text(json.dumps(golden["config"][0]))
        weights = {key: (t["scale"] * u(key, t["shape"]) + t["centre"]).to(SINGLE).contiguous()
                   for key, t in golden["tensors"].items()}
        save_file(weights, top / "hf/model.safetensors", {"format": "pt"})
        for words in (["import-hf", top / "hf", "--out", top / "ours"],
                      ["export-hf", "--checkpoint", top / "ours", "--out", top / "out"]):
            subprocess.run([program, *words], check=True, capture_output=True)
        back = load_file(top / "out/model.safetensors")
        if set(back) != set(weights):
            raise ValueError(f"{name}: {set(back) ^ set(weights)}")
        for key, x in weights.items():
            if not np.array_equal(back[key], x.numpy()):
                raise ValueError(f"{name}: {key} is another tensor")
        before, after = logits(top / "hf"), logits(top / "out")
        distance = ((after - before).abs().max() / before.abs().max()).item()
        if not distance <= 1e-9:
            raise ValueError(f"{name}: logits are {distance} away")
        return len(back), distance


def main():
    program, *names = sys.argv[1:]
    for name in names or sorted(path.stem for path in (HERE / "types").glob("*.json")):
        count, distance = compare(program, name)
        print(f"{name}: {count} tensors, logits {distance:.1e}", flush=True)


if __name__ == "__main__":
    main()
