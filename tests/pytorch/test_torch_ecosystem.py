"""Packages that people use with PyTorch, as they are, on the device; each where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import genesis.torch

D = "genesis"


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    torch._dynamo.reset()
    genesis.torch.fallback("error")
    with warnings.catch_warnings():
        warnings.simplefilter("error", genesis.torch.FallbackWarning)
        yield
    genesis.torch.fallback("warn")


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def _data() -> DataLoader[Any]:
    x, y = torch.arange(64.0).view(16, 4) / 64, torch.arange(16.0).view(16, 1) / 16
    return DataLoader(TensorDataset(x, y), 4)


# ---- accelerate and transformers


def _accelerated(place: str, precision: str, folder: Path, monkeypatch: Any) -> list[float]:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", place)
    accelerator = accelerate.Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
    assert accelerator.device.type == place
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer, data = accelerator.prepare(model, optimizer, _data())
    losses = []
    for x, y in data:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    accelerator.save_state(folder)
    accelerator.load_state(folder)
    assert accelerator.gather(torch.ones(2, device=accelerator.device)).device.type == place
    return losses


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str, tmp_path: Path, monkeypatch: Any) -> None:
    want, got = (_accelerated(p, precision, tmp_path / p, monkeypatch) for p in ("cpu", D))
    assert_close(got, want, rtol=1e-4 if precision == "no" else 2e-2, atol=1e-5)


@pytest.mark.slow
def test_the_trainer_of_transformers(tmp_path: Path, monkeypatch: Any) -> None:
    transformers = pytest.importorskip("transformers")
    accelerate = pytest.importorskip("accelerate")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=16, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    words = [{"input_ids": (w := (torch.arange(8) * i) % 64), "labels": w} for i in range(1, 17)]

    def losses(place: str) -> list[float]:
        accelerate.state.AcceleratorState._reset_state(True)
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", place)
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        arguments = transformers.TrainingArguments(
            str(tmp_path / place), per_device_train_batch_size=8, num_train_epochs=2,
            logging_steps=1, report_to=[], save_strategy="epoch", seed=1, disable_tqdm=True,
        )  # fmt: skip
        assert arguments.device.type == place
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=words, eval_dataset=words
        )
        trainer.train()
        assert next(model.parameters()).device.type == place
        found = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        return [*found, trainer.evaluate()["eval_loss"]]

    assert_close(losses(D), losses("cpu"), rtol=1e-4, atol=1e-4)


#: Ways to choose the next token.
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "beam": {"num_beams": 3},
    "penalty": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
    "sample": {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8},
}


@pytest.mark.parametrize("where", [D, pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "way", [w if w == "greedy" else pytest.param(w, marks=pytest.mark.slow) for w in WAYS]
)
def test_generated_tokens_are_the_same(where: str, way: str) -> None:
    """With a cache that grows, and one that does not; one of the two prompts is padded."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=127, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    words = torch.randint(2, 120, (2, 7))
    mask = torch.ones_like(words)
    mask[1, :2] = 0
    options = {"max_new_tokens": 6, "do_sample": False, **WAYS[way]}
    want = model.generate(words, attention_mask=mask, **options)
    place = D if where == D else "cpu"
    model.to(place)
    if where == "compiled":
        model.forward = torch.compile(model.forward, backend="genesis")
    got = model.generate(words.to(place), attention_mask=mask.to(place), **options).cpu()
    if way == "sample":  # by other random numbers
        assert got.shape == want.shape and torch.equal(got[:, :7], words)
    else:
        assert torch.equal(got, want)


# ---- Lightning


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_lightning(precision: str, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    import genesis.torch.lightning  # noqa: F401  it registers the accelerator

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.losses, self.place = _model(), list[float](), ""

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            x, y = batch
            loss = nn.functional.mse_loss(self.layers(x), y)
            self.losses.append(loss.item())
            self.place = x.device.type
            self.dtype_inside = self.layers[0](x).dtype
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-2)

    def trained(accelerator: str) -> Model:
        model = Model()
        trainer = lightning.Trainer(
            accelerator=accelerator, devices=1, max_epochs=2, logger=False, precision=precision,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(model, _data())
        return model

    here, there = trained("cpu"), trained("genesis")
    assert there.place == D
    lower = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    assert there.dtype_inside == lower[precision]
    same = 1 if precision == "16-mixed" else None  # the scale is too great for the first updates
    tolerance = 1e-4 if precision == "32-true" else 2e-2
    assert_close(there.losses[:same], here.losses[:same], rtol=tolerance, atol=1e-4)
    with pytest.raises(Exception, match="genesis:7 does not exist"):
        lightning.Trainer(accelerator="genesis", devices=[7], logger=False)


# ---- torchvision


@pytest.fixture
def ops() -> Any:
    try:
        found = pytest.importorskip("torchvision").ops
    except RuntimeError as error:  # built for another PyTorch
        pytest.skip(str(error))
    return found


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_boxes_that_do_not_overlap(ops: Any, count: int) -> None:
    torch.manual_seed(count)
    boxes, scores = torch.rand(count, 4) * 50, torch.rand(count)
    boxes[:, 2:] += boxes[:, :2]
    if count > 3:
        scores[1], boxes[2] = scores[3], boxes[0]  # ties
    for threshold in (0.0, 0.3, 1.0):
        want = ops.nms(boxes, scores, threshold)
        assert torch.equal(ops.nms(boxes.to(D), scores.to(D), threshold).cpu(), want)
    kinds = torch.randint(0, 3, (count,))
    got = ops.batched_nms(boxes.to(D), scores.to(D), kinds.to(D), 0.5)
    assert torch.equal(got.cpu(), ops.batched_nms(boxes, scores, kinds, 0.5))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [2, -1])
def test_regions_of_images(ops: Any, ratio: int, aligned: bool) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 5, 20, 30)
    corners = torch.rand(7, 4) * 40 - 5  # some end before they begin, or lie outside
    regions = torch.cat([torch.randint(0, 3, (7, 1)).float(), corners], 1)
    weight = torch.randn(7, 5, 4, 3)

    def both(place: str) -> list[torch.Tensor]:
        x = images.clone().to(place).requires_grad_()
        y = ops.roi_align(x, regions.to(place), (4, 3), 0.5, ratio, aligned)
        (y * weight.to(place)).sum().backward()
        assert x.grad is not None
        return [y.detach().cpu(), x.grad.cpu()]

    assert_close(both(D), both("cpu"), rtol=1e-4, atol=1e-4)
    if ratio > 0:
        run = torch.compile(lambda x: ops.roi_align(x, regions, 2, 1.0, ratio), backend="genesis")
        assert_close(
            run(images), ops.roi_align(images, regions, 2, 1.0, ratio), rtol=1e-4, atol=1e-4
        )
