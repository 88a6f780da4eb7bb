"""hardware: the tables of cards and links, the profile's key, and what of both a job gets."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import fabrics
from orchestrator.cards import card_of, cards, links, plain_name
from orchestrator.errors import FaultsError
from orchestrator.estimate.hardware import CONTEXT_BYTES, Hardware, hardware_of
from orchestrator.profiles import ClusterProfile, embedded_profiles, find_profiles
from orchestrator.rates import (
    OPERATIONS,
    PER_SECOND,
    parse_flops,
    parse_latency,
    parse_rate,
)
from orchestrator.spec import JobSpec
from orchestrator.units import UnitError

TRAIN = {"model": {"preset": "nano"}, "data": {"text": ["a"]}, "steps": 10}


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "train": TRAIN, **keys})


def profile(hardware: str, tmp_path: Path) -> ClusterProfile:
    """That of a site's file with these lines below hardware."""
    lines = "".join(f"      {line}\n" for line in hardware.splitlines())
    file = tmp_path / "clusters.yaml"
    file.write_text(f"clusters:\n  site:\n    target: slurm\n    hardware:\n{lines}")
    return find_profiles(str(file), {}, tmp_path).choose("site")


def gpus(hardware: str, tmp_path: Path, **resources: Any) -> Hardware:
    wanted = {"nodes": 2, "gpus_per_node": 8, **resources}
    return hardware_of(job(resources=wanted), profile(hardware, tmp_path))


# The tables.


def test_each_card_says_who_says_so_and_how_fast_it_is() -> None:
    assert len(cards()) >= 20
    for card in cards().values():
        assert len(card.source) > 10
        assert card.peak, card.name
        assert card.name == "cpu" or 10**10 < (card.memory_bytes or 0) < 10**12
        assert card.memory_bandwidth
        assert card.link in ("", *links())
        # Tensor cores are never slower than plain units, and narrow formats than wide ones.
        order = [card.peak[name] for name in ("fp32", "tf32", "bf16") if name in card.peak]
        assert card.name == "cpu" or order == sorted(order)


def test_memory_is_what_the_driver_reports_where_that_is_known() -> None:
    """nvidia-smi's total of a card of 141 GB is 143,771 MiB, more than the decimal number."""
    assert cards()["h200"].memory_bytes == 143771 * 2**20
    assert not cards()["h200"].memory_is_sold
    assert cards()["mi300x"].memory_is_sold
    for card in cards().values():
        # A driver's number is within a tenth of the name's.
        sold = card.name.rpartition("-")[2].removesuffix("gb")
        if sold.isdecimal() and card.name.endswith("gb"):
            assert 1 <= (card.memory_bytes or 0) / (int(sold) * 10**9) < 1.1


def test_each_link_says_who_says_so() -> None:
    for link in links().values():
        assert len(link.source) > 10
        assert 1e9 <= link.bandwidth <= 1e12
        assert 1e-6 < link.latency_s < 1e-3


def test_no_name_means_two_cards() -> None:
    known = [plain_name(name) for card in cards().values() for name in (card.name, *card.aliases)]
    assert len(known) == len(set(known))


@pytest.mark.parametrize(
    ("written", "card"),
    [
        ("h100-sxm", "h100-sxm"),
        ("H100", "h100-sxm"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("a100", "a100-40gb"),
        ("Tesla-V100-SXM2-16GB", "v100-16gb"),
        ("rtx_4090", "rtx-4090"),
        ("mi300x", "mi300x"),
        ("tpu-v4", None),
    ],
)
def test_names_that_sites_give(written: str, card: str | None) -> None:
    found = card_of(written)
    assert (found.name if found else None) == card


def test_links_of_fabrics_are_in_the_table() -> None:
    named = [fabrics.preset(name).link for name in fabrics.names()]
    assert set(named) - {None} <= set(links())
    assert any(named)


# The units.


@pytest.mark.parametrize(
    ("text", "rate"),
    [("450GB/s", 450e9), ("400Gb/s", 50e9), ("3.35 TB/s", 3.35e12), ("1GiB/s", 2.0**30)],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


def test_flops_and_latencies() -> None:
    assert parse_flops("989.5TFLOP/s") == pytest.approx(989.5e12)
    assert parse_latency("5us") == pytest.approx(5e-6)
    assert parse_latency("0.4 ms") == pytest.approx(4e-4)


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (450, "450GB/s"),
        ("450", "450GB/s"),
        ("450gb/s", "write 450GB/s or 450Gb/s"),
        ("0GB/s", "450GB/s"),
        ("-1GB/s", "450GB/s"),
        (None, "450GB/s"),
        ("1e9GB/s", "450GB/s"),
    ],
)
def test_what_is_no_rate(value: object, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_rate(value)
    assert fix in caught.value.fix


@given(st.integers(1, 10**9 - 1), st.sampled_from(list(PER_SECOND)))
def test_any_number_with_a_unit_is_read(number: int, unit: str) -> None:
    assert parse_rate(f"{number}{unit}") == pytest.approx(number * PER_SECOND[unit])


@given(st.text(max_size=12))
def test_any_other_text_is_refused_or_positive(text: str) -> None:
    for parse in (parse_rate, parse_flops, parse_latency):
        with contextlib.suppress(UnitError):
            assert parse(text) > 0


def test_units_of_speed_are_decimal() -> None:
    assert OPERATIONS["TFLOP/s"] == 10**12


# The profile's key, and what a job gets.


def test_the_type_of_gpu_gives_card_and_link(tmp_path: Path) -> None:
    found = gpus("price_per_gpu_hour: 2.5", tmp_path, gpu_type="h100")
    assert found.card == "h100-sxm"
    assert found.memory_bytes == 81559 * 2**20
    assert found.peak["bf16"] == pytest.approx(989.5e12)
    assert found.inside is not None
    assert (found.inside.name, found.between) == ("nvlink-4", None)
    assert (found.context_bytes, found.price_per_gpu_hour) == (CONTEXT_BYTES, 2.5)
    assert found.utilisation == {"fp32": 0.6, "bf16": 0.4, "fp16": 0.4}
    assert (found.scatter_rounds, found.trees, found.host_bandwidth) == (1, True, 25e9)
    assert any("h100 is taken for h100-sxm" in said for said in found.assumed)


def test_the_profile_wins_over_the_table(tmp_path: Path) -> None:
    text = """\
card: a100-80gb
gpu_memory: 79GiB
peak: {bf16: 280TFLOP/s}
memory_bandwidth: 1.9TB/s
utilisation: 0.5
inside: {link: nvlink-4, latency: 9us}
between: {bandwidth: 200GB/s}
overlap: 0.8
context: 2GiB
host_bandwidth: 50GB/s
unit_overhead: 1ms"""
    found = gpus(text, tmp_path, gpu_type="h100")
    assert (found.card, found.memory_bytes) == ("a100-80gb", 79 * 2**30)
    assert found.peak == {"fp32": 19.5e12, "bf16": 280e12, "fp16": 312e12}
    assert (found.memory_bandwidth, found.overlap) == (1.9e12, 0.8)
    assert set(found.utilisation.values()) == {0.5}
    assert found.inside is not None
    assert (found.inside.bandwidth, found.inside.latency_s) == (450e9, 9e-6)
    assert found.between is not None
    assert (found.between.bandwidth, found.between.latency_s) == (200e9, 0.0)
    assert (found.context_bytes, found.unit_overhead_s) == (2 * 2**30, 0.001)
    assert found.host_bandwidth == 50e9
    assert found.assumed == ()


def test_a_card_by_numbers_alone(tmp_path: Path) -> None:
    found = gpus("gpu_memory: 64GiB\npeak: {bf16: 300TFLOP/s}", tmp_path)
    assert (found.card, found.memory_bytes) == ("", 64 * 2**30)
    assert found.peak == {"bf16": 300e12}


def test_an_unknown_type_of_gpu_gives_nothing(tmp_path: Path) -> None:
    found = gpus("price_per_gpu_hour: 1.0", tmp_path, gpu_type="tpu-v4")
    assert (found.card, found.memory_bytes, found.peak, found.inside) == ("", None, {}, None)


def test_without_gpus_a_rank_has_its_cores_and_its_share_of_the_memory(tmp_path: Path) -> None:
    resources = {"ranks_per_node": 4, "cpus_per_rank": 3, "memory": "8GiB"}
    found = hardware_of(job(resources=resources), profile("utilisation: 0.5", tmp_path))
    assert found.card == "cpu"
    assert found.memory_bytes == 2 * 2**30
    assert found.peak["fp32"] == pytest.approx(3 * cards()["cpu"].peak["fp32"])
    assert (found.overlap, found.context_bytes, found.scatter_rounds) == (0.0, 0, 2)
    assert not found.trees
    assert (found.inside, found.between) == (links()["loopback"], None)


def test_simulated_nodes_of_this_machine_are_one_machine() -> None:
    here = embedded_profiles().choose("local")
    found = hardware_of(job(resources={"nodes": 2}), here)
    assert found.between == links()["loopback"]


def test_a_fabric_may_name_the_link_between_nodes(tmp_path: Path) -> None:
    resources = {"nodes": 2, "gpus_per_node": 8, "gpu_type": "h100"}
    network = {"fabric": "azure-nd-h100-v5"}
    found = hardware_of(job(resources=resources, network=network), profile("{}", tmp_path))
    assert found.between == links()["ndr-x8"]


@pytest.mark.parametrize(
    ("hardware", "where", "said"),
    [
        ("card: h100-smx", "hardware.card", "did you mean h100-sxm?"),
        ("inside: {link: nvlnk-4}", "hardware.inside.link", "did you mean nvlink-4?"),
        ("inside: {latency: 5us}", "hardware.inside", "neither link nor bandwidth"),
        ("between: {bandwith: 50GB/s}", "hardware.between.bandwith", 'mean "bandwidth"'),
        ("price_per_gpu_hours: 3", "hardware.price_per_gpu_hours", 'mean "price_per_gpu_hour"'),
        ("peak: {bf16: 989}", "hardware.peak.bf16", "989TFLOP/s"),
        ("peak: {int8: 989TFLOP/s}", "hardware.peak.int8", ""),
        ("between: {bandwidth: 50gb/s}", "hardware.between.bandwidth", "50GB/s or 50Gb/s"),
        ("utilisation: 1.5", "hardware.utilisation", "1.5"),
        ("gpu_memory: 80", "hardware.gpu_memory", "80GiB"),
    ],
)
def test_faults_have_a_place_and_a_fix(
    hardware: str, where: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(FaultsError) as caught:
        profile(hardware, tmp_path)
    text = str(caught.value)
    assert f"clusters.site.{where}" in text
    assert said in text
    assert "clusters.yaml:5:" in text
