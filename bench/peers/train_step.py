# SPDX-License-Identifier: Apache-2.0
"""Train step of a Llama in PyTorch, or of a Qwen 3 with experts of transformers, eager or compiled:
tokens/s, peak memory, time by part.

    build/venv/bin/python bench/peers/train_step.py --batch 8 --seq 512 --threads 2
"""
import argparse
import resource
import statistics

import torch

from common import Llama, emit, fastest_adamw, loss_fn, now, use_device

MODELS = {
    "debugmodel": dict(dim=256, n_layers=6, n_heads=16, n_kv_heads=16, ffn_dim=768,
                       vocab_size=2048),
    "124M": dict(dim=768, n_layers=12, n_heads=12, n_kv_heads=12, ffn_dim=2048, vocab_size=50257,
                 tied=True),
    "1B": dict(dim=2048, n_layers=16, n_heads=32, n_kv_heads=8, ffn_dim=8192, vocab_size=128256,
               tied=True)}
# Of transformers, which runs its experts in a loop, or by torch._grouped_mm.
QWENS = {
    "debugmodel_moe_small": dict(dim=256, n_layers=6, n_heads=8, n_kv_heads=4, head_dim=32,
                                 vocab_size=2048, experts=16, top_k=4, hidden=128),
    "debugmodel_moe": dict(dim=256, n_layers=8, n_heads=16, n_kv_heads=8, head_dim=128,
                           vocab_size=2048, experts=64, top_k=8, hidden=768)}


class Qwen(torch.nn.Module):
    def __init__(self, sizes, experts_by):
        super().__init__()
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
        self.model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
            vocab_size=sizes["vocab_size"], hidden_size=sizes["dim"],
            num_hidden_layers=sizes["n_layers"], num_attention_heads=sizes["n_heads"],
            num_key_value_heads=sizes["n_kv_heads"], head_dim=sizes["head_dim"],
            max_position_embeddings=4096, num_experts=sizes["experts"],
            num_experts_per_tok=sizes["top_k"], moe_intermediate_size=sizes["hidden"],
            norm_topk_prob=True, attn_implementation="sdpa", experts_implementation=experts_by,
            rope_parameters=dict(rope_type="default", rope_theta=1e6)))

    def forward(self, tokens):
        return self.model(tokens, use_cache=False).logits


def peak_mib():
    """Resident memory of the process; on a GPU, of its tensors."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def flops_per_token(model, sizes, seq_len):
    """6 per matmul weight; attention's two products count in full, causal or not, three times."""
    weights = sum(p.numel() for p in model.parameters())
    if "experts" in sizes:
        one = 3 * sizes["dim"] * sizes["hidden"]
        weights -= sizes["vocab_size"] * sizes["dim"] + sizes["n_layers"] * one * (
            sizes["experts"] - sizes["top_k"])
        width = sizes["n_heads"] * sizes["head_dim"]
        return 6 * weights + 12 * sizes["n_layers"] * width * seq_len
    if not sizes.get("tied"):
        weights -= model.tok_embeddings.weight.numel()
    return 6 * weights + 12 * sizes["n_layers"] * sizes["dim"] * seq_len


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--model", choices=[*MODELS, *QWENS], default="debugmodel")
    parser.add_argument("--experts", choices=("eager", "grouped_mm"), default="eager",
                        help="how transformers computes experts")
    parser.add_argument("--precision", choices=("float32", "mixed", "bfloat16"), default="float32",
                        help="mixed: f32 parameters under autocast; bfloat16: all in it")
    parser.add_argument("--checkpoint", choices=("none", "full"), default="none")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    use_device(args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(7)
    before = peak_mib()

    mixed = args.precision == "mixed"
    if args.model in QWENS:
        family, sizes = "qwen3", QWENS[args.model]
        model = Qwen(sizes, args.experts)
    else:
        family, sizes = "llama3", MODELS[args.model]
        model = Llama(**sizes, seq_len=args.seq, checkpoint=args.checkpoint == "full")
    model.to(torch.bfloat16 if args.precision == "bfloat16" else torch.float32)
    optimizer, kind = fastest_adamw(model, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    params, flops = list(model.parameters()), flops_per_token(model, sizes, args.seq)
    run = torch.compile(model) if args.compile else model

    def step():
        tokens = torch.randint(0, sizes["vocab_size"], (args.batch, args.seq + 1))
        marks = [now()]
        optimizer.zero_grad()
        with torch.autocast(args.device, torch.bfloat16, enabled=mixed):
            logits = run(tokens[:, :-1])
        loss = loss_fn(logits, tokens[:, 1:])
        marks.append(now())
        del logits
        loss.backward()
        marks.append(now())
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        marks.append(now())
        return [b - a for a, b in zip(marks, marks[1:])], loss.item()

    for _ in range(2):
        step()
    measured = [step() for _ in range(max(3, args.steps))]
    total = statistics.median(sum(parts) for parts, _ in measured)
    forward, backward, update = (
        statistics.median(parts[i] for parts, _ in measured) for i in range(3))
    tokens = args.batch * args.seq
    suffix = "" if args.checkpoint == "none" else "_" + args.checkpoint
    emit(name=f"train_step_{family}_{args.model}_{args.precision}{suffix}",
         shape=[args.batch, args.seq], time_us=total * 1e6, tokens_per_second=tokens / total,
         forward_ms=forward * 1e3, backward_ms=backward * 1e3, optimizer_ms=update * 1e3,
         gflops_per_second=flops * tokens / total / 1e9, peak_rss_mib=peak_mib(),
         rss_before_model_mib=before, loss=measured[-1][1], optimizer=kind, compile=args.compile,
         threads=args.threads, device=args.device, torch=torch.__version__)


if __name__ == "__main__":
    main()
