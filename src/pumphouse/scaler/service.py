"""ExternalScaler: the gRPC service that KEDA calls, and its server.

    KEDA -> ExternalScaler -> decisions, ObservedLag
            ^^^^^^^^^^^^^^ this module

A lag that is not known is the status UNAVAILABLE, never 0: KEDA then keeps the hosts, or uses the
fallback of the ScaledObject.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from pumphouse.errors import OptionError, PortTaken, PumphouseError
from pumphouse.scaler.decisions import (
    Lags,
    Trigger,
    is_active,
    metric_name,
    metric_value,
    trigger_of,
)
from pumphouse.scaler.messages import (
    SERVICE,
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    ScaledObjectRef,
)
from pumphouse.scaler.observed_lag import ObservedLag

REQUEST_BYTES_MAX = 64 * 1024  # the metadata of a ScaledObject is a few hundred bytes
# A ScaledObject has one stream and few calls; calls beyond this number are refused.
CALLS_MAX = 1000
STOP_S = 2.0  # for calls that are running; streams end at once

Context = Any  # grpc.aio.ServicerContext, for which grpc ships no types


class ExternalScaler:
    """The methods that KEDA calls. `stop` ends the streams."""

    def __init__(self, lag: ObservedLag, interval_s: float) -> None:
        self._lag, self._interval_s = lag, interval_s
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def is_active(self, ref: Any, context: Context) -> Any:
        trigger = await valid_trigger(ref.scalerMetadata, context)
        return IsActiveResponse(result=is_active(await self._lags(trigger, context), trigger))

    async def stream_is_active(self, ref: Any, context: Context) -> AsyncIterator[Any]:
        """Send whether the group is active: at the start, and after each change.

        While the lag is unknown nothing is sent. The stream stays open, because KEDA waits up to a
        minute before it opens a stream that has failed again.
        """
        trigger = await valid_trigger(ref.scalerMetadata, context)
        sent: bool | None = None
        while not self._stopped.is_set():
            active = await self._active_or_unknown(trigger)
            if active is not None and active != sent:
                sent = active
                yield IsActiveResponse(result=active)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), self._interval_s)

    async def get_metric_spec(self, ref: Any, context: Context) -> Any:
        trigger = await valid_trigger(ref.scalerMetadata, context)
        response, target = GetMetricSpecResponse(), trigger.lag_threshold
        name = metric_name(trigger.group)
        response.metricSpecs.add(metricName=name, targetSize=target, targetSizeFloat=target)
        return response

    async def get_metrics(self, request: Any, context: Context) -> Any:
        trigger = await valid_trigger(request.scaledObjectRef.scalerMetadata, context)
        value = metric_value(await self._lags(trigger, context), trigger)
        response, name = GetMetricsResponse(), metric_name(trigger.group)
        response.metricValues.add(metricName=name, metricValue=value, metricValueFloat=value)
        return response

    async def _lags(self, trigger: Trigger, context: Context) -> Lags:
        try:
            return await self._lag.of(trigger.group)
        except OptionError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except PumphouseError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort raises")

    async def _active_or_unknown(self, trigger: Trigger) -> bool | None:
        try:
            return is_active(await self._lag.of(trigger.group), trigger)
        except PumphouseError:
            return None


async def valid_trigger(metadata: Mapping[str, str], context: Context) -> Trigger:
    try:
        return trigger_of(dict(metadata))
    except OptionError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    raise AssertionError("abort raises")


def handlers(service: ExternalScaler) -> Any:
    def unary(call: Any, request: Any = ScaledObjectRef) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            call, request.FromString, lambda response: response.SerializeToString()
        )

    stream = grpc.unary_stream_rpc_method_handler(
        service.stream_is_active,
        ScaledObjectRef.FromString,
        lambda response: response.SerializeToString(),
    )
    methods = {
        "IsActive": unary(service.is_active),
        "StreamIsActive": stream,
        "GetMetricSpec": unary(service.get_metric_spec),
        "GetMetrics": unary(service.get_metrics, GetMetricsRequest),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


@asynccontextmanager
async def serving(service: ExternalScaler, port: int, host: str) -> AsyncIterator[int]:
    """Serve until the end of the block; yields the port."""
    options = [
        ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
        ("grpc.so_reuseport", 0),  # a port that another program has is an error
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
    server.add_generic_rpc_handlers((handlers(service),))
    bound = listen(server, port, host)
    await server.start()
    try:
        yield bound
    finally:
        service.stop()
        await server.stop(STOP_S)


def listen(server: Any, port: int, host: str) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = int(server.add_insecure_port(address))
    except RuntimeError:
        bound = 0
    if not bound:
        raise PortTaken(
            f"cannot listen on {address} for gRPC: the port is in use, or the address is not one "
            "of this machine; choose another port, or 0 for any free one"
        )
    return bound
