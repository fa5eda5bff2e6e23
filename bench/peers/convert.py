#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GB/s of `tessera import-hf` and `tessera export-hf` beside the disk, on a synthetic Llama of 2 GB in bf16. Beside them the
same bytes are written, read, and copied a block at a time, and go through the package safetensors (whole in memory). All are
whole processes or calls that end with the files on the disk, by turns; what is read is dropped from the cache before.
Needs: pip install numpy torch safetensors, and 8 GB of disk under --folder

    python3 bench/peers/convert.py [--layers 12] [--rounds 3] [--folder build/bench_convert] [--bin DIR]"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

BLOCK = 8 << 20  # bytes
DIM, HEADS, KV_HEADS, FFN, VOCABULARY = 2048, 32, 8, 8192, 128256


def tensors_of(layers):
    """Names and shapes of a tied Llama under the names of transformers."""
    shapes = {"model.embed_tokens.weight": (VOCABULARY, DIM), "model.norm.weight": (DIM,)}
    head = DIM // HEADS
    for i in range(layers):
        layer = {"self_attn.q_proj": (DIM, DIM), "self_attn.k_proj": (KV_HEADS * head, DIM),
                 "self_attn.v_proj": (KV_HEADS * head, DIM), "self_attn.o_proj": (DIM, DIM),
                 "mlp.gate_proj": (FFN, DIM), "mlp.up_proj": (FFN, DIM), "mlp.down_proj": (DIM, FFN),
                 "input_layernorm": (DIM,), "post_attention_layernorm": (DIM,)}
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def write_model(folder, layers):
    import numpy
    shapes, header, at = tensors_of(layers), {}, 0
    for name, shape in shapes.items():
        end = at + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = numpy.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while file.tell() < 8 + len(text) + at:
            left = (8 + len(text) + at - file.tell()) // 2
            values = draw.standard_normal(min(left, BLOCK), numpy.float32)
            file.write((values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": DIM, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": FFN, "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16"}))


def drop_from_cache(path):
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def move(source, out):
    """Reads a file and writes it to another; None: nothing is read, or nothing is kept."""
    blocks = os.path.getsize(source or out.parent / "model.safetensors") // BLOCK
    read = open(source, "rb", buffering=0) if source else None
    written = open(out, "wb", buffering=0) if out else None
    filler = os.urandom(BLOCK)
    for _ in range(blocks):
        block = read.read(BLOCK) if read else filler
        if written:
            written.write(block)
    if written:
        os.fsync(written.fileno())


def through_safetensors(source, out):
    from safetensors.torch import load_file, save_file
    save_file(load_file(source), out)
    with open(out, "rb") as file:
        os.fsync(file.fileno())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/bench_convert"))
    parser.add_argument("--bin", default="build/release/bin")
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    ours = args.folder / "ours"
    theirs = args.folder / "theirs"
    theirs.mkdir()
    try:
        write_model(theirs, args.layers)
        source, copy = theirs / "model.safetensors", theirs / "copy"
        gigabytes = source.stat().st_size / 1e9
        tessera = lambda *words: subprocess.run([f"{args.bin}/tessera", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
        work = {  # what is read, what is written, what is done
            "disk write": (source, copy, lambda: move(None, copy)),
            "disk read": (source, copy, lambda: move(source, None)),
            "disk copy": (source, copy, lambda: move(source, copy)),
            "safetensors": (source, copy, lambda: through_safetensors(source, copy)),
            "import-hf": (source, ours, lambda: tessera("import-hf", theirs, "--out", ours, "--dtype", "bfloat16")),
            "export-hf": (ours, args.folder / "back",
                          lambda: tessera("export-hf", "--checkpoint", ours, "--out", args.folder / "back")),
        }
        rates = {name: [] for name in work}
        for _ in range(args.rounds):
            for name, (read, written, run) in work.items():
                if written.is_dir():
                    shutil.rmtree(written)
                written.unlink(missing_ok=True)
                drop_from_cache(read)
                start = time.perf_counter()
                run()
                rates[name].append(gigabytes / (time.perf_counter() - start))
            back = args.folder / "back" / "model.safetensors"
            if back.stat().st_size < source.stat().st_size * 0.999:
                sys.exit(f"{back} is not the model")
        best = {name: max(values) for name, values in rates.items()}
        print(f"{gigabytes:.2f} GB, best of {args.rounds}")
        for name, rate in best.items():
            print(f"{name:12} {rate:6.2f} GB/s  {rate / best['disk copy']:5.2f} of a copy  "
                  f"(rounds: {', '.join(f'{value:.2f}' for value in rates[name])})")
    finally:
        shutil.rmtree(args.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
