"""Print how many faults of each kind were run, and how many held."""


def pytest_terminal_summary(terminalreporter):
    said = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            kind = dict(report.user_properties).get("fault")
            if kind: said.setdefault(kind, {"passed": 0, "failed": 0})[outcome] += 1
    for kind, text in (("input", "bad inputs"), ("interruption", "interruptions")):
        n = said.get(kind)
        if n: terminalreporter.write_line(f"faults: {n['passed']} of {sum(n.values())} {text} held")
