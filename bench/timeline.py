#!/usr/bin/env python3
"""Draws one step of a trace as an SVG: what the training thread does, and beside it each bucket's communication.

    python3 bench/timeline.py TRACE STEP >step.svg
"""

import json
import sys
from html import escape

COLORS = {
    "loading": "#7f7f7f",
    "forward": "#2ca02c",
    "loading and forward": "#2ca02c",
    "backward": "#1f77b4",
    "waiting": "#d62728",
    "optimizer": "#9467bd",
    "gradients_ready": "#ff7f0e",
}
WIDTH, ROW, LEFT = 1000, 16, 330


def drawn(events, step):
    """Returns the lines of the picture: a group of rows a rank."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    hosts = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    spans = [e for e in events if e.get("ph") == "X" and e.get("args", {}).get("step") == step and e["name"] in COLORS]
    first = min(e["ts"] for e in spans)
    scale = (WIDTH - LEFT - 10) / (max(e["ts"] + e["dur"] for e in spans) - first)
    tracks = sorted({(e["pid"], e["tid"]) for e in spans})
    y, lines, rank = 0, [], None
    for track in tracks:
        if track[0] != rank:
            rank = track[0]
            y += 2 * ROW
            lines.append(f'<text x="4" y="{y - 4}" font-weight="bold">{escape(hosts[rank])}</text>')
        lines.append(f'<text x="4" y="{y + ROW - 4}">{escape(names[track])}</text>')
        for e in (e for e in spans if (e["pid"], e["tid"]) == track):
            x, w = LEFT + (e["ts"] - first) * scale, max(e["dur"] * scale, 0.5)
            box = f'<rect x="{x:.1f}" y="{y + 2}" width="{w:.1f}" height="{ROW - 4}" fill="{COLORS[e["name"]]}">'
            lines.append(f"{box}<title>{escape(e['name'])}: {e['dur'] / 1000:.1f} ms</title></rect>")
        y += ROW
    y += ROW
    x = LEFT
    for name in dict.fromkeys(e["name"] for e in sorted(spans, key=lambda e: list(COLORS).index(e["name"]))):
        lines.append(f'<rect x="{x}" y="{y + 3}" width="10" height="10" fill="{COLORS[name]}"/>')
        lines.append(f'<text x="{x + 14}" y="{y + ROW - 4}">{escape(name)}</text>')
        x += 30 + 7 * len(name)
    lines.append(f'<text x="4" y="{y + ROW - 4}">one step: {(WIDTH - LEFT - 10) / scale / 1000:.0f} ms</text>')
    return lines, y + 2 * ROW


def main():
    """Reads the trace and prints the picture."""
    with open(sys.argv[1]) as file:
        events = json.load(file)["traceEvents"]
    lines, height = drawn(events, int(sys.argv[2]))
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    )
    print('<rect width="100%" height="100%" fill="white"/>')
    print("\n".join(lines))
    print("</svg>")


if __name__ == "__main__":
    main()
