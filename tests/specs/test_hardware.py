"""The hardware catalogue: complete, consistent, and found by the names people type."""

import pytest

from mansard.specs.hardware import GIB
from mansard.specs.hardware_catalogue import catalogue, find_hardware, load_hardware_file, parse_hardware
from mansard.specs.number_formats import FORMATS, compute_dtype, support


def test_catalogue_holds_the_84_entries_and_each_has_a_source_and_sane_units():
    entries = catalogue()
    assert len(entries) == 84
    for spec in entries.values():
        assert spec.source and spec.aliases and spec.flops, spec.name
        assert GIB * 8 <= spec.memory_bytes <= GIB * 512, spec.name
        least = 0.65 if spec.visible_memory_known else 0.97  # macOS keeps a third of a small machine's memory
        assert least * spec.memory_bytes <= spec.visible_memory_bytes <= spec.memory_bytes, spec.name
        assert 5e10 < spec.memory_bytes_per_s < 3e13, spec.name
        assert all(1e11 < rate < 1e17 for rate in spec.flops.values()), spec.name
        assert 0 <= spec.link.bytes_per_s < 2e12 and spec.link.max_devices >= 1, spec.name


def test_every_alias_names_one_entry():
    seen: dict[str, str] = {}
    for spec in catalogue().values():
        for alias in spec.aliases:
            assert seen.setdefault(alias, spec.name) == spec.name, alias
            assert find_hardware(alias) is spec


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "H100-SXM-80GB"),
        ("H100_SXM", "H100-SXM-80GB"),
        ("nvidia h100 pcie", "H100-PCIe-80GB"),
        ("a100-80gb", "A100-SXM-80GB"),
        ("a100-40gb", "A100-SXM-40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090-24GB"),
        ("mi300x", "MI300X-192GB"),
        ("m2-ultra", "Apple-M2-Ultra-76c-192GB"),
        ("l4", "L4-24GB"),
    ],
)
def test_names_as_people_type_them(typed, name):
    assert find_hardware(typed).name == name


def test_count_after_a_colon():
    spec, count = parse_hardware("h100-sxm:8")
    assert (spec.name, count) == ("H100-SXM-80GB", 8)
    assert parse_hardware("a10") == (find_hardware("a10"), 1)
    for wrong in ("h100:0", "h100:x", "h100:-1"):
        with pytest.raises(ValueError, match="whole number"):
            parse_hardware(wrong)


def test_unknown_name_answers_with_the_nearest():
    with pytest.raises(ValueError, match=r"h10000.*h100.*mansard gpus"):
        find_hardware("h10000")


def test_rates_are_dense_and_the_ridge_point_of_the_a10_is_208():
    a10 = find_hardware("a10")
    assert a10.ridge("fp16") == pytest.approx(208.33, abs=0.01)
    assert find_hardware("a10g").ridge("fp16") == pytest.approx(116.67, abs=0.01)
    h100 = find_hardware("h100")
    assert h100.flops["fp8"] == 1978.9e12  # the sparse figure of the data sheet is twice that
    assert h100.visible_memory_bytes == int(79.19 * GIB)


def test_entries_of_ones_own_add_to_the_catalogue(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[My-Card-48GB]\nvendor = "X"\narchitecture = "Ada"\nmemory_gib = 48\nmemory_gb_per_s = 864\n'
        "tflops = { bf16 = 181, fp8 = 362 }\naliases = ['mine']\n"
    )
    spec = find_hardware("mine", file)
    assert spec.flops["bf16"] == 181e12 and spec.link.kind == "none"
    assert find_hardware("h100", file).name == "H100-SXM-80GB"


def test_wrong_entries_are_refused_with_the_key(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[Card]\nvendor = "X"\ntflop = 3\n')
    with pytest.raises(ValueError, match="tflop"):
        load_hardware_file(file)
    file.write_text('[Card]\nvendor = "X"\n')
    with pytest.raises(ValueError, match="memory_gib"):
        load_hardware_file(file)
    with pytest.raises(ValueError, match="cannot read"):
        load_hardware_file(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("name", "number_format", "expected"),
    [
        ("h100", "fp8", "native"),
        ("a100", "fp8", "emulated"),
        ("v100", "fp8", "none"),
        ("v100", "bf16", "none"),
        ("t4", "bf16", "none"),
        ("b200", "nvfp4", "native"),
        ("h100", "nvfp4", "emulated"),
        ("mi355x", "nvfp4", "none"),
        ("mi355x", "mxfp4", "native"),
        ("h100", "mxfp4", "emulated"),
        ("h100", "int4", "emulated"),
        ("b200", "fp6", "native"),
        ("m2-ultra", "q4_k", "emulated"),
        ("genoa", "q8_0", "emulated"),
        ("tpu-v5e", "q4_0", "none"),
        ("tpu-v5e", "fp16", "none"),
    ],
)
def test_what_hardware_does_with_a_format(name, number_format, expected):
    assert support(find_hardware(name), number_format) == expected


def test_an_emulated_format_is_bounded_by_the_16_bit_rate_and_none_is_refused():
    assert compute_dtype(find_hardware("a100"), "fp8") == "bf16"
    assert compute_dtype(find_hardware("h100"), "fp8_e4m3") == "fp8"
    assert compute_dtype(find_hardware("t4"), "int4") == "fp16"
    with pytest.raises(ValueError, match="fp16"):
        compute_dtype(find_hardware("t4"), "bf16")
    with pytest.raises(ValueError, match="unknown number format"):
        support(find_hardware("t4"), "fp7")


def test_every_entry_answers_for_every_format_and_runs_a_16_bit_one():
    for spec in catalogue().values():
        answers = {f: support(spec, f) for f in FORMATS}
        assert "native" in (answers["bf16"], answers["fp16"]), spec.name


def test_a_group_beyond_the_bridge_crosses_pcie_and_beyond_the_node_the_network():
    a40, h100 = find_hardware("a40"), find_hardware("h100")
    assert a40.link_between(2).kind == "nvlink3-bridge"
    assert a40.link_between(4).kind == "pcie4"
    assert h100.link_between(8).kind == "nvlink4"
    assert h100.link_between(16).kind == "inter-node"
    assert find_hardware("gb200").link_between(72).kind == "nvlink5"


def test_price_and_memory_can_be_overridden():
    h100 = find_hardware("h100").with_price(1.25)
    assert h100.price is not None and h100.price.usd_per_hour == 1.25
    assert find_hardware("genoa").with_memory(64 * GIB).visible_memory_bytes == 64 * GIB
