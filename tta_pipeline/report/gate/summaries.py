"""The findings of the gate in the forms that a CI shows: JUnit's XML, and Markdown."""

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from tta_pipeline.report.gate.finding import Finding, is_passed
from tta_pipeline.util.json_values import JsonObject

_MOST_ROWS = 100
_NO_XML = {code: "\N{REPLACEMENT CHARACTER}" for code in range(32) if chr(code) not in "\t\n\r"}
"""Characters that XML 1.0 cannot hold."""


def as_junit(benchmark: str, findings: Sequence[Finding]) -> bytes:
    """Return *findings* as JUnit's XML: a suite for each experiment, a case for each demand."""
    root = ET.Element("testsuites", _counts(findings) | {"name": f"tta-pipeline gate {benchmark}"})
    for experiment in dict.fromkeys(each.experiment for each in findings):
        own = [each for each in findings if each.experiment == experiment]
        suite = ET.SubElement(root, "testsuite", _counts(own) | {"name": experiment})
        for each in own:
            name = f"{each.cell}: {each.demand}" if each.cell else each.demand
            names = {"classname": f"{benchmark}.{experiment}", "name": name}
            case = ET.SubElement(suite, "testcase", names)
            if not each.is_kept:
                failure = ET.SubElement(case, "failure", {"message": _clean(each.found), "type": "gate"})
                failure.text = _clean(each.sentence)
            ET.SubElement(case, "system-out").text = _clean(f"{each.found} ({each.test})")
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _counts(findings: Sequence[Finding]) -> dict[str, str]:
    failed = sum(not each.is_kept for each in findings)
    return {"tests": str(len(findings)), "failures": str(failed), "errors": "0"}


def _clean(text: str) -> str:
    return text.translate(_NO_XML)


def as_markdown(benchmark: str, findings: Sequence[Finding]) -> str:
    """Return *findings* as Markdown: the answer, a table of what failed, and what is kept of each experiment."""
    failed = [each for each in findings if not each.is_kept]
    answer = "passed" if is_passed(findings) else "failed"
    parts = [
        f"## Gate of {benchmark}: {answer}",
        f"{len(findings) - len(failed)} of {len(findings)} demands are kept. Intervals cover 95 %.",
    ]
    if failed:
        parts += ["### Failed", _as_table(failed[:_MOST_ROWS])]
    if len(failed) > _MOST_ROWS:
        parts.append(f"And {len(failed) - _MOST_ROWS:,} more.")
    of_whole = [each for each in findings if each.is_kept and each.cell is None]
    if of_whole:
        parts += ["### Kept", _as_table(of_whole[:_MOST_ROWS])]
    return "\n\n".join(parts) + "\n"


def _as_table(findings: Sequence[Finding]) -> str:
    rows = [(each.experiment, each.cell or "all cells", each.demand, each.found, each.test) for each in findings]
    lines = [("experiment", "cell", "expected", "found", "test"), ("---",) * 5, *rows]
    return "\n".join(f"| {' | '.join(map(_in_cell, line))} |" for line in lines)


def _in_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def as_facts(finding: Finding) -> JsonObject:
    """Return *finding* as plain JSON."""
    return {
        "experiment": finding.experiment,
        "cell": finding.cell,
        "demand": finding.demand,
        "is_kept": finding.is_kept,
        "column": finding.column,
        "value": finding.value,
        "low": finding.low,
        "high": finding.high,
        "test": finding.test,
        "reason": finding.reason,
    }
