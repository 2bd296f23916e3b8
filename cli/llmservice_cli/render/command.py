"""`llmservice render`: the objects that the operator would make of a manifest, and what it would say about it."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from llmservice_operator.observe.observed import Observed

from llmservice_cli.errors import ExitCode, print_problems
from llmservice_cli.manifests import Json, admit

from . import settings
from .decided import Source, decided
from .desired import NEW_UID, namespace_of, new
from .inputs import add_inputs, previews, with_config
from .output import show
from .preview import Preview, changes
from .restart import restart_of

DESCRIPTION = """\
The objects that the operator would make of each LLMService of a file, as if it were new: by the operator's own code,
without a cluster. Nothing is read over the network, and nothing is written.
"""
EPILOG = """\
examples:
  llmservice render -f llmservice.yaml                          manifests, with conditions and notes as comments
  llmservice render -f llmservice.yaml --config config.json     as it is once the model was inspected
  llmservice render -f llmservice.yaml -o summary               a line for each object
  helm template serving/ | llmservice render -f - -o json | jq '.services[].conditions'

Without spec.model.architecture or --config the operator inspects the model with a Job first; that Job is what is shown
then. Values of environment variables that are named like secrets are shown as ***. The output is for reading: the
operator applies these objects, and without their LLMService Kubernetes would delete them.

exit codes:
  0  rendered
  1  the operator would start nothing until the spec is changed, such as where it does not fit
  2  bad input: a line on standard error for everything that is wrong, as with `plan`; or the operator refuses the spec
Of several LLMServices the worst counts: 2, then 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    parser.add_argument("-n", "--namespace", help="of services whose manifest names none (default: default)")
    settings.add_option(parser, "the chart's defaults")
    parser.add_argument("-o", "--output", choices=("yaml", "json", "summary"), default="yaml", help="default: yaml")


async def run(options: argparse.Namespace) -> ExitCode:
    """Print what is decided; the exit code says whether anything would come of it."""
    given = settings.defaults() if options.settings is None else settings.of_file(options.settings)
    now = datetime.now(UTC)

    async def preview(manifest: Json) -> Preview:
        admit(manifest)
        obj = with_config(new(manifest, namespace_of(manifest, options.namespace, "default")), options.config)
        decision, status = await decided(obj, Observed(), given, now, Source())
        made = changes(decision, Observed(), NEW_UID, {})
        restart = restart_of(made, None, None, status)
        return Preview.of(obj, made, status, restart)

    made, problems, notes = await previews(options.file, preview)
    show(made, options.output)
    print_problems(problems, notes)
    if problems or not all(each.is_accepted for each in made):
        return ExitCode.BAD_INPUT
    return ExitCode.STALLED if any(each.is_stalled for each in made) else ExitCode.DONE
