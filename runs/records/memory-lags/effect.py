"""Draw effect.png, differences to log-spaced half-lives: `python runs/records/memory-lags/effect.py`."""

from pathlib import Path

from matplotlib.figure import Figure

from plkernel.analysis.figures.style import INK, PAGE_WIDTH, legend_below, line_style, plain_ticks, rendered, style
from plkernel.results.comparison import compare
from plkernel.results.statistics import difference_curves, pointwise_band
from plkernel.results.study import read_study

HERE = Path(__file__).resolve().parent
ARMS = {"short-frozen": "short, frozen", "short": "short", "long": "long", "law": "the law of the data"}
PANELS = {
    "mixture of lags, exponent 0.7": ("memory-lags", "_lags-0.7"),
    "mixture of lags, exponent 1.3": ("memory-lags", "_lags-1.3"),
    "first-order Markov chain": ("memory-markov", ""),
    "source code": ("memory-text", "_ema"),
}
with style():
    figure = Figure(figsize=(PAGE_WIDTH, 5.2))
    for axes, (title, (record, block)) in zip(
        figure.subplots(2, 2, sharex=True, sharey=True).flat, PANELS.items(), strict=True
    ):
        study = read_study(HERE.parent / record)
        tried = {len(choice.losses) for choice in compare(study).tuning.values()}
        axes.set_title(title + "".join(f", each at the best of {number} rates tried" for number in tried))
        axes.axhline(0, color=INK, lw=0.6)
        for index, arm in enumerate(ARMS):
            if f"{arm}{block}" in study.arms:
                curves = difference_curves(study.curves(f"{arm}{block}"), study.curves(f"log-spaced{block}"))
                band, look = pointwise_band([*curves.values()]), line_style(index)
                shown = band.at > 0
                axes.plot(band.at[shown] / 1e6, band.mean[shown], lw=1.5, label=ARMS[arm], **look)
                low, high = band.low[shown], band.high[shown]
                axes.fill_between(band.at[shown] / 1e6, low, high, color=look["color"], alpha=0.15, lw=0)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set_yticks([-0.1, -0.01, 0, 0.01, 0.1], ["-0.1", "-0.01", "0", "0.01", "0.1"])
        plain_ticks(axes.xaxis)
    for axes in figure.axes[2:]:
        axes.set_xlabel("training bytes read (MB)")
    figure.supylabel("bits per byte minus log-spaced", fontsize=8)
    legend_below(figure, [*ARMS.values()])
    (HERE / "effect.png").write_bytes(rendered(figure, ["png"])["png"])
