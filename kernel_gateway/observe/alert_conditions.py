"""Conditions of alerts. Each has two forms: a query for Prometheus, and a calculation from the samples of `/metrics`.

Source of the queries: https://prometheus.io/docs/prometheus/latest/querying/
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from prometheus_client.samples import Sample

#: minutes over which increases of counters are calculated
WINDOW = 10
#: events within the window up to which a share of them says nothing
FEW = 20

#: operators that PromQL and Python have in common
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
}
Comparison = Literal[">", "<", "=="]
#: labels and value of each sample that a selector selects
Selected = dict[frozenset[tuple[str, str]], float]
#: what a condition remembers of one look
Reading = tuple[float, ...]


def select(selector: str, samples: Iterable[Sample]) -> Selected:
    """Return the values of the samples that a selector of PromQL selects, such as `name{label="value"}`."""
    name, _, braces = selector.partition("{")
    matchers = re.findall(r'\b(\w+)(=~|!=|=)"([^"]*)"', braces)
    return {
        frozenset(sample.labels.items()): sample.value
        for sample in samples
        if sample.name == name
        and all(_MATCHES[how](sample.labels.get(label, ""), value) for label, how, value in matchers)
    }


class Condition(Protocol):
    """When an alert is due."""

    @property
    def promql(self) -> str:
        """The condition as a query of Prometheus."""

    def read(self, samples: Iterable[Sample]) -> Reading:
        """Return what the condition needs of the present samples."""

    def met(self, now: Reading, before: Reading) -> bool:
        """Return whether the condition is met.

        Args:
            now: the present reading.
            before: the reading `WINDOW` minutes ago, or the oldest one if the gateway has not run for so long.
        """


@dataclass(frozen=True)
class Level:
    """The present value, or its part of another value, is beyond a bound."""

    value: str
    comparison: Comparison
    bound: float
    #: the metric whose part is compared, for equal labels. Empty: the value itself is compared.
    of: str = ""

    @property
    def promql(self) -> str:
        """As in `Condition`."""
        part = f"{_of_job(self.value)} / {_of_job(self.of)}" if self.of else _of_job(self.value)
        return f"{part} {self.comparison} {self.bound:.12g}"

    def read(self, samples: Iterable[Sample]) -> Reading:
        """Return the values to compare; nothing is a part of 0, as in PromQL."""
        samples = list(samples)
        values = select(self.value, samples)
        if not self.of:
            return tuple(values.values())
        wholes = select(self.of, samples)
        return tuple(value / (wholes.get(labels) or math.nan) for labels, value in values.items())

    def met(self, now: Reading, before: Reading) -> bool:  # noqa: ARG002 - only the present counts
        """As in `Condition`."""
        return any(_COMPARE[self.comparison](value, self.bound) for value in now)


@dataclass(frozen=True)
class Share:
    """Of what was counted within the window, some part is beyond a bound, unless too little was counted."""

    part: str
    comparison: Comparison
    bound: float
    of: str

    @property
    def promql(self) -> str:
        """As in `Condition`."""
        part, whole = (f"sum by (instance) (increase({each}[{WINDOW}m]))" for each in (self.part, self.of))
        return f"{part} / {whole} {self.comparison} {self.bound:.12g} and {whole} > {FEW}"

    def read(self, samples: Iterable[Sample]) -> Reading:
        """Return the counts of the part and of the whole."""
        samples = list(samples)
        return sum(select(self.part, samples).values()), sum(select(self.of, samples).values())

    def met(self, now: Reading, before: Reading) -> bool:
        """As in `Condition`."""
        part, whole = (value - earlier for value, earlier in zip(now, before, strict=True))
        return whole > FEW and _COMPARE[self.comparison](part / whole, self.bound)


@dataclass(frozen=True)
class Rise:
    """Something was counted within the window that should never happen."""

    counter: str

    @property
    def promql(self) -> str:
        """As in `Condition`."""
        return f"increase({self.counter}[{WINDOW}m]) > 0"

    def read(self, samples: Iterable[Sample]) -> Reading:
        """Return the count."""
        return (sum(select(self.counter, samples).values()),)

    def met(self, now: Reading, before: Reading) -> bool:
        """As in `Condition`."""
        return now > before


class Absence:
    """The gateway does not answer. Only Prometheus can find that."""

    promql = 'up{job="kernel-gateway"} == 0'

    def read(self, samples: Iterable[Sample]) -> Reading:  # noqa: ARG002 - as in `Condition`
        """Return nothing."""
        return ()

    def met(self, now: Reading, before: Reading) -> bool:  # noqa: ARG002 - as in `Condition`
        """Return False, because a gateway that asks is there."""
        return False


def _of_job(selector: str) -> str:
    """Add the gateway's job to the selector of a metric that other services have, too."""
    return selector if selector.startswith("kernel_gateway_") else f'{selector}{{job="kernel-gateway"}}'
