"""What a checkpoint's own configuration says of its format, and what a device makes of it."""

import pytest

from mansard.cost.stored_formats import checkpoint_format, published_format, stored_kv, stored_weights
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4-g128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
    ],
)
def test_checkpoints_declare_their_format(section: dict[str, object], expected: str) -> None:
    assert checkpoint_format({"quantization_config": section}) == expected


def test_no_declaration_and_an_unknown_one() -> None:
    assert checkpoint_format({}) is None
    with pytest.raises(ValueError, match="--weights"):
        checkpoint_format({"quantization_config": {"quant_method": "hqq"}})


def test_publishers_formats() -> None:
    formats = {
        m: published_format(preset(m)) for m in ("llama-3.1-8b", "gpt-oss-20b", "deepseek-r1", "moonlight-16b-a3b")
    }
    assert formats == {
        "llama-3.1-8b": "bf16", "gpt-oss-20b": "mxfp4", "deepseek-r1": "fp8", "moonlight-16b-a3b": "bf16"
    }  # fmt: skip


def test_devices_without_bf16() -> None:
    spec = preset("llama-3.1-8b")
    assert stored_weights("auto", spec, find_hardware("t4")) == "fp16" == stored_kv("auto", find_hardware("v100"))
    assert stored_weights("int4", spec, find_hardware("t4")) == "int4"
