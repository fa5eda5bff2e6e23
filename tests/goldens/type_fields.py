# SPDX-License-Identifier: Apache-2.0
"""Which fields of a model's configuration describe its function: each is changed alone, in both
spellings, and must move the loss or ask for other tensors, or stand in WITHOUT with the reason.
"""
import copy

# Fields for training, ids, caches and the files themselves.
OTHER = {
    "_sliding_window_pattern", "add_cross_attention", "architectures", "attention_dropout",
    "attn_pdrop", "bos_token_id", "classifier_dropout", "dtype", "embd_pdrop",
    "embedding_dropout", "eos_token_id", "hidden_dropout", "initializer_range", "is_decoder",
    "model_type", "output_router_logits", "pad_token_id", "pretraining_tp", "resid_pdrop",
    "residual_dropout", "router_aux_loss_coef", "router_jitter_noise", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "torch_dtype", "transformers_version", "use_cache"}

# (case or "*", field) -> why the loss stays as it is.
WITHOUT = {
    ("*", "max_position_embeddings"): "bounds the text alone",
    ("gpt2", "reorder_and_upcast_attn"): "says in which precision scores are, here always f64",
}


def replaced(path, old):
    """Another sensible value of a field, found by its name and by its value."""
    field = path[-1]
    if field in ("hidden_act", "hidden_activation", "activation_function"):
        return "relu" if old != "relu" else "silu"
    if field == "layer_types":
        kinds = sorted({*old, "full_attention", "sliding_attention"} - {"chunked_attention"})
        return [kinds[1] if kind == kinds[0] else kinds[0] for kind in old]
    if field == "no_rope_layers":
        return [1 - x for x in old]
    if field in ("mlp_only_layers", "moe_layers"):
        return [0]
    if field in ("type", "rope_type"):
        return "default" if old != "default" else "linear"
    if field.endswith(("eps", "epsilon")):
        return 0.05
    if field == "use_bidirectional_attention":
        return True
    if old is None:
        return {"sliding_window": 4, "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 3.0, "hidden_activation": "relu",
                "rope_scaling": dict(rope_type="linear", factor=2.0)}[field]
    if isinstance(old, bool):
        return not old
    if isinstance(old, list):
        return [x * 1.5 for x in old]
    if field in ("num_key_value_heads", "num_experts_per_tok"):
        return 3 - old if old < 3 else 1
    if field in ("num_attention_heads", "n_head"):
        return old // 2
    if field == "partial_rotary_factor" or field == "rotary_pct":
        return old / 2
    if isinstance(old, int):
        return old - 1 if old > 2 else old + 1
    return old * 1.5


def changes(config):
    """(field, configuration with that field changed) of all fields; a field of a dictionary has a
    name with dots."""
    def walk(here, path):
        for key, value in here.items():
            if key in OTHER:
                continue
            if isinstance(value, dict):
                yield from walk(value, path + (key,))
            else:
                yield path + (key,), value

    for path, old in walk(config, ()):
        changed = copy.deepcopy(config)
        here = changed
        for key in path[:-1]:
            here = here[key]
        new = here[path[-1]] = replaced(path, old)
        if path[-1] in ("type", "rope_type"):  # of a scaling that is named twice both change
            here.update({key: new for key in ("type", "rope_type") if key in here})
            if new == "linear":
                here["factor"] = 2.0
        yield ".".join(path), changed


def report(name, spellings):
    """Prints a line for each field; false if one has neither effect nor reason."""
    good = True
    print(f"{name}\n  {'field':58} {'5':>9} {'4':>9}")
    for field in dict.fromkeys([*spellings[0], *spellings[1]]):
        effects = [s.get(field, "-") for s in spellings]
        reason = WITHOUT.get((name, field)) or WITHOUT.get(("*", field)) or ""
        acts = any(e == "tensors" or isinstance(e, float) and e > 1e-6 for e in effects)
        if acts == bool(reason):
            good = False
            reason = "HAS AN EFFECT" if acts else "NO EFFECT"
        shown = [f"{e:9.1e}" if isinstance(e, float) else f"{e:>9}" for e in effects]
        print(f"  {field:58} {' '.join(shown)}  {reason}".rstrip(), flush=True)
    return good
