# SPDX-License-Identifier: Apache-2.0
"""Host cost of PyTorch: what an op call costs where the arithmetic is next to nothing.

    build/venv/bin/python bench/peers/host_cost.py --threads 2
"""
import argparse

import torch

from common import Llama, emit, fastest_adamw, loss_fn, median_us

CHAIN = 100


def small_ops():
    a, b = torch.randn(8), torch.randn(8)
    with torch.no_grad():
        emit(name="add_no_grad", shape=[8], dtype="float32", time_us=median_us(lambda: a + b))
    w = torch.randn(8, requires_grad=True)
    emit(name="add_grad_recorded", shape=[8], dtype="float32", time_us=median_us(lambda: w + b))

    def chain(other):
        x = w
        for _ in range(CHAIN // 2):
            x = (x + other) * other
        torch.autograd.grad(x, w, grad_outputs=ones)

    ones, v = torch.ones(8), torch.randn(8, requires_grad=True)
    for name, other in (("chain_forward_backward_per_op", b),
                        ("chain_forward_backward_per_op_both_need_grad", v)):
        emit(name=name, shape=[8], dtype="float32", chain=CHAIN,
             time_us=median_us(lambda: chain(other)) / CHAIN)
    m, n = torch.randn(4, 4), torch.randn(4, 4)
    with torch.no_grad():
        emit(name="matmul_4x4", shape=[4, 4], dtype="float32", time_us=median_us(lambda: m @ n))


def small_step():
    seq_len, vocab_size = 64, 258
    model = Llama(dim=64, n_layers=4, n_heads=4, n_kv_heads=4, ffn_dim=192,
                  vocab_size=vocab_size, seq_len=seq_len)
    optimizer, kind = fastest_adamw(model, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(0, 256, (1, seq_len + 1))
    params = list(model.parameters())

    def step():
        optimizer.zero_grad()
        loss_fn(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    emit(name="train_step_dim64_4layers_64tokens", shape=[1, seq_len], dtype="float32",
         optimizer=kind, time_us=median_us(step, repeats=9, target_s=0.3))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(7)
    emit(name="about", torch=torch.__version__, threads=args.threads)
    small_ops()
    small_step()


if __name__ == "__main__":
    main()
