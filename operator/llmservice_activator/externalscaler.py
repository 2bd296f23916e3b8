"""The messages of KEDA's external scalers, and their limits.

Names, numbers and types as in kedacore/keda v2.21.0, pkg/scalers/externalscaler/externalscaler.proto.
"""

from __future__ import annotations

import re
from math import ceil
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from kubeloop.resources import Key

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"
METRIC = "replicas"
"""The only metric: the desired replicas; its target is 1 for each replica."""
TARGET = 1

_Field = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, tuple[tuple[str, int, int, str], ...]] = {
    "ScaledObjectRef": (
        ("name", 1, _Field.TYPE_STRING, ""),
        ("namespace", 2, _Field.TYPE_STRING, ""),
        ("scalerMetadata", 3, _Field.TYPE_MESSAGE, "ScaledObjectRef.ScalerMetadataEntry"),
    ),
    "IsActiveResponse": (("result", 1, _Field.TYPE_BOOL, ""),),
    "GetMetricSpecResponse": (("metricSpecs", 1, _Field.TYPE_MESSAGE, "MetricSpec"),),
    "MetricSpec": (
        ("metricName", 1, _Field.TYPE_STRING, ""),
        ("targetSize", 2, _Field.TYPE_INT64, ""),
        ("targetSizeFloat", 3, _Field.TYPE_DOUBLE, ""),
    ),
    "GetMetricsRequest": (
        ("scaledObjectRef", 1, _Field.TYPE_MESSAGE, "ScaledObjectRef"),
        ("metricName", 2, _Field.TYPE_STRING, ""),
    ),
    "GetMetricsResponse": (("metricValues", 1, _Field.TYPE_MESSAGE, "MetricValue"),),
    "MetricValue": (
        ("metricName", 1, _Field.TYPE_STRING, ""),
        ("metricValue", 2, _Field.TYPE_INT64, ""),
        ("metricValueFloat", 3, _Field.TYPE_DOUBLE, ""),
    ),
}
_REPEATED = frozenset({"scalerMetadata", "metricSpecs", "metricValues"})

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class InvalidRequest(Exception):
    """A request that KEDA would not send; the message says why."""


class MetricsRequest(NamedTuple):
    key: Key
    metric: str


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, type_, of in fields:
            label = _Field.LABEL_REPEATED if field in _REPEATED else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, type=type_, label=label)
            if of:
                added.type_name = f".{PACKAGE}.{of}"
        if name == "ScaledObjectRef":
            entry = message.nested_type.add(name="ScalerMetadataEntry")
            entry.options.map_entry = True
            for number, word in enumerate(("key", "value"), 1):
                entry.field.add(name=word, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    return file


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    found = (pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in _MESSAGES)
    return {each.name: message_factory.GetMessageClass(each) for each in found}


MESSAGES = _classes()
"""Message classes by name."""


def scaled_object(raw: bytes) -> Key:
    """The service of a ScaledObjectRef, which has the ScaledObject's name; InvalidRequest."""
    return _key(_parsed("ScaledObjectRef", raw))


def metrics_request(raw: bytes) -> MetricsRequest:
    """A GetMetricsRequest; InvalidRequest."""
    message = _parsed("GetMetricsRequest", raw)
    if message.metricName != METRIC:
        raise InvalidRequest(f"there is no metric {message.metricName[:64]!r}, only {METRIC!r}")
    return MetricsRequest(_key(message.scaledObjectRef), METRIC)


def is_active(result: bool) -> bytes:
    return _bytes("IsActiveResponse", result=result)


def metric_spec() -> bytes:
    """A GetMetricSpecResponse with the metric. Both fields of its target are set; the integer one is deprecated."""
    spec = MESSAGES["MetricSpec"](metricName=METRIC, targetSize=TARGET, targetSizeFloat=float(TARGET))
    return _bytes("GetMetricSpecResponse", metricSpecs=[spec])


def metrics(value: float) -> bytes:
    found = MESSAGES["MetricValue"](metricName=METRIC, metricValue=ceil(value), metricValueFloat=value)
    return _bytes("GetMetricsResponse", metricValues=[found])


def _bytes(name: str, **fields: Any) -> bytes:
    raw: bytes = MESSAGES[name](**fields).SerializeToString()
    return raw


def _parsed(name: str, raw: bytes) -> Any:
    try:
        return MESSAGES[name].FromString(raw)
    except DecodeError as error:
        raise InvalidRequest(f"the request is no {name}") from error


def _key(reference: Any) -> Key:
    """The service of a reference, with valid names. The trigger's metadata may come from a tenant and is ignored."""
    if not _NAMESPACE.fullmatch(reference.namespace) or not _NAME.fullmatch(reference.name):
        raise InvalidRequest("scaledObjectRef has no valid namespace and name")
    return Key(reference.namespace, reference.name)
