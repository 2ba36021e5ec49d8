"""The page of what PyTorch has and Genesis lacks: ``python -m tests.parity`` writes it.

Public names are read from both. A name that is missing here must have a reason: another name, or
one of the reasons below, each with the names it covers. `test_parity` fails where a name has no
reason, where a reason has lost its last name, and where the page is not what would be written.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.utils

import genesis
from genesis import amp, autograd, functional, nn, optim

PAGE = Path(__file__).parents[1] / "docs" / "parity.md"

#: What is compared, by PyTorch's name.
NAMESPACES: dict[str, Any] = {
    "torch.Tensor": genesis.Tensor,
    "torch": genesis,
    "torch.amp": amp,
    "torch.autograd": autograd,
    "torch.fft": functional.fft,
    "torch.linalg": functional.linalg,
    "torch.nn": nn,
    "torch.nn.functional": nn.functional,
    "torch.nn.init": nn.init,
    "torch.nn.utils": nn.utils,
    "torch.nn.utils.parametrizations": nn.utils.parametrizations,
    "torch.nn.utils.parametrize": nn.utils.parametrizations,
    "torch.nn.utils.prune": nn.utils.prune,
    "torch.nn.utils.rnn": nn.utils.rnn,
    "torch.optim": optim,
    "torch.optim.lr_scheduler": optim.lr_scheduler,
    "torch.optim.swa_utils": optim.swa_utils,
    "torch.special": functional.special,
}

#: What PyTorch has under another name, and what is to be written here. Stars stand for any letters.
RENAMED: dict[str, dict[str, str]] = {
    "torch.Tensor": {
        "const_data_ptr storage_type": "genesis.Tensor.data_ptr",
        "eig lstsq solve symeig": "genesis.linalg",
        "get_device is_ipu is_maia is_meta is_mps is_mtia is_vulkan is_xla is_xpu": (
            "genesis.Tensor.device"
        ),
        "narrow_copy": "genesis.narrow",
        "new": "genesis.Tensor.new_tensor",
        "resize resize_as": "genesis.reshape",
    },
    "torch": {
        "*_copy": "genesis.clone",
        "*_": "genesis.Tensor",
        "*autocast*": "genesis.amp.autocast",
        "*anomaly*": "genesis.autograd.detect_anomaly",
        "affine_grid_generator": "genesis.affine_grid",
        "compile": "genesis.jit",
        "conv_tbc convolution": "genesis.conv1d",
        "eig lstsq matrix_rank solve symeig": "genesis.linalg",
        "feature_dropout": "genesis.dropout2d",
        "native_norm norm_except_dim": "genesis.norm",
        "get_default_device": "genesis.default_device",
        "get_device": "genesis.Tensor.device",
        "gru* lstm* rnn_*": "genesis.nn.RNN",
        "max_pool1d_with_indices": "genesis.max_pool1d",
        "native_channel_shuffle": "genesis.channel_shuffle",
        "native_dropout": "genesis.dropout",
        "range": "genesis.arange",
        "to_dlpack": "genesis.from_dlpack",
        "cond": "genesis.func.cond",
        "while_loop": "genesis.func.while_loop",
    },
    "torch.autograd": {"set_detect_anomaly": "genesis.autograd.detect_anomaly"},
    "torch.nn": {"NLLLoss2d": "genesis.nn.NLLLoss"},
    "torch.nn.functional": {
        "*_with_indices": "genesis.nn.functional.max_pool1d",
        "conv_tbc": "genesis.nn.functional.conv1d",
        "native_channel_shuffle": "genesis.nn.functional.channel_shuffle",
    },
    "torch.nn.init": {
        "constant dirac eye kaiming_* normal orthogonal sparse uniform xavier_*": "genesis.nn.init"
    },
    "torch.nn.utils": {
        "*spectral_norm *weight_norm": "genesis.nn.utils.parametrizations",
        "clip_grad_norm": "genesis.nn.utils.clip_grad_norm_",
    },
}

#: Why the other names are not here, and which they are.
REASONS: dict[str, dict[str, str]] = {
    "Nested and masked layouts; sparse matrices are a class of their own.": {
        "torch.Tensor": "*sparse* *mkldnn ccol_indices coalesce col_indices crow_indices dense_dim "
        "dim_order indices is_coalesced is_nested row_indices smm sspaddmm "
        "to_padded_tensor values",
        "torch": "*sparse* dsmm hsmm hspmm saddmm smm spmm sspaddmm",
        "torch.optim": "SparseAdam",
    },
    "Quantised types, and types of a few bits.": {
        "torch.Tensor": "chalf dequantize int_repr is_quantized q_* qscheme",
        "torch": "*quant* *qparams* bit bits* chalf complex32 float4* float8_*nuz "
        "float8_*fnu int[1-7] int_repr q_* qint* quint* uint[1-7]",
        "torch.nn.functional": "ScalingType SwizzleType scaled_*",
    },
    "Other devices, and libraries that PyTorch calls: kernels are compiled.": {
        "torch.Tensor": "ipu mtia record_stream xpu",
        "torch": "cudnn_* fbgemm_* is_vulkan_available miopen_* mkldnn_* get_device_module "
        "*cudagraph*",
    },
    "Several processes.": {
        "torch.Tensor": "is_distributed",
        "torch": "fork is_distributed wait",
        "torch.nn": "DataParallel SyncBatchNorm",
    },
    "Where elements lie in memory is the compiler's choice.": {
        "torch.Tensor": "set_ slice_inverse",
        "torch": "from_file frombuffer is_storage slice_inverse",
        "torch.nn.utils": "convert_conv*",
    },
    "One way to execute: deterministic, with one number of threads.": {
        "torch": "*_num_interop_threads *deterministic* *warn_always* init_num_threads "
        "set_flush_denormal",
        "torch.autograd": "*multithreading* enforce_grad_layout_policy is_view_replay_enabled",
        "torch.nn": "LinearCrossEntropyOptions",
    },
    "Not needed where nothing is computed before it is asked for.": {
        "torch.optim": "swap_in_optimizer_params_and_state",
    },
    "A Python function for every element.": {"torch.Tensor": "apply_ map2_ map_"},
    "Deprecated in PyTorch.": {
        "torch.Tensor": "index name reinforce volatile",
        "torch": "set_default_tensor_type",
        "torch.autograd": "Variable variable",
        "torch.nn": "Container",
    },
    "Parts of PyTorch's machinery: scripting, symbolic sizes, dispatch, base classes.": {
        "torch.Tensor": "as_subclass grad_dtype module_load output_nr",
        "torch": "batch_norm_* classproperty compiled_with_cxx11_abi get_file_path import_ir_* "
        "merge_type_from_type_comment parse_* prepare_* sym_* thread_safe_generator typename "
        "unify_type_list",
        "torch.autograd": "*torch_function NestedIOFunction kineto_available",
        "torch.amp": "is_autocast_available",
        "torch.nn": "RNNBase RNNCellBase Uninitialized* factory_kwargs",
        "torch.nn.functional": "*torch_function* assert_int_or_pair",
        "torch.nn.utils.parametrize": "transfer_*",
        "torch.nn.utils.prune": "Identity PruningContainer",
        "torch.nn.utils.rnn": "PackedSequence_ bind invert_permutation",
    },
    "Not written yet.": {
        "torch.Tensor": "hash_tensor",
        "torch": "binomial hash_tensor lobpcg segment_reduce",
        "torch.nn.functional": "grouped_mm",
    },
}

#: Arguments of what is here that are other than PyTorch's: ``function.argument``.
ARGUMENTS: dict[str, str] = {
    "Taken, though signatures do not show it.": "*.out",
    "Deprecated in PyTorch.": "*.reduce *.size_average torch.autograd.backward.grad_variables "
    "torch.nn.Hardtanh.m??_value",
    "Where elements lie in memory is the compiler's choice.": "*.layout *.memory_format "
    "*.pin_memory torch.from_dlpack.*",
    "There is one way to execute.": "*.capturable *.compute_mode *.differentiable *.driver "
    "*.enable_nested_tensor *.foreach *.fused *.mask_check "
    "*inear*ross*ntropy*.options torch.amp.autocast.cache_enabled",
    "Softmax is over the last dimension unless told; PyTorch guesses, and warns.": "*softm*.dim "
    "*Softm*.dim",
    "Files are safetensors: `save(state, path)`, `load(path)`.": "torch.load.* torch.save.*",
    "The same default said otherwise.": "*.nan_to_num*.nan *inear*ross*ntropy*.ignore_index "
    "torch.meshgrid.indexing torch.nn.functional.affine_grid.*",
    "Mixed precision is bfloat16, and on the default device, unless told.": "torch.amp.*.device "
    "torch.amp.*.dtype",
    "Under another name.": "*.cholesky_solve.input2 *split.sections torch.Tensor.split.split_size "
    "torch.Tensor.uniform_.* torch.linalg.lstsq.b torch.linalg.tensorsolve.other "
    "torch.result_type.other torch.set_default_device.device",
    "`Parameter`, `Buffer` and `PackedSequence` need their data.": "torch.nn.*.data "
    "torch.nn.utils.rnn.PackedSequence.*",
    "Gradients are checked one way: by backward.": "torch.autograd.grad*check.* "
    "torch.autograd.detect_anomaly.check_nan",
    "Made by `register_parametrization` alone.": "*.ParametrizationList.*",
    "Not written yet.": "*.orthogonal.* "
    "*.register_parametrization.unsafe *.stft.align_to_window torch.autograd.grad.is_grads_batched "
    "torch.nn.utils.parametrize.remove_parametrizations.leave_parametrized "
    "torch.optim.lr_scheduler.SequentialLR.last_epoch torch.optim.swa_utils.update_bn.device",
}


@cache
def public(namespace: str) -> tuple[str, ...]:
    """The names that PyTorch offers: attributes of tensors, functions, classes and types."""
    if namespace == "torch.Tensor":
        ours = ("genesis", "is_genesis")  # there once `genesis.torch` is imported
        return tuple(x for x in dir(torch.Tensor) if not x.startswith("_") and x not in ours)
    module = import_module(namespace)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dir(module):
            value = getattr(module, name)
            place = getattr(value, "__module__", None) or "torch"
            if name.startswith("_") or value is torch.Tensor:
                continue
            if isinstance(value, torch.dtype) or (
                callable(value)
                and place.startswith("torch")
                and (place.startswith(namespace) or place == "torch._C" or inspect.isbuiltin(value))
                # The package itself also shows the insides of its interpreter, as classes.
                and (namespace != "torch" or not inspect.isclass(value))
            ):
                found.append(name)
    return tuple(found)


@cache
def missing(namespace: str) -> tuple[str, ...]:
    """The names that Genesis lacks."""
    here = NAMESPACES[namespace]
    return tuple(name for name in public(namespace) if not hasattr(here, name))


def matching(patterns: str, names: tuple[str, ...]) -> list[str]:
    """The names that one of some patterns describes."""
    return [name for name in names if any(fnmatchcase(name, p) for p in patterns.split())]


def explanations() -> Iterator[tuple[str, str, str]]:
    """Every namespace with the patterns that are said to be missing from it, and what is said."""
    for namespace, names in RENAMED.items():
        for patterns, instead in names.items():
            yield namespace, patterns, instead
    for reason, places in REASONS.items():
        for namespace, patterns in places.items():
            yield namespace, patterns, reason


def page() -> str:
    """The page."""
    lines = [
        "# Parity with PyTorch",
        "",
        f"What PyTorch {torch.__version__.split('+')[0]} offers by name and Genesis does not, with "
        "the reason. `python -m tests.parity`",
        "writes this page, and a test keeps it true. A star stands for any letters.",
        "",
        "| | names | here |",
        "| --- | ---: | ---: |",
    ]
    for namespace in NAMESPACES:
        names = public(namespace)
        lines.append(f"| `{namespace}` | {len(names)} | {len(names) - len(missing(namespace))} |")
    lines += [
        "",
        "## Under another name",
        "",
        "Operations in place are methods (`x.exp_()`), and what PyTorch also offers as a copy of a",
        "view (`transpose_copy`) is a view that is cloned.",
        "",
        "| | PyTorch | here |",
        "| --- | --- | --- |",
    ]
    for namespace, renamed in RENAMED.items():
        for patterns, instead in sorted(renamed.items()):
            lines.append(f"| `{namespace}` | {_listed(patterns)} | `{instead}` |")
    lines += ["", "## Not here", ""]
    for reason, places in REASONS.items():
        lines += [reason, ""]
        lines += [f"- `{namespace}`: {_listed(patterns)}" for namespace, patterns in places.items()]
        lines.append("")
    lines += ["## Arguments", "", "Those of what is here, where they are other than PyTorch's.", ""]
    lines += [f"- {reason} {_listed(patterns)}" for reason, patterns in ARGUMENTS.items()]
    return "\n".join(lines) + "\n"


def _listed(patterns: str) -> str:
    return ", ".join(f"`{p}`" for p in patterns.split())


if __name__ == "__main__":
    PAGE.write_text(page())
