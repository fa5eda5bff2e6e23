# SPDX-License-Identifier: Apache-2.0
"""Writes one golden file: tensors named `<case>/<name>`, attributes as strings in the metadata.

Every reference is computed in f64 from the inputs as they are stored (f32 or bf16) and rounded once
to f32, so a golden holds the true value and not the rounding of one library on one machine.
"""
import json
import pathlib

import torch

DTYPE_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64",
               torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
FOLDER = pathlib.Path(__file__).parent


class GoldenFile:
    def __init__(self, room, seed):
        self.room = room
        self.rng = torch.Generator().manual_seed(seed)
        self.tensors = {}
        self.attributes = {}

    def randn(self, *shape, dtype=torch.float32, scale=1.0, shift=0.0):
        """Normal values, rounded to `dtype`, so that what is stored is what is computed with."""
        x = torch.randn(shape, generator=self.rng, dtype=torch.float64) * scale + shift
        return x.to(dtype)

    def randint(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.rng)

    def put(self, case, **tensors):
        """Stores tensors; f64 values are references and are rounded to f32."""
        for name, tensor in tensors.items():
            tensor = tensor.detach().contiguous()
            if tensor.dtype == torch.float64:
                tensor = tensor.to(torch.float32)
            # Two names may hold one tensor, which the format forbids: each gets its own copy.
            self.tensors[f"{case}/{name}"] = tensor.clone()

    def put_f64(self, case, **tensors):
        """Stores f64 references as they are."""
        for name, tensor in tensors.items():
            self.tensors[f"{case}/{name}"] = tensor.detach().clone().contiguous()

    def attrs(self, case, **attributes):
        for name, value in attributes.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self.attributes[f"{case}/{name}"] = text

    def record(self, case, fn, inputs, constants=None, dy_dtype=torch.float32, **attributes):
        """Runs y = fn(*inputs, *constants); stores inputs, y, a random dy and d_<input>.

        `inputs` are differentiated, `constants` (indices, tables) are not. The attributes are only
        written down here; `fn` already holds them. A dict of outputs has y as its first entry.
        """
        constants = constants or {}
        leaves = {k: v.to(torch.float64).requires_grad_() for k, v in inputs.items()}
        fixed = {k: v.to(torch.float64) if v.is_floating_point() else v
                 for k, v in constants.items()}
        result = fn(*leaves.values(), *fixed.values())
        outputs = result if isinstance(result, dict) else {"y": result}
        y = next(iter(outputs.values()))  # the first output is the differentiated one
        if y.dim() > 0:
            dy = self.randn(*y.shape, dtype=dy_dtype)
        else:
            dy = torch.ones((), dtype=dy_dtype)
        grads = torch.autograd.grad(y, list(leaves.values()), dy.to(torch.float64))
        self.put(case, **inputs, **constants, **outputs, dy=dy)
        self.put(case, **{f"d_{name}": grad for name, grad in zip(leaves, grads)})
        self.attrs(case, **attributes)

    def write(self):
        # Our own writer: the library's orders the metadata differently in each run.
        header, chunks, offset = {}, [], 0
        if self.attributes:
            header["__metadata__"] = dict(sorted(self.attributes.items()))
        # Wider types first keeps every tensor aligned to its element size.
        for key in sorted(self.tensors, key=lambda k: (-self.tensors[k].element_size(), k)):
            tensor = self.tensors[key]
            data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            header[key] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape),
                           "data_offsets": [offset, offset + len(data)]}
            chunks.append(data)
            offset += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path = FOLDER / f"{self.room}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))
        cases = sorted({key.split("/")[0] for key in self.tensors})
        print(f"{path.name:42s} {path.stat().st_size:7d} bytes  {', '.join(cases)}")
