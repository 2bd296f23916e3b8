"""The gRPC server for KEDA: returns answers, or a status with the reason. Its certificate and the clients' CA are read
from the folder of a mounted Secret, again when they change.

Names, numbers and types of the messages as in kedacore/keda v2.21.0, pkg/scalers/externalscaler/externalscaler.proto.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from kubeloop import log
from kubeloop.errors import ConfigError
from kubeloop.health import expires_at
from kubeloop.resources import Key

from llmservice_activator.answers import ScalingAnswers
from llmservice_activator.services import Services, Unknown, Watches

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


logger = logging.getLogger(__name__)

RELOAD_SECONDS = 60.0
"""Seconds between checks for a renewed certificate."""
CERTIFICATE_FILES = ("tls.crt", "tls.key", "ca.crt")


@dataclass(frozen=True)
class Loaded:
    """Contents of the three files, and the certificate's expiry in Unix time."""

    certificate: bytes
    key: bytes
    authority: bytes
    expires_at: float


class MutualTls:
    """gRPC credentials that require a client certificate; new connections use a renewed certificate."""

    def __init__(self, folder: Path) -> None:
        """ConfigError where the folder has no valid certificate."""
        self._folder = folder
        try:
            self._loaded = _read(folder)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read {', '.join(CERTIFICATE_FILES)} in {folder}: {error}",
                remedy="autoscaling.tls.secretName of the chart names the Secret that has them; see "
                "docs/serving/scaling.md",
            ) from error
        self._renewed: grpc.ServerCertificateConfiguration | None = None

    @property
    def expires_at(self) -> float:
        return self._loaded.expires_at

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`, once."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._loaded),
            self._take_renewed,  # type: ignore[arg-type]  # the stubs do not know None, which gRPC documents
            require_client_authentication=True,
        )

    def _take_renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """A renewed configuration once, else None. Called at each handshake, in threads of gRPC.

        gRPC replaces the configuration of all handshakes with each result; with the same one returned repeatedly, under
        many connections at once, the process was aborted.
        """
        renewed, self._renewed = self._renewed, None
        return renewed

    def refresh(self) -> bool:
        """Read the files; returns whether they changed. After OSError or ssl.SSLError the earlier ones stay in use."""
        found = _read(self._folder)
        if found == self._loaded:
            return False
        self._renewed, self._loaded = _configuration(found), found
        return True

    async def keep_fresh(self) -> None:
        """Refresh once a minute; never returns."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                if await asyncio.to_thread(self.refresh):
                    logger.info("the scaler's certificate was renewed")
            except (OSError, ssl.SSLError) as error:
                logger.warning("cannot read the scaler's renewed certificate: %s", error)


def _read(folder: Path) -> Loaded:
    """The three files, checked to match: gRPC itself would only refuse every connection."""
    certificate, key, authority = (folder / name for name in CERTIFICATE_FILES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    return Loaded(certificate.read_bytes(), key.read_bytes(), authority.read_bytes(), expires_at(certificate))


def _configuration(loaded: Loaded) -> grpc.ServerCertificateConfiguration:
    pairs = [(loaded.key, loaded.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=loaded.authority)


MAX_REQUEST_BYTES = 64 * 1024
"""Bytes of a request; KEDA sends names and the trigger's metadata."""
MOST_CALLS = 4096
"""Concurrent calls over all connections. KEDA keeps one stream open for each ScaledObject."""
MOST_STREAMS = 4096
"""Streams of one connection."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    # A peer that vanishes keeps its stream, one of MOST_CALLS, until a ping is not answered in time: after the first
    # time by gRPC's documentation, after the second by grpcio 1.85.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # KEDA's connections to scalers send no pings (pkg/scalers/external_scaler.go, 2.21), its others one every 30 s.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Two processes must not share a port by mistake.
    ("grpc.so_reuseport", 0),
)

Context = grpc.aio.ServicerContext[bytes, bytes]
CountCall = Callable[[str, str], None]
"""Called after each call with its method and status code."""


class CallFailed(Exception):
    """Ends a call with a status code and a message."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ExternalScaler:
    """Methods of KEDA's ExternalScaler service except StreamMetricSpec: the target never changes."""

    def __init__(self, services: Services, watches: Watches, answers: ScalingAnswers, count: CountCall) -> None:
        self._services, self._watches, self._answers, self._count = services, watches, answers, count
        self._is_stopping = False
        self._streams: dict[Key, set[asyncio.Event]] = {}
        """The event of each open stream."""

    def stop(self) -> None:
        """End the streams; KEDA reopens them at another activator."""
        self._is_stopping = True
        for key in tuple(self._streams):
            self.activated(key)

    def activated(self, key: Key) -> None:
        """A service became active: push it to KEDA."""
        for stream in self._streams.get(key, ()):
            stream.set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Handlers for raw bytes, so that unparsable requests get a status like other invalid ones."""
        unary = {"IsActive": self._is_active, "GetMetricSpec": self._metric_spec, "GetMetrics": self._metrics}
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._answered(name, method)) for name, method in unary.items()
        }
        methods["StreamIsActive"] = grpc.unary_stream_rpc_method_handler(self._stream_is_active)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _is_active(self, request: bytes) -> bytes:
        key = scaled_object(request)
        self._known(key)
        return is_active(await self._is_in_use(key))

    async def _metric_spec(self, request: bytes) -> bytes:
        """Independent of the service: KEDA needs the target for its fallback, too."""
        scaled_object(request)
        return metric_spec()

    async def _metrics(self, request: bytes) -> bytes:
        key = metrics_request(request).key
        self._known(key)
        answer = await self._answers.get(key)
        logger.debug("%g: %s", answer.desired.metric, answer.desired.reason, extra={log.KEY: key})
        return metrics(answer.desired.metric)

    async def _stream_is_active(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        """True at first if active, and whenever the service becomes active. Never False: KEDA polls for that."""
        code, came_into_use = grpc.StatusCode.OK, asyncio.Event()
        key = None
        try:
            key = scaled_object(request)
            self._known(key)
            self._streams.setdefault(key, set()).add(came_into_use)
            if await self._is_in_use(key):
                yield is_active(True)
            while not self._is_stopping:
                await came_into_use.wait()
                came_into_use.clear()
                if not self._is_stopping:
                    yield is_active(True)
        except (CallFailed, Unknown, InvalidRequest) as error:
            code = code_of(error)
            await context.abort(code, str(error))
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        finally:
            if key is not None and (streams := self._streams.get(key)):
                streams.discard(came_into_use)
                if not streams:
                    del self._streams[key]
            self._count("StreamIsActive", code.name)

    async def _is_in_use(self, key: Key) -> bool:
        """Skips the pods where the last replica always stays."""
        if not self._services.get(key).may_be_at_zero:
            return True
        return (await self._answers.get(key)).activity.is_active

    def _known(self, key: Key) -> None:
        """CallFailed or Unknown where no answer is possible."""
        if not self._watches.is_watched(key.namespace):
            message = f"namespace {key.namespace} is not watched; add it to watch.namespaces of the chart"
            raise CallFailed(grpc.StatusCode.NOT_FOUND, message)
        if not self._watches.is_synced(key.namespace):
            problems = "; ".join(self._watches.problems(key.namespace))
            message = f"LLMServices and pods of namespace {key.namespace} are not known: {problems}"
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, message)
        self._services.get(key)

    def _answered(
        self, name: str, method: Callable[[bytes], Awaitable[bytes]]
    ) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def handle(request: bytes, context: Context) -> bytes:
            code = grpc.StatusCode.OK
            try:
                return await method(request)
            except (CallFailed, Unknown, InvalidRequest) as error:
                code = code_of(error)
                await context.abort(code, str(error))
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception:  # an error about one service does not affect other calls
                code = grpc.StatusCode.INTERNAL
                logger.exception("%s failed", name)
                await context.abort(code, "internal error; see the scaler's log")
            finally:
                self._count(name, code.name)

        return handle


def code_of(error: Exception) -> grpc.StatusCode:
    if isinstance(error, CallFailed):
        return error.code
    return grpc.StatusCode.NOT_FOUND if isinstance(error, Unknown) else grpc.StatusCode.INVALID_ARGUMENT


def make(scaler: ExternalScaler) -> grpc.aio.Server:
    """A server without a port."""
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
    server.add_generic_rpc_handlers((scaler.handlers(),))
    return server
