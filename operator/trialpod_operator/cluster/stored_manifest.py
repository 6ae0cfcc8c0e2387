"""A TuneExperiment as the API server holds it, checked.

The server drops fields that its definition does not know, and fills in defaults that it does. During an upgrade the
definition may be newer than the operator; then there may be fields that this operator does not know. They are
left out here, not complained about: a stored manifest cannot be corrected, and experiments have to continue. So are
fields of its metadata that this operator does not know: they are Kubernetes's own.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from trialpod_operator.api.document import Document
from trialpod_operator.api.paths import Path, parse_path
from trialpod_operator.api.validation import Checked, check_document

logger = logging.getLogger(__name__)

_DEPTH = 2
"""Only fields of spec itself, and of its parts: the definition knows none deeper."""


def check_stored(item: Mapping[str, Any]) -> Checked:
    """Check the object; fields of a newer definition are as if they were not there."""
    document = dict(item)
    started = bool((item.get("status") or {}).get("startTime"))
    checked = check_document(Document(document), started=started)
    unknown = [problem for problem in checked.problems if problem.unknown_field]
    paths = [parse_path(problem.path)[0] for problem in unknown]
    newer = [path for path in paths if _may_be_newer(path)]
    if not newer:
        return checked
    document = copy.deepcopy(document)
    for path in newer:
        part: Any = document
        for step in path[:-1]:
            part = part[step]
        part.pop(path[-1], None)
    logger.info("fields of a newer version are left alone: %s", ", ".join(str(problem.path) for problem in unknown))
    return check_document(Document(document), started=started)


def _may_be_newer(path: Path) -> bool:
    if path[:1] == ("metadata",):
        return len(path) == 2
    return path[:1] == ("spec",) and len(path) <= _DEPTH + 1 and path[1] != "template"
