"""The row of a run in TensorBoard's table of hyperparameters: the same columns for every run of every study."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plkernel.models.words import NOT_CAUSAL
from plkernel.spec.arm import IN_THE_STUDY, Arm
from plkernel.spec.condition import DEFAULT_SCHEMES

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Value = str | float
METRICS = {
    "final_val_bpb": "final validation, bits per byte",
    "best_val_bpb": "best validation, bits per byte",
    "test_bpb": "test, bits per byte",
}
GROUP = "when_ended"
FIRST = ("arm", "gain", "learning_rate", "patching", "seed")
"""Columns that are shown before any is chosen; TensorBoard shows five."""
ABSENT = "-"
OF_THE_MODEL = ("kind", "dim", "layers", "gain", "parameters")
OF_THE_TRAINING = ("learning_rate", "weight_decay", "batch", "context")
OTHERWISE = (*IN_THE_STUDY, "placement", "scheme", "scheme_options", "learning_rate", "rates", "model", "corpus")
"""Options of an arm that are no columns of their own: what they come to is, or they change no number of a run."""
NODES_AS_NUMBERS = ("node_rates", "node_multipliers")


def columns(config: Mapping[str, Any]) -> dict[str, Value]:
    """What a run was made of, from its config.json: name and value, a number or a text by the name alone."""
    model, arm, train = config["model"], config["arm_options"], config["train"]
    return {
        "arm": config["arm"],
        "seed": config["seed"],
        "corpus": config["corpus"]["name"],
        **{name: model[name] for name in OF_THE_MODEL},
        "patching": _patching(model["patching"]),
        "scheme": arm.get("scheme") or DEFAULT_SCHEMES[model["kind"]],
        "placement": arm.get("placement") or "of the scheme",
        **{name: train[name] for name in OF_THE_TRAINING},
        **{name: _option(name, arm.get(name)) for name in _options()},
    }


def write(writer: "SummaryWriter", config: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Add the run's columns and its results to the events of the run itself, at its last step."""
    from torch.utils.tensorboard.summary import hparams

    metrics = {f"{GROUP}/{name}": result[name] for name in METRICS}
    experiment, start, end = hparams(columns(config), metrics)
    _describe(experiment)
    for summary in (experiment, start, end):
        writer._get_file_writer().add_summary(summary, result["steps"])
    for tag, value in metrics.items():
        writer.add_scalar(tag, value, result["steps"])


def _describe(experiment: Any) -> None:
    """Name the metrics, and mark the columns to show first, in the summary that says which there are."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data = experiment.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(data.content)
    for column in content.experiment.hparam_infos:
        column.differs = column.name in FIRST
    for metric in content.experiment.metric_infos:
        metric.display_name = METRICS[metric.name.tag.removeprefix(f"{GROUP}/")]
    data.content = content.SerializeToString()


def _options() -> list[str]:
    """The options of an arm that are columns of their own."""
    return [name for name in Arm.model_fields if name not in (*OTHERWISE, *NODES_AS_NUMBERS)]


def _option(name: str, value: Any) -> Value:
    """A number where the option always is one, else text: a column of both would be sorted as neither."""
    if isinstance(Arm.model_fields[name].default, float):
        return float(value)
    if value is None:
        return ABSENT
    return f"{value:g}" if isinstance(value, float) else str(value)


def _patching(patching: Mapping[str, Any]) -> str:
    if patching["size"] == 1:
        return "none"
    label = f" ({NOT_CAUSAL})" if patching["mode"] == "published" else ""
    return f"{patching['mode']}, {patching['size']} bytes{label}"
