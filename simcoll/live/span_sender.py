"""Spans sent to an OpenTelemetry collector, by OTLP over HTTP.

OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT (http://localhost:4318), name the collector.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from simcoll import __version__
from simcoll.live.now import JobNow
from simcoll.live.spans import StandingSpans, StepSpans


class SpanSender:
    """The spans of a job, and a thread that sends those that have ended."""

    def __init__(self) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "simcoll"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        tracer = self._provider.get_tracer("simcoll", __version__)
        self._stands, self._steps = StandingSpans(tracer), StepSpans(tracer)

    def take(self, job: JobNow) -> None:
        """Begin and end spans by a look at the job."""
        self._stands.take(job)
        self._steps.take(job)

    def close(self) -> None:
        """End and send what is open; a collector that does not answer delays this by its timeout."""
        self._stands.close()
        self._provider.shutdown()
