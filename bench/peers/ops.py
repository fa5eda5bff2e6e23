# SPDX-License-Identifier: Apache-2.0
"""Times the PyTorch twin of each case given as a JSON list (or JSON lines) on stdin.

    build/release/bin/bench_ops --list-cases | build/venv/bin/python bench/peers/ops.py --threads 2

A case is {"op": ..., "shapes": [[...], ...], "dtype": "float32", "attrs": [...], "grad": true} with
the values of the room's attributes in the room's order; ATTRIBUTES below names them. Other fields
(such as "name") are copied to the answer, and cases of ops without a twin here are left out.
"""
import argparse
import json
import sys

import torch
import torch.nn.functional as F

from common import DTYPES, emit, median_us, rope, use_device

BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
          "remainder": torch.remainder, "pow": torch.pow, "maximum": torch.maximum,
          "minimum": torch.minimum, "fmod": torch.fmod, "logical_and": torch.logical_and,
          "logical_or": torch.logical_or, "logical_xor": torch.logical_xor}
UNARY = {"silu": F.silu, "exp": torch.exp, "log": torch.log, "rsqrt": torch.rsqrt,
         "tanh": torch.tanh, "sin": torch.sin, "cos": torch.cos, "erf": torch.erf,
         "copy": torch.clone, "sqrt": torch.sqrt, "sigmoid": torch.sigmoid, "relu": torch.relu,
         "abs": torch.abs, "sign": torch.sign, "floor": torch.floor, "round": torch.round,
         "reciprocal": torch.reciprocal, "log1p": torch.log1p, "expm1": torch.expm1,
         "logical_not": torch.logical_not, "isnan": torch.isnan, "isfinite": torch.isfinite,
         "isinf": torch.isinf, "ceil": torch.ceil, "trunc": torch.trunc, "frac": torch.frac,
         "exp2": torch.exp2, "log2": torch.log2, "log10": torch.log10, "mish": F.mish,
         "logsigmoid": F.logsigmoid}
COMPARISONS = {"equal": torch.eq, "less": torch.lt, "greater": torch.gt}
SDPA = F.scaled_dot_product_attention


def reduce(op):
    def fn(x, dim=None, keepdim=False, **_):
        if dim is None:
            dim = list(range(x.dim())) if op is torch.logsumexp else None
        return op(x) if dim is None else op(x, dim, keepdim=keepdim)
    return fn


def prod(x, dim, keepdim=False, **_):
    for d in sorted(dim, reverse=True):
        x = x.prod(d, keepdim=keepdim)
    return x


def first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def conditions(mask):
    """{"causal": 0, "window": 128} of "causal & window(128)"."""
    parts = [] if mask == "all" else mask.split(" & ")
    return {name: int(size.rstrip(")") or 0) for name, _, size in (p.partition("(") for p in parts)}


def attention_mask(shapes, mask="all", heads_inner=False, query_start=0, **_):
    """The keys that each query sees as bools, None where PyTorch needs none; documents of 200."""
    time, said = 1 if heads_inner else 2, conditions(mask)
    queries, keys = shapes[0][time], shapes[1][time]
    if not said or (list(said) == ["causal"] and not query_start):
        return None
    at, key = torch.arange(queries)[:, None] + query_start, torch.arange(keys)[None, :]
    seen = key <= at if "causal" in said else torch.ones(queries, keys, dtype=torch.bool)
    if "window" in said:
        seen &= (key - at).abs() < said["window"]
    if "chunk" in said:
        seen &= key // said["chunk"] == at // said["chunk"]
    if "document" in said:
        seen &= key // 200 == at // 200
    return None if bool(seen.all()) else seen


def attention(q, k, v, seen=None, mask="all", heads_inner=False, scale=None, query_start=0, **_):
    if heads_inner:  # (B, T, H, D), as a model has them
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    causal = mask == "causal" and seen is None and not query_start
    y = SDPA(q, k, v, attn_mask=seen, is_causal=causal, scale=scale,
             enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2) if heads_inner else y


def attention_sink(o, lse, sink, heads_inner=False, **_):
    gate = torch.sigmoid(lse - sink[:, None])  # (B, H, T)
    return o * (gate.transpose(1, 2) if heads_inner else gate).unsqueeze(-1).to(o.dtype)


def rope_halves(x, cos, sin, positions=None):  # x: (B, T, H, D), as Hugging Face has it
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = (torch.cat((t, t), -1).to(x.dtype).unsqueeze(-2) for t in (cos, sin))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def cross_entropy(logits, targets, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, **_):
    total = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum",
                            ignore_index=ignore_index, label_smoothing=label_smoothing)
    if z_loss:
        total = total + z_loss * logits.logsumexp(-1)[targets != ignore_index].square().sum()
    return total


def swiglu(gate, up, limit=0, alpha=1, up_shift=0, **_):
    if not limit:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + up_shift)


def linear_cross_entropy(hidden, weight, targets, **options):
    return cross_entropy(F.linear(hidden, weight), targets, **options)


def add_rms_norm(x, residual, weight, eps=1e-5, **_):
    total = x + residual
    return F.rms_norm(total, weight.shape, weight, eps), total


def quantize(x, to="f8_e4m3", per_row=False, **_):
    amax = x.abs().amax(-1, keepdim=True) if per_row else x.abs().amax()
    scale = amax.float() / torch.finfo(DTYPES[to]).max
    return (x / scale).to(DTYPES[to]), scale


def dequantize(values, scale, to="float32", **_):
    return (values.float() * (scale[..., None] if scale.dim() else scale)).to(DTYPES[to])


def scatter_backward(dy, index, dim=1, **_):
    return dy.scatter(dim, index, 0), dy.gather(dim, index)


def pad(x, before=(), after=(), value=0, **_):
    sizes = [n for pair in zip(reversed(before), reversed(after)) for n in pair]
    return F.pad(x, sizes, value=value)


def matmul(a, b, transpose_a=False, transpose_b=False, **_):
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


def grouped_mm(x, w, ends, transpose=True, **_):
    return torch._grouped_mm(x, w.mT if transpose else w, ends)


TWINS = {
    **{name: (lambda op: lambda x, y, **_: op(x, y))(op)
       for name, op in (BINARY | COMPARISONS).items()},
    **{name: (lambda op: lambda x, **_: op(x))(op) for name, op in UNARY.items()},
    "affine": lambda x, scale=1, shift=0, **_: x * scale + shift if shift else x * scale,
    "compare_scalar": lambda x, relation, value, **_: COMPARISONS[relation](x, value),
    "where": lambda condition, x, y, **_: torch.where(condition, x, y),
    "gelu": lambda x, tanh=False, **_: F.gelu(x, approximate="tanh" if tanh else "none"),
    "pow_scalar": lambda x, exponent, **_: x ** exponent,
    "clamp": lambda x, low, high, **_: x.clamp(low, high),
    "masked_fill": lambda x, mask, value=0, **_: x.masked_fill(mask, value),
    "softplus": lambda x, beta=1, threshold=20, **_: F.softplus(x, beta, threshold),
    # floor_divide itself has no gradient.
    "floor_divide": lambda x, y, **_: torch.div(x, y, rounding_mode="floor"),
    "leaky_relu": lambda x, slope, **_: F.leaky_relu(x, slope),
    "elu": lambda x, alpha, **_: F.elu(x, alpha),
    "hardtanh": lambda x, low, high, **_: F.hardtanh(x, low, high),
    "lerp": lambda x, y, weight, **_: torch.lerp(x, y, weight),
    "lerp_scalar": lambda x, y, weight, **_: torch.lerp(x, y, weight),
    "clamp_tensor": lambda x, low, high, **_: x.clamp(low, high),
    "nan_to_num": lambda x, nan, posinf, neginf, **_: torch.nan_to_num(x, nan, posinf, neginf),
    "mse_loss": lambda x, y, **_: F.mse_loss(x, y, reduction="none"),
    "l1_loss": lambda x, y, **_: F.l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y, delta, **_: F.huber_loss(x, y, reduction="none", delta=delta),
    "bce_with_logits": lambda x, y, **_:
        F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "kl_div": lambda x, y, log_target, **_:
        F.kl_div(x, y, reduction="none", log_target=bool(log_target)),
    "count_nonzero": lambda x, dim, **_: torch.count_nonzero(x, dim),
    "sum": reduce(torch.sum), "mean": reduce(torch.mean), "prod": prod,
    "amax": reduce(torch.amax), "amin": reduce(torch.amin), "any": reduce(torch.any),
    "all": reduce(torch.all),
    "var": lambda x, dim, keepdim=False, correction=1, root=False, **_:
        (torch.std if root else torch.var)(x, dim, correction=correction, keepdim=keepdim),
    "norm": lambda x, dim, keepdim=False, p=2, **_: torch.linalg.vector_norm(x, p, dim, keepdim),
    "max": lambda x, dim=-1, **_: x.max(dim).values, "logsumexp": reduce(torch.logsumexp),
    "min": lambda x, dim=-1, **_: x.min(dim).values,
    "triangle": lambda x, diagonal=0, upper=True, **_:
        torch.triu(x, diagonal) if upper else torch.tril(x, diagonal),
    "log_softmax": lambda x, dim=-1, **_: x.log_softmax(dim),
    "matmul": matmul,
    "grouped_mm": grouped_mm,
    "contract_leading": lambda a, b, **_: a.flatten(0, -2).mT @ b.flatten(0, -2),
    "softmax": lambda x, dim=-1, **_: x.softmax(dim),
    "rms_norm": lambda x, weight, eps=1e-5, **_: F.rms_norm(x, weight.shape, weight, eps),
    "rope": lambda x, *tables, halves=False, **_: (rope_halves if halves else rope)(x, *tables),
    "add_rms_norm": add_rms_norm,
    "layer_norm": lambda x, weight, bias, eps=1e-5, **_: F.layer_norm(x, weight.shape, weight, bias,
                                                                      eps),
    "swiglu": swiglu,
    "scaled_dot_product_attention": attention, "attention_sink": attention_sink,
    "cross_entropy": cross_entropy, "linear_cross_entropy": linear_cross_entropy,
    "quantize": quantize, "dequantize": dequantize,
    "embedding": lambda weight, indices, **_: F.embedding(indices, weight),
    "gather": lambda x, index, dim=1, **_: x.gather(dim, index),
    "scatter_add": lambda x, index, src, dim=1, **_: x.scatter_add(dim, index, src),
    "scatter": lambda x, index, src, dim=1, **_: x.scatter(dim, index, src),
    "scatter_backward": scatter_backward,
    "scatter_reduce": lambda x, index, src, dim=1, join="prod", **_:
        x.scatter_reduce(dim, index, src, join),
    "flip": lambda x, dims=(), **_: x.flip(dims),
    "pad": pad,
    "topk": lambda x, k=2, dim=-1, largest=1, **_: x.topk(k, dim, bool(largest)).values,
    "sort": lambda x, dim=-1, descending=0, **_: x.sort(dim=dim, descending=bool(descending),
                                                        stable=True).values,
    "cumsum": lambda x, dim=0, reverse=0, **_: x.cumsum(dim),
    "cumprod": lambda x, dim, **_: x.cumprod(dim),
    "cummax": lambda x, dim, **_: x.cummax(dim).values,
    "cummin": lambda x, dim, **_: x.cummin(dim).values,
    "index_select": lambda x, index, dim=0, **_: x.index_select(dim, index),
    "index_add": lambda x, index, src, dim=0, **_: x.index_add(dim, index, src),
    "index_put_": lambda x, values, index, accumulate=0, **_:
        x.index_put_((index,), values, bool(accumulate)),
    "bincount": lambda x, bins=0, **_: torch.bincount(x, minlength=bins),
    "histogram": lambda x, bins=100, low=0, high=1, **_: torch.histc(x, bins, low, high),
    "searchsorted": lambda s, x, right=0, **_: torch.searchsorted(s, x, right=bool(right)),
    "dropout": lambda x, p=0.5, **_: F.dropout(x, p),
    "diagonal_pad": lambda x, offset=0, **_: torch.diag_embed(x, offset),
    "cat": lambda *xs, dim=0, **_: torch.cat(xs, dim),
    "sum_squares": lambda *xs, **_: torch.stack(torch._foreach_norm(xs)).norm(),
    "cast": lambda x, to="bfloat16", **_: x.to(DTYPES[to]),
}

# What the room's attributes are called, in its order, where the twin reads any.
ATTRIBUTES = {
    "affine": "scale shift", "gelu": "tanh", "cast": "to", "sum": "dims keepdim",
    "mean": "dims keepdim", "logsumexp": "dims keepdim", "max": "dim keepdim",
    "min": "dim keepdim", "prod": "dims keepdim", "amax": "dims keepdim", "amin": "dims keepdim",
    "any": "dims keepdim", "all": "dims keepdim", "var": "dims keepdim correction root",
    "norm": "dims keepdim p", "pow_scalar": "exponent", "clamp": "low high",
    "leaky_relu": "slope", "elu": "alpha", "hardtanh": "low high", "lerp_scalar": "weight",
    "nan_to_num": "nan posinf neginf", "huber_loss": "delta unit", "kl_div": "log_target",
    "cumprod": "dim", "cummax": "dim", "cummin": "dim", "count_nonzero": "dims keepdim",
    "masked_fill": "value", "softplus": "beta threshold", "triangle": "diagonal upper",
    "log_softmax": "dim",
    "matmul": "transpose_a transpose_b", "grouped_mm": "transpose", "softmax": "dim", "rms_norm": "eps",
    "scaled_dot_product_attention": "mask heads_inner scale query_start key_start soft_cap",
    "rope": "inverse halves rotary", "attention_sink": "heads_inner",
    "swiglu": "limit alpha up_shift",
    "cross_entropy": "ignore_index label_smoothing z_loss",
    "linear_cross_entropy": "ignore_index label_smoothing z_loss", "layer_norm": "eps",
    "add_rms_norm": "eps", "quantize": "to per_row", "dequantize": "to",
    "sgd_": "weight_decay maximize",
    "sgd_momentum_": "momentum dampening weight_decay nesterov maximize",
    "gather": "dim", "scatter_add": "dim", "scatter": "dim", "scatter_backward": "dim",
    "scatter_reduce": "dim join", "flip": "dims", "pad": "before after value", "topk": "k dim largest", "cat": "dim",
    "sort": "dim descending", "cumsum": "dim reverse", "index_select": "dim", "index_add": "dim",
    "compare_scalar": "relation value", "index_put_": "accumulate",
    "bincount": "bins", "histogram": "bins low high", "searchsorted": "right", "dropout": "p",
    "diagonal_pad": "offset", "arange": "start step count", "permutation": "count",
    "linspace": "start stop steps", "fill": "shape",
    "random": "shape", "randint": "shape low high", "adamw_": "beta1 beta2 eps weight_decay"}

SGD = ("sgd_", "sgd_momentum_")
MAKERS = {"fill": lambda dtype, shape: torch.full(shape, 0.0, dtype=dtype),
          "random": lambda dtype, shape: torch.randn(shape, dtype=dtype),
          "arange": lambda dtype, start, step, count: torch.arange(start, start + step * count,
                                                                   step, dtype=dtype),
          "linspace": lambda dtype, start, stop, steps: torch.linspace(start, stop, steps,
                                                                       dtype=dtype),
          "randint": lambda dtype, shape, low, high: torch.randint(low, high, shape),
          "permutation": lambda dtype, count: torch.randperm(count)}


def named(op, values):
    """The attributes by name; truth values arrive as 0 or 1, sets of dims as bits."""
    attrs = dict(zip(ATTRIBUTES.get(op, "").split(), values))
    if "keepdim" in attrs:
        attrs["keepdim"] = bool(attrs["keepdim"])
    if "dims" in attrs and op != "flip":
        mask = attrs.pop("dims")
        attrs["dim"] = [d for d in range(32) if mask >> d & 1]
    if op == "scaled_dot_product_attention" and not attrs["scale"]:
        del attrs["scale"]  # 0 stands for the default
    return attrs


def make_inputs(op, shapes, dtype, attrs):
    """Inputs in the room's order: values in `dtype`, indices i64 over the extent they index."""
    def values(shape):
        if not dtype.is_floating_point:
            return torch.randint(0, 100, shape).to(dtype)
        x = torch.randn(shape)
        positive = op in ("log", "log2", "log10", "log1p", "rsqrt", "sqrt", "pow", "pow_scalar",
                          "reciprocal", "kl_div")
        return (x.abs() + 0.1 if positive else x).to(dtype)

    inputs = [values(shape) for shape in shapes]
    if op in ("where", "masked_fill"):
        i = 0 if op == "where" else 1
        inputs[i] = torch.rand(shapes[i]) < 0.5
    elif op == "cross_entropy":
        inputs[1] = torch.randint(0, shapes[0][-1], shapes[1])
    elif op == "linear_cross_entropy":
        inputs[2] = torch.randint(0, shapes[1][0], shapes[2])
    elif op == "grouped_mm":  # loads from half to one and a half of the mean, as the room's samples
        rows, groups, end = shapes[0][0], shapes[2][0], torch.arange(1, shapes[2][0] + 1)
        inputs[2] = (rows * end * (end + groups) // (2 * groups**2)).int()
    elif op == "dequantize":
        inputs = [values(shapes[0]).to(torch.float8_e4m3fn), torch.rand(shapes[1])]
    elif op == "embedding":
        inputs[1] = torch.randint(0, shapes[0][0], shapes[1])
    elif op in ("gather", "scatter_add", "scatter", "scatter_backward", "scatter_reduce",
                "index_select", "index_add"):
        inputs[1] = torch.randint(0, shapes[0][attrs.get("dim", 1)], shapes[1])
    elif op == "index_put_":
        inputs[2] = torch.randint(0, shapes[0][0], shapes[2])
    elif op == "attention_sink":
        inputs[1:] = [x.float() for x in inputs[1:]]
    elif op == "scaled_dot_product_attention":
        inputs = [*inputs[:3], attention_mask(shapes, **attrs)]
    elif op == "bincount":
        inputs[0] = torch.randint(0, attrs["bins"], shapes[0])
    elif op == "dropout":
        inputs = inputs[:1]  # without the key
    elif op == "searchsorted":
        inputs[0] = inputs[0].sort().values
    elif op == "rope":
        angle = torch.rand(shapes[1])
        # Adjacent pairs take cos and sin as one complex table.
        tables = ([angle.cos(), angle.sin()] if attrs.get("halves") else
                  [torch.polar(torch.ones_like(angle), angle)])
        positions = [torch.randint(0, shapes[1][0], shape) for shape in shapes[3:]]
        inputs = [inputs[0], *tables, *positions]
    return inputs


def time_adamw(shapes, dtype, attrs):
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    settings = {k: attrs[k] for k in ("lr", "eps", "weight_decay") if k in attrs}
    times = {}
    for kind in ("fused", "foreach"):
        optimizer = torch.optim.AdamW(params, **{kind: True}, **settings)
        times[kind] = median_us(optimizer.step)
    kind = min(times, key=times.get)
    return {"time_us": times[kind], "optimizer": kind}


def time_sgd(shapes, dtype, attrs):
    """Shapes are all of the room's inputs: scalars, then lists of one length."""
    momentum = "momentum" in attrs
    lists = shapes[4:] if momentum else shapes[3:]
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype))
              for shape in lists[:len(lists) // (3 if momentum else 2)]]
    for param in params:
        param.grad = torch.randn_like(param)
    settings = {k: bool(v) if k in ("nesterov", "maximize") else v for k, v in attrs.items()}
    times = {}
    for kind in ("fused", "foreach"):
        optimizer = torch.optim.SGD(params, lr=1e-6, **{kind: True}, **settings)
        times[kind] = median_us(optimizer.step)
    kind = min(times, key=times.get)
    return {"time_us": times[kind], "optimizer": kind}


def time_case(op, shapes, dtype, attrs, grad):
    if op == "adamw_":
        return time_adamw(shapes, dtype, attrs)
    if op in SGD:
        return time_sgd(shapes, dtype, attrs)
    if op in MAKERS:
        return {"time_us": median_us(lambda: MAKERS[op](dtype, **attrs))}
    inputs, fn = make_inputs(op, shapes, dtype, attrs), TWINS[op]
    with torch.no_grad():
        result = {"time_us": median_us(lambda: fn(*inputs, **attrs))}
    if grad:
        leaves = [x.requires_grad_() for x in inputs if x is not None and x.is_floating_point()]
        if op == "rope":
            leaves = leaves[:1]  # tables have no gradient
        dy = torch.randn_like(first(fn(*inputs, **attrs)))

        def both():
            torch.autograd.grad(first(fn(*inputs, **attrs)), leaves, dy)
        result["time_grad_us"] = median_us(both)
        if op == "linear_cross_entropy":  # the room's forward pass makes the gradients, too
            result["time_us"] = result["time_grad_us"]
    return result


def read_cases(text):
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    use_device(args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(7)
    for case in read_cases(sys.stdin.read()):
        op, shapes, dtype = case["op"], case["shapes"], case.get("dtype", "float32")
        if op not in TWINS and op not in MAKERS and op not in SGD and op != "adamw_":
            continue
        attrs = named(op, case.get("attrs", []))
        if op == "cast" and attrs["to"] == dtype:
            continue  # PyTorch gives back its input
        try:
            figures = time_case(op, shapes, DTYPES[dtype], attrs,
                                case.get("grad", False))
        except (RuntimeError, TypeError, IndexError, KeyError, ValueError) as error:
            emit(**case, error=f"{type(error).__name__}: {error}")
            continue
        emit(**case, **figures, threads=args.threads)


if __name__ == "__main__":
    main()
