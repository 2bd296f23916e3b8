"""python -m llmservice_operator.control.metrics: the reference page of the metrics, on standard output."""

import sys

from llmservice_operator.control.metrics.registry import Metrics

if __name__ == "__main__":
    sys.stdout.write(Metrics().reference())
