# SPDX-License-Identifier: Apache-2.0
"""Golden cases of losses. ROOMS: file name to the function that fills it."""
import torch
import torch.nn.functional as F

REDUCTIONS = ("none", "mean", "sum")


def losses(g):
    """Of x and target, which both have gradients; the case ends in its reduction."""
    weight, pos_weight = g.randn(7).abs(), g.randn(7).abs()
    g.put("weights", weight=weight, pos_weight=pos_weight)

    kinds = {
        "mse": lambda x, t, r: F.mse_loss(x, t, reduction=r),
        "l1": lambda x, t, r: F.l1_loss(x, t, reduction=r),
        "huber": lambda x, t, r: F.huber_loss(x, t, delta=0.7, reduction=r),
        "smooth_l1": lambda x, t, r: F.smooth_l1_loss(x, t, beta=0.7, reduction=r),
        "smooth_l1_0": lambda x, t, r: F.smooth_l1_loss(x, t, beta=0.0, reduction=r),
        "bce": lambda x, t, r: F.binary_cross_entropy_with_logits(x, t, reduction=r),
        "bce_weighted": lambda x, t, r: F.binary_cross_entropy_with_logits(
            x, t, weight.double(), pos_weight=pos_weight.double(), reduction=r),
        "kl": lambda x, t, r: F.kl_div(x, t, reduction=r),
        "kl_log": lambda x, t, r: F.kl_div(x, t, reduction=r, log_target=True),
    }
    for name, fn in kinds.items():
        for reduction in REDUCTIONS:
            x, target = g.randn(5, 7, scale=2.0), g.randn(5, 7, scale=2.0)
            if name[:2] in ("mse", "l1", "hu", "sm"):
                target[1, 2] = x[1, 2]
            if name.startswith("bce") or name == "kl":
                target = target.sigmoid()
            g.record(f"{name}_{reduction}", lambda x, t: fn(x, t, reduction),
                     {"x": x, "target": target})
    g.record("bce_far_sum", lambda x, t: kinds["bce"](x, t, "sum"),
             {"x": torch.tensor([-200.0, -60, 60, 200]), "target": torch.tensor([1.0, 0, 0, 1])})


def class_losses(g):
    """nll_loss and cross_entropy, with and without weights of the classes; the last row is ignored."""
    weight = g.randn(7).abs() + 0.1
    g.put("weights", weight=weight)
    for name, smoothing in (("nll", 0), ("cross_entropy", 0), ("smoothed", 0.2)):
        for weighted in ("", "_weighted"):
            for reduction in REDUCTIONS:
                def fn(x, targets):
                    w = weight.double() if weighted else None
                    settings = {"reduction": reduction, "ignore_index": 3}
                    if name == "nll":
                        return F.nll_loss(x, targets, w, **settings)
                    return F.cross_entropy(x, targets, w, label_smoothing=smoothing, **settings)

                targets = torch.cat((g.randint(0, 3, 5), g.randint(4, 7, 5), torch.tensor([3])))
                g.record(f"{name}{weighted}_{reduction}", fn, {"x": g.randn(11, 7, scale=2.0)},
                         {"targets": targets}, smoothing=smoothing)


ROOMS = {"losses": losses, "class_losses": class_losses}
