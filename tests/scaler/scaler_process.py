"""`pumphouse scaler` as a process, and a client of it that protoc has compiled."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc

from tests.cli.conftest import Program

PROTO = Path(__file__).with_name("keda.proto")
LIMIT_S = 30.0


def compiled_client(folder: Path) -> tuple[Any, Any]:
    """The modules of messages and stubs for keda.proto."""
    output = (f"--python_out={folder}", f"--grpc_python_out={folder}")
    assert protoc.main(["protoc", f"-I{PROTO.parent}", *output, str(PROTO)]) == 0
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("keda_pb2"), importlib.import_module("keda_pb2_grpc")
    finally:
        sys.path.remove(str(folder))


class Scaler:
    """A running scaler, and the calls of KEDA."""

    def __init__(self, modules: tuple[Any, Any], *args: str, connection: str) -> None:
        options = ("--port", "0", "--interval", "100ms", "-o", "json")
        self.program = Program("scaler", *options, *args, connection=connection)
        self.port = int(json.loads(self.program.line())["port"])
        self._messages, stubs = modules
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self._stub = stubs.ExternalScalerStub(self.channel)

    def _ref(self, metadata: dict[str, str]) -> Any:
        # KEDA sends its own keys too.
        metadata = {"scalerAddress": "scaler:6000", **metadata}
        return self._messages.Scaled(name="counters", namespace="shop", scalerMetadata=metadata)

    def is_active(self, **metadata: str) -> bool:
        return bool(self._stub.IsActive(self._ref(metadata), timeout=LIMIT_S).result)

    def stream(self, **metadata: str) -> Any:
        return self._stub.StreamIsActive(self._ref(metadata), timeout=LIMIT_S)

    def spec(self, **metadata: str) -> Any:
        (spec,) = self._stub.GetMetricSpec(self._ref(metadata), timeout=LIMIT_S).metricSpecs
        return spec

    def value(self, **metadata: str) -> int:
        name = self.spec(**metadata).metricName
        request = self._messages.Question(scaledObjectRef=self._ref(metadata), metricName=name)
        (value,) = self._stub.GetMetrics(request, timeout=LIMIT_S).metricValues
        assert (value.metricName, value.metricValueFloat) == (name, value.metricValue)
        return int(value.metricValue)

    def refusal(self, **metadata: str) -> tuple[grpc.StatusCode, str]:
        """Status and sentence of a call that must fail."""
        try:
            value = self.value(**metadata)
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"the scaler answered {value}")

    def dispose(self) -> None:
        self.channel.close()
        self.program.dispose()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def scaler(modules: tuple[Any, Any], *args: str, connection: str) -> Iterator[Scaler]:
    running = Scaler(modules, *args, connection=connection)
    try:
        yield running
    finally:
        running.dispose()
