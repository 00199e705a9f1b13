"""The messages of KEDA's service `externalscaler.ExternalScaler`, built when they are imported.

Names and field numbers are KEDA's. The descriptors are in a pool of their own, so that a program
that has imported code generated for the same service can import this module.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

STRING, BOOL = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BOOL
INT64, DOUBLE = FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_DOUBLE
MESSAGE = FieldDescriptorProto.TYPE_MESSAGE
ONE, MANY = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED

ENTRY = "ScalerMetadataEntry"  # a map is sent as a list of these

# message -> its fields in the order of their numbers, from 1. Each has a name, a type and, if the
# type is a message, the name of that message. A star marks a repeated field; a map is one too.
FIELDS: dict[str, list[tuple[str, int, str]]] = {
    "ScaledObjectRef": [
        ("name", STRING, ""),
        ("namespace", STRING, ""),
        ("scalerMetadata", MESSAGE, f"ScaledObjectRef.{ENTRY}*"),
    ],
    "IsActiveResponse": [("result", BOOL, "")],
    "GetMetricSpecResponse": [("metricSpecs", MESSAGE, "MetricSpec*")],
    "MetricSpec": [
        ("metricName", STRING, ""),
        ("targetSize", INT64, ""),  # for versions of KEDA before the double
        ("targetSizeFloat", DOUBLE, ""),
    ],
    "GetMetricsRequest": [
        ("scaledObjectRef", MESSAGE, "ScaledObjectRef"),
        ("metricName", STRING, ""),
    ],
    "GetMetricsResponse": [("metricValues", MESSAGE, "MetricValue*")],
    "MetricValue": [
        ("metricName", STRING, ""),
        ("metricValue", INT64, ""),  # for versions of KEDA before the double
        ("metricValueFloat", DOUBLE, ""),
    ],
}


def message_types() -> dict[str, Any]:
    """The class of each message, by its name."""
    file = FileDescriptorProto(name="pumphouse/scaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        add_fields(file.message_type.add(name=name), fields)
    (owner,) = (each for each in file.message_type if each.name == "ScaledObjectRef")
    entry = owner.nested_type.add(name=ENTRY)
    add_fields(entry, [("key", STRING, ""), ("value", STRING, "")])
    entry.options.map_entry = True
    pool = DescriptorPool()
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in FIELDS
    }


def add_fields(message: DescriptorProto, fields: list[tuple[str, int, str]]) -> None:
    for number, (name, kind, type_name) in enumerate(fields, 1):
        field = message.field.add(name=name, number=number, type=kind, json_name=name)
        field.label = MANY if type_name.endswith("*") else ONE
        if type_name:
            field.type_name = f".{PACKAGE}.{type_name.removesuffix('*')}"


TYPES = message_types()
ScaledObjectRef = TYPES["ScaledObjectRef"]
IsActiveResponse = TYPES["IsActiveResponse"]
GetMetricSpecResponse = TYPES["GetMetricSpecResponse"]
GetMetricsRequest = TYPES["GetMetricsRequest"]
GetMetricsResponse = TYPES["GetMetricsResponse"]
