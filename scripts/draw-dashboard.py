#!/usr/bin/env python3
"""Draws the chart's Grafana dashboard from a live operator, without Grafana and without Prometheus.

Scrapes URL every second for a while, evaluates the expressions of charts/lessor/files/dashboard.json (as much of PromQL
as they use), lays their panels out on a page, and lets a headless browser take its picture. Fails when an expression
can't be evaluated, or when a panel that must not be empty is.

    scripts/draw-dashboard.py http://127.0.0.1:8080/metrics --seconds 30 --out /tmp/dashboard
"""

import argparse
import html
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

DASHBOARD = pathlib.Path(__file__).parent.parent / "charts/lessor/files/dashboard.json"
BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
# Panels that have something to show in any run in which leases come and go.
NEVER_EMPTY = {"Primary", "Term", "Leases", "What leases do", "What is removed", "How late leases end", "Requests"}
RANGE = 10  # seconds that a rate looks back
COLOURS = ["#56a64b", "#3274d9", "#e0b400", "#e02f44", "#8f3bb8", "#ff780a", "#37872d", "#1f60c4", "#c4162a"]


def scrape(url):
    """One scrape: {(name, labels): value}."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    samples = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, value = line.rsplit(" ", 1)
        labels = {"namespace": "lessor-system", "pod": "lessor-0"}
        if "{" in name:
            name, rest = name.split("{", 1)
            labels.update(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest))
        samples[(name, frozenset(labels.items()))] = float(value)
    return samples


class Query:
    """An expression, evaluated at the scrape `at` of `scrapes`."""

    def __init__(self, text, scrapes, at):
        text = text.replace("$namespace", "lessor-system").replace("$__rate_interval", f"{RANGE}s")
        self.tokens = re.findall(r'\w+:?\w*(?:\.\d+)?|"(?:[^"\\]|\\.)*"|==|!=|=~|!~|[^\s\w]', text)
        self.scrapes, self.at, self.position = scrapes, at, 0

    def peek(self):
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self, expected=None):
        token = self.peek()
        if token is None or (expected and token != expected):
            raise ValueError(f"expected {expected}, found {token}")
        self.position += 1
        return token

    def whole(self):
        result = self.expression()
        if self.peek() is not None:
            raise ValueError(f"left over: {self.tokens[self.position:]}")
        return result

    def expression(self):
        """{labels: value}"""
        result = self.operand()
        if self.peek() == "==":
            self.take()
            wanted = float(self.take())
            result = {labels: value for labels, value in result.items() if value == wanted}
        return result

    def operand(self):
        name = self.take()
        if name in ("sum", "max", "min"):
            by = []
            if self.peek() == "by":
                self.take()
                by = self.names()
            self.take("(")
            inner = self.expression()
            self.take(")")
            groups = {}
            for labels, value in inner.items():
                key = frozenset((k, v) for k, v in labels if k in by)
                groups.setdefault(key, []).append(value)
            return {key: {"sum": sum, "max": max, "min": min}[name](values) for key, values in groups.items()}
        if name == "rate":
            self.take("(")
            series = self.selector(self.take())
            self.take("[")
            self.take()
            self.take("]")
            self.take(")")
            return series(self.rate)
        if name == "histogram_quantile":
            self.take("(")
            quantile = float(self.take())
            self.take(",")
            inner = self.expression()
            self.take(")")
            return self.quantile(quantile, inner)
        return self.selector(name)(lambda key: self.scrapes[self.at][1].get(key))

    def names(self):
        self.take("(")
        names = [self.take()]
        while self.peek() == ",":
            self.take()
            names.append(self.take())
        self.take(")")
        return names

    def selector(self, name):
        tests = []
        if self.peek() == "{":
            self.take()
            while self.peek() != "}":
                label, how, value = self.take(), self.take(), self.take().strip('"')
                tests.append((label, how, value))
                if self.peek() == ",":
                    self.take()
            self.take("}")

        def matches(key):
            labels = dict(key[1])
            for label, how, value in tests:
                found = labels.get(label, "")
                good = bool(re.fullmatch(value, found)) if "~" in how else found == value
                if good == how.startswith("!"):
                    return False
            return key[0] == name

        def evaluate(value_of):
            result = {}
            for key in self.scrapes[self.at][1]:
                if matches(key) and (value := value_of(key)) is not None:
                    result[key[1]] = value
            return result

        return evaluate

    def rate(self, key):
        now, samples = self.scrapes[self.at]
        then, before = next(scrape for scrape in self.scrapes if scrape[0] >= now - RANGE)
        if now <= then or key not in before:
            return None
        return max(0.0, samples[key] - before[key]) / (now - then)

    @staticmethod
    def quantile(quantile, series):
        groups = {}
        for labels, value in series.items():
            le = dict(labels)["le"]
            rest = frozenset((k, v) for k, v in labels if k != "le")
            groups.setdefault(rest, []).append((math.inf if le == "+Inf" else float(le), value))
        result = {}
        for rest, buckets in groups.items():
            buckets.sort()
            total = buckets[-1][1]
            if total <= 0:
                continue
            rank, low, below = quantile * total, 0.0, 0.0
            for le, value in buckets:
                if value >= rank:
                    share = (rank - below) / (value - below) if value > below else 1.0
                    result[rest] = low if math.isinf(le) else low + (le - low) * share
                    break
                low, below = le, value
        return result


def legend(pattern, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda match: dict(labels).get(match[1], ""), pattern)


def series_of(panel, scrapes):
    """{legend: [(time, value)]}"""
    lines = {}
    for target in panel["targets"]:
        steps = [len(scrapes) - 1] if target.get("instant") else range(len(scrapes))
        for at in steps:
            for labels, value in Query(target["expr"], scrapes, at).whole().items():
                name = legend(target["legendFormat"], labels)
                lines.setdefault(name, []).append((scrapes[at][0], value))
    return lines


def shown(value, unit):
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:.3g}" + {"ops": "/s", "reqps": "/s"}.get(unit, "")


def drawn(panel, lines, width, height):
    """The inside of a panel, as HTML."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "stat":
        only_name = panel["options"].get("textMode") == "name"
        cells = "".join(
            f"<div class=stat><b>{html.escape(name) if only_name else shown(points[-1][1], unit)}</b>"
            f"<span>{'' if only_name else html.escape(name)}</span></div>"
            for name, points in sorted(lines.items())
        )
        return f"<div class=stats>{cells or 'no data'}</div>"
    drawn_lines = {name: points for name, points in lines.items() if any(value for _, value in points)} or lines
    top = max((value for points in drawn_lines.values() for _, value in points), default=0) or 1
    times = [moment for points in drawn_lines.values() for moment, _ in points] or [0, 1]
    start, end = min(times), max(max(times), min(times) + 1)
    w, h = width - 70, height - 75
    paths, labels = [], []
    for index, (name, points) in enumerate(sorted(drawn_lines.items())):
        colour = COLOURS[index % len(COLOURS)]
        spots = " ".join(f"{60 + (t - start) / (end - start) * w:.1f},{10 + (1 - v / top) * h:.1f}" for t, v in points)
        paths.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{spots}"/>')
        if len(points) == 1:
            x, y = spots.split(",")
            paths.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        labels.append(f'<span style="color:{colour}">● {html.escape(name)}</span>')
    ticks = "".join(
        f'<line x1=60 x2={60 + w} y1={10 + h * (1 - part)} y2={10 + h * (1 - part)} stroke="#333"/>'
        f'<text x=55 y={14 + h * (1 - part)} text-anchor=end>{shown(top * part, unit)}</text>'
        for part in (0, 0.5, 1)
    )
    return f"<svg width={width} height={h + 20}>{ticks}{''.join(paths)}</svg><p>{' '.join(labels) or 'no data'}</p>"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("url", help="where the operator shows its metrics")
    arguments.add_argument("--seconds", type=int, default=30, help="for how long to scrape")
    arguments.add_argument("--out", default="dashboard", help="the beginning of the names of page and picture")
    options = arguments.parse_args()

    scrapes = []
    for _ in range(options.seconds):
        try:
            scrapes.append((time.time(), scrape(options.url)))
        except OSError as error:
            print(f"no scrape: {error}", file=sys.stderr)
        time.sleep(1)
    if len(scrapes) < 2:
        sys.exit(f"{options.url} can't be scraped")

    column, row, empty, parts = 52, 34, set(), []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        lines = series_of(panel, scrapes)
        if not lines:
            empty.add(panel["title"])
        width, height = place["w"] * column - 8, place["h"] * row - 8
        parts.append(
            f'<section style="left:{place["x"] * column}px;top:{place["y"] * row}px;width:{width}px;height:{height}px">'
            f"<h2>{html.escape(panel['title'])}</h2>{drawn(panel, lines, width, height)}</section>"
        )
    style = (
        "body{background:#111217;color:#ccccdc;font:12px sans-serif;margin:8px}section{position:absolute;background:#181b1f;"
        "border:1px solid #2c3235;overflow:hidden}h2{font-size:13px;margin:6px 8px}p{margin:2px 8px}text{fill:#999}"
        ".stats{display:flex;gap:24px;padding:8px}.stat b{font-size:24px;display:block;color:#73bf69}"
    )
    page = pathlib.Path(f"{options.out}.html").resolve()
    page.write_text(f"<!doctype html><meta charset=utf-8><title>Lessor</title><style>{style}</style>{''.join(parts)}")
    print(f"page: {page}; no data in: {', '.join(sorted(empty)) or 'none'}")

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no headless browser here: install the Debian package chromium-headless-shell")
    picture = page.with_suffix(".png")
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1270,1460",
         f"--screenshot={picture}", page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )
    print(f"picture: {picture}, {picture.stat().st_size} bytes")
    if missing := empty & NEVER_EMPTY:
        sys.exit(f"these panels have no data: {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
