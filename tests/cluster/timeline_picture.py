#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the events of a timeline (capstan-RUN.pftrace) as an SVG: a row for each
track that has some, and the way of the first push of each step.

Usage: timeline_picture.py FILE [STEP] > docs/timeline.svg

docs/timeline.svg is `capstan local --ps 1 --workers 2 --lane tcp --trace-steps
100:101` of a perceptron of 784, 512, 512 and 10 units, with a batch of 128, on two
cores.
"""
import html
import sys

from cluster_timeline import read

WIDTH, LEFT, ROW, GAP = 960, 150, 18, 5
COLORS = {"forward": "#4c78a8", "backward": "#2f4b7c", "wait": "#d9d9d9",
          "input": "#bab0ac",
          "push": "#f58518", "queue": "#eeca3b", "sum": "#b279a2",
          "apply": "#54a24b", "reply": "#e45756", "checkpoint": "#9d755d",
          "lookup": "#72b7b2", "rows": "#439894"}


def rows_of(slices):
    """(process, track, lane) in the file's order: its lanes one below the other."""
    found = {}
    for one in slices:
        found.setdefault((one["process"], one["track"], one["lane"]), []).append(one)
    return found


def main(path, step=None):
    _, slices = read(path)
    if step:
        slices = [one for one in slices if one["step"] == int(step)]
    begin = min(one["begin"] for one in slices)
    end = max(one["end"] for one in slices)
    scale = (WIDTH - LEFT - 10) / (end - begin)
    rows, places, label, y = rows_of(slices), {}, None, 26
    out = []
    for (process, track, _), ones in rows.items():
        if (process, track) != label:
            y += GAP if label and label[0] == process else 3 * GAP
            out.append(f'<text x="4" y="{y + 12}">{html.escape(process)}: {track}</text>')
            label = process, track
        for one in sorted(ones, key=lambda one: (one["begin"], -one["end"])):
            x = LEFT + (one["begin"] - begin) * scale
            width = max((one["end"] - one["begin"]) * scale, 1)
            inset = 4 if one["name"] == "wait" else 0
            for flow in one["flows"] + one["ends"]:
                places.setdefault(flow, []).append((x, y + ROW / 2))
            out.append(f'<rect x="{x:.1f}" y="{y + inset}" width="{width:.1f}" '
                       f'height="{ROW - 2 - 2 * inset}" fill="{COLORS[one["name"]]}"/>')
        y += ROW
    shown = {}
    for one in slices:
        if one["name"] == "push":
            shown.setdefault((one["process"], one["step"]), one["flows"][0])
    for flow in shown.values():
        points = " ".join(f"{x:.1f},{y:.0f}" for x, y in sorted(places[flow]))
        out.append(f'<polyline points="{points}" fill="none" stroke="#000" '
                   'stroke-width="1.2"/>')
    x = LEFT
    for name in dict.fromkeys(one["name"] for one in slices):
        out.append(f'<rect x="{x}" y="4" width="12" height="12" fill="{COLORS[name]}"/>'
                   f'<text x="{x + 16}" y="14">{name}</text>')
        x += 90
    out.append(f'<text x="{LEFT}" y="{y + 18}">{(end - begin) / 1e6:.2f} ms</text>')
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 26:.0f}" '
          'font-family="sans-serif" font-size="11">\n'
          f'<rect width="{WIDTH}" height="{y + 26:.0f}" fill="#fff"/>\n'
          + "\n".join(out) + "\n</svg>")


if __name__ == "__main__":
    main(*sys.argv[1:])
