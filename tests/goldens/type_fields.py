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
LENGTHS = "refused: the lists of factors must fit"
WITHOUT = {
    ("*", "max_position_embeddings"): "bounds the text alone",
    ("*", "tie_word_embeddings"): "a checkpoint with a head of its own is never tied",
    ("gemma", "hidden_activation"): "of transformers 4; 5 reads hidden_act",
    ("gemma", "use_bidirectional_attention"): "no mask asks it",
    ("gemma2", "use_bidirectional_attention"): "no mask asks it",
    ("gemma3_text", "attn_logit_softcapping"): "read, never applied",
    ("gpt2", "reorder_and_upcast_attn"): "says in which precision scores are, here always f64",
    ("smollm3", "no_rope_layer_interval"): "no_rope_layers is given, in both spellings",
}
for case, unused in ("phi3", "short_factor"), ("phi3_short", "long_factor"):
    WITHOUT |= {
        (case, "hidden_size"): LENGTHS,
        (case, "num_attention_heads"): LENGTHS,
        (case, "partial_rotary_factor"): LENGTHS,
        (case, "rope_parameters.partial_rotary_factor"): LENGTHS,
        (case, "rope_parameters.original_max_position_embeddings"): "the field outside wins",
        (case, f"rope_parameters.{unused}"): "for texts of another length",
        (case, f"rope_scaling.{unused}"): "for texts of another length"}


def replaced(path, old):
    """Another sensible value of a field, found by its name and by its value."""
    field = path[-1]
    if field in ("hidden_act", "hidden_activation", "activation_function"):
        return "relu" if old != "relu" else "silu"
    if field == "layer_types":
        local = "chunked_attention" if "chunked_attention" in old else "sliding_attention"
        return ["full_attention" if kind == local else local for kind in old]
    if field == "no_rope_layers":
        return [1 - x for x in old]
    if field in ("mlp_only_layers", "moe_layers"):
        return [0] if 1 in old else [1]
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
    if field in ("hidden_size", "n_embd", "head_dim", "partial_rotary_factor", "rotary_pct",
                 "original_max_position_embeddings"):
        return old * 2
    if field in ("beta_fast", "beta_slow"):  # so far that the rounded range moves
        return old * 3
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
        if path == ("num_hidden_layers",):  # lists of a value for each layer lose the last
            for key in ("layer_types", "no_rope_layers"):
                if changed.get(key):
                    changed[key] = changed[key][:new]
        yield ".".join(path), changed


def report(name, spellings):
    """Prints a line for each field; false if one has neither effect nor reason."""
    good = True
    print(f"{name}\n  {'field':58} {'5':>9} {'4':>9}")
    for field in dict.fromkeys([*spellings[0], *spellings[1]]):
        effects = [s.get(field, "-") for s in spellings]
        own, reason = WITHOUT.get((name, field)), WITHOUT.get(("*", field))
        acts = any(e == "tensors" or isinstance(e, float) and e > 1e-6 for e in effects)
        if acts and own or not (acts or own or reason):
            good = False
            reason = "HAS AN EFFECT" if acts else "NO EFFECT"
        else:
            reason = "" if acts else own or reason
        shown = [f"{e:9.1e}" if isinstance(e, float) else f"{e:>9}" for e in effects]
        print(f"  {field:58} {' '.join(shown)}  {reason}".rstrip(), flush=True)
    return good
