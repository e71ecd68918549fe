"""Words: numbers and deployments as people read them, the same in the terminal and on the page."""

from __future__ import annotations

from mansard.cost.deployment import Deployment
from mansard.cost.levers import split_text
from mansard.specs.hardware import GIB


def seconds(value: float) -> str:
    """Return a time with three significant digits and a fitting unit."""
    if value >= 1.0:
        return f"{value:,.3g} s" if value < 1000 else f"{value:,.0f} s"
    if value >= 1e-3:
        return f"{value * 1e3:.3g} ms" if value < 0.0995 else f"{value * 1e3:.0f} ms"
    return f"{value * 1e6:.3g} µs"


def gib(value: float) -> str:
    """Return bytes in GiB."""
    return f"{value / GIB:,.2f}"


def number(value: float) -> str:
    """Return a count or rate with three significant digits below 1,000 and whole above."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def scaled(value: float, unit: str) -> str:
    """Return a large number with an SI prefix: `2.29 TFLOP/s`."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def dollars(value: float | None) -> str:
    """Return an amount, with cents down to three digits; a dash when it is unknown."""
    if value is None:
        return "–"
    return f"${value:,.2f}" if value >= 1 else f"${value:.3f}"


def percent(ratio: float) -> str:
    """Return a ratio as a signed change in percent."""
    change = round((ratio - 1.0) * 100.0)
    return f"{change:+d} %" if change else "±0 %"


def deployment_text(deployment: Deployment) -> str:
    """Return a deployment in one line: devices, split, replicas, formats."""
    text = f"{deployment.num_devices}× {deployment.hardware.name}"
    split = split_text(deployment.layout)
    replicas = f", {deployment.num_replicas} replicas of {split}" if deployment.num_replicas > 1 else f", {split}"
    if deployment.num_devices == 1:
        replicas = ""
    return f"{text}{replicas}, weights {deployment.weights}, KV cache {deployment.kv}"


def two_digits(value: float) -> str:
    """Return a positive number to two digits that mean something, never with an exponent: 0.13, 7.5, 38, 300."""
    return f"{float(f'{value:.2g}'):,.10g}"
