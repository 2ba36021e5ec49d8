"""Hugging Face models of many families, with tiny random configurations.

``python -m tests.torch_models [NAME ..] [--device] [--cuda] [--dtype bfloat16]`` runs them forward
and backward under ``torch.compile(backend="genesis")``, with ``--cuda`` on CUDA tensors, or on the
device, and compares with PyTorch eager. Results in bfloat16 may be twice as far from those in
float32 as eager's are.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

#: Sizes that configurations take under one name or another.
TINY: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32,
    "word_embed_proj_dim": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "n_inner": 48, "hidden_dim": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_kv": 8, "head_dim": 8,
    "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64, "embedding_size": 32,
    "max_source_positions": 16, "max_target_positions": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "use_cache": False, "rotary_dim": 4,
    "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "hidden_dropout": 0.0, "dropout_rate": 0.0, "classifier_dropout": 0.0,
    "embed_dropout": 0.0, "resid_dropout": 0.0, "embedding_dropout": 0.0, "layerdrop": 0.0,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip

Case = tuple[str, str, dict[str, Any], Callable[[], dict[str, torch.Tensor]]]


def _tokens(length: int = 11) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 90, (2, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _long() -> dict[str, torch.Tensor]:
    return _tokens(48)


def _pair() -> dict[str, torch.Tensor]:
    return {**_tokens(), "decoder_input_ids": torch.randint(3, 90, (2, 7))}


def _image(size: int = 32) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def _large_image() -> dict[str, torch.Tensor]:
    return _image(64)


def _sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 1600)}


def _spectrum() -> dict[str, torch.Tensor]:
    return {
        "input_features": torch.randn(2, 80, 32),
        "decoder_input_ids": torch.randint(3, 90, (2, 5)),
    }


CASES: list[Case] = [
    *(
        (name, model, extra, _tokens)
        for name, model, extra in (
            ("Bert", "BertModel", {}),
            ("Roberta", "RobertaModel", {}),
            ("DistilBert", "DistilBertModel", {}),
            ("Albert", "AlbertModel", {}),
            ("Electra", "ElectraModel", {}),
            ("Deberta", "DebertaModel", {}),
            ("DebertaV2", "DebertaV2Model", {}),
            ("MPNet", "MPNetModel", {}),
            ("XLNet", "XLNetModel", {"d_inner": 48, "d_head": 8}),
            (
                "Funnel",
                "FunnelModel",
                {"block_sizes": [1, 1], "block_repeats": [1, 1], "d_head": 8, "d_inner": 48},
            ),
            ("FNet", "FNetModel", {}),
            ("ModernBert", "ModernBertModel", {"global_attn_every_n_layers": 2}),
            ("GPT2", "GPT2LMHeadModel", {}),
            ("GPTNeo", "GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 1]]}),
            ("GPTNeoX", "GPTNeoXForCausalLM", {}),
            ("GPTJ", "GPTJForCausalLM", {}),
            ("OPT", "OPTForCausalLM", {}),
            ("Bloom", "BloomForCausalLM", {}),
            ("CodeGen", "CodeGenForCausalLM", {}),
            ("Falcon", "FalconForCausalLM", {"ffn_hidden_size": 48}),
            ("Llama", "LlamaForCausalLM", {}),
            ("Mistral", "MistralForCausalLM", {}),
            ("Mixtral", "MixtralForCausalLM", {"num_local_experts": 4}),
            ("Qwen2", "Qwen2ForCausalLM", {}),
            ("Qwen3", "Qwen3ForCausalLM", {}),
            ("Gemma", "GemmaForCausalLM", {}),
            ("Gemma2", "Gemma2ForCausalLM", {}),
            ("Phi", "PhiForCausalLM", {}),
            ("Phi3", "Phi3ForCausalLM", {}),
            ("StableLm", "StableLmForCausalLM", {}),
            ("Olmo", "OlmoForCausalLM", {}),
            ("Cohere", "CohereForCausalLM", {}),
            ("Mamba", "MambaForCausalLM", {"state_size": 8, "time_step_rank": 4}),
            ("Rwkv", "RwkvForCausalLM", {"attention_hidden_size": 32}),
        )
    ),
    ("DeepseekV3", "DeepseekV3ForCausalLM",
     {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
      "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
      "qk_nope_head_dim": 4, "v_head_dim": 8, "moe_intermediate_size": 16,
      "num_key_value_heads": 4, "head_dim": 4}, _tokens),
    ("BigBird", "BigBirdModel",
     {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}, _long),
    ("T5", "T5Model", {}, _pair),
    ("Bart", "BartModel", {}, _pair),
    ("Marian", "MarianModel", {}, _pair),
    ("Pegasus", "PegasusModel", {}, _pair),
    ("ViT", "ViTModel", {}, _image),
    ("DeiT", "DeiTModel", {}, _image),
    ("Beit", "BeitModel", {}, _image),
    ("Dinov2", "Dinov2Model", {}, _image),
    ("Swin", "SwinModel",
     {"depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4}, _image),
    ("ConvNext", "ConvNextModel",
     {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, _large_image),
    ("ResNet", "ResNetModel",
     {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8}, _image),
    ("MobileNetV2", "MobileNetV2Model", {}, _image),
    ("Segformer", "SegformerModel",
     {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
      "num_attention_heads": [1, 1, 2, 2], "num_encoder_blocks": 4}, _image),
    ("RegNet", "RegNetModel",
     {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "groups_width": 8,
      "embedding_size": 8}, _image),
    ("Wav2Vec2", "Wav2Vec2Model",
     {"conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [4, 4],
      "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
      "num_feat_extract_layers": 2}, _sound),
    ("Whisper", "WhisperModel", {}, _spectrum),
]  # fmt: skip


def build(case: Case, seed: int = 0) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model of a case and its inputs."""
    import transformers

    name, model, extra, inputs = case
    config = getattr(transformers, f"{name}Config")()
    for key, value in {**TINY, **extra}.items():
        if key in extra or hasattr(config, key):
            _set(config, key, value)
    if getattr(config, "layer_types", None):
        _set(config, "layer_types", config.layer_types[:2])
    torch.manual_seed(seed)
    made = getattr(transformers, model)(config)
    made.eval()  # no dropout, no layer drop: results are compared
    return made, inputs()


def _set(config: Any, key: str, value: Any) -> None:
    # What follows from other sizes is a property, which cannot be set.
    with suppress(AttributeError, NotImplementedError):
        setattr(config, key, value)


def scalar(result: Any) -> torch.Tensor:
    """A number that depends on every floating-point result."""
    total = torch.zeros(())
    for key in result:
        value = result[key] if isinstance(key, str) else key
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad:
            total = (
                total.to(value.device) + (value.float() * torch.cos(value.detach().float())).mean()
            )
    return total


def run(model: torch.nn.Module, call: Any, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """The loss and the gradients."""
    model.zero_grad(set_to_none=True)
    loss = scalar(call(**inputs))
    loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), grads


def compare(case: Case, device: str | None = None, inductor: bool = False) -> str:
    """What differs between Genesis and eager; empty if nothing does."""
    import genesis.torch

    if inductor:
        import genesis.torch.inductor  # noqa: F401

    model, inputs = build(case)
    want, want_grads = run(model, model, inputs)
    if device is None:
        torch._dynamo.reset()
        got, got_grads = run(model, torch.compile(model, backend="genesis"), inputs)
    else:
        model = model.to(device)
        torch._dynamo.reset()
        call = torch.compile(model) if inductor else model
        got, got_grads = run(model, call, {k: v.to(device) for k, v in inputs.items()})
    try:
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
        assert got_grads.keys() == want_grads.keys(), "other parameters have gradients"
        for name, grad in want_grads.items():
            torch.testing.assert_close(
                got_grads[name].cpu(), grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
    except AssertionError as error:
        return str(error).replace("\n", " ")[:300]
    return ""


def compare_on_cuda(case: Case, dtype: torch.dtype) -> str:
    """What differs on CUDA tensors between Genesis and eager; empty if nothing does."""
    import genesis.torch  # noqa: F401

    def there(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        return x.to("cuda", kind if x.is_floating_point() else None)

    def ran(kind: torch.dtype, compile: bool) -> dict[str, torch.Tensor]:
        model, inputs = build(case)
        model = model.to("cuda", kind)
        torch._dynamo.reset()
        call = torch.compile(model, backend="genesis") if compile else model
        loss, grads = run(model, call, {k: there(v, kind) for k, v in inputs.items()})
        return {"loss": loss.float(), **{name: grad.float() for name, grad in grads.items()}}

    exact = ran(torch.float32, False)
    try:
        eager = ran(dtype, False)
    except RuntimeError:  # PyTorch has operators that take float32 alone
        dtype, eager = torch.float32, exact
    ours = ran(dtype, True)
    if ours.keys() != eager.keys():
        return "other parameters have gradients"
    for name, want in exact.items():
        size = want.norm() + 1e-3 * max(g.norm() for g in exact.values())
        theirs, our = ((x[name] - want).norm() / size for x in (eager, ours))
        if not our <= 2 * theirs + 10 * torch.finfo(dtype).eps:
            return f"{name}: {our:.2e} from float32, eager {theirs:.2e}"
    return ""


def main() -> None:
    """Run the models asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--inductor", action="store_true", help="which compiles for the device")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--part", default="0/1", help="the first of three parts is 0/3")
    options = parser.parse_args()
    passed, total = 0, 0
    first, step = map(int, options.part.split("/"))
    for case in CASES[first::step]:
        if options.names and case[0] not in options.names:
            continue
        total += 1
        started = time.perf_counter()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                if options.cuda:
                    wrong = compare_on_cuda(case, getattr(torch, options.dtype))
                else:
                    device = "genesis" if options.device or options.inductor else None
                    wrong = compare(case, device, options.inductor)
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error)[:300]}"
        left = {str(w.message) for w in seen if "computed by PyTorch" in str(w.message)}
        passed += not wrong
        seconds = time.perf_counter() - started
        print(
            f"{case[0]:12s} {'ok' if not wrong else 'WRONG ' + wrong} {seconds:.1f} s {left or ''}",
            flush=True,
        )
    print(f"{passed} of {total} models agree")


if __name__ == "__main__":
    main()
