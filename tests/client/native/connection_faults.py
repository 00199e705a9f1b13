"""Faults of connections, injected at random moments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from pumphouse.hub.embedded import EmbeddedHub

Break = Callable[[EmbeddedHub], None]


class FaultInjector:
    """Injects a fault at a random moment after each step of progress.

    Faults follow progress and not the clock, because a slow machine would only exhaust the retries.
    """

    def __init__(self, hub: EmbeddedHub, rng: Random, breaks: Sequence[Break]) -> None:
        self.hub, self.rng, self.breaks = hub, rng, breaks
        self.count = 0
        self._timer: asyncio.TimerHandle | None = None

    def again(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.rng.random() * 0.004, self.strike)

    def strike(self) -> None:
        self._timer = None
        # Faults of an attach or connect wait for one, so a drop must cause it.
        chosen = self.rng.choice(self.breaks) if len(self.hub.faults.planned) < 2 else drop
        chosen(self.hub)
        self.count += 1

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.hub.faults.clear()


def drop(hub: EmbeddedHub) -> None:
    hub.drop_connections()


def drop_at_delivery(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="deliver", times=1)


def drop_at_send(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="send", times=1)


def drop_at_attach(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="attach", times=1)


def drop_at_connect(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="connect", times=1)


def detach(hub: EmbeddedHub) -> None:
    hub.faults.detach(on="deliver", times=1)


def detach_sender(hub: EmbeddedHub) -> None:
    hub.faults.detach(on="send", times=1)


def refuse(hub: EmbeddedHub) -> None:
    hub.faults.refuse(times=1)


def throttle(hub: EmbeddedHub) -> None:
    hub.faults.throttle(times=1)


def slow_down(hub: EmbeddedHub) -> None:
    hub.faults.delay(0.01, on="deliver", times=1)


READING = [drop, drop_at_delivery, drop_at_attach, drop_at_connect, detach, refuse, slow_down]
SENDING = [drop_at_send, detach_sender, throttle, refuse, drop_at_attach]
BREAKS = {"tcp": 200, "tls": 80, "ws": 80, "wss": 40}  # handshakes are slower than faults
