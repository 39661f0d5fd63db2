"""The corpus of a study, as a spec describes it."""

from typing import Annotated, Any

from pydantic import Field

from plkernel.config.model import Positive, Section

Fraction = Annotated[float, Field(gt=0, lt=0.5)]


class CorpusSpec(Section):
    """Which bytes, and how they are divided into train, validation and test blocks."""

    name: str = "stdlib"
    """stdlib, a path, hf:NAME[:CONFIG[:SPLIT]], wiki-pt or fineweb."""
    max_bytes: Positive | None = None
    """Take no more than this many bytes."""
    separator: str = "\n"
    """The byte between documents."""
    column: str | None = None
    """The text column of a table."""
    validation: Fraction = 0.05
    """Share of the corpus that is held out for validation."""
    test: Fraction = 0.05
    """Share of the corpus that is held out for the test figure."""
    follow_links: bool = False
    """Read symbolic links that lead out of a folder too, and linked folders."""

    @property
    def reading(self) -> dict[str, Any]:
        """What `corpora.load` takes beside the name."""
        return self.model_dump(include={"max_bytes", "separator", "column", "follow_links"})
