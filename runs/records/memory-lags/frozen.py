"""Draw docs/images/frozen.png from the rows beside this file:
`python runs/records/memory-lags/frozen.py`.
"""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from plkernel.analysis.figures.style import COLOURS, GREY, INK, rendered, style

HERE = Path(__file__).resolve().parent
rows = [json.loads(line) for line in (HERE / "rows.jsonl").read_text().splitlines()]
with style():
    figure = Figure(figsize=(6.4, 3.0))
    axes = figure.subplots()
    axes.axhline(0, color=GREY, lw=1)
    axes.annotate(
        "the best possible prediction", (0.02, 0.0), (0, -9), textcoords="offset points", color=GREY
    )
    for arm, name, colour, above in (
        ("short-frozen", "half-lives start at\n1 to 8 bytes, frozen", COLOURS[1], 0),
        ("short", "1 to 8 bytes, learnt", COLOURS[0], 7),
        ("log-spaced", "1 to 512 bytes, learnt", INK, -5),
    ):
        curves = [row["curve"] for row in rows if row["arm"] == f"{arm}_lags-0.7"]
        read, bits = (
            np.array(curves[0]["bytes"]) / 1e6,
            np.array([curve["excess_bpb"] for curve in curves]),
        )
        axes.plot(read, bits.mean(axis=0), color=colour, lw=2)
        axes.fill_between(read, bits.min(axis=0), bits.max(axis=0), color=colour, alpha=0.15, lw=0)
        look = {
            "textcoords": "offset points",
            "va": "center",
            "color": colour,
            "fontweight": "bold",
        }
        axes.annotate(
            name, (read[-1], bits.mean(axis=0)[-1]), (5, above), annotation_clip=False, **look
        )
    axes.set(xlim=(0, read[-1]), ylim=(-0.025, 0.3), xlabel="training bytes read (MB)")
    axes.set_ylabel("bits per byte above the best possible")
    axes.set_title(
        "Half-lives that are too short cost little if they are learnt, much if frozen",
        fontsize=10,
        fontweight="bold",
    )
    (HERE.parents[2] / "docs" / "images" / "frozen.png").write_bytes(
        rendered(figure, ["png"])["png"]
    )
