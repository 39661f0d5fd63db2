"""What stands under a chart, and what those hear who cannot see it."""

from collections.abc import Iterable

from plkernel.analysis.figures.curves import FEWEST_FOR_WHOLE
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import ArmResult

CONVERGENCE_OF = "Validation bits per byte against training bytes read, a line per arm and seed"
DIFFERENCES_OF = (
    "Difference of each arm to the one it is compared with, against training bytes read, with its intervals"
)
GLANCE_OF = "Validation bits per byte of every arm against training bytes read, and each arm minus the baseline"
TRUNCATION_OF = "Bits per byte of every arm against how many of the last bytes are given, and what is lost"
INFLUENCE_OF = "Influence of one byte on the predictions of every arm, against its lag"
KERNELS_OF = "Kernels of every arm over lag, before training and after, beside the power law of the arm"
HALF_LIVES_OF = "Half-lives of every arm by block of the model, before training and after"
PUBLISHED_OF = "The three conditions of the published study: convergence, kernels and half-lives"

KERNELS = (
    "What an input still weighs t bytes later in the recurrent branch of a block (root mean square over its entries), "
    "1 at lag 1, so that constants of an initialisation do not count. Grey dashes: at initialisation; colour: after "
    "training. Thin lines are blocks of the model, thick lines their mean (geometric, over blocks and seeds). The "
    "broad grey line is the power law of the arm, stated for the plain sum over channels. Signs are random at "
    "initialisation: channels then add up as squares, and where the density of half-lives carries the law it counts "
    "half."
)
HALF_LIVES = (
    "Half-lives of the channels by block of the model, in bytes: the box holds the middle half with the median in it, "
    "the line reaches from the shortest to the longest. Grey: at initialisation; colour: after training. Boxes are "
    "geometric means over seeds, the ends of the lines the outermost of all seeds."
)
TRUNCATION = (
    "The same bytes of the test text, predicted from the last 1, 2, 4 .. bytes before them. First bits per byte, then "
    "what is lost against the whole context. Lines are means over seeds, bands the 95 % t interval of the mean. The "
    "broad grey line, where there is one, is the best that can be done: the source of the text is known."
)
INFLUENCE = (
    "How far the prediction of a byte moves (Kullback-Leibler divergence, in bits) when the byte d before it in the "
    "test text is replaced by another, drawn by its frequency; what is a millionth of the most or less is not shown. "
    "Lines are means over seeds, bands the 95 % t interval of the mean. The grey line, where there is one, is the "
    "mutual information I(d) of the text, whose law is known: it counts pairs alone, and influence is only what the "
    "other bytes do not tell already."
)

SIMULTANEOUS = (
    "The lighter band is simultaneous: the whole true curve lies inside with 95 %, so a curve departs from zero where "
    "the lighter band does. "
)


def convergence(arms: Iterable[ArmResult], grams: bool) -> str:
    """Of both panels of bits per byte."""
    counts = " Dotted: n-grams, counts of n bytes of the same training text." * grams
    return (
        "Convergence: validation bits per byte against the training bytes read. Thin lines are seeds, thick lines "
        f"their mean; step 0, where nothing is learnt yet, is left out.{counts}{leaks(arms)}"
    )


def differences(arms: Iterable[ArmResult], seeds: int) -> str:
    """Of the panels of differences, for the largest number of seeds that a panel has."""
    text = (
        "Difference during training, paired by seed. Thin lines are seeds, the thick line is their mean, the darker "
        "band its 95 % t interval at each position on its own. "
    )
    text += SIMULTANEOUS if seeds >= FEWEST_FOR_WHOLE else "That band does not hold for the curve as a whole. "
    return f"{text}Bands are cut where they leave the frame; one seed has none.{leaks(arms)}"


def at_a_glance(arms: Iterable[ArmResult], seeds: int, base: str) -> str:
    """Of bits per byte and differences side by side."""
    held = "for the whole curve at once" if seeds >= FEWEST_FOR_WHOLE else "at each position on its own"
    bands = f"; bands are 95 % intervals {held}, cut where they leave the frame" if seeds > 1 else ""
    return (
        f"Means over seeds, first as they are, then minus {base} seed by seed{bands}. Untick an arm to hide it, rest "
        f"on a point to read it.{leaks(arms)}"
    )


def left_out(arms: int, most: int) -> str:
    """What a caption says where not all arms are shown."""
    return f" Shown are the first {most} of {arms} arms; the table has all." if arms > most else ""


def leaks(arms: Iterable[ArmResult]) -> str:
    """What a caption says where an arm leaks; where others do not, the chart itself says which."""
    causal = [arm.causal for arm in arms if arm.seeds]
    if all(causal):
        return ""
    return f" Where marked: {NOT_CAUSAL}." if any(causal) else f" {NOT_CAUSAL.capitalize()}."
